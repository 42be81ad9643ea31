#!/usr/bin/env python3
"""HTTP of `kvarto serve`: serve_protocol_test.py PATH_TO_KVARTO. Prints each check."""
import http.client
import json
import pathlib
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import tempfile

import hub_stub
from serve_harness import (KVARTO, NAME, SMOLLM2, TINY, WATCHDOG_S, ServeTest, Server, eventually, main, need_model, sse_events,
                           streamed_text)

KEYS = ("first-key", "second-key")


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


class Keys(ServeTest):
    @classmethod
    def serve(cls):
        return Server(cls.script(["ok"]), "--api-key", *KEYS, "--allowed-origins", '["https://app.example"]',
                      "--allow-credentials", "--salt-from-api-key", "--enable-server-load-tracking", "--root-path", "/llm",
                      env={"VLLM_SERVER_DEV_MODE": "1"}, key=KEYS[0])

    def routes(self):
        paths = self.server.get("/openapi.json", **bearer(KEYS[0])).json["paths"]
        return [(method.upper(), path) for path, methods in paths.items() for method in methods]

    def test_every_route_but_two_needs_a_key(self):  # row 8
        routes = self.routes()
        self.assertIn(("POST", "/reset_prefix_cache"), routes)
        for method, path in [*routes, ("GET", "/nowhere"), ("POST", "/v1/nowhere")]:
            for headers in ({}, bearer("wrong"), bearer(KEYS[0][:-1]), bearer(KEYS[0] + "x"), {"Authorization": KEYS[0]},
                            {"Authorization": "Basic " + KEYS[0]}):
                reply = self.server.request(method, path, b"{}" if method == "POST" else None, headers)
                if path in ("/health", "/ping", "/"):  # the page itself holds no data
                    self.assertEqual(reply.status, 200, path)
                else:
                    self.assertEqual((reply.status, reply.body), (401, b'{"error":"Unauthorized"}'), (method, path, headers))

    def test_either_key_and_any_case_of_bearer(self):
        for key in KEYS:
            for scheme in ("Bearer", "bearer", "BEARER"):
                self.assertEqual(self.server.get("/v1/models", Authorization=f"{scheme} {key}").status, 200)

    def test_blocks_of_two_keys_are_apart(self):  # B08
        def hits(key, **fields):
            body = {"prompt": "a secret that two share but must not learn of", "max_tokens": 1, **fields}
            reply = self.server.post("/v1/completions", body, bearer(key))
            return reply.json["usage"]["prompt_tokens_details"]["cached_tokens"]
        self.assertEqual([hits(KEYS[0]), hits(KEYS[0]), hits(KEYS[1]), hits(KEYS[1])], [0, 32, 0, 32])
        self.assertEqual([hits(KEYS[0], cache_salt="s"), hits(KEYS[0], cache_salt="s"), hits(KEYS[1], cache_salt="s")],
                         [0, 32, 0])

    def test_cors(self):
        good, bad = {"Origin": "https://app.example"}, {"Origin": "https://evil.example"}
        asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, x-one"}
        before = self.server.request("OPTIONS", "/v1/chat/completions", headers=good | asks)
        self.assertIn(before.status, (200, 204))
        self.assertEqual(before.headers["Access-Control-Allow-Origin"], "https://app.example")
        self.assertEqual(before.headers["Access-Control-Allow-Credentials"], "true")
        self.assertIn("POST", before.headers["Access-Control-Allow-Methods"])
        self.assertIn("authorization", before.headers["Access-Control-Allow-Headers"])
        for path, headers in (("/v1/models", bearer(KEYS[0])), ("/health", {}), ("/v1/models", {})):
            self.assertEqual(self.server.request("GET", path, headers=good | headers).headers["Access-Control-Allow-Origin"],
                             "https://app.example", path)
            self.assertIsNone(self.server.request("GET", path, headers=bad | headers)
                              .headers["Access-Control-Allow-Origin"])
        refused = self.server.request("OPTIONS", "/v1/models", headers=bad | asks)
        self.assertIsNone(refused.headers["Access-Control-Allow-Origin"])
        body = {"prompt": "x", "stream": True}
        streamed = self.server.post("/v1/completions", body, good | bearer(KEYS[0]))
        self.assertEqual(streamed.headers["Access-Control-Allow-Origin"], "https://app.example")

    def test_cors_of_what_the_http_layer_refuses(self):
        with socket.create_connection((self.server.host, self.server.port), timeout=WATCHDOG_S) as connected:
            connected.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nOrigin: https://app.example\r\n"
                              b"Transfer-Encoding: gzip\r\n\r\n")
            got = b""
            while data := connected.recv(65536):
                got += data
        self.assertIn(b"Access-Control-Allow-Origin: https://app.example\r\n", got)

    def test_behind_a_proxy(self):
        self.assertEqual(self.server.get("/llm/v1/models", **bearer(KEYS[0])).status, 200)
        self.assertEqual(self.server.get("/llm/v1/models").status, 401)

    def test_load_and_reset(self):
        self.assertEqual(self.server.get("/load", **bearer(KEYS[0])).json, {"server_load": 0})
        reset_reply = self.server.post("/reset_prefix_cache", b"", bearer(KEYS[0]))
        self.assertEqual(reset_reply.status, 200)

    def test_public_metrics(self):
        server = self.start(self.script(["ok"]), "--api-key", "k", "--public-metrics")
        self.assertEqual(server.get("/metrics").status, 200)
        self.assertEqual(server.get("/v1/models").status, 401)
        anonymous = self.start(self.script(["ok"]), "--salt-from-api-key")
        hits = [anonymous.complete("whoever comes without a key shares nothing")["usage"]["prompt_tokens_details"]
                ["cached_tokens"] for _ in range(2)]
        self.assertEqual(hits, [0, 0], "anonymous callers shared blocks")


