#!/usr/bin/env python3
"""The dashboard of a real server under load: `tests/browser/dashboard_test.py KVARTO`.

Every number on the page must be the one in the text of /metrics of the same scrape, read here without the page's code.
"""
import json
import os
import re
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request

from browser import ROOT, PHONE, Browser, main, wait_for

KEY = "sk-browser-test"
MODEL = ROOT / "tests" / "tiny" / "tiny_llama.gguf"


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Server:
    def __init__(self, kvarto, *arguments, key=KEY):
        self.port, self.key = free_port(), key
        self.base = f"http://127.0.0.1:{self.port}"
        keys = ["--api-key", key] if key else []
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "LLAMA_"))}
        self.process = subprocess.Popen([kvarto, "serve", MODEL, "--port", str(self.port), "--kv-cache-memory-bytes", "2M", *keys, *arguments],
                                        cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: self.status("/health") == 200, "the server")

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def ask(self, path, body=None, headers=None, key=True):
        headers = dict(headers or {})
        if key and self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        request = urllib.request.Request(self.base + path, data=None if body is None else json.dumps(body).encode(), headers=headers)
        with urllib.request.urlopen(request, timeout=120) as reply:
            return reply.read().decode()

    def status(self, path, headers=None, key=True):
        assert self.process.poll() is None, f"the server ended with {self.process.returncode}"
        try:
            self.ask(path, headers=headers, key=key)
            return 200
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0


class Load:
    """Requests from a few threads until it is closed; half of them begin alike."""

    def __init__(self, server, threads=4):
        self.server, self.stopping, self.done, self.errors = server, threading.Event(), 0, []
        self.threads = [threading.Thread(target=self.work, args=(i,)) for i in range(threads)]
        for thread in self.threads:
            thread.start()

    def work(self, worker):
        number = 0
        while not self.stopping.is_set():
            number += 1
            beginning = "A common beginning of many words. " * 4 if number % 2 else f"{worker} {number} on its own. "
            try:
                self.server.ask("/v1/completions", {"prompt": beginning + f"Question {worker} {number}", "max_tokens": 24, "ignore_eos": True})
                self.done += 1
            except urllib.error.HTTPError as error:
                self.errors.append(error.read())
            except OSError as error:
                self.errors.append(error)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stopping.set()
        for thread in self.threads:
            thread.join()


def read_metrics(text):
    """{(name, frozenset of labels without engine and model_name): value}"""
    out = {}
    for line in text.splitlines():
        if line.startswith("#") or not line:
            continue
        name, labels, value = re.fullmatch(r"([^{ ]+)(?:\{(.*)\})? (\S+)", line).groups()
        pairs = re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels or "")
        out[name, frozenset(p for p in pairs if p[0] not in ("engine", "model_name"))] = float(value)
    return out


def total(metrics, name, **labels):
    return sum(v for (n, have), v in metrics.items() if n == name and set(labels.items()) <= have)


def share(part, whole):
    return part / whole if whole else None


DERIVED = {
    "blocks-used": lambda m: total(m, "kvarto:kv_blocks", state="open") + total(m, "kvarto:kv_blocks", state="active"),
    "blocks-cached": lambda m: total(m, "kvarto:kv_blocks", state="cached"),
    "hit-rate": lambda m: share(total(m, "vllm:prefix_cache_hits_total"), total(m, "vllm:prefix_cache_queries_total")),
    "ttft-mean": lambda m: share(total(m, "vllm:time_to_first_token_seconds_sum"), total(m, "vllm:time_to_first_token_seconds_count")),
    "tpot-mean": lambda m: share(total(m, "vllm:request_time_per_output_token_seconds_sum"),
                                 total(m, "vllm:request_time_per_output_token_seconds_count")),
}


def sign_in(server, browser, path="/", **how):
    browser.open(path, **how)
    browser.run("sessionStorage.setItem('kvarto-key', arguments[0])", server.key or "")
    browser.open(path, **how)
    wait_for(lambda: browser.run("return document.body.dataset.scrape"), "numbers")


# --- the checks, in order of appearance


def numbers_equal_the_metrics_of_the_same_scrape(server, browser):
    sign_in(server, browser)
    seen, generated = set(), set()
    with Load(server) as load:
        for _ in range(8):
            before = set(seen)
            scrape = wait_for(lambda: (lambda s: s if s not in before else None)(browser.run("return document.body.dataset.scrape")), "a new scrape")
            seen.add(scrape)
            # One script: nothing changes meanwhile.
            shown = browser.run("""return [document.body.dataset.scrape, [...document.querySelectorAll("[data-series], [data-derived]")].map(
                (e) => [e.dataset.series ?? null, e.dataset.derived ?? null, e.dataset.format, e.dataset.value, e.textContent])]""")
            metrics = read_metrics(server.ask(f"/metrics?scrape={shown[0]}"))
            assert len(shown[1]) > 15, shown
            for series, derived, form, value, text in shown[1]:
                wanted = metrics[series, frozenset()] if series else DERIVED[derived](metrics)
                if wanted is None:
                    assert value == "" and text == "–", (series, derived, value, text)
                    continue
                assert abs(float(value) - wanted) <= 1e-12 * abs(wanted), (shown[0], series, derived, value, wanted)
                if form == "count":
                    assert text == f"{round(wanted):,}", (series, derived, text, wanted)
                elif form == "percent":
                    assert abs(float(text.split()[0]) - 100 * wanted) <= 0.0501, (series, derived, text, wanted)
            generated.add(metrics["vllm:generation_tokens_total", frozenset()])
        assert load.done > 0 and load.errors == [], (load.done, load.errors[:3])
    assert len(generated) > 1, generated  # the load was seen


