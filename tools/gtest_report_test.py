#!/usr/bin/env python3
"""Tests of tools/gtest_report.py on reports written by hand."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(__file__).with_name("gtest_report.py")
CASES = """<?xml version="1.0"?><testsuites><testsuite name="S">
<testcase name="Good" status="run" result="completed" classname="S"/>
<testcase name="Bad" status="run" result="completed" classname="S">
  <failure message="x.cc:3&#x0A;Expected equality"><![CDATA[src/x.cc:3\nExpected equality of these values:\n  1\n  2]]></failure>
</testcase>
<testcase name="Away" status="run" result="skipped" classname="S"><skipped message="x.cc:9&#x0A;no model"/></testcase>
<testcase name="DISABLED_Off" status="notrun" result="suppressed" classname="S"/>
<testcase name="Filtered" status="notrun" result="suppressed" classname="S"/>
</testsuite></testsuites>"""
ALL_GOOD = CASES[:CASES.index('<testcase name="Bad"')] + "</testsuite></testsuites>"


def report(xml, exit_code, log=""):
    with tempfile.TemporaryDirectory() as folder:
        path, log_path = pathlib.Path(folder, "r.xml"), pathlib.Path(folder, "log")
        log_path.write_text(log)
        if xml is not None:
            path.write_text(xml)
        run = subprocess.run([sys.executable, str(TOOL), "test_x", str(path), str(exit_code), str(log_path)],
                             capture_output=True, text=True, check=True)
        return run.stdout.splitlines()


class GtestReport(unittest.TestCase):
    def test_counts_and_reasons(self):
        lines = report(CASES, 1)
        self.assertEqual(lines[-1], "counts 1 1 2")
        self.assertIn("SKIP test_x S.Away: no model (x.cc:9)", lines)
        self.assertIn("SKIP test_x S.DISABLED_Off: disabled in the source", lines)
        self.assertIn("FAIL test_x S.Bad: Expected equality of these values: 1 2 (x.cc:3)", lines)

    def test_crash_is_one_failure_and_names_the_test(self):
        lines = report(None, 134, "[ RUN      ] S.A\n[       OK ] S.A (0 ms)\n[ RUN      ] S.B\n")
        self.assertEqual(lines[-1], "counts 0 1 0")
        self.assertIn("exit code 134 in S.B", lines[0])

    def test_torn_report_is_a_crash(self):
        self.assertEqual(report(CASES[:200], 137, "[ RUN      ] S.A\n")[-1], "counts 0 1 0")

    def test_leak_found_at_exit_is_a_failure(self):
        self.assertEqual(report(ALL_GOOD, 23)[-1], "counts 1 1 0")

    def test_all_good(self):
        self.assertEqual(report(ALL_GOOD, 0), ["counts 1 0 0"])


if __name__ == "__main__":
    unittest.main()
