#!/usr/bin/env python3
"""What `kvarto serve` writes down of requests, and what it does when its engine breaks: serve_log_test.py PATH_TO_KVARTO."""
import http.client
import json
import os
import pathlib
import re
import subprocess
import tempfile

from serve_harness import KVARTO, WATCHDOG_S, ServeTest, eventually, main

ENDLESS = [f"w{i} " for i in range(16)]


def read_until(connected, wanted):
    data = b""
    while wanted not in data:
        got = connected.recv(65536)
        assert got, data[-200:]
        data += got
    return data


class FullPipe(ServeTest):
    def test_a_log_that_nobody_reads_stops_no_request(self):
        process = subprocess.Popen([KVARTO, "serve", self.script(["x"]), "--port", "0"], stdin=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.kill)
        log = b""
        while b"Application startup complete" not in log:
            log += os.read(process.stderr.fileno(), 4096)
        port = int(re.search(rb"listening at http://127\.0\.0\.1:(\d+);", log).group(1))
        connected = http.client.HTTPConnection("127.0.0.1", port, timeout=WATCHDOG_S)
        for _ in range(3000):  # a line each of about 80 bytes; a pipe holds 64 KiB
            connected.request("GET", "/version")
            answer = connected.getresponse()
            answer.read()
            self.assertEqual(answer.status, 200)
        connected.close()
        process.terminate()
        self.assertEqual(process.wait(WATCHDOG_S), 0)


