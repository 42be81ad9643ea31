#!/usr/bin/env python3
"""Chats on `kvarto serve`: tool calls, reasoning, turns, templates: serve_chat_test.py PATH_TO_KVARTO. Prints each check."""
import json
import pathlib
import subprocess
import tempfile

from serve_harness import (BLOCK, KVARTO, NAME, SMOLLM2, TINY, TURNS_TEMPLATE, WATCHDOG_S, ServeTest, Server, eventually,
                           main, need_model, sse_events, streamed_text)

import openai  # behind serve_harness, which finds a Python that has it


class Scripted(ServeTest):
    """Answers from a script: what the server makes of them can be written down."""

    CALLS = ['Let me look.<tool', '_call>\n{"name": "get_weather", "argu', 'ments": {"city": "Par', 'is", "days": 2}}\n',
             '</tool_call>', '\n<tool_call>{"name": "now", "arguments": {}}</tool_call>']
    THOUGHT = ["<thi", "nk>\nTwo and two", " are four.\n</th", "ink>\n\nIt is ", "4."]

    @classmethod
    def serve(cls):
        script = cls.script(cls.CALLS, cls.THOUGHT, ["plain ", "answer"], max_model_len=4096)
        return Server(script, "--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3",
                      "--chat-template", "{% for m in messages %}{{ m['content'] }}{% endfor %}")

    TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
             for name in ("get_weather", "now")]

    def setUp(self):
        self.client = self.server.client()

    def ask(self, answer, **fields):
        # The prompt's last byte picks the answer: "c", "a", "b" are 99, 97, 98.
        content = {"calls": "c", "thought": "a", "plain": "b"}[answer]
        return self.client.chat.completions.create(model=NAME, messages=[{"role": "user", "content": content}], **fields)

    def test_tool_calls(self):
        reply = self.ask("calls", tools=self.TOOLS)
        choice = reply.choices[0]
        self.assertEqual(choice.finish_reason, "tool_calls")
        self.assertEqual([(c.type, c.function.name, json.loads(c.function.arguments)) for c in choice.message.tool_calls],
                         [("function", "get_weather", {"city": "Paris", "days": 2}), ("function", "now", {})])
        self.assertEqual(choice.message.content.strip(), "Let me look.")
        self.assertEqual(len({c.id for c in choice.message.tool_calls}), 2)

    def test_streamed_tool_calls_equal_the_whole(self):
        whole = self.ask("calls", tools=self.TOOLS).choices[0].message
        calls, content, reason = {}, "", None
        for chunk in self.ask("calls", tools=self.TOOLS, stream=True):
            choice = chunk.choices[0]
            reason = choice.finish_reason or reason
            content += choice.delta.content or ""
            for delta in choice.delta.tool_calls or []:
                call = calls.setdefault(delta.index, {"arguments": ""})
                for key, value in (("id", delta.id), ("type", delta.type), ("name", delta.function.name)):
                    if value:
                        self.assertNotIn(key, call, "told twice")
                        call[key] = value
                call["arguments"] += delta.function.arguments or ""
        self.assertEqual(reason, "tool_calls")
        self.assertEqual(content, whole.content)
        self.assertEqual([(c["type"], c["name"], c["arguments"]) for c in calls.values()],
                         [("function", c.function.name, c.function.arguments) for c in whole.tool_calls])

    def test_only_the_first_call_without_parallel_calls(self):
        calls = self.ask("calls", tools=self.TOOLS, parallel_tool_calls=False).choices[0].message.tool_calls
        self.assertEqual([c.function.name for c in calls], ["get_weather"])
        names = [d.function.name for c in self.ask("calls", tools=self.TOOLS, parallel_tool_calls=False, stream=True)
                 for d in c.choices[0].delta.tool_calls or [] if d.function.name]
        self.assertEqual(names, ["get_weather"])

    def test_calls_stay_text_without_tools(self):
        for fields in ({}, {"tools": self.TOOLS, "tool_choice": "none"}):
            message = self.ask("calls", **fields).choices[0].message
            self.assertEqual(message.content, "".join(self.CALLS))
            self.assertIsNone(message.tool_calls)

    def test_forced_calls_are_refused_by_name(self):
        named = {"type": "function", "function": {"name": "now"}}
        for choice in ("required", named, {"type": "function", "function": {"name": "nobody"}}):
            with self.assertRaises(openai.BadRequestError) as refused:
                self.ask("calls", tools=self.TOOLS, tool_choice=choice)
            self.assertEqual(refused.exception.param, "tool_choice")
        for form in ({"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}):
            with self.assertRaises(openai.BadRequestError) as refused:
                self.ask("plain", response_format=form)
            self.assertEqual(refused.exception.param, "response_format")
            self.refused(self.server.post("/v1/completions", {"prompt": "b", "response_format": form}), "response_format")
        self.assertEqual(self.server.complete("b", response_format={"type": "text"})["choices"][0]["text"], "plain answer")
        self.assertEqual(self.ask("plain", response_format={"type": "text"}).choices[0].message.content, "plain answer")

    def test_reasoning(self):
        message = self.ask("thought").choices[0].message
        self.assertEqual((message.reasoning, message.content), ("Two and two are four.", "It is 4."))
        reasoning = content = ""
        for chunk in self.ask("thought", stream=True):
            reasoning += getattr(chunk.choices[0].delta, "reasoning", None) or ""
            content += chunk.choices[0].delta.content or ""
        self.assertEqual((reasoning, content), (message.reasoning, message.content))
        left_out = self.ask("thought", extra_body={"include_reasoning": False}).choices[0].message
        self.assertEqual((left_out.reasoning, left_out.content), (None, "It is 4."))

    def test_an_echo_is_an_assistants_and_no_output(self):
        call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
        fields = {"tools": self.TOOLS, "extra_body": {"echo": True, "add_generation_prompt": False,
                                                      "continue_final_message": True}}

        def ask(role, content, **more):
            return self.client.chat.completions.create(model=NAME, messages=[{"role": role, "content": content}], **fields,
                                                       **more)
        # The last byte picks the answer, "b" the plain one.
        self.assertEqual(ask("user", f"{call}b").choices[0].message.content, "plain answer", "a user's words came back")
        reply = ask("assistant", f"{call}b").choices[0]
        self.assertEqual((reply.message.content, reply.message.tool_calls, reply.finish_reason),
                         (f"{call}bplain answer", None, "stop"))
        chunks = list(ask("assistant", f"{call}b", stream=True))
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks), f"{call}bplain answer")
        self.assertTrue(all(not c.choices[0].delta.tool_calls for c in chunks))

    def test_the_streams_last_chunk_has_the_fingerprint(self):
        body = {"messages": [{"role": "user", "content": "b"}], "stream": True}
        events = sse_events(self.server.post("/v1/chat/completions", body).body)
        self.assertEqual(streamed_text(events), "plain answer")
        self.assertTrue(all("system_fingerprint" not in event for event in events[:-1]))
        self.assertTrue(events[-1]["system_fingerprint"])
        self.assertEqual(events[-1]["choices"][0]["finish_reason"], "stop")
        self.assertTrue(all("usage" not in event for event in events))

    def test_the_fingerprint_is_the_operators_choice(self):
        def shown(*flags):
            server = self.start(TINY / "tiny_llama.gguf", "--threads", 1, "--max-model-len", 256, *flags)
            seen = [server.complete("b")["system_fingerprint"]]
            for options in (None, {"include_usage": True}):
                body = {"prompt": "b", "stream": True, "stream_options": options}
                seen.append(sse_events(server.post("/v1/completions", body).body)[-1].get("system_fingerprint", "absent"))
            self.assertEqual(server.stop(), 0)
            return seen
        for mode in ("full", "hash"):
            for one in shown("--fingerprint-mode", mode):
                self.assertRegex(one, r"^kvarto-[0-9.]+-[0-9a-f]{8}$")
        self.assertEqual(shown("--fingerprint-mode", "custom", "--fingerprint-value", "canary-7"), ["canary-7"] * 3)
        self.assertEqual(shown("--fingerprint-mode", "none"), [None, "absent", "absent"])

    def test_metrics_of_the_request_only_when_enabled(self):
        self.assertIsNone(self.server.complete("b")["metrics"])


