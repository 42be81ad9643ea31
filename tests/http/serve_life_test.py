#!/usr/bin/env python3
"""How requests of `kvarto serve` begin, wait, end and share: serve_life_test.py PATH_TO_KVARTO. Prints each check."""
import random
import re
import signal
import socket
import threading
import time

from serve_harness import TINY, WATCHDOG_S, ServeTest, Server, eventually, main, reset, sse_events

ENDLESS = [f"w{i} " for i in range(16)]


def read_until(connected, wanted, limit=1 << 20):
    data = b""
    while wanted not in data:
        got = connected.recv(4096)
        assert got and len(data) < limit, data[-200:]
        data += got
    return data


class Disconnects(ServeTest):
    """B18: whoever goes, in whatever state, leaves nothing behind."""

    @classmethod
    def serve(cls):
        # A prompt of 2,000 bytes takes 32 steps of 64 tokens, 65 ms each.
        return Server(cls.script(ENDLESS, endless=True, step_us=2000, prompt_token_us=1000, max_model_len=32768),
                      "--max-num-seqs", 1, "--max-num-batched-tokens", 64)

    def setUp(self):
        eventually(self.server.at_rest, "rest")

    def tearDown(self):
        self.assertEqual(self.server.numbers()["kvarto:watchdog_pushes_total"], 0, "a wedge")

    def aborted(self, state):
        return self.server.numbers().total("kvarto:aborted_requests_total", state=state)

    def stream(self, prompt="stream", **fields):
        connected = self.server.open("/v1/completions", {"prompt": prompt, "stream": True, "max_tokens": 30000, **fields})
        read_until(connected, b'"text"')
        return connected

    def leave(self, connected, way):
        if way == "rst":
            reset(connected)
        elif way == "fin":
            connected.close()
        else:  # FIN first, then RST: twice
            connected.shutdown(socket.SHUT_WR)
            time.sleep(0.01)
            reset(connected)

    def check(self, state, make, ways=("rst", "fin", "twice")):
        for way in ways:
            with self.subTest(way=way):
                before = self.aborted(state)
                others = [self.aborted(s) for s in ("queued", "prefill", "decode") if s != state]
                self.leave(make(), way)
                eventually(lambda: self.aborted(state) == before + 1, f"an abort in state {state}")
                self.assertEqual([self.aborted(s) for s in ("queued", "prefill", "decode") if s != state], others)

    def next_works(self):
        self.assertEqual(self.server.complete("n", max_tokens=1)["usage"]["completion_tokens"], 1)
        eventually(self.server.at_rest, "rest")

    def test_queued(self):
        running = self.stream()

        def queued():
            waiting = self.server.open("/v1/completions", {"prompt": "waits", "max_tokens": 5})
            eventually(lambda: self.server.numbers()["vllm:num_requests_waiting"] == 1, "a waiting request")
            return waiting

        self.check("queued", queued)
        eventually(lambda: self.server.numbers()["vllm:num_requests_waiting"] == 0, "an empty queue")
        read_until(running, b'"text"')  # undisturbed
        self.assertEqual(self.server.numbers()["vllm:num_requests_running"], 1)
        running.close()
        self.next_works()

    def test_prefill(self):
        def prefilling():
            before = self.server.numbers()["kvarto:computed_prompt_tokens_total"]
            prompt = f"{random.random()}" + "p" * 4000
            connected = self.server.open("/v1/completions", {"prompt": prompt, "max_tokens": 5})
            eventually(lambda: self.server.numbers()["kvarto:computed_prompt_tokens_total"] >= before + 64, "a chunk")
            return connected

        self.check("prefill", prefilling)
        self.next_works()

    def test_decode(self):
        def decoding():
            before = self.server.numbers()["vllm:generation_tokens_total"]
            connected = self.server.open("/v1/completions", {"prompt": "whole", "max_tokens": 30000})
            eventually(lambda: self.server.numbers()["vllm:generation_tokens_total"] > before + 3, "tokens")
            return connected

        self.check("decode", decoding)
        self.next_works()

    def test_stream(self):
        self.check("decode", self.stream)
        self.next_works()

    def test_in_the_tick_of_the_last_token(self):
        for i in range(30):
            connected = self.server.open("/v1/completions", {"prompt": "x", "max_tokens": 3, "stream": i % 2 == 0})
            time.sleep(0.002 * (i % 10))
            self.leave(connected, ("rst", "fin", "twice")[i % 3])
        eventually(self.server.at_rest, "rest")
        self.next_works()

    def test_half_sent_requests(self):
        head = b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        for cut in (1, 20, len(head) - 1, len(head)):
            connected = socket.create_connection((self.server.host, self.server.port))
            connected.sendall(head[:cut])
            self.leave(connected, "rst")
        self.next_works()

    @classmethod
    def check_after_all(cls):
        super().check_after_all()
        eventually(lambda: cls.server.numbers()["kvarto:http_open_connections"] <= 1, "no open connections")