class Record(ServeTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="kvarto-record-")
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "trace.jsonl"

    def lines(self, count):
        def look():
            text = self.path.read_text() if self.path.exists() else ""
            return text.endswith("\n") and len(text.splitlines()) >= count and text
        found = [json.loads(line) for line in eventually(look, f"{count} lines").splitlines()]
        self.assertEqual(len(found), count)
        return found

    def test_a_recorded_trace_is_replayed(self):
        server = self.start(self.script(ENDLESS, endless=True, step_us=500), "--record", self.path)
        common = "CONFIDENTIAL " * 8  # 104 bytes are six blocks and a half
        server.complete(common + "one", max_tokens=20)
        server.complete(common + "two", max_tokens=7)
        server.complete(common + "two", max_tokens=7, cache_salt="another")
        server.complete(["x", "y" * 40], max_tokens=3, n=2, temperature=1)
        a, b, salted, *pair = self.lines(5)
        self.assertEqual([(a[k], b[k]) for k in ("input_length", "output_length", "block_size", "finish")],
                         [(107, 107), (20, 7), (16, 16), ("length", "length")])
        self.assertEqual((a["cached_tokens"], b["cached_tokens"], salted["cached_tokens"]), (0, 96, 0))
        self.assertEqual(len(a["hash_ids"]), 7)
        self.assertEqual(a["hash_ids"][:6], b["hash_ids"][:6])
        self.assertNotEqual(a["hash_ids"][6], b["hash_ids"][6])
        self.assertFalse(set(b["hash_ids"]) & set(salted["hash_ids"]))
        self.assertEqual(len(a["output_hash_ids"]), 1)  # 107 + 19 computed tokens are seven blocks
        self.assertEqual(sorted((p["input_length"], p["output_length"], p["samples"]) for p in pair), [(1, 3, 2), (40, 3, 2)])
        self.assertLessEqual(a["timestamp"], b["timestamp"])
        self.assertNotIn("samples", a)

        gone = server.open("/v1/completions", {"prompt": "z", "max_tokens": 8000, "stream": True})
        read_until(gone, b'"text"')
        gone.close()
        self.assertEqual(self.lines(6)[5]["finish"], "cancelled")
        ended = server.open("/v1/completions", {"prompt": "z", "max_tokens": 8000, "stream": True})
        read_until(ended, b'"text"')
        self.assertEqual(server.numbers()["kvarto:trace_requests_total"], 6)
        self.assertEqual(server.stop(), 0)
        ended.close()
        last = self.lines(7)[6]  # of a request that ran when the server ended
        self.assertEqual(last["finish"], "cancelled")
        self.assertGreater(last["output_length"], 0)
        text = self.path.read_text()
        for word in ("CONFIDENTIAL", "another", "w1"):
            self.assertNotIn(word, text)

        # A second server appends; the replay sees both.
        second = self.start(self.script(ENDLESS, endless=True), "--record", self.path)
        second.complete(common + "one", max_tokens=1)
        lines = self.lines(8)
        self.assertFalse(set(lines[7]["hash_ids"]) & set(a["hash_ids"]), "ids of two processes cannot be linked")
        self.assertEqual(second.stop(), 0)
        third = self.start(self.script(ENDLESS, endless=True))
        done = subprocess.run([KVARTO, "bench", "serve", "--url", third.url, "--trace", self.path, "--json"],
                              capture_output=True, text=True, timeout=WATCHDOG_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertEqual(report["done"], 8)
        self.assertEqual(report["output_tokens"], sum(line["output_length"] for line in lines))
        self.assertEqual(third.stop(), 0)

    def test_a_file_that_cannot_be_written_stops_the_start(self):
        self.path.write_text("dear diary\n")
        for path, word in ((self.path, "no trace"), (self.path / "below", "directory"), (self.path.parent, "directory")):
            done = subprocess.run([KVARTO, "serve", self.script(["x"]), "--port", "0", "--record", path],
                                  capture_output=True, text=True, timeout=WATCHDOG_S)
            self.assertEqual(done.returncode, 1, done.stderr)
            errors = [line for line in done.stderr.splitlines() if line.startswith("kvarto: error: ")]
            self.assertEqual(len(errors), 1, done.stderr)
            self.assertIn("--record", errors[0])
            self.assertIn(word, errors[0])
        self.assertEqual(self.path.read_text(), "dear diary\n")

    def test_a_full_disk_does_not_stop_the_server(self):
        if not pathlib.Path("/dev/full").exists():
            self.skipTest("this system has no /dev/full")
        server = self.start(self.script(["x"]), "--record", "/dev/full")
        for count in (1, 2, 3):
            server.complete("p")
            eventually(lambda: server.numbers()["kvarto:trace_dropped_requests_total"] == count, f"{count} dropped")
        self.assertEqual(server.log.count("No space left"), 1)
        self.assertEqual(server.numbers()["kvarto:trace_requests_total"], 0)
        self.assertEqual(server.stop(), 0)


class AccessLog(ServeTest):
    LINE = r'\S+ - "(\S+) (\S+) HTTP/1\.[01]" (\d+), (\d+) bytes, [\d.]+ ms(?:, (.*))?$'

    def wait_for(self, server, *wanted):
        def look():
            return [found for found in re.findall(self.LINE, server.log, re.MULTILINE) if found[:3] == wanted]
        return eventually(look, f"a line of {wanted}")[0]

    def test_one_line_per_request(self):
        server = self.start(self.script(ENDLESS, endless=True, step_us=500), "--api-key", "SESAME")
        key = {"Authorization": "Bearer SESAME"}
        server.get("/health?token=QUERY")
        self.assertEqual(self.wait_for(server, "GET", "/health", "200")[4], "")
        server.post("/v1/completions", {"prompt": "CONFIDENTIAL", "max_tokens": 4}, key | {"X-Request-Id": "mine"})
        line = self.wait_for(server, "POST", "/v1/completions", "200")
        self.assertEqual(line[4], "cmpl-mine")
        self.assertGreater(int(line[3]), 100)
        self.assertIn("finished cmpl-mine", server.log)
        server.post("/v1/completions", {"prompt": "CONFIDENTIAL", "max_tokens": "CONFIDENTIAL"}, key)
        self.wait_for(server, "POST", "/v1/completions", "400")
        server.get("/nothing")
        self.wait_for(server, "GET", "/nothing", "401")
        gone = server.open("/v1/completions", {"prompt": "CONFIDENTIAL", "stream": True, "max_tokens": 8000},
                           "Authorization: Bearer SESAME\r\nX-Request-Id: goes\r\n")
        read_until(gone, b'"text"')
        gone.close()
        eventually(lambda: re.search(r"cmpl-goes, cut short$", server.log, re.MULTILINE), "a line of who went")
        self.assertEqual(len(re.findall(self.LINE, server.log, re.MULTILINE)), 5)
        for word in ("QUERY", "SESAME", "CONFIDENTIAL"):
            self.assertNotIn(word, server.log)
        self.assertEqual(server.stop(), 0)

    def test_ids_of_ours_are_in_reply_and_line(self):
        server = self.start(self.script(["x"]), "--enable-request-id-headers")
        reply = server.get("/version")
        self.assertEqual(self.wait_for(server, "GET", "/version", "200")[4], reply.headers["X-Request-Id"])
        reply = server.post("/v1/completions", {"prompt": "p"})
        self.assertEqual(self.wait_for(server, "POST", "/v1/completions", "200")[4], "cmpl-" + reply.headers["X-Request-Id"])
        self.assertEqual(server.stop(), 0)

    def test_paths_that_have_none(self):
        server = self.start(self.script(["x"]), "--disable-access-log-for-endpoints", "/health,/metrics")
        server.get("/health?a=b")
        server.get("/metrics")
        server.get("/version")
        self.wait_for(server, "GET", "/version", "200")
        self.assertEqual(len(re.findall(self.LINE, server.log, re.MULTILINE)), 1)
        self.assertEqual(server.stop(), 0)

    def test_off(self):
        for flags in (["--disable-uvicorn-access-log"], ["--uvicorn-log-level", "warning"]):
            with self.subTest(flags=flags):
                server = self.start(self.script(["x"]), *flags)
                server.complete("p")
                server.wait_for("finished cmpl-")
                self.assertEqual(server.stop(), 0)
                self.assertNotIn("HTTP/1.1", server.log.split("startup complete")[1])


class Failures(ServeTest):
    """A step that fails by a bug: a byte '!' in a prompt makes one."""

    def broken(self):
        return self.start(self.script(ENDLESS, endless=True, step_us=1000, failing_token=ord("!")))

    def fail_once(self, server):
        reply = server.post("/v1/completions", {"prompt": "!", "max_tokens": 3})
        self.refused(reply, None, 500, "a bug in this program")

    def test_two_failures_are_survived(self):
        server = self.broken()
        prompt = "a prompt of more than a block"
        server.complete(prompt, max_tokens=2)
        for count in (1, 2):
            self.fail_once(server)
            self.assertEqual(server.numbers()["kvarto:internal_errors_total"], count)
            self.assertEqual(server.get("/health").status, 200)
            usage = server.complete(prompt, max_tokens=2)["usage"]  # the cache is another one
            self.assertEqual(usage["prompt_tokens_details"]["cached_tokens"], 0)
        eventually(server.at_rest, "rest")
        self.assertEqual(server.stop(), 0)

    def test_the_third_ends_the_process(self):
        server = self.broken()
        for _ in range(2):
            self.fail_once(server)
        stream = server.open("/v1/completions", {"prompt": "x", "max_tokens": 8000, "stream": True})
        start = read_until(stream, b'"text"')
        self.fail_once(server)
        rest = start + read_until(stream, b"[DONE]")
        self.assertIn(b'"error"', rest)
        stream.close()
        self.assertEqual(server.process.wait(WATCHDOG_S), 1)
        errors = [line for line in server.log.splitlines() if line.startswith("kvarto: error: ")]
        self.assertEqual(len(errors), 1, server.log)
        self.assertIn("3 steps failed within a minute", errors[0])
        self.assertIn("start the server again", errors[0])


if __name__ == "__main__":
    main()
