#!/usr/bin/env python3
"""Bodies that are wrong in every way: serve_bad_input_test.py PATH_TO_KVARTO. Prints each check.

Each gets a 4xx that names the field, the next good request works, and memory stays what it was.
"""
import json
import pathlib
import re
import subprocess
import sys

from serve_harness import TINY, WATCHDOG_S, ServeTest, Server, eventually, main

import jsonschema  # behind serve_harness, which finds a Python that has it

MIB = 1 << 20
ROUTES = {"/v1/completions": {"prompt": "x", "max_tokens": 1}, "/tokenize": {"prompt": "x"}, "/detokenize": {"tokens": [1]},
          "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}}
VALUES = (True, False, 0, 1, -1, 7, 10**9, 10**12, -10**12, 2**63, 0.5, -0.5, 1e300, "", "x", "0.7", "none", [], [1], [-1],
          [10**10], ["x"], [""], [[]], [["x"]], [{}], {}, {"x": 1}, {"1": 1}, {"type": "x"}, {"include_usage": 3})


class BadInput(ServeTest):
    @classmethod
    def serve(cls):
        return Server(TINY / "tiny_qwen2.gguf", "--threads", 1, "--max-model-len", 1024, "--max-num-seqs", 4)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.schemas = cls.server.get("/openapi.json").json["components"]["schemas"]

    def setUp(self):
        self.before = self.resident()
        self.connection = self.server.connection()
        self.addCleanup(self.connection.close)

    def tearDown(self):
        self.assertLess(self.resident() - self.before, 64 * MIB)

    def resident(self):
        return self.server.numbers()["kvarto:resident_memory_bytes"]

    def send(self, path, body):
        return self.server.post(path, body, connection=self.connection)

    def good(self):
        reply = self.send("/v1/completions", {"prompt": "x", "max_tokens": 2, "ignore_eos": True})
        self.assertEqual((reply.status, reply.json["usage"]["completion_tokens"]), (200, 2))

    def bad(self, path, body, param, *words, statuses=(400, 413)):
        reply = self.send(path, body)
        self.assertIn(reply.status, statuses, (str(body)[:200], reply.body[:300]))
        return self.refused(reply, param, reply.status, *words)

    def test_greedy_parameters(self):  # B19
        greedy = [("temperature", 999999), ("temperature", -1), ("temperature", "0.7"), ("top_p", -1), ("top_p", 0),
                  ("top_k", 0.01), ("top_k", -2), ("repetition_penalty", 0), ("logit_bias", {str(10**9): 1}),
                  ("logit_bias", {"-1": 1}), ("logit_bias", {"x": 1}), ("max_tokens", -186), ("max_tokens", 10**9),
                  ("n", 10**9), ("n", 0), ("n", 5), ("logprobs", 10**9), ("logprobs", -1), ("seed", 2**63),
                  ("stop", ["s%d" % i for i in range(10**5)]), ("stop", ""),
                  ("n_discard", -32), ("min_p", 2),
                  ("presence_penalty", -3), ("frequency_penalty", 1e10), ("prompt", []), ("prompt", [10**6]),
                  ("prompt", [[1], "x"]), ("prompt", ["x"] * 1025), ("cache_salt", ""),
                  ("cache_salt", "a/b"), ("allowed_token_ids", [10**6]), ("stop_token_ids", [-1]), ("bad_words", [""]),
                  ("stream_options", {}), ("truncate_prompt_tokens", -2), ("min_tokens", -1),
                  ("request_id", "a b"), ("request_id", "x" * 300)]
        for field, value in greedy:
            with self.subTest(field=field, value=str(value)[:60]):
                self.bad("/v1/completions", {"prompt": "x", "n": 1, "temperature": 1, field: value}, field)
        self.refused(self.send("/v1/completions", {"prompt": ""}), None, 400, "cannot be empty")
        self.good()

    def test_limits_are_told(self):
        for field, value, limit in (("n", 5, "4"), ("logprobs", 21, "20"), ("max_tokens", 1025, "1024"),
                                    ("temperature", 3, "2"), ("stop", ["a"] * 5, "4")):
            self.bad("/v1/completions", {"prompt": "x", "temperature": 1, field: value}, field, limit)

    def test_prompt_logprobs_of_all_the_vocabulary(self):  # B19
        self.bad("/v1/completions", {"prompt": [1] * 1000, "prompt_logprobs": -1}, "prompt_logprobs")

    def test_numbers_beyond_everything(self):  # B19
        for number in ("1e400", "-1e400", "123456789012345678901234567890", "NaN", "Infinity"):
            for field in ("temperature", "top_k", "seed", "max_tokens"):
                reply = self.send("/v1/completions", f'{{"prompt": "x", "{field}": {number}}}')
                self.assertEqual(self.refused(reply)["code"], 400)
        self.good()

    def test_long_prompts(self):  # B19
        for body in ({"prompt": "\n" * (15 * MIB)}, {"prompt": "\n" * (3 * MIB)}, {"prompt": [1] * (2 * MIB)},
                     {"prompt": "x" * (30 * MIB)}):
            self.refused(self.send("/v1/completions", body))
        self.good()
        reply = self.server.post("/v1/completions", b'{"prompt": "' + b"\\n" * (32 * MIB) + b'"}')
        self.refused(reply, None, 413)
        self.good()

    def test_nesting(self):  # B19
        for opening, closing in (("[", "]"), ('{"a":', "}")):
            for depth in (100, 100_000, MIB):
                nested = opening * depth + "1" + closing * depth
                for body in (nested, f'{{"prompt": {nested}}}', f'{{"prompt": "x", "metadata": {nested}}}',
                             f'{{"prompt": "x", "bogus": {nested}}}', f'{{"prompt": {opening * depth}'):
                    self.assertIn(self.send("/v1/completions", body).status, (400, 413))
                arguments = json.dumps(nested)
                body = ('{"messages": [{"role": "assistant", "tool_calls": [{"type": "function", "function": '
                        f'{{"name": "f", "arguments": {arguments}}}}}]}}]}}')
                self.bad("/v1/chat/completions", body, "messages")
        self.good()

    def test_invalid_utf8(self):  # B19
        for data in (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf0\x9f", b"\xf4\x90\x80\x80"):
            for body in (b'{"prompt": "' + data + b'"}', b'{"' + data + b'": 1}', data,
                         b'{"prompt": "x", "stop": ["' + data + b'"]}'):
                self.assertEqual(self.refused(self.send("/v1/completions", body))["code"], 400)
        for escape in (r"\ud800", r"\udc00", r"\u12", r"\x"):
            self.refused(self.send("/v1/completions", f'{{"prompt": "{escape}"}}'))
        self.good()

    def test_keys_twice(self):  # B19
        self.refused(self.send("/v1/completions", '{"prompt": "x", "prompt": "y"}'), "prompt")
        self.refused(self.send("/v1/completions", '{"prompt": "x", "max_tokens": 1, "max_tokens": 100}'), "max_tokens")

    def test_bodies_that_are_no_objects(self):
        for body in ("", " ", "null", "[]", '"x"', "7", "{}{}", "{} x", "{'prompt': 1}", "prompt=x", '{"prompt": "x",}'):
            for path in ROUTES:
                self.assertEqual(self.refused(self.send(path, body))["code"], 400, body)
        for path in ROUTES:
            self.refused(self.send(path, "{}"))
        self.good()

    def test_every_cut_of_a_body(self):
        body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "caf\u00e9 \U0001F600"}], "max_tokens": 1,
                           "stop": ["a"], "logit_bias": {"5": -1.5}, "stream": False}, ensure_ascii=False).encode()
        self.assertEqual(self.send("/v1/chat/completions", body).status, 200)
        for cut in range(len(body)):
            self.assertEqual(self.refused(self.send("/v1/chat/completions", body[:cut]))["code"], 400, body[:cut])
        self.good()

    def test_a_body_cut_on_its_way(self):
        for cut in (0, 1, 10):
            data = b'{"prompt": "x"}'
            connected = self.server.open("/v1/completions", b"")
            connected.recv(65536)
            connected.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
                              b"Content-Length: %d\r\n\r\n%s" % (len(data), data[:cut]))
            connected.close()
        self.good()

    def test_wrong_types_of_every_field(self):
        names = {"/v1/completions": "CompletionRequest", "/v1/chat/completions": "ChatRequest", "/tokenize": "TokenizeRequest",
                 "/detokenize": "DetokenizeRequest"}
        refused = 0
        for path, base in ROUTES.items():
            for field, schema in self.schemas[names[path]]["properties"].items():
                validator = jsonschema.Draft202012Validator(schema)
                for value in VALUES:
                    reply = self.send(path, {**base, field: value})
                    with self.subTest(path=path, field=field, value=value):
                        if validator.is_valid(value):
                            # What is right by itself may not go with the other fields.
                            self.assertIn(reply.status, (200, 400, 404), reply.body)
                        else:
                            refused += 1
                            self.refused(reply, field)
        self.assertGreater(refused, 1000)
        self.good()

    def test_messages_and_tools(self):
        user = {"role": "user", "content": "x"}
        cases = [([1], "messages[0]"), ([{}], "messages[0].role"), ([{"role": "robot", "content": "x"}], "messages[0].role"),
                 ([user, {"role": "user", "content": 7}], "messages[1].content"),
                 ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
                 ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0].type"),
                 ([{"role": "assistant", "tool_calls": {}}], "messages[0].tool_calls"),
                 ([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
                  "messages[0].tool_calls[0].function.arguments")]
        for messages, param in cases:
            error = self.refused(self.send("/v1/chat/completions", {"messages": messages}))
            self.assertEqual(error["param"], param)
        for tools, param in (([], "tools"), ([1], "tools[0]"), ([{"type": "x", "function": {}}], "tools[0].type"),
                             ([{"type": "function"}], "tools[0].function"),
                             ([{"type": "function", "function": {"name": ""}}], "tools[0].function.name"),
                             ([{"type": "function", "function": {"name": "f", "parameters": 1}}],
                              "tools[0].function.parameters")):
            error = self.refused(self.send("/v1/chat/completions", {"messages": [user], "tools": tools}))
            self.assertEqual(error["param"], param)
        self.good()

    def test_fields_that_need_each_other(self):
        chat = {"messages": [{"role": "user", "content": "x"}]}
        tools = [{"type": "function", "function": {"name": "f"}}]
        for fields, param in (({"stream_options": {"include_usage": True}}, "stream_options"),
                              ({"top_logprobs": 2}, "top_logprobs"),
                              ({"tool_choice": "auto"}, "tool_choice"),
                              ({"tools": tools, "tool_choice": "auto"}, "tool_choice"),
                              ({"continue_final_message": True, "add_generation_prompt": True},
                               "continue_final_message"),
                              ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
                              ({"chat_template": "x"}, "chat_template"),
                              ({"response_format": {"type": "json_object"}}, "response_format"),
                              ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
                              ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
                              ({"use_beam_search": True, "stream": True}, "use_beam_search"), ({"priority": 1}, "priority")):
            error = self.refused(self.send("/v1/chat/completions", chat | fields))
            self.assertEqual(error["param"], param, fields)

    def test_harmless_fields_are_accepted(self):
        samples = {"string": "x", "boolean": True, "object": {}, "integer": 1, "number": 1.5, "array": ["x"]}
        count = 0
        for path, name in (("/v1/completions", "CompletionRequest"), ("/v1/chat/completions", "ChatRequest")):
            plain = self.send(path, ROUTES[path] | {"temperature": 0}).json["choices"]
            for field, schema in self.schemas[name]["properties"].items():
                if schema["x-kvarto-use"] != "harmless":
                    continue
                count += 1
                types = schema.get("type") or [s["type"] for s in schema["anyOf"]]
                value = samples[next(t for t in types if t != "null")]
                reply = self.send(path, ROUTES[path] | {"temperature": 0, field: value})
                self.assertEqual((reply.status, reply.headers["X-Kvarto-Ignored"]), (200, None), (field, reply.body))
                self.assertEqual(reply.json["choices"], plain, field)
        self.assertGreater(count, 40)

    def test_refused_fields_are_named_and_their_neutral_value_is_not(self):
        count = 0
        for path, name in (("/v1/completions", "CompletionRequest"), ("/v1/chat/completions", "ChatRequest"),
                           ("/tokenize", "TokenizeRequest")):
            for field, schema in self.schemas[name]["properties"].items():
                if schema["x-kvarto-use"] != "refused":
                    continue
                count += 1
                error = self.refused(self.send(path, ROUTES[path] | {field: {"any": "thing"}}), field)
                self.assertIn("not built here", error["message"])
                for neutral in schema.get("enum", [None]):
                    reply = self.send(path, ROUTES[path] | {field: neutral})
                    self.assertEqual(reply.status, 200, (field, neutral, reply.body))
        self.assertGreater(count, 60)

    def test_null_is_not_given(self):
        for path, name in (("/v1/completions", "CompletionRequest"), ("/v1/chat/completions", "ChatRequest")):
            required = self.schemas[name]["required"]
            body = {field: None for field in self.schemas[name]["properties"] if field not in required}
            reply = self.send(path, {**body, **{k: ROUTES[path][k] for k in required}, "max_tokens": 1})
            self.assertEqual(reply.status, 200, reply.body)

    def test_nonsense_disturbs_no_stream(self):  # row 11
        body = {"prompt": [5] * 40, "max_tokens": 900, "ignore_eos": True, "temperature": 0, "return_token_ids": True}
        alone = self.send("/v1/completions", body).json["choices"][0]["token_ids"]
        connected = self.server.open("/v1/completions", body | {"stream": True}, "Connection: close\r\n")
        for _ in range(20):
            for body in ("{", '{"prompt": "x", "n": 99}', json.dumps({"prompt": "y" * MIB})):
                self.assertEqual(self.send("/v1/completions", body).status, 400)
        data = b""
        while got := connected.recv(1 << 20):
            data += got
        connected.close()
        self.assertIn(b'"finish_reason":"length"', data)
        ids = [int(t) for some in re.findall(rb'"token_ids":\[([\d,]*)\]', data) for t in some.split(b",") if t]
        self.assertEqual(ids, alone)
        self.assertEqual(self.server.numbers().total("kvarto:kv_balanced"), 1)
        eventually(self.server.at_rest, "rest")


class MadeUp(ServeTest):
    """schemathesis makes requests up from /openapi.json."""

    @classmethod
    def serve(cls):
        return Server(TINY / "tiny_qwen2.gguf", "--threads", 1, "--max-model-len", 64, "--max-num-seqs", 4)

    def test_no_5xx_and_no_violation_of_the_schema(self):
        command = [str(pathlib.Path(sys.executable).parent / "schemathesis"), "run",
                   self.server.url + "/openapi.json", "--checks",
                   "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
                   "--max-examples", "25", "--seed", "5", "--phases", "examples,fuzzing", "--workers", "1", "--no-color",
                   "--request-timeout", "30", "--exclude-path", "/"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=WATCHDOG_S * 3, cwd=self.server.folder)
        self.assertEqual(done.returncode, 0, (done.stdout + done.stderr)[-6000:])
        self.assertEqual(self.server.complete("x", max_tokens=1, ignore_eos=True)["usage"]["completion_tokens"], 1)


if __name__ == "__main__":
    main()
