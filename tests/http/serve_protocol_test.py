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
from serve_harness import (NAME, SMOLLM2, TINY, WATCHDOG_S, ServeTest, Server, eventually, main, need_model, sse_events,
                           streamed_text)

KEYS = ("first-key", "second-key")


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


class Keys(ServeTest):
    @classmethod
    def serve(cls):
        return Server(cls.script(["ok"]), "--api-key", *KEYS, "--allowed-origins", '["https://app.example"]',
                      "--allow-credentials", "--salt-from-api-key", "--enable-server-load-tracking", "--root-path", "/llm",
                      env={"VLLM_SERVER_DEV_MODE": "1"})

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0
        cls.server = None
        super().tearDownClass()

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
        self.assertEqual(self.server.complete("x", model="")["model"], NAME)

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
        fresh = [self.server.complete("x")["id"] for _ in range(2)]
        self.assertNotEqual(*fresh)
        self.assertRegex(fresh[0], r"^cmpl-[0-9a-f]{16}$")
        for path in ("/health", "/version", "/nowhere"):
            self.assertTrue(self.server.get(path).headers["X-Request-Id"], path)
            self.assertEqual(self.server.get(path, **{"X-Request-Id": "abc"}).headers["X-Request-Id"], "abc")
        nasty = self.server.post("/v1/completions", {"prompt": "x"}, {"X-Request-Id": "a" * 5000})
        self.assertEqual(nasty.status, 200)

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

    def test_strict_fields(self):
        server = self.start(self.script(["ok"]), "--strict-fields")
        self.refused(server.post("/v1/completions", {"prompt": "x", "bogus": 1}), "bogus")
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

    def test_keys_of_a_whole_reply_stand_in_vllms_order(self):  # row 38
        reply = self.server.complete("x")
        self.assertEqual(list(reply)[:8], ["id", "object", "created", "model", "choices", "service_tier", "system_fingerprint",
                                           "usage"])
        self.assertEqual(list(reply["choices"][0])[:8], ["index", "text", "logprobs", "finish_reason", "stop_reason",
                                                         "token_ids", "prompt_logprobs", "prompt_token_ids"])
        self.assertEqual(list(reply["usage"])[:3], ["prompt_tokens", "total_tokens", "completion_tokens"])
        self.assertEqual(set(reply["metrics"]), {"time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms",
                                                 "tokens_per_second", "speculative_decoding"})
        self.assertEqual(reply["choices"][0]["finish_reason"], "stop")
        self.assertIsNone(reply["choices"][0]["stop_reason"])

    def test_one_line_for_each_finished_request(self):
        name = self.server.complete("say nothing of this")["id"]
        line = eventually(lambda: re.search(rf".*finished {name}.*", self.server.log), "the line").group()
        for word in ("queue", "TTFT", "TPOT", "cached", "miss"):
            self.assertIn(word, line)
        self.assertNotIn("say nothing of this", self.server.log)


class Start(ServeTest):
    def test_503_until_the_model_is_loaded(self):  # row 16
        server = self.start(need_model(SMOLLM2), "--kv-cache-memory-bytes", "1500M", wait=False)
        health, ping = server.get("/health"), server.get("/ping")
        if "startup complete" in server.log:
            self.skipTest("the model was loaded before anyone could ask")
        self.assertEqual((health.status, ping.status), (503, 200))
        self.assertEqual(server.get("/version").status, 200)
        reply = server.post("/v1/completions", {"prompt": "x"})
        self.assertEqual(reply.status, 503)
        self.assertTrue(reply.headers["Retry-After"])
        server.wait_ready()
        self.assertEqual(server.get("/health").status, 200)
        self.assertEqual(server.stop(), 0)

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
