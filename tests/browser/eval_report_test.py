#!/usr/bin/env python3
"""The page of `kvarto eval` in a browser: `tests/browser/eval_report_test.py KVARTO`.

The program makes a report of a tiny model; its page is opened as a file. Every figure on it must be the one in report.json,
which is read here without the page's code.
"""
import decimal
import json
import pathlib
import subprocess
import sys
import tempfile

from browser import DESK, KEYS, PHONE, ROOT, Browser, main, wait_for

MODEL = ROOT / "tests" / "tiny" / "tiny_llama.gguf"
LOUD = "noise=-10"  # a planted fault that nobody can miss
WORDS = "river stone market winter garden letter window silver morning bridge paper forest".split()


def made_report(kvarto, folder):
    text = folder / "text.txt"
    text.write_text(" ".join(f"The {WORDS[i % 12]} and the {WORDS[i * 7 % 11]} of the {WORDS[i * i % 12]}.\n" for i in range(200)), encoding="utf-8")
    out = folder / "out"
    done = subprocess.run([kvarto, "eval", MODEL, "--quick", "--text", text, "--context", "512", "--samples", "2", "--output", out,
                           "--candidate", f"kv=bf16,{LOUD}"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"kvarto eval ended with {done.returncode}: {done.stderr[-2000:]}")
    return out


class Report:
    def __init__(self, folder):
        self.page = (folder / "report.html").as_uri()
        self.json = json.loads((folder / "report.json").read_text(encoding="utf-8"))

    def at(self, pointer):
        value = self.json
        for key in pointer.split("/")[1:]:
            value = value[int(key)] if isinstance(value, list) else value[key]
        return value


def opened(report, browser, size=DESK, dark=False):
    browser.look(size, dark)
    browser.driver.get(report.page)


def reads_as(words, value):
    """Whether a number as a person reads it is `value`, rounded to the digits that are shown."""
    if value is None or isinstance(value, str):
        return words == ("-" if value is None else value)
    shown = decimal.Decimal(words.removesuffix(" %"))
    exact = decimal.Decimal(value) * (100 if words.endswith(" %") else 1)
    return abs(shown - exact) <= decimal.Decimal("0.5000001") * decimal.Decimal(10) ** shown.as_tuple().exponent


# --- the checks, in order of appearance


def nothing_is_loaded_and_nothing_complains(report, browser):
    browser.requested(), browser.complaints()
    opened(report, browser)
    assert browser.requested() == [report.page]
    assert browser.complaints() == []
    assert browser.run("return document.scripts.length + document.images.length + document.querySelectorAll('link').length") == 0


def figures_are_those_of_the_json(report, browser):
    opened(report, browser)
    shown = browser.run("return [...document.querySelectorAll('[data-at]')].map((e) => [e.dataset.at, e.textContent])")
    assert len(shown) >= 40, len(shown)
    wrong = [(pointer, words, report.at(pointer)) for pointer, words in shown if not reads_as(words, report.at(pointer))]
    assert wrong == [], wrong
    pointers = {pointer for pointer, _ in shown}
    for i, setting in enumerate(report.json["settings"]):
        for j in range(len(setting["text"]["positions"])):
            assert f"/settings/{i}/text/positions/{j}/perplexity" in pointers, (i, j)
        for j in range(len(setting["families"])):
            assert f"/settings/{i}/families/{j}/right" in pointers, (i, j)
            assert setting["baseline"] or f"/settings/{i}/families/{j}/compared" in pointers, (i, j)
        for j in range(len(setting["retrieval_map"])):
            assert f"/settings/{i}/retrieval_map/{j}/right" in pointers, (i, j)
        if not setting["baseline"]:
            assert f"/settings/{i}/text/kl_mean_nats/value" in pointers and f"/settings/{i}/text/verdict" in pointers, i
            assert f"/settings/{i}/kv_bytes_per_token" in pointers, i
        for j in range(min(20, len(setting["changes"]))):
            assert f"/settings/{i}/changes/{j}/change" in pointers, (i, j)


def it_says_what_was_run(report, browser):
    opened(report, browser)
    run = report.json["run"]
    facts = browser.text(".facts")
    for words in (run["model"], run["fingerprint"], run["weight_types"], run["numerics"], f"seed {run['seed']}",
                  f"{run['context_tokens']} tokens", run["texts"][0]["sha256"], run["tasks_sha256"], f"{report.json['method']['resamples']} resamples"):
        assert words in facts, (words, facts)
    assert browser.text("h1") == f"kvarto eval: {run['model']}" and browser.driver.title == browser.text("h1")


def the_rule_is_that_of_the_json(report, browser):
    opened(report, browser)
    assert browser.run("return document.querySelector('.rule').open") is False
    browser.one(".rule summary").click()
    rows = [row.find_elements("css selector", "th, td") for row in browser.all(".rule tr") if row.find_elements("tag name", "td")]
    shown, of = [], ""
    for row in rows:
        subject, verdict, words = (cell.text for cell in row)
        shown += [] if subject == of else [f"Of {subject}:"]
        of = subject
        shown.append(f"{verdict} {words}")
    shown += [item.text for item in browser.all(".rule li")]
    assert shown == [" ".join(line.split()) for line in report.json["method"]["verdict_rule"].splitlines()], shown


def the_conclusion_comes_first(report, browser):
    opened(report, browser)
    lines = [e.text for e in browser.all("h1 ~ p.conclusion")]
    assert [line.split(": ")[0] for line in lines] == ["kv=bf16", LOUD] and "unsafe for texts" in lines[1], lines
    # A tiny model solves nothing, and that is said with what to do about it.
    assert all("take a larger model" in line for line in lines), lines
    below = browser.run("return document.querySelector('h2').getBoundingClientRect().top - document.querySelector('.conclusion').getBoundingClientRect().top")
    assert below > 0, below


def verdicts_are_words(report, browser):
    opened(report, browser)
    rows = {row.find_element("tag name", "th").text: row.find_element("tag name", "td").text
            for row in browser.all("[aria-label=Verdicts] tbody tr")}
    loud = next(s for s in report.json["settings"] if s["name"] == LOUD)
    assert set(rows) == {"kv=bf16", LOUD} and rows[LOUD] == loud["text"]["verdict"] == "unsafe", rows
    colours = browser.run("return [...document.querySelectorAll('.badge')].map((e) => [e.textContent, getComputedStyle(e).backgroundColor])")
    assert len({colour for _, colour in colours}) == len({words for words, _ in colours}), colours


def charts_say_what_they_show(report, browser):
    opened(report, browser)
    labels = [e.get_attribute("aria-label") for e in browser.all("svg[role=img]")]
    candidates = [s for s in report.json["settings"] if not s["baseline"]]
    assert len(labels) >= 2 * len(candidates), labels
    for setting in candidates:
        label = next(x for x in labels if x.startswith(f"Divergence by position, {setting['name']}: "))
        for bucket in setting["text"]["positions"]:
            words = label.split(f"{bucket['from']}-{bucket['to'] - 1}: ")[1].split(",")[0]
            assert reads_as(words, bucket["kl_excess_nats"]), (label, bucket)
    sizes = browser.run("return [...document.querySelectorAll('svg')].map((e) => e.getBoundingClientRect().height)")
    assert min(sizes) > 100, sizes


def headings_step_down_one_at_a_time(report, browser):
    opened(report, browser)
    levels = browser.run("return [...document.querySelectorAll('h1, h2, h3, h4, h5, h6')].map((e) => Number(e.tagName[1]))")
    assert levels[0] == 1 and levels.count(1) == 1 and all(b <= a + 1 for a, b in zip(levels, levels[1:])), levels


def no_sideways_scrolling_on_a_phone(report, browser):
    for dark in (False, True):
        opened(report, browser, PHONE, dark)
        # Wide tables scroll inside of a region of their own; what is in them is meant to stick out.
        stuck = browser.run("""
            const page = document.scrollingElement;
            const out = page.scrollWidth > page.clientWidth ? [`page: ${page.scrollWidth}`] : [];
            for (const e of document.body.querySelectorAll("*")) {
              const box = e.getBoundingClientRect(), region = e.closest(".tables");
              if ((!region || e === region) && !e.closest("svg *") && (box.right > page.clientWidth + 1 || box.left < -1)) {
                out.push(`${e.tagName} ${e.className}: ${box.left} to ${box.right}`);
              }
            }
            return out;""")
        assert stuck == [], stuck


def wide_tables_scroll_by_keyboard(report, browser):
    opened(report, browser, PHONE)
    wide = browser.run("""
        const wide = [...document.querySelectorAll(".tables")].filter((e) => e.scrollWidth > e.clientWidth + 1);
        wide[0].focus();
        window.wide = wide[0];
        return [wide.length, document.activeElement === wide[0], wide.every((e) => e.tabIndex === 0 && e.ariaLabel !== "")];""")
    assert wide[0] >= 1 and wide[1:] == [True, True], wide
    browser.press(KEYS.ARROW_RIGHT)
    wait_for(lambda: browser.run("return window.wide.scrollLeft") > 0, "the table to scroll")


def no_barriers(report, browser):
    for size in (DESK, PHONE):
        for dark in (False, True):
            opened(report, browser, size, dark)
            browser.one(".rule summary").click()
            assert browser.barriers() == [], (size, dark, browser.barriers())


def colours_follow_the_system(report, browser):
    opened(report, browser)
    light = browser.run("return getComputedStyle(document.body).backgroundColor")
    opened(report, browser, dark=True)
    dark = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert sum(map(int, light[4:-1].split(","))) > 600 and sum(map(int, dark[4:-1].split(","))) < 150, (light, dark)


CHECKS = [nothing_is_loaded_and_nothing_complains, figures_are_those_of_the_json, it_says_what_was_run, the_rule_is_that_of_the_json,
          the_conclusion_comes_first, verdicts_are_words,
          charts_say_what_they_show, headings_step_down_one_at_a_time, no_sideways_scrolling_on_a_phone, wide_tables_scroll_by_keyboard,
          no_barriers, colours_follow_the_system]

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as a_folder:
        a_report = Report(made_report(str(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(a_folder)))
        a_browser = Browser(a_report.page)
        try:
            code = main(CHECKS, a_report, a_browser)
        finally:
            a_browser.close()
    sys.exit(code)