class Plain(ServeTest):
    @classmethod
    def serve(cls):
        return Server(cls.script(["Hel", "lo", "!"]), "--enable-request-id-headers", "--enable-per-request-metrics")

    def test_unknown_paths_and_methods(self):
        reply = self.server.get("/nowhere")
        self.assertEqual((reply.status, reply.json), (404, {"detail": "Not Found"}))
        self.assertEqual(reply.headers["Link"], '</openapi.json>; rel="service-desc"')
        for method, path, allowed in (("GET", "/v1/completions", "POST"), ("POST", "/v1/models", "GET"),
                                      ("DELETE", "/health", "GET"), ("PUT", "/tokenize", "POST")):
            reply = self.server.request(method, path)
            self.assertEqual((reply.status, reply.json), (405, {"detail": "Method Not Allowed"}), path)
            self.assertIn(allowed, reply.headers["Allow"])
        self.assertEqual(self.server.get("/load").status, 400)
        self.assertEqual(self.server.post("/reset_prefix_cache", b"").status, 404)

    def test_small_routes(self):
        self.assertEqual((self.server.get("/health").status, self.server.get("/health").body), (200, b""))
        self.assertEqual([self.server.get("/ping").status, self.server.post("/ping", b"").status], [200, 200])
        self.assertRegex(self.server.get("/version").json["version"], r"^\d+\.\d+\.\d+")
        head = self.server.request("HEAD", "/version")
        self.assertEqual((head.status, head.body), (200, b""))
        self.assertGreater(int(head.headers["Content-Length"]), 0)
        self.assertEqual(self.server.get("/openapi.json").json["openapi"][:2], "3.")

    def test_content_type(self):
        for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
            reply = self.server.post("/v1/completions", b'{"prompt": "x"}', {"Content-Type": kind})
            self.assertEqual(self.refused(reply)["type"], "Bad Request")
            self.assertIn("application/json", reply.error["message"])
        ok = self.server.post("/v1/completions", b'{"prompt": "x"}', {"Content-Type": "application/json; charset=utf-8"})
        self.assertEqual(ok.status, 200)

    def test_unknown_model(self):
        error = self.refused(self.server.post("/v1/completions", {"prompt": "x", "model": "gpt"}), "model", 404, "gpt", NAME)
        self.assertEqual((error["type"], error["code"]), ("NotFoundError", 404))
        messages = [{"role": "user", "content": "x"}]
        self.refused(self.server.post("/v1/chat/completions", {"messages": messages, "model": "gpt"}), "model", 404, "gpt", NAME)
        self.assertEqual(self.server.chat(messages, model=NAME)["model"], NAME)
        self.assertEqual(self.server.complete("x", model="")["model"], NAME)
        for path, body in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})):
            self.refused(self.server.post(path, body | {"model": "gpt"}), "model", 404, "gpt", NAME)
            self.assertEqual(self.server.post(path, body | {"model": NAME}).status, 200)

    def test_any_model_and_other_limits_by_the_environment(self):
        server = self.start(self.script(["ok"]), env={"VLLM_SKIP_MODEL_NAME_VALIDATION": "1", "VLLM_MAX_N_SEQUENCES": "3",
                                                      "VLLM_MAX_COMPLETION_PROMPTS": "2", "VLLM_MAX_STOP_STRINGS": "6"})
        self.assertEqual(server.complete("x", model="gpt")["model"], NAME)
        self.assertEqual(server.post("/tokenize", {"prompt": "x", "model": "gpt"}).status, 200)
        self.assertEqual(len(server.complete("x", n=3, temperature=1)["choices"]), 3)
        self.refused(server.post("/v1/completions", {"prompt": "x", "n": 4}), "n", 400, "at most 3")
        self.refused(server.post("/v1/completions", {"prompt": ["x"] * 3}), "prompt", 400, "more than 2 prompts")
        self.assertEqual(server.complete("x", stop=list("abcdef"))["choices"][0]["text"], "ok")
        self.refused(server.post("/v1/completions", {"prompt": "x", "stop": list("abcdefg")}), "stop", 400, "at most 6")

    def test_one_connection_serves_many(self):
        connection = self.server.connection()
        self.addCleanup(connection.close)
        accepted = self.server.numbers()["kvarto:http_connections_total"]
        for i in range(20):
            reply = self.server.post("/v1/completions", {"prompt": f"{i}", "stream": i % 2 == 1}, connection=connection)
            self.assertEqual(reply.status, 200)
            self.assertEqual(self.server.request("POST", "/v1/completions", b"{", connection=connection).status, 400)
        self.assertLessEqual(self.server.numbers()["kvarto:http_connections_total"] - accepted, 2)

    def test_requests_sent_ahead(self):
        connected = self.server.open("/v1/completions", {"prompt": "one"})
        body = json.dumps({"prompt": "two"}).encode()
        connected.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nConnection: close\r\n"
                          b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        data = b""
        while got := connected.recv(65536):
            data += got
        self.assertEqual(data.count(b"HTTP/1.1 200"), 2)
        self.assertEqual(data.count(b'"text":"Hello!"'), 2)
        connected.close()

    def test_request_ids(self):
        reply = self.server.post("/v1/completions", {"prompt": "x"}, {"X-Request-Id": "mine-1"})
        self.assertEqual((reply.json["id"], reply.headers["X-Request-Id"]), ("cmpl-mine-1", "mine-1"))
        by_field = self.server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}],
                                                             "request_id": "yours"})
        self.assertEqual(by_field.json["id"], "chatcmpl-yours")
        self.assertEqual(self.server.complete("x", request_id="theirs")["id"], "cmpl-theirs")
        fresh = [self.server.complete("x")["id"] for _ in range(2)]
        self.assertNotEqual(*fresh)
        self.assertRegex(fresh[0], r"^cmpl-[0-9a-f]{16}$")
        for path in ("/health", "/version", "/nowhere", "/", "/dashboard/state.js", "/dashboard/state"):
            self.assertTrue(self.server.get(path).headers["X-Request-Id"], path)
            self.assertEqual(self.server.get(path, **{"X-Request-Id": "abc"}).headers["X-Request-Id"], "abc")
        nasty = self.server.post("/v1/completions", {"prompt": "x"}, {"X-Request-Id": "a" * 5000})
        self.assertEqual(nasty.status, 200)
        foreign = self.server.get("/", Host="evil.example")
        self.assertEqual((foreign.status, bool(foreign.headers["X-Request-Id"])), (403, True))

    def test_request_ids_of_what_goes_wrong(self):
        # Refused behind the point where the reply had an id: by its client, by the field, by nobody.
        wrong = {"prompt": [1] * 9000, "max_tokens": 1}
        for headers, more, wanted in (({"X-Request-Id": "mine"}, {}, "^mine$"), ({}, {"request_id": "yours"}, "^yours$"),
                                      ({}, {}, "^[0-9a-f]{16}$")):
            reply = self.server.post("/v1/completions", wrong | more, headers)
            self.assertEqual(reply.status, 400)
            told = reply.headers["X-Request-Id"]
            self.assertRegex(told, wanted)
            eventually(lambda: re.search(rf'completions HTTP/1.1" 400.*, cmpl-{told}$', self.server.log, re.MULTILINE),
                       f"the line of {told}")
        # What the HTTP layer refuses by itself.
        for sent, status in ((b"nonsense\r\n\r\n", b" 400 "),
                             (b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nX-Request-Id: big\r\n"
                              b"Transfer-Encoding: gzip\r\n\r\n", b" 501 ")):
            with socket.create_connection((self.server.host, self.server.port), timeout=WATCHDOG_S) as connected:
                connected.sendall(sent)
                got = b""
                while data := connected.recv(65536):
                    got += data
            self.assertIn(status, got.split(b"\r\n")[0])
            self.assertRegex(got, rb"X-Request-Id: (big|[0-9a-f]{16})\r\n")
        self.assertIn(b"X-Request-Id: big\r\n", got)

    def test_unknown_fields_are_named(self):  # row 20
        before = self.server.numbers()["kvarto:ignored_fields_total"]
        body = {"prompt": "x", "bogus_one": 1, "bogus_two": {"a": []}}
        reply = self.server.post("/v1/completions", body)
        self.assertEqual(reply.status, 200)
        self.assertEqual(set(re.split(r",\s*", reply.headers["X-Kvarto-Ignored"])), {"bogus_one", "bogus_two"})
        streamed = self.server.post("/v1/completions", body | {"stream": True})
        self.assertIn("bogus_one", streamed.headers["X-Kvarto-Ignored"])
        self.assertEqual(self.server.numbers()["kvarto:ignored_fields_total"] - before, 4)
        self.assertEqual(len(re.findall("bogus_one", self.server.log)), 1, "told once in the log")
        self.assertIsNone(self.server.post("/v1/completions", {"prompt": "x", "user": "u"}).headers["X-Kvarto-Ignored"])

    def test_unknown_fields_of_the_tokenizers_routes_are_named(self):  # row 20
        before = self.server.numbers()["kvarto:ignored_fields_total"]
        chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5, "bogus_three": 1}
        for path, body, names in (("/tokenize", {"prompt": "x", "bogus_three": 1}, {"bogus_three"}),
                                  ("/detokenize", {"tokens": [1], "bogus_three": 1}, {"bogus_three"}),
                                  ("/tokenize", chat, {"max_tokens", "bogus_three"})):
            reply = self.server.post(path, body)
            self.assertEqual(reply.status, 200, reply.body)
            self.assertEqual(set(re.split(r",\s*", reply.headers["X-Kvarto-Ignored"])), names)
        self.assertEqual(self.server.numbers()["kvarto:ignored_fields_total"] - before, 4)
        self.assertEqual(len(re.findall("bogus_three", self.server.log)), 1, "told once in the log")
        self.assertIsNone(self.server.post("/tokenize", {"prompt": "x"}).headers["X-Kvarto-Ignored"])

    def test_strict_fields(self):
        server = self.start(self.script(["ok"]), "--strict-fields")
        self.refused(server.post("/v1/completions", {"prompt": "x", "bogus": 1}), "bogus")
        self.refused(server.post("/tokenize", {"prompt": "x", "bogus": 1}), "bogus")
        self.refused(server.post("/detokenize", {"tokens": [1], "bogus": 1}), "bogus")
        self.assertEqual(server.complete("x", user="u")["choices"][0]["text"], "ok")

    def test_a_streams_bytes(self):
        reply = self.server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "stream": True,
                                                          "stream_options": {"include_usage": True}})
        self.assertEqual(reply.headers["Content-Type"], "text/event-stream; charset=utf-8")
        self.assertEqual(reply.headers["Transfer-Encoding"], "chunked")
        self.assertEqual(reply.headers["Cache-Control"], "no-cache")
        self.assertTrue(reply.body.endswith(b"data: [DONE]\n\n"))
        events = sse_events(reply.body)
        self.assertEqual(events[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})
        self.assertEqual(streamed_text(events), "Hello!")
        self.assertEqual(events[-1]["choices"], [])
        self.assertEqual(events[-1]["usage"]["completion_tokens"], 4)
        self.assertEqual(len({(e["id"], e["created"], e["model"], e["object"]) for e in events}), 1)

    HEAD = ["id", "object", "created", "model", "choices"]
    CHUNK_OF_TEXT = ["index", "text", "logprobs", "finish_reason", "stop_reason", "prompt_token_ids", "token_ids",
                     "weight_versions"]
    CHUNK_OF_CHAT = ["index", "delta", "logprobs", "finish_reason", "token_ids"]
    USAGE = ["prompt_tokens", "total_tokens", "completion_tokens", "prompt_tokens_details"]

    def test_keys_of_a_whole_reply_stand_in_vllms_order(self):  # row 38
        reply = self.server.complete("x")
        self.assertEqual(list(reply), self.HEAD + ["service_tier", "system_fingerprint", "usage", "kv_transfer_params",
                                                   "ec_transfer_params", "metrics"])
        self.assertEqual(list(reply["choices"][0]), ["index", "text", "logprobs", "finish_reason", "stop_reason", "token_ids",
                                                     "prompt_logprobs", "prompt_token_ids", "routed_experts",
                                                     "weight_versions"])
        self.assertEqual(list(reply["usage"]), self.USAGE + ["completion_tokens_details"])
        chat = self.server.chat([{"role": "user", "content": "x"}])
        self.assertEqual(list(chat), self.HEAD + ["service_tier", "system_fingerprint", "usage", "prompt_logprobs",
                                                  "prompt_token_ids", "prompt_text", "kv_transfer_params",
                                                  "ec_transfer_params", "metrics"])
        self.assertEqual(list(chat["choices"][0]), ["index", "message", "logprobs", "finish_reason", "stop_reason", "token_ids",
                                                    "routed_experts", "weight_versions"])
        # The last one is the name that vLLM 0.11 had.
        self.assertEqual(list(chat["choices"][0]["message"]), ["role", "content", "refusal", "annotations", "audio",
                                                               "function_call", "reasoning", "reasoning_content"])
        self.assertEqual(set(reply["metrics"]), {"time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms",
                                                 "tokens_per_second", "speculative_decoding"})
        self.assertEqual(reply["choices"][0]["finish_reason"], "stop")
        self.assertIsNone(reply["choices"][0]["stop_reason"])

    def stream(self, path, body, **options):
        reply = self.server.post(path, {**body, "stream": True, "stream_options": options or None})
        self.assertEqual(reply.status, 200, reply.body)
        return sse_events(reply.body)

    def test_keys_of_a_streams_chunks_are_vllms(self):  # row 38
        events = self.stream("/v1/completions", {"prompt": "x"})
        self.assertGreater(len(events), 2)
        for event in events:
            last = event is events[-1]
            self.assertEqual(list(event), self.HEAD + ["system_fingerprint"] * last + ["kv_transfer_params"])
            self.assertEqual(list(event["choices"][0]), self.CHUNK_OF_TEXT)
        chat = {"messages": [{"role": "user", "content": "x"}]}
        first, *deltas, last = self.stream("/v1/chat/completions", chat)
        self.assertEqual(list(first), self.HEAD + ["prompt_token_ids", "prompt_text"])
        self.assertEqual(list(first["choices"][0]), ["index", "delta", "logprobs", "finish_reason"])
        for event in deltas:
            self.assertEqual(list(event), self.HEAD + ["kv_transfer_params"])
            self.assertEqual(list(event["choices"][0]), self.CHUNK_OF_CHAT)
        self.assertEqual(list(last), self.HEAD + ["system_fingerprint", "kv_transfer_params"])
        self.assertEqual(list(last["choices"][0]), ["index", "delta", "logprobs", "finish_reason", "stop_reason", "token_ids",
                                                    "weight_versions"])
        for path, body in (("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", chat)):
            *others, usage = self.stream(path, body, include_usage=True)
            self.assertEqual(list(usage), self.HEAD + ["usage", "system_fingerprint"])
            self.assertEqual(list(usage["usage"]), self.USAGE)
            self.assertTrue(all("usage" not in event and "system_fingerprint" not in event for event in others))

    def test_ids_in_streams_only_when_asked_for(self):
        body = {"prompt": "x", "return_token_ids": True}
        choices = [event["choices"][0] for event in self.stream("/v1/completions", body)]
        self.assertEqual([c["prompt_token_ids"] for c in choices], [[ord("x")]] + [None] * (len(choices) - 1))
        self.assertTrue(all(isinstance(c["token_ids"], list) for c in choices))
        chat = {"messages": [{"role": "user", "content": "x"}], "return_token_ids": True, "return_prompt_text": True}
        first, *others = self.stream("/v1/chat/completions", chat)
        self.assertEqual(bytes(first["prompt_token_ids"]).decode(), first["prompt_text"])
        self.assertTrue(all(isinstance(e["choices"][0]["token_ids"], list) for e in others))

    def test_continuous_usage_only_with_usage(self):
        for path, body in (("/v1/completions", {"prompt": "x"}),
                           ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})):
            for event in self.stream(path, body, continuous_usage_stats=True):
                self.assertNotIn("usage", event, path)
            both = self.stream(path, body, continuous_usage_stats=True, include_usage=True)
            self.assertTrue(all("usage" in event for event in both), path)

    def test_a_raised_temperature_is_told_once(self):
        for _ in range(3):
            self.server.complete("x", temperature=0.001)
        self.assertEqual(len(re.findall("temperature 0.001.* is raised to 0.01", self.server.log)), 1)

    def test_one_line_for_each_finished_request(self):
        name = self.server.complete("say nothing of this")["id"]
        line = eventually(lambda: re.search(rf".*finished {name}.*", self.server.log), "the line").group()
        for word in ("queue", "TTFT", "TPOT", "cached", "miss no_match", "preempted 0x"):
            self.assertIn(word, line)
        text = "a text that is longer than two blocks of sixteen tokens"
        for prompt, wanted in ((text, "cached 0, miss no_match"), (text, "cached 48, miss none")):
            name = self.server.complete(prompt)["id"]
            line = eventually(lambda: re.search(rf".*finished {name}.*", self.server.log), "the line").group()
            self.assertIn(wanted, line)
        self.assertNotIn("say nothing of this", self.server.log)