def the_map_counts_what_the_metrics_count(server, browser):
    sign_in(server, browser)
    with Load(server):
        for _ in range(3):
            state = json.loads(server.ask("/dashboard/state"))
            metrics = read_metrics(server.ask(f"/metrics?scrape={state['scrape']}"))
            letters = state["blocks"]["states"].lower()
            assert state["blocks"]["stride"] == 1 and len(letters) == state["blocks"]["total"]
            for letter, name in (("o", "open"), ("a", "active"), ("c", "cached"), (".", "free")):
                assert letters.count(letter) == total(metrics, "kvarto:kv_blocks", state=name), (name, state["scrape"])


def requests_are_listed(server, browser):
    sign_in(server, browser)
    reply = json.loads(server.ask("/v1/completions", {"prompt": "One more prompt of a few words", "max_tokens": 5, "ignore_eos": True}))
    row = wait_for(lambda: next((r.text for r in browser.all("#requests tbody tr") if reply["id"] in r.text), None), "its row")
    assert "length" in row and " 5 " in row and f" {reply['usage']['prompt_tokens']} " in row, row


def a_prompt_is_tried(server, browser):
    sign_in(server, browser)
    text = "A prompt that is long enough to fill a few blocks of the cache, and then some more words. " * 3
    cached = []
    for _ in range(2):
        browser.run("document.getElementById('try-prompt').value = arguments[0]; document.getElementById('try-tokens').value = 8", text)
        browser.run("document.getElementById('try-pieces').textContent = ''; document.getElementById('try-send').click()")
        wait_for(lambda: browser.all(".piece"), "the prompt's tokens")
        cached.append((len(browser.all(".piece.from-cache")), len(browser.all(".piece.computed"))))
        assert cached[-1] == (int(browser.text("#try-cached").replace(",", "")), int(browser.text("#try-computed").replace(",", ""))), (
            cached, browser.text("#try-cached"), browser.text("#try-computed"))
    assert cached[1][0] >= 16 and cached[1][0] > cached[0][0] and sum(cached[0]) == sum(cached[1]), cached


def nothing_came_from_elsewhere_and_nothing_complained(server, browser):
    """The last one: of all that the page did in the others, too."""
    sign_in(server, browser)
    urls = browser.requested()
    assert len(urls) > 100 and all(u.startswith((server.base, "data:")) for u in urls), urls
    complaints = [c for c in browser.complaints() if "401" not in c]  # before the key was known
    assert complaints == []


def no_sideways_scrolling_and_no_barriers(server, browser):
    for dark in (False, True):
        sign_in(server, browser, size=PHONE, dark=dark)
        assert browser.scrolls_sideways() == [], browser.scrolls_sideways()
        assert browser.barriers() == [], browser.barriers()


def others_are_refused(server, _):
    assert server.status("/", key=False) == 200  # holds no data
    assert server.status("/dashboard/state", key=False) == 401
    assert server.status("/metrics?scrape=1", key=False) == 401
    assert server.status("/metrics?scrape=999999") == 404
    for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1.evil.example"):
        for path in ("/", "/dashboard/state"):
            assert server.status(path, {"Host": host}) == 403, (host, path)
    assert server.status("/dashboard/state", {"Host": f"localhost:{server.port}"}) == 200
    assert server.status("/dashboard/state", {"Origin": "http://evil.example"}) == 403
    assert server.status("/dashboard/state", {"Origin": "null"}) == 403


def breakers_are_found_without_text(server, browser):
    for day in (28, 29, 30):
        system = f"You are a helpful and quite talkative assistant.\\nToday is 2026-11-{day}.\\n" + "Always answer in full sentences. " * 8
        server.ask("/v1/completions", {"prompt": system.replace("\\n", "\n") + f"\nQuestion {day}", "max_tokens": 2})
    state = json.loads(server.ask("/dashboard/state"))
    assert state["near_misses"] >= 2 and state["text"] is False, state["near_misses"]
    line = [b for b in state["breakers"] if b["line_bytes"] == len("Today is 2026-11-30.")]
    assert len(line) == 1 and line[0]["count"] == 2 and "text" not in line[0], state["breakers"]
    assert "Today" not in json.dumps(state)
    sign_in(server, browser)
    assert line[0]["hash"] in browser.text("#breakers"), browser.text("#breakers")


CHECKS = [numbers_equal_the_metrics_of_the_same_scrape, the_map_counts_what_the_metrics_count, requests_are_listed, a_prompt_is_tried,
          no_sideways_scrolling_and_no_barriers, others_are_refused, breakers_are_found_without_text,
          nothing_came_from_elsewhere_and_nothing_complained]

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    a_server = Server(sys.argv[1])
    a_browser = Browser(a_server.base)
    try:
        sys.exit(main(CHECKS, a_server, a_browser))
    finally:
        a_browser.close()
        a_server.close()