class Turns(ServeTest):
    """Turn n+1 finds every full block of turns 1 to n, although its text would be cut into other tokens."""

    ANSWERS = [["The ", "first ", "answer, ", "long enough ", "to fill ", "more than ", "a block ", "of ", "sixteen ",
                "tokens ", "so that ", "it ", "shows ", "in ", "the ", "cache ", "as ", "it ", "should", "."],
               ["A second", " answer", " of", " few", " pieces", "."], ["Third", "."]]
    CALL = ["<tool_call>\n", '{"name": "look", "argu', 'ments": {"page": 1', "}}\n</tool_call>"]
    ORDER = (49 % 3, 51 % 3, 53 % 3)  # turns 1, 2, 3 end with "1", "3", "5"

    @classmethod
    def answers(cls, first, second, third):
        answers = [None] * 3
        for at, answer in zip(cls.ORDER, (first, second, third)):
            answers[at] = answer
        return answers

    def converse(self, server, questions, pieces, **fields):
        """Cached tokens of each turn, what every full block so far comes to, and the answers."""
        messages, got, held, texts = [], [], [], []
        known = 0
        for question, answer in zip(questions, pieces):
            messages.append(question)
            reply = server.chat(messages, max_tokens=100, **fields)
            usage = reply["usage"]
            got.append(usage["prompt_tokens_details"]["cached_tokens"])
            held.append(known // BLOCK * BLOCK)
            known = usage["prompt_tokens"] + len(answer)
            message = reply["choices"][0]["message"]
            texts.append(message)
            kept = {"role": "assistant", "content": message["content"]}
            if message.get("tool_calls"):
                kept["tool_calls"] = message["tool_calls"]
            messages.append(kept)
        return got, held, texts

    def test_three_turns(self):  # row 24
        server = self.start(self.script(*self.answers(*self.ANSWERS), chat_template=TURNS_TEMPLATE))
        user = [{"role": "user", "content": text} for text in ("Tell me something.", "And then?", "Really?")]
        got, held, texts = self.converse(server, user, self.ANSWERS)
        self.assertEqual([t["content"] for t in texts], ["".join(a) for a in self.ANSWERS])
        self.assertEqual(got, held)
        self.assertGreater(got[1], 32)
        self.assertGreater(server.numbers()["kvarto:turn_memory_hits_total"], 1)
        self.assertEqual(self.converse(server, user, self.ANSWERS, cache_salt="other")[0][0], 0, "a salt was ignored")
        self.assertEqual(server.stop(), 0)

    def test_three_turns_of_a_tool_loop(self):  # row 24
        pieces = [self.CALL, self.CALL, ["Done", "."]]
        server = self.start(self.script(*self.answers(*pieces), chat_template=TURNS_TEMPLATE),
                            "--enable-auto-tool-choice", "--tool-call-parser", "hermes")
        tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
        questions = [{"role": "user", "content": "Look it up, please, on whatever page it stands."},
                     {"role": "tool", "tool_call_id": "1", "content": "nothing on this page"},
                     {"role": "tool", "tool_call_id": "2", "content": "here it is"}]
        got, held, texts = self.converse(server, questions, pieces, tools=tools)
        self.assertEqual([bool(t.get("tool_calls")) for t in texts], [True, True, False])
        self.assertEqual(got, held)
        self.assertGreater(got[2], got[1])
        self.assertEqual(server.stop(), 0)

    TOOLS_TEMPLATE = "{{ tools | tojson }}{% for m in messages %}{{ m['content'] }}{% endfor %}"

    @staticmethod
    def spelled_tools():
        """The same tool twice, its schema's keys in another order, and one more."""
        tool = '{"type": "function", "function": {"name": "a", "parameters": {%s}}}'
        properties, required = '"properties": {"p": {"type": "string"}}', '"required": ["p"]'
        return (tool % f"{properties}, {required}", tool % f"{required}, {properties}",
                '{"type": "function", "function": {"name": "b"}}')

    @staticmethod
    def with_tools(*tools, more=""):
        return f'{{"messages": [{{"role": "user", "content": "hi"}}], "tools": [{", ".join(tools)}]{more}}}'

    def test_tools_keep_their_spelling(self):  # B12
        server = self.start(self.script(["x"], chat_template=self.TOOLS_TEMPLATE))
        a, swapped, b = self.spelled_tools()

        def ids(*tools):
            return server.post("/tokenize", self.with_tools(*tools)).json["tokens"]

        self.assertEqual(ids(a, b), ids(a, b))
        self.assertEqual(len({tuple(ids(a, b)), tuple(ids(swapped, b)), tuple(ids(b, a))}), 3)
        read = {"messages": [{"role": "user", "content": "hi"}], "tools": [json.loads(swapped), json.loads(b)]}
        self.assertEqual(server.post("/tokenize", read).json["tokens"], ids(swapped, b))
        text = server.post("/detokenize", {"tokens": ids(swapped, b)}).json["prompt"]
        self.assertLess(text.index("required"), text.index("properties"))
        self.assertEqual(server.stop(), 0)

    def test_tools_are_excluded_when_they_may_not_be_called(self):
        def tokens(*flags):
            server = self.start(self.script(["x"], chat_template="{% if tools %}{{ tools | tojson }}{% endif %}hi"), *flags)
            reply = server.post("/v1/chat/completions", self.with_tools(self.spelled_tools()[0], more=', "tool_choice": "none"'))
            self.assertEqual(reply.status, 200, reply.body)
            self.assertEqual(server.stop(), 0)
            return reply.json["usage"]["prompt_tokens"]
        self.assertEqual(tokens("--exclude-tools-when-tool-choice-none"), len("hi"))
        self.assertGreater(tokens(), len("hi"))

    def test_sorted_tools_share_a_prefix(self):  # B12
        server = self.start(self.script(["x"], chat_template=self.TOOLS_TEMPLATE), "--sort-tool-keys")
        a, swapped, b = self.spelled_tools()

        def ids(*tools):
            return server.post("/tokenize", self.with_tools(*tools)).json["tokens"]

        def usage(*tools):
            reply = server.post("/v1/chat/completions", self.with_tools(*tools, more=', "tool_choice": "none"'))
            self.assertEqual(reply.status, 200, reply.body)
            return reply.json["usage"]

        self.assertEqual(ids(a, b), ids(swapped, b))
        self.assertNotEqual(ids(a, b), ids(b, a))
        first, second, third = usage(a, b), usage(swapped, b), usage(b, a)
        cached = [u["prompt_tokens_details"]["cached_tokens"] for u in (first, second, third)]
        self.assertEqual(cached[:2], [0, (first["prompt_tokens"] - 1) // BLOCK * BLOCK])
        self.assertLess(cached[2], cached[1])
        # What is told of the third: it parts in the first of its tools.
        breaker = eventually(lambda: server.get("/dashboard/state").json["breakers"], "the breaker")[0]
        self.assertEqual((breaker["place"], breaker["index"]), ("tools", 0))
        self.assertEqual(server.stop(), 0)


class VolatileText(ServeTest):
    """A script's prompt has a token for each byte; the template writes what it is given."""

    STABLE = "Answer in full sentences, and never guess.\nWhen a question is unclear, ask what was meant.\n"

    @classmethod
    def serve(cls):
        rules = cls.folder / "rules.txt"
        rules.write_text("move ^Today is\ndrop ^session \n")
        template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
        return Server(cls.script(["ok"], chat_template=template), "--volatile-text", rules)

    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory(prefix="kvarto-rules-") as folder:
            cls.folder = pathlib.Path(folder)
            super().setUpClass()

    def messages(self, day, role="system"):
        return [{"role": role, "content": f"You help.\nToday is {day}.\nsession {day}\n{self.STABLE}"},
                {"role": "user", "content": "Hello?"}]

    def ask(self, day, **more):
        reply = self.server.post("/v1/chat/completions", {"messages": self.messages(day, **more), "return_prompt_text": True})
        self.assertEqual(reply.status, 200, reply.body)
        return reply.headers["X-Kvarto-Volatile-Text"], reply.json

    def test_what_is_moved_is_found_and_counted(self):
        saved = lambda: self.server.numbers()["kvarto:volatile_text_saved_tokens_total"]
        before = saved()
        note, reply = self.ask("Monday")
        wanted = f"You help.\n{self.STABLE}Today is Monday.\nHello?"
        self.assertEqual(reply["prompt_text"], wanted)
        size = len(self.STABLE)
        self.assertEqual(note, f"moved=1, dropped=1, stable-bytes={size}, saved-tokens={size}")
        self.assertEqual(saved() - before, size)
        note, reply = self.ask("Friday")
        same = len("You help.\n" + self.STABLE + "Today is ")
        self.assertEqual(reply["usage"]["prompt_tokens_details"]["cached_tokens"], same // BLOCK * BLOCK)
        self.assertGreater(same // BLOCK * BLOCK, len("You help.\nToday is ") + BLOCK, "no more than without the rule")
        self.assertEqual(saved() - before, 2 * size)
        note, reply = self.ask("Monday", role="user")  # only system prompts
        self.assertIsNone(note)
        self.assertEqual(saved() - before, 2 * size)

    def test_what_is_tokenized_is_what_would_run(self):
        before = self.server.numbers()["kvarto:volatile_text_saved_tokens_total"]
        reply = self.server.post("/tokenize", {"messages": self.messages("Sunday")})
        self.assertEqual(bytes(reply.json["tokens"]).decode(), f"You help.\n{self.STABLE}Today is Sunday.\nHello?")
        self.assertTrue(reply.headers["X-Kvarto-Volatile-Text"].startswith("moved=1, dropped=1, "))
        self.assertEqual(self.server.numbers()["kvarto:volatile_text_saved_tokens_total"], before, "nothing ran")


class Templates(ServeTest):
    GUARD = """\
{%- for m in messages -%}
{%- if m['role'] == 'system' and not loop.first -%}{{ raise_exception('The system message must come first.') }}{%- endif -%}
{%- if loop.index0 % 2 == 1 and m['role'] == 'user' -%}
{{ raise_exception('Roles must alternate user/assistant.') }}
{%- endif -%}
{{ m['content'] }}{%- endfor -%}"""

    @classmethod
    def serve(cls):
        return Server(cls.script(["ok"], chat_template=cls.GUARD), "--trust-request-chat-template",
                      "--default-chat-template-kwargs", '{"greeting": "hello"}')

    def refusal(self, messages, **fields):
        return self.refused(self.server.post("/v1/chat/completions", {"messages": messages, **fields}))["message"]

    def rendered(self, **fields):
        """The prompt that both routes make of a message and `fields`."""
        body = {"messages": [{"role": "user", "content": "u"}], **fields}
        tokenized = self.server.post("/tokenize", body)
        self.assertEqual(tokenized.status, 200, tokenized.body)
        chat = self.server.post("/v1/chat/completions", body | {"return_prompt_text": True})
        self.assertEqual(chat.status, 200, chat.body)
        text = self.server.post("/detokenize", {"tokens": tokenized.json["tokens"]}).json["prompt"]
        self.assertEqual(chat.json["prompt_text"], text)
        return text

    def test_the_templates_own_words(self):  # B21
        user, system = {"role": "user", "content": "u"}, {"role": "system", "content": "s"}
        self.assertIn("Roles must alternate user/assistant.", self.refusal([user, user]))
        self.assertIn("The system message must come first.", self.refusal([user, system]))
        self.assertEqual(self.server.chat([user])["choices"][0]["message"]["content"], "ok")

    def test_no_messages(self):  # B21
        self.refused(self.server.post("/v1/chat/completions", {"messages": []}), "messages")

    def test_a_template_of_the_request_and_its_variables(self):
        def rendered(**fields):
            return self.rendered(chat_template="{{ greeting }} {{ documents }}", **fields)
        self.assertTrue(rendered().startswith("hello"))
        self.assertTrue(rendered(chat_template_kwargs={"greeting": "bye"}).startswith("bye"))
        self.assertIn("page", rendered(documents=[{"title": "page"}]))

    def test_parts_reach_the_template_as_asked_for(self):
        shows = "{% for m in messages %}{% if m['content'] is string %}{{ m['content'] }}{% else %}" \
                "{% for p in m['content'] %}[{{ p['text'] }}]{% endfor %}{% endif %}{% endfor %}"
        parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
        text = [{"role": "user", "content": "c"}]
        for form, of_parts, of_text in (("auto", "[a][b]", "c"), ("string", "a\nb", "c"), ("openai", "[a][b]", "[c]")):
            server = self.start(self.script(["ok"], chat_template=shows), "--chat-template-content-format", form)
            for messages, wanted in ((parts, of_parts), (text, of_text)):
                reply = server.post("/v1/chat/completions", {"messages": messages, "return_prompt_text": True})
                self.assertEqual((reply.status, reply.json.get("prompt_text")), (200, wanted), (form, reply.body))
            self.assertEqual(server.stop(), 0)

    def test_reasoning_effort_reaches_the_template(self):
        self.assertEqual(self.rendered(chat_template="{{ reasoning_effort }}", reasoning_effort="low"), "low")

    def test_a_broken_template_stops_the_start(self):  # B21
        done = subprocess.run([KVARTO, "serve", self.script(["x"]), "--port", "0", "--chat-template",
                               "{% for m in messages %}\n{{ m['content' }}\n{% endfor %}"],
                              capture_output=True, text=True, timeout=WATCHDOG_S)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("line 2", done.stdout + done.stderr)


class SampleModel(ServeTest):
    @classmethod
    def serve(cls):
        return Server(need_model(SMOLLM2), "--max-model-len", 2048)

    def test_three_turns(self):  # row 24
        client = self.server.client()
        system = "You are a patient teacher of physics who answers in one or two short sentences and never asks back."
        messages, known = [{"role": "system", "content": system}], 0
        for question in ("Why is the sky blue?", "And at sunset?", "Is it so on Mars, too?"):
            messages.append({"role": "user", "content": question})
            reply = client.chat.completions.create(model=NAME, messages=messages, max_tokens=24, temperature=1, seed=1)
            self.assertEqual(reply.usage.prompt_tokens_details.cached_tokens, known // BLOCK * BLOCK, question)
            # The last token was only drawn. One that ends a turn is written by the template, too.
            known = reply.usage.prompt_tokens + reply.usage.completion_tokens - 1
            messages.append({"role": "assistant", "content": reply.choices[0].message.content})
        text = "".join(c.choices[0].delta.content or "" for c in client.chat.completions.create(
            model=NAME, messages=messages[:-1], max_tokens=24, temperature=1, seed=1, stream=True))
        self.assertEqual(text, messages[-1]["content"])


if __name__ == "__main__":
    main()