class Start(ServeTest):
    def test_health_turns_once(self):  # row 16; what is answered before is shown by ServerLife.BeforeTheModelIsThere...
        server = self.start(need_model(SMOLLM2), "--kv-cache-memory-bytes", "1500M", wait=False)
        seen = []

        def healthy():
            self.assertEqual(server.get("/ping").status, 200)
            seen.append(server.get("/health").status)
            return "startup complete" in server.log and seen[-1] == 200
        eventually(healthy, "health")
        self.assertEqual(seen, sorted(seen, reverse=True))
        self.assertLessEqual(set(seen), {503, 200})
        self.assertEqual(server.complete("x", max_tokens=1)["usage"]["completion_tokens"], 1)
        self.assertEqual(server.stop(), 0)

    def test_a_length_that_the_pool_can_never_hold_stops_the_start(self):  # row 3
        done = subprocess.run([KVARTO, "serve", TINY / "tiny_qwen2.gguf", "--port", "0", "--threads", "1", "--max-model-len",
                               "1024", "--num-gpu-blocks-override", "16"], capture_output=True, text=True, timeout=WATCHDOG_S)
        self.assertEqual(done.returncode, 2, done.stderr)
        errors = [line for line in done.stderr.splitlines() if line.startswith("kvarto: error: ")]
        self.assertEqual(len(errors), 1, done.stderr)
        self.assertIn("--max-model-len 1024", errors[0])
        self.assertIn("estimated maximum model length is 256", errors[0])  # 16 blocks of 16 tokens

    def test_what_is_said(self):
        server = self.start(TINY / "tiny_qwen2.gguf", "--max-model-len", 1024)
        for words in (r"KV cache size: [\d,]+ tokens, Maximum concurrency for 1,024 tokens per request: [\d.]+x",
                      r"Route: /v1/chat/completions, Methods: POST", rf"{re.escape(server.url)}/v1\b", r"dashboard: http",
                      r"curl http://127\.0\.0\.1"):
            self.assertRegex(server.log, words)
        self.assertEqual(server.host, "127.0.0.1")

    def test_the_line_to_try_works(self):
        if not shutil.which("curl"):
            self.skipTest("there is no curl")
        server = self.start(self.script(["Hello", "."]))
        line = re.search(r"curl http.*", server.log).group()
        done = subprocess.run(shlex.split(line), capture_output=True, text=True, timeout=WATCHDOG_S)
        self.assertEqual(json.loads(done.stdout)["choices"][0]["message"]["content"], "Hello.")


