#!/usr/bin/env python3
"""The dashboard's page with a scripted server behind it: `tests/browser/page_test.py [KVARTO]` (the program is not used).

Written down here: what the state says, and what a person should then read.
"""
import http.server
import json
import sys
import threading
import time

from browser import DESK, KEYS, PHONE, ROOT, Browser, main, skip, wait_for

WEB = ROOT / "src" / "server" / "web"
KEY = "the-key"
PIECES = ["<s>", "Hel", "lo", "\n", "wörld", "!"]


def chart_js():
    for name in ("chart.min.js", "Chart.min.js", "chart.js", "Chart.js"):
        file = ROOT.__class__("/usr/share/javascript/chart.js") / name
        if file.is_file():
            return file
    return skip("no Chart.js; install libjs-chart.js")


def state(scrape):
    return {
        "scrape": scrape, "time_us": 5_000_000 + scrape * 1_000_000, "model": "tiny-" + "long-" * 12 + "name", "version": "0.1.0",
        "max_model_len": 2048, "chat": True, "block_tokens": 16, "text": False,
        "series": {
            "vllm:num_requests_running": 3, "vllm:num_requests_waiting": 12, "kvarto:queued_tokens": 3456,
            "vllm:kv_cache_usage_perc": 0.4567, 'kvarto:kv_blocks{group="0",kind="full",state="open"}': 3,
            'kvarto:kv_blocks{group="0",kind="full",state="active"}': 1000, 'kvarto:kv_blocks{group="1",kind="window",state="active"}': 500,
            'kvarto:kv_blocks{group="0",kind="full",state="cached"}': 20, "kvarto:kv_shared_blocks": 7, "kvarto:kv_live_tokens": 24000,
            "kvarto:kv_capacity_tokens": 64000, "vllm:prefix_cache_queries_total": 800, "vllm:prefix_cache_hits_total": 600,
            "vllm:generation_tokens_total": 1_234_567 + 40 * scrape, "vllm:prompt_tokens_total": 9876,
            "kvarto:computed_prompt_tokens_total": 100 * scrape, "vllm:num_preemptions_total": 0, "kvarto:kv_replaced_blocks_total": 5,
            "kvarto:resident_memory_bytes": 1610612736, "vllm:time_to_first_token_seconds_count": 4,
            "vllm:time_to_first_token_seconds_sum": 1.0, "vllm:request_time_per_output_token_seconds_count": 0,
            "vllm:request_time_per_output_token_seconds_sum": 0,
        },
        "groups": [{"kind": "full", "window": 0, "layers": 4, "block_bytes": 4096}, {"kind": "window", "window": 512, "layers": 2, "block_bytes": 4096}],
        "blocks": {"total": 10000, "stride": 1, "states": "oAC." + "A" * 4996 + "." * 5000, "groups": "010." + "0" * 4996 + "." * 5000,
                   "sharing": "1300" + "1" * 4996 + "0" * 5000, "heat": "996." + "9" * 4996 + "." * 5000},
        "requests": [
            {"id": "chatcmpl-" + "0123456789abcdef" * 8, "state": "decode", "ended": False, "seconds": 1, "prompt": 4000, "cached": 3968,
             "output": 17, "ttft_ms": 120.4, "tpot_ms": 20.25, "miss_reason": "none"},
            {"id": "cmpl-2", "state": "waiting", "ended": False, "seconds": 1, "prompt": 10, "cached": None, "output": 0, "ttft_ms": None,
             "tpot_ms": None, "miss_reason": None},
            {"id": "cmpl-1", "state": "aborted", "ended": True, "seconds": 1, "prompt": 10, "cached": 0, "output": 5, "ttft_ms": 12345.6,
             "tpot_ms": 8.04, "miss_reason": "shorter_than_block"}],
        "latency": {"ttft_ms": {"count": 4, "p50": 99.94, "p95": 250.2, "p99": 15000}, "tpot_ms": {"count": 0, "p50": None, "p95": None, "p99": None}},
        "plan": {"lines": [{"name": "weights", "bytes": 100 << 20, "reason": "of the model"}, {"name": "kv_arena", "bytes": 300 << 20, "reason": "asked for"},
                           {"name": "nothing", "bytes": 0, "reason": ""}],
                 "total_bytes": 400 << 20, "available_bytes": 800 << 20, "kv_tokens": 64000, "full_requests": 31},
        "near_misses": 9,
        "breakers": [{"place": "message", "role": "system", "index": 0, "count": 7, "lost_tokens": 6300, "position": 33, "part_begin": 10,
                      "line_bytes": 20, "hash": "0123456789ab"},
                     {"place": "tools", "role": None, "index": 1, "count": 1, "lost_tokens": 12, "position": 90, "part_begin": 300,
                      "line_bytes": 2000, "hash": "ba9876543210"}],
    }