class Overload(ServeTest):
    def overloaded(self, reply):
        self.assertEqual(reply.status, 503, reply.body)
        self.assertGreater(int(reply.headers["Retry-After"]), 0)
        self.assertEqual(reply.error["code"], "server_overloaded")

    def busy(self, server):
        running = server.open("/v1/completions", {"prompt": "run", "max_tokens": 8000, "stream": True})
        read_until(running, b'"text"')
        self.addCleanup(running.close)
        return running

    def wait_for(self, server, count):
        eventually(lambda: server.numbers()["vllm:num_requests_waiting"] == count, f"{count} waiting")

    def test_queued_requests(self):  # row 15
        server = self.start(self.script(ENDLESS, endless=True, step_us=1000), "--max-num-seqs", 4, "--max-num-queued-reqs", 2)
        running = [self.busy(server) for _ in range(4)]
        queued = [server.open("/v1/completions", {"prompt": "wait", "max_tokens": 1})]
        self.wait_for(server, 1)
        # Of n = 3 only one would fit. A body that is no JSON is not even looked at when the queue is full.
        self.overloaded(server.post("/v1/completions", {"prompt": "x", "n": 3, "temperature": 1}))
        self.overloaded(server.post("/v1/completions", {"prompt": ["x", "y"]}))
        queued.append(server.open("/v1/completions", {"prompt": "wait", "max_tokens": 1}))
        self.wait_for(server, 2)
        for body in (b'{"prompt": "x"}', b"no JSON"):
            self.overloaded(server.post("/v1/completions", body))
        self.assertEqual(server.post("/tokenize", {"prompt": "x"}).status, 200)
        self.assertGreaterEqual(server.numbers().total("vllm:admission_rejections_total", reason="max_num_queued_reqs"), 4)
        for one in running:
            one.close()
        for one in queued:
            self.assertIn(b"200 OK", read_until(one, b'"usage"'))
            one.close()
        eventually(server.at_rest, "rest")
        self.assertEqual(server.stop(), 0)

    def test_queued_tokens(self):
        server = self.start(self.script(ENDLESS, endless=True, step_us=1000), "--max-num-seqs", 1,
                            "--max-num-queued-tokens", 1000)
        self.busy(server)
        queued = server.open("/v1/completions", {"prompt": "w" * 1500, "max_tokens": 1})
        self.wait_for(server, 1)
        self.overloaded(server.post("/v1/completions", {"prompt": "x"}))
        self.assertEqual(server.numbers().total("vllm:admission_rejections_total", reason="max_num_queued_tokens"), 1)
        queued.close()

    def test_signs_of_life(self):  # row 35
        server = self.start(self.script(ENDLESS, endless=True, step_us=1000), "--max-num-seqs", 1, "--sse-keep-alive-interval",
                            "0.2")
        running = self.busy(server)
        waiting = server.open("/v1/completions", {"prompt": "later", "max_tokens": 3, "stream": True})
        self.assertIn(b"200 OK", read_until(waiting, b": keep-alive\n\n"))
        running.close()
        self.assertIn(b'"finish_reason":"length"', read_until(waiting, b"[DONE]"))
        waiting.close()
        self.assertEqual(server.stop(), 0)

    def test_signs_of_life_of_prompts_and_held_text(self):  # row 35
        server = self.start(self.script(["a", "E", "N", "D", "!", "b"], step_us=300_000, prompt_token_us=1000),
                            "--max-num-batched-tokens", 64, "--sse-keep-alive-interval", "0.1")
        long = server.open("/v1/completions", {"prompt": "p" * 1000, "max_tokens": 1, "stream": True})
        data = read_until(long, b"[DONE]")
        self.assertIn(b": keep-alive\n\n", data[:data.index(b'"text"')], "while a prompt is computed")
        long.close()
        # Three tokens may become the stop string, so nothing is written for 900 ms.
        held = server.open("/v1/completions", {"prompt": "p", "max_tokens": 6, "stream": True, "stop": ["ENDING"]})
        data = read_until(held, b"[DONE]")
        first, second = data.index(b'"text":"a"'), data.index(b'"text":"END!"')
        self.assertIn(b": keep-alive\n\n", data[first:second], "while text is held back")
        held.close()
        self.assertEqual(server.stop(), 0)