class Transports(ServeTest):
    def test_tls(self):
        authority, (certificate, key) = hub_stub.make_certificates(self.folder())
        server = self.start(self.script(["Hel", "lo"]), "--ssl-keyfile", key, "--ssl-certfile", certificate)
        self.assertTrue(server.url.startswith("https://"))
        context = ssl.create_default_context(cafile=authority)
        connection = http.client.HTTPSConnection(server.host, server.port, timeout=WATCHDOG_S, context=context)
        for stream in (False, True):
            reply = server.post("/v1/completions", {"prompt": "x", "stream": stream}, connection=connection)
            text = streamed_text(sse_events(reply.body)) if stream else reply.json["choices"][0]["text"]
            self.assertEqual(text, "Hello")
        connection.close()
        with self.assertRaises((ConnectionError, http.client.HTTPException, OSError)):
            server.get("/health")
        self.assertEqual(server.stop(), 0)

    def test_unix_socket(self):
        path = self.folder() / "serve.sock"
        server = self.start(self.script(["Hel", "lo"]), "--uds", path)
        self.assertEqual(server.url, f"unix:{path}")
        connected = socket.socket(socket.AF_UNIX)
        connected.connect(str(path))
        connection = http.client.HTTPConnection("localhost")
        connection.sock = connected
        reply = server.post("/v1/completions", {"prompt": "x"}, connection=connection)
        self.assertEqual(reply.json["choices"][0]["text"], "Hello")
        connection.close()
        self.assertEqual(server.stop(), 0)
        self.assertFalse(path.exists())

    def folder(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="kvarto-serve-"))
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        return folder


if __name__ == "__main__":
    main()