class Stub(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self.server_address[1]}"
        self.lock = threading.Lock()
        self.asset_headers = {}
        self.reset()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def reset(self):
        self.scrapes = 0
        self.change = lambda s: s  # of the state
        self.key = None
        self.broken = False
        self.bodies = []
        self.go_on = threading.Event()

    def next_scrape(self):
        with self.lock:
            self.scrapes += 1
            return self.scrapes


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def send(self, body, kind="application/json", status=200, headers=None):
        data = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def fail(self, status, message):
        self.send(json.dumps({"error": {"message": message, "type": "x", "param": None, "code": status}}), status=status)

    def refused(self):
        if self.server.key and self.headers.get("Authorization") != f"Bearer {self.server.key}":
            self.fail(401, "The key is wrong")
            return True
        return False

    def do_GET(self):
        server = self.server
        path, _, query = self.path.partition("?")
        policy = {"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
                                             "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"}
        if path == "/":
            self.send((WEB / "index.html").read_bytes(), "text/html; charset=utf-8", headers=policy)
        elif path == "/dashboard/chart.js":
            self.send(chart_js().read_bytes(), "text/javascript")
        elif path == "/dashboard/state":
            if self.refused():
                return
            if server.broken:
                self.fail(500, "The engine has stopped")
                return
            self.send(json.dumps(server.change(state(server.next_scrape()))))
        elif path == "/metrics":
            if not self.refused():
                self.send(f"text of {query}\n", "text/plain")
        else:
            file = WEB / path.removeprefix("/dashboard/")
            self.send(file.read_bytes(), "text/css" if path.endswith(".css") else "text/javascript", headers=policy)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append((self.path, body))
        if self.refused():
            return
        if self.path == "/tokenize":
            self.send(json.dumps({"count": len(PIECES), "tokens": list(range(len(PIECES))), "token_strs": PIECES}))
            return
        if "fail" in json.dumps(body):
            self.fail(400, "messages[0] is no good")
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        chat = self.path == "/v1/chat/completions"
        for piece in ("Good ", "mörning"):
            choice = {"index": 0, "delta": {"content": piece}} if chat else {"index": 0, "text": piece}
            self.wfile.write(f"data: {json.dumps({'choices': [choice]}, ensure_ascii=False)}\n\n".encode())
            self.wfile.flush()
            if piece == "Good " and not self.server.go_on.wait(60):
                return
        usage = {"prompt_tokens": 6, "completion_tokens": 2, "total_tokens": 8, "prompt_tokens_details": {"cached_tokens": 4}}
        self.wfile.write(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n: still here\n\ndata: [DONE]\n\n".encode())


def fresh(server, browser, size=DESK, dark=False, change=None):
    server.reset()
    if change:
        server.change = change
    browser.open("/", size, dark)
    wait_for(lambda: browser.run("return document.body.dataset.scrape"), "the first state")


def value(browser, attribute, name):
    return browser.text(f'[data-{attribute}="{name}"]')


# --- the checks, in order of appearance


def numbers_are_written_for_people(server, browser):
    fresh(server, browser)
    wanted = {
        ("series", "vllm:num_requests_running"): "3", ("series", "vllm:num_requests_waiting"): "12", ("series", "kvarto:queued_tokens"): "3,456",
        ("series", "vllm:kv_cache_usage_perc"): "45.7 %", ("derived", "blocks-used"): "1,503", ("derived", "blocks-cached"): "20",
        ("series", "kvarto:kv_capacity_tokens"): "64,000", ("derived", "hit-rate"): "75.0 %", ("series", "kvarto:resident_memory_bytes"): "1.5 GiB",
        ("latency", "ttft_ms.p50"): "99.9 ms", ("latency", "ttft_ms.p95"): "250 ms", ("latency", "ttft_ms.p99"): "15.0 s",
        ("latency", "tpot_ms.p50"): "–", ("derived", "ttft-mean"): "250 ms", ("derived", "tpot-mean"): "–",
    }
    for (attribute, name), text in wanted.items():
        assert value(browser, attribute, name) == text, (name, value(browser, attribute, name), text)
    rows = [[cell.text for cell in row.find_elements("tag name", "td")] for row in browser.all("#requests tbody tr")]
    assert rows[0][1:] == ["decode", "4,000", "3,968", "17", "120 ms", "20.3 ms", "none"], rows[0]
    assert rows[1][1:] == ["waiting", "10", "–", "0", "–", "–", "–"], rows[1]
    assert rows[2][1:] == ["aborted", "10", "0", "5", "12.3 s", "8.0 ms", "shorter than block"], rows[2]
    plan = browser.text("#plan-list")
    assert "weights 100 MiB: of the model" in plan and "kv_arena 300 MiB" in plan and "nothing" not in plan, plan
    widths = browser.run("return [...document.querySelectorAll('#plan-bar span')].map(e => e.getBoundingClientRect().width)")
    assert len(widths) == 3 and abs(widths[1] / widths[0] - 3) < 0.05 and abs(widths[2] / widths[0] - 4) < 0.05, widths
    items = browser.all("#breakers li")
    assert items[0].text.startswith("message 1 (system), 10 bytes into it, at token 33: 7 times, 6,300 tokens computed again"), items[0].text
    assert "hash 0123456789ab" in items[0].text and items[1].text.startswith("tool 2, 300 bytes"), items[1].text


def numbers_follow_the_state(server, browser):
    fresh(server, browser)
    first = browser.run("return document.body.dataset.scrape")
    wait_for(lambda: int(browser.run("return document.body.dataset.scrape")) >= int(first) + 2, "two further states")
    shown = browser.run("return [document.body.dataset.scrape, document.querySelector('[data-series=\"vllm:generation_tokens_total\"]').dataset.value]")
    assert int(shown[1]) == 1_234_567 + 40 * int(shown[0]), shown
    # 40 tokens and 100 prompt tokens between states that say they are a second apart.
    assert "100 prompt tokens/s, 40 generated tokens/s" in browser.text("#rate-text"), browser.text("#rate-text")
    assert "45.7 % of the KV cache, 3 running, 12 waiting" in browser.one("#use-chart").get_attribute("aria-label")


def nothing_comes_from_elsewhere_and_nothing_complains(server, browser):
    browser.requested(), browser.complaints()
    fresh(server, browser)
    urls = browser.requested()
    assert len(urls) >= 10 and all(u.startswith((server.base, "data:")) for u in urls), urls
    assert browser.complaints() == []


def the_map_tells_about_blocks(server, browser):
    fresh(server, browser)
    label = browser.one("#map").get_attribute("aria-label")
    assert label == "Map of 10,000 KV blocks by state. being filled: 1, in use: 4,997, cached, used by none: 1, free: 5,001", label
    size = browser.run("const m = document.getElementById('map'); return [m.getBoundingClientRect().height, m.width]")
    assert 50 < size[0] < 500 and size[1] > 300, size
    texts = []
    browser.run("document.getElementById('map').focus()")
    for _ in range(4):
        browser.press(KEYS.ARROW_RIGHT)
        texts.append(browser.text("#map-cell"))
    assert texts == ["Block 0: being filled, group 0: full, held by 1", "Block 1: in use, group 1: window of 512, held by 3, can be found",
                     "Block 2: cached, used by none, group 0: full, unused for 4 s, can be found", "Block 3: free"], texts
    browser.press(KEYS.END)
    assert browser.text("#map-cell") == "Block 9999: free"
    browser.press(KEYS.ARROW_DOWN)
    assert browser.text("#map-cell") == "Block 9999: free"
    browser.press(KEYS.ESCAPE)
    assert browser.text("#map-cell").strip() == ""
    legends = {}
    for mode in ("sharing", "group", "heat", "state"):
        browser.one(f"input[value={mode}]").click()
        legends[mode] = browser.text("#map-legend").split("\n")
    assert "held by 3: 1" in legends["sharing"] and "group 1: window of 512: 1" in legends["group"], legends
    assert "used within 1 s: 4,998" in legends["heat"] and "in use: 4,997" in legends["state"], legends


def colours_of_the_map_are_those_of_the_legend(server, browser):
    fresh(server, browser)
    pixels = browser.run("""
        const map = document.getElementById("map");
        const at = (i) => [...map.getContext("2d").getImageData(i * %d + 1, 1, 1, 1).data].slice(0, 3).join(" ");
        return [at(0), at(1), at(2), at(3)];""" % browser.run(
        "return Math.min(16, Math.max(3, Math.floor(Math.sqrt(document.getElementById('map').clientWidth * 260 / 10000))))"))
    swatches = browser.run("""return [...document.querySelectorAll("#map-legend .swatch")].map(
        (e) => getComputedStyle(e).backgroundColor.match(/\\d+/g).join(" "))""")
    assert pixels == swatches and len(set(pixels)) == 4, (pixels, swatches)


def no_sideways_scrolling_on_a_phone(server, browser):
    def everything(s):
        text = {"line": "Today is " + "x" * 300, "earlier": "Today is y", "known": "29", "rule": "move ^" + "\\d{4}" * 40}
        return s | {"text": True, "breakers": [s["breakers"][0] | {"text": text}, s["breakers"][1]], "requests": s["requests"] * 10}

    for dark in (False, True):
        fresh(server, browser, PHONE, dark, everything)
        browser.run("document.getElementById('show-key').click()")
        assert browser.scrolls_sideways() == [], browser.scrolls_sideways()
        assert "move ^" in browser.text("#breakers")
        labels = browser.run("return [...document.querySelectorAll('#requests tbody tr:first-child td')].map("
                             "(e) => getComputedStyle(e, '::before').content)")
        assert "prompt" in labels[2] and "miss reason" in labels[7], labels  # cells say what they are


def no_barriers(server, browser):
    for size in (DESK, PHONE):
        for dark in (False, True):
            fresh(server, browser, size, dark)
            assert browser.barriers() == [], (size, dark, browser.barriers())
    server.go_on.set()
    browser.run("document.getElementById('show-key').click(); document.getElementById('try-prompt').value = 'x'; "
                "document.getElementById('try-send').click()")
    wait_for(lambda: browser.all(".piece"), "the prompt's tokens")
    assert browser.barriers() == [], browser.barriers()
    browser.run("document.getElementById('show-scrape').click()")
    assert browser.barriers() == [], browser.barriers()


def every_control_is_reached_by_keyboard(server, browser):
    fresh(server, browser)
    browser.press(KEYS.TAB)
    assert browser.focused() == "skip", browser.focused()
    seen = [browser.focused()]
    for _ in range(60):
        browser.press(KEYS.TAB)
        if browser.focused() in ("", "skip"):
            break
        seen.append(browser.focused())
    wanted = browser.run("""
        const all = [...document.querySelectorAll("button, input, textarea, a, [tabindex='0']")];
        return all.filter((e) => !e.disabled && e.offsetParent !== null && !(e.type === "radio" && !e.checked))
                  .map((e) => e.id || (e.name ? e.name + ":" + e.value : e.className));""")
    assert len(wanted) >= 10 and set(wanted) <= set(seen), (wanted, seen)
    browser.run("document.getElementById('try-tokens').focus()")
    browser.press(KEYS.TAB)
    outline = browser.run("return [document.activeElement.id, getComputedStyle(document.activeElement).outlineStyle]")
    assert outline == ["try-send", "solid"], outline
    # Radio buttons go by arrow keys.
    browser.run("document.querySelector('input[name=map-mode]:checked').focus()")
    browser.press(KEYS.ARROW_RIGHT)
    assert "by sharing" in browser.one("#map").get_attribute("aria-label")


def a_prompt_is_tried(server, browser):
    fresh(server, browser)
    browser.one("#try-system").send_keys("You help.")
    browser.one("#try-prompt").send_keys("Hello")
    browser.one("#try-tokens").clear()
    browser.one("#try-tokens").send_keys("5")
    browser.press(KEYS.TAB, KEYS.ENTER)
    wait_for(lambda: browser.text("#try-answer").strip() == "Good", "the first piece")  # streams: the second is held back
    assert browser.text("#try-status") == "Answering" and not browser.one("#try-send").is_enabled()
    server.go_on.set()
    pieces = wait_for(lambda: browser.all(".piece"), "the prompt's tokens")
    assert browser.text("#try-answer") == "Good mörning"
    assert [p.get_attribute("class") for p in pieces] == ["piece from-cache"] * 4 + ["piece computed"] * 2
    assert browser.run("return document.getElementById('try-pieces').textContent") == "<s>Hello↵\nwörld!"
    assert browser.text("#try-cached") == "4" and browser.text("#try-computed") == "2"
    assert browser.text("#try-status").endswith("2 tokens") and browser.one("#try-send").is_enabled()
    path, body = server.bodies[0]
    messages = [{"role": "system", "content": "You help."}, {"role": "user", "content": "Hello"}]
    assert path == "/v1/chat/completions" and body["messages"] == messages and body["max_tokens"] == 5 and body["stream"] is True, body
    assert server.bodies[1][0] == "/tokenize" and server.bodies[1][1]["messages"] == messages, server.bodies[1]


def a_prompt_is_stopped_or_refused(server, browser):
    fresh(server, browser)
    browser.one("#try-prompt").send_keys("Hello")
    browser.one("#try-send").click()
    wait_for(lambda: browser.text("#try-answer").strip() == "Good", "the first piece")
    browser.one("#try-stop").click()
    wait_for(lambda: browser.text("#try-status") == "Stopped", "the end")
    browser.one("#try-prompt").send_keys("fail")
    browser.one("#try-send").click()
    wait_for(lambda: browser.text("#try-status") == "messages[0] is no good", "the refusal")
    assert browser.one("#try-send").is_enabled()


def a_model_without_a_template_gets_plain_prompts(server, browser):
    fresh(server, browser, change=lambda s: s | {"chat": False})
    server.go_on.set()
    assert not browser.one("#try-system").is_displayed()
    browser.one("#try-prompt").send_keys("Hello")
    browser.one("#try-send").click()
    wait_for(lambda: browser.all(".piece"), "the prompt's tokens")
    assert [b[0] for b in server.bodies] == ["/v1/completions", "/tokenize"] and server.bodies[0][1]["prompt"] == "Hello"
    assert browser.text("#try-answer") == "Good mörning"


def a_key_is_asked_for_and_kept_in_the_tab(server, browser):
    server.reset()
    server.key = KEY
    browser.open("/")
    browser.run("sessionStorage.clear()")
    browser.open("/")
    wait_for(lambda: browser.one("#key-form").is_displayed(), "the form")
    assert browser.text("#status-text") == "This server wants an API key"
    browser.one("#key").send_keys("wrong", KEYS.ENTER)
    wait_for(lambda: browser.one("#key-form").is_displayed(), "the form again")
    browser.one("#key").send_keys(KEY, KEYS.ENTER)
    wait_for(lambda: browser.text("#status-text") == "Live", "numbers")
    browser.open("/")
    wait_for(lambda: browser.text("#status-text") == "Live", "numbers after a reload")
    server.key = None
    stored = browser.run("return [localStorage.length, document.cookie, location.href]")
    assert stored == [0, "", server.base + "/"], stored
    browser.run("sessionStorage.clear()")


def the_text_of_a_scrape_is_shown(server, browser):
    fresh(server, browser)
    browser.one("#show-scrape").click()
    shown = wait_for(lambda: browser.text("#scrape-text"), "the text")
    assert browser.text("#scrape-title") == "/metrics of scrape " + shown.removeprefix("text of scrape="), shown
    browser.press(KEYS.ESCAPE)
    assert not browser.one("#scrape-dialog").is_displayed()


def it_says_when_the_server_is_in_trouble(server, browser):
    fresh(server, browser)
    server.broken = True
    wait_for(lambda: browser.text("#status-text") == "The engine has stopped", "the trouble")
    server.broken = False
    wait_for(lambda: browser.text("#status-text") == "Live", "the end of it")
    browser.complaints()


def it_rests_while_hidden(server, browser):
    fresh(server, browser)
    browser.run("Object.defineProperty(document, 'hidden', {get: () => window.away, configurable: true}); "
                "window.away = true; document.dispatchEvent(new Event('visibilitychange'))")
    time.sleep(0.5)  # a question under way
    before = server.scrapes
    time.sleep(2.5)
    assert server.scrapes == before, (before, server.scrapes)
    browser.run("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")
    wait_for(lambda: server.scrapes > before, "it to go on")


def colours_follow_the_system(server, browser):
    fresh(server, browser)
    light = browser.run("return getComputedStyle(document.body).backgroundColor")
    browser.look(DESK, dark=True)
    dark = wait_for(lambda: (lambda c: c if c != light else None)(browser.run("return getComputedStyle(document.body).backgroundColor")), "dark")
    assert sum(map(int, light[4:-1].split(","))) > 600 and sum(map(int, dark[4:-1].split(","))) < 150, (light, dark)


CHECKS = [numbers_are_written_for_people, numbers_follow_the_state, nothing_comes_from_elsewhere_and_nothing_complains,
          the_map_tells_about_blocks, colours_of_the_map_are_those_of_the_legend, no_sideways_scrolling_on_a_phone, no_barriers,
          every_control_is_reached_by_keyboard, a_prompt_is_tried, a_prompt_is_stopped_or_refused,
          a_model_without_a_template_gets_plain_prompts, a_key_is_asked_for_and_kept_in_the_tab, the_text_of_a_scrape_is_shown,
          it_says_when_the_server_is_in_trouble, it_rests_while_hidden, colours_follow_the_system]

if __name__ == "__main__":
    stub = Stub()
    a_browser = Browser(stub.base)
    try:
        sys.exit(main(CHECKS, stub, a_browser))
    finally:
        a_browser.close()