class Ends(ServeTest):
    def test_running_streams_finish(self):  # row 34
        server = self.start(self.script([f"{i} " for i in range(60)], step_us=20000), "--shutdown-timeout", 60)
        connected = server.open("/v1/completions", {"prompt": "x", "max_tokens": 100, "stream": True})
        whole = server.open("/v1/completions", {"prompt": "y", "max_tokens": 100})
        start = read_until(connected, b'"text"')
        kept = server.connection()
        self.assertEqual(server.request("GET", "/health", connection=kept).status, 200)
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("Shutting down")
        eventually(lambda: server.get("/health").status == 503, "health's no")
        for reply in (server.post("/v1/completions", {"prompt": "new"}), server.get("/health"), server.get("/v1/models"),
                      server.post("/v1/completions", {"prompt": "new"}, connection=kept)):
            error = self.refused(reply, None, 503, "shutting down")
            self.assertEqual(error["code"], "server_overloaded")
            self.assertEqual(reply.headers["Connection"], "close")
            self.assertGreater(int(reply.headers["Retry-After"]), 0)
        self.assertEqual(server.get("/ping").status, 200)
        self.assertEqual(server.numbers()["vllm:num_requests_running"], 2)
        rest = read_until(connected, b"[DONE]")
        self.assertIn(b"59 ", rest, start)
        self.assertIn(b"59 ", read_until(whole, b'"usage"'))
        for one in (connected, whole):
            one.close()
        self.assertEqual(server.process.wait(WATCHDOG_S), 0)

    def test_without_a_timeout_they_end_at_once(self):
        server = self.start(self.script(ENDLESS, endless=True, step_us=5000))
        connected = server.open("/v1/completions", {"prompt": "x", "max_tokens": 8000, "stream": True})
        read_until(connected, b'"text"')
        self.assertEqual(server.stop(), 0)
        rest = b""
        try:
            while got := connected.recv(65536):
                rest += got
        except ConnectionError:
            pass
        self.assertNotIn(b'"finish_reason":"stop"', rest)
        self.assertNotIn(b'"finish_reason":"length"', rest)

    def test_a_second_signal_forces(self):
        for second in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(second=second):
                server = self.start(self.script(ENDLESS, endless=True, step_us=5000), "--shutdown-timeout", 600)
                connected = server.open("/v1/completions", {"prompt": "x", "max_tokens": 8000, "stream": True})
                read_until(connected, b'"text"')
                server.process.send_signal(signal.SIGTERM)
                server.wait_for("Shutting down")
                server.process.send_signal(second)
                self.assertEqual(server.process.wait(WATCHDOG_S), 128 + second)
                connected.close()

    def test_the_timeout_ends_them(self):
        server = self.start(self.script(ENDLESS, endless=True, step_us=5000), "--shutdown-timeout", "0.2")
        connected = server.open("/v1/completions", {"prompt": "x", "max_tokens": 8000, "stream": True})
        read_until(connected, b'"text"')
        self.assertEqual(server.stop(), 0)
        self.assertIn("requests that were still running are ended", server.log)
        rest = read_until(connected, b"[DONE]")
        self.assertIn(b"has shut down", rest)
        connected.close()

    def test_a_client_that_waits_is_told(self):
        server = self.start(self.script(ENDLESS, endless=True, step_us=5000), "--shutdown-timeout", "0.2", "--max-num-seqs", 1)
        running = server.open("/v1/completions", {"prompt": "x", "max_tokens": 8000, "stream": True})
        read_until(running, b'"text"')
        waiting = server.open("/v1/completions", {"prompt": "y", "max_tokens": 1})
        eventually(lambda: server.numbers()["vllm:num_requests_waiting"] == 1, "one in the queue")
        self.assertEqual(server.stop(), 0)
        reply = read_until(waiting, b"has shut down")
        self.assertTrue(reply.startswith(b"HTTP/1.1 503 "), reply)
        for connected in (running, waiting):
            connected.close()

    def test_nobody_runs(self):
        server = self.start(self.script(["x"]), "--shutdown-timeout", 600)
        idle = server.connection()
        idle.connect()
        server.complete("a prompt that others may be near to")
        self.assertEqual(server.stop(), 0)
        self.assertNotIn("still running", server.log)
        idle.close()


