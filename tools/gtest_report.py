#!/usr/bin/env python3
"""Sums up one gtest XML report for ./test: `gtest_report.py LABEL REPORT EXIT_CODE LOG`.

Prints a line `SKIP binary suite.test: reason` or `FAIL binary suite.test: message` for each such test, then
`counts PASSED FAILED SKIPPED`. A binary that died before it wrote its report is one failed test.
"""
import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def first_line(message):
    """The first line that says something: gtest puts file and line before it."""
    lines = [line.strip() for line in (message or "").splitlines() if line.strip()]
    if len(lines) > 1 and (".cc:" in lines[0] or ".h:" in lines[0]):
        return " ".join(lines[1:6]) + f" ({pathlib.PurePath(lines[0]).name})"
    return lines[0] if lines else "no message"


def outcome(case):
    """(what, reason) of one test case; what is 'passed', 'failed', 'skipped' or None when the filter left it out."""
    if case.get("status") != "run":
        if ".DISABLED_" in f".{case.get('name')}" or ".DISABLED_" in f".{case.get('classname')}":
            return "skipped", "disabled in the source"
        return None, ""
    failure = case.find("failure")
    if failure is not None:
        return "failed", first_line(failure.text or failure.get("message"))
    skip = case.find("skipped")
    if skip is not None:
        return "skipped", first_line(skip.text or skip.get("message"))
    return "passed", ""


def main(label, report, exit_code, log):
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    try:
        cases = ElementTree.parse(report).getroot().iter("testcase")
    except (OSError, ElementTree.ParseError):
        cases = None
    if cases is None:
        running = [line for line in pathlib.Path(log).read_text(errors="replace").splitlines() if line.startswith("[ RUN")]
        last = running[-1].split("]")[1].strip() if running else "its first test"
        print(f"FAIL {label}: ended with exit code {exit_code} in {last}, log in {log}")
        print("counts 0 1 0")
        return
    for case in cases:
        what, reason = outcome(case)
        if what is None:
            continue
        counts[what] += 1
        if what != "passed":
            word = "FAIL" if what == "failed" else "SKIP"
            print(f"{word} {label} {case.get('classname')}.{case.get('name')}: {reason}")
    # Sanitizers report at exit (leaks): tests pass, the process does not.
    if exit_code != "0" and counts["failed"] == 0:
        counts["failed"] = 1
        print(f"FAIL {label}: exit code {exit_code} after all tests passed, log in {log}")
    print(f"counts {counts['passed']} {counts['failed']} {counts['skipped']}")


if __name__ == "__main__":
    main(*sys.argv[1:])