class Neighbours(ServeTest):
    """Rows 3, 11, 14, 40, 45: requests share a pool and none spoils another."""

    def test_four_streams_on_a_pool_for_less(self):  # row 11
        flags = ("--threads", 1, "--max-model-len", 256, "--reference")
        alone = self.start(TINY / "tiny_qwen2.gguf", *flags)
        prompts = [[(i * k) % 500 + 1 for i in range(1, 100)] for k in (3, 7, 11, 13)]
        fields = {"max_tokens": 120, "ignore_eos": True, "return_token_ids": True, "temperature": 0}
        wanted = [alone.complete(p, **fields)["choices"][0]["token_ids"] for p in prompts]
        self.assertEqual(alone.stop(), 0)
        # 14 blocks each at the end, 56 in all. One request has them all, so that they do begin together.
        shared = self.start(TINY / "tiny_qwen2.gguf", *flags, "--num-gpu-blocks-override", 48)
        events = sse_events(shared.post("/v1/completions", {"prompt": prompts, "stream": True, **fields}).body)
        for i in range(4):
            got = [t for e in events for c in e["choices"] if c["index"] == i for t in c["token_ids"]]
            self.assertEqual(got, wanted[i])
        self.assertGreater(shared.numbers()["vllm:num_preemptions_total"], 0)
        reply = shared.post("/v1/completions", {"prompt": [1] * 300})
        self.refused(reply, None, 400, "256")
        self.assertEqual(shared.stop(), 0)

    def test_a_prefix_that_is_being_computed_is_waited_for(self):  # row 40
        server = self.start(self.script(["x"], prompt_token_us=1000), "--max-num-batched-tokens", 64)
        prompt = "the same long beginning of all. " * 16  # 512 bytes
        replies = []
        threads = [threading.Thread(target=lambda i=i: replies.append(server.complete(prompt + f"{i}"))) for i in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        self.assertLessEqual(server.numbers()["kvarto:computed_prompt_tokens_total"], 512 + 4 * 17)
        self.assertEqual(sorted(r["usage"]["prompt_tokens_details"]["cached_tokens"] for r in replies), [0, 512, 512, 512])

    def test_short_prompts_do_not_queue_behind_a_giant(self):  # row 14
        server = self.start(self.script(["x"], prompt_token_us=500, max_model_len=16384), "--max-num-batched-tokens", 64)
        giant = server.open("/v1/completions", {"prompt": "g" * 8000, "max_tokens": 1})
        eventually(lambda: server.numbers()["vllm:num_requests_running"] == 1, "the giant")
        server.complete("short")
        self.assertEqual(server.numbers()["vllm:num_requests_running"], 1, "the giant was done first")
        giant.close()

    def test_priorities(self):  # row 45
        server = self.start(self.script(ENDLESS, endless=True, step_us=2000), "--max-num-seqs", 1, "--scheduling-policy",
                            "priority", "--priority-aging-ms", 0)
        running = server.open("/v1/completions", {"prompt": "run", "max_tokens": 8000, "stream": True, "priority": -5})
        read_until(running, b'"text"')
        threads = []
        chats = [{"role": "user", "content": "x"}]
        asks = {3: (server.complete, "x"), 1: (server.chat, chats), 2: (server.complete, "x")}
        for i, (priority, (ask, what)) in enumerate(asks.items()):
            fields = {"priority": priority, "max_tokens": 2, "request_id": f"of-priority-{priority}"}
            threads.append(threading.Thread(target=ask, args=(what,), kwargs=fields))
            threads[-1].start()
            eventually(lambda: server.numbers()["vllm:num_requests_waiting"] == i + 1, "one more in the queue")
        running.close()
        for one in threads:
            one.join()
        self.assertEqual(re.findall(r"finished (?:chat)?cmpl-of-priority-(\d)", server.log), ["1", "2", "3"])


if __name__ == "__main__":
    main()
