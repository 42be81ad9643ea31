#!/usr/bin/env python3
"""Text of `kvarto serve` byte for byte, however its tokens are cut: serve_bytes_test.py PATH_TO_KVARTO. Prints each check.

Expected texts come from Python's own UTF-8 decoder and a search for stop strings from left to right.
"""
import codecs
import json
import random

from serve_harness import ServeTest, Server, main, sse_events, streamed_text



def decoded(data, final=True):
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data, final)


def reference(pieces, stops=(), include=False, most=None):
    """(text, finish_reason, stop_reason, tokens): what a reader of the whole answer would say."""
    used = pieces if most is None else pieces[:most]
    for count in range(1, len(used) + 1):
        # The last piece is followed by the end only where the limit cuts; else one more token, the end itself, comes.
        text = decoded(b"".join(used[:count]), final=False)
        found = first_stop(text, stops)
        if found:
            end, stop = found
            return text[:end if include else end - len(stop)], "stop", stop, count
    text = decoded(b"".join(used))
    ended_by_limit = most is not None and most <= len(pieces)
    found = first_stop(text, stops)  # completed by what only the end made a character
    if found:
        end, stop = found
        return text[:end if include else end - len(stop)], "stop", stop, len(used) + (not ended_by_limit)
    return text, "length" if ended_by_limit else "stop", None, len(used) + (not ended_by_limit)


def first_stop(text, stops):
    """The stop string that is complete first, of several the longest: (where it ends, itself)."""
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text.endswith(stop, 0, end):
                return end, stop
    return None


class Bytes(ServeTest):
    def serve_answers(self, answers, *flags):
        """A server whose answer i follows the prompt [i]; at most 256 answers."""
        return self.start(self.script(*answers, **({"max_model_len": 4096})), *flags)

    def both(self, server, index, **fields):
        """The whole reply of completions and chats; streams must come to the same."""
        body = {"prompt": [index], "max_tokens": 1000, "temperature": 0, **fields}
        whole = server.post("/v1/completions", body)
        self.assertEqual(whole.status, 200, whole.body)
        streamed = server.post("/v1/completions", body | {"stream": True, "stream_options": {"include_usage": True}})
        streamed.body.decode("utf-8")  # every line is valid
        events = sse_events(streamed.body)
        reply = whole.json
        choice = reply["choices"][0]
        last = [e["choices"][0] for e in events if e["choices"]][-1]
        self.assertEqual(streamed_text(events), choice["text"], fields)
        self.assertEqual((last["finish_reason"], last["stop_reason"]), (choice["finish_reason"], choice["stop_reason"]))
        self.assertEqual(events[-1]["usage"]["completion_tokens"], reply["usage"]["completion_tokens"])
        return choice["text"], choice["finish_reason"], choice["stop_reason"], reply["usage"]["completion_tokens"]

    def test_characters_across_pieces(self):  # B17
        cases = [([b"\xF0\x9F", b"\x98\x80"], "\U0001F600"), ([b"\xE3", b"\x81", b"\x82"], "\u3042"),
                 ([b"\xFF", b"A"], "\uFFFDA"), ([b"\xF0\x9F", b"A"], "\uFFFDA"),
                 ([b"\xED", b"\xA0", b"\x80"], "\uFFFD\uFFFD\uFFFD"), ([b"e", "\u0301".encode(), b"!"], "e\u0301!"),
                 ([b"\xF0\x9F"], "\uFFFD")]
        server = self.serve_answers([pieces for pieces, _ in cases])
        for index, (pieces, text) in enumerate(cases):
            self.assertEqual(self.both(server, index), (text, "stop", None, len(pieces) + 1), pieces)
            self.assertEqual(decoded(b"".join(pieces)), text)
        self.assertEqual(self.both(server, 0, max_tokens=1), ("\uFFFD", "length", None, 1), "only at the end")
        self.assertEqual(self.both(server, 1, max_tokens=2), ("\uFFFD", "length", None, 2))

    def test_a_lone_byte_does_not_stall(self):  # B17
        server = self.serve_answers([[b"\xFF", b"A"]])
        body = {"prompt": [0], "max_tokens": 10, "stream": True}
        pieces = [e["choices"][0]["text"] for e in sse_events(server.post("/v1/completions", body).body)]
        self.assertEqual([p for p in pieces if p], ["\uFFFD", "A"])

    def test_logprobs_have_the_raw_bytes(self):  # B17
        server = self.serve_answers([[b"\xF0\x9F", b"\x98\x80", " hi"]], "--chat-template",
                                    "{{ messages[0]['content'] }}{{ '' }}")
        body = {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "temperature": 0}
        rows = server.post("/v1/chat/completions", body).json["choices"][0]["logprobs"]["content"]
        self.assertEqual([row["bytes"] for row in rows[:3]], [[0xF0, 0x9F], [0x98, 0x80], [32, 104, 105]])
        self.assertEqual(rows[2]["token"], " hi")
        streamed = [row for e in sse_events(server.post("/v1/chat/completions", body | {"stream": True}).body)
                    if e["choices"][0]["logprobs"] for row in e["choices"][0]["logprobs"]["content"]]
        self.assertEqual(streamed, rows)

    def test_stop_strings_that_people_met(self):  # row 19
        cases = [(["yes\n", "\nUse"], ["\n\nUser:"]), (["a <", "/", "b", "</s> more"], ["</s>"]),
                 (["xabcd"], ["abcd", "bc"]), (["xabc"], ["c", "abc"]), (["aaa", "b!"], ["aab"]), (["end"], ["end"]),
                 (["a", "b", "c", "d"], ["bcd"]), (["\U0001F600".encode()[:2], "\U0001F600".encode()[2:]], ["\U0001F600"])]
        pieces = [[p if isinstance(p, bytes) else p.encode() for p in answer] for answer, _ in cases]
        server = self.serve_answers(pieces)
        for index, (_, stops) in enumerate(cases):
            for include in (False, True):
                self.assertEqual(self.both(server, index, stop=stops, include_stop_str_in_output=include),
                                 reference(pieces[index], stops, include), (pieces[index], stops))

    def test_held_text_is_not_lost(self):  # row 19
        server = self.serve_answers([[b"yes", b" EN"]])
        self.assertEqual(self.both(server, 0, stop=["END"])[0], "yes EN")
        self.assertEqual(self.both(server, 0, stop=["END"], max_tokens=2)[:2], ("yes EN", "length"))

    def test_random_texts_random_cuts_random_stops(self):  # row 18
        seed = random.randrange(1 << 30)
        rng = random.Random(seed)
        alphabet = ["a", "b", "ab", "\n", "\u00e9", "e\u0301", "\u4f60\u597d", "\U0001F468\u200D\U0001F469", "\U0001F600",
                    "\uFFFD", " "]
        broken = [b"\xF0\x9F", b"\x98", b"\xE3", b"\xFF", b"\xC3"]
        answers, wanted = [], []
        for index in range(200):
            parts = [rng.choice(alphabet).encode() for _ in range(rng.randrange(1, 14))]
            if index % 2:
                parts.insert(rng.randrange(len(parts) + 1), rng.choice(broken))
            data = b"".join(parts)
            cuts = sorted(rng.sample(range(1, len(data)), rng.randrange(min(len(data), 10)))) if len(data) > 1 else []
            pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)])]
            stops = ["".join(rng.choice(alphabet) for _ in range(rng.randrange(1, 4))) for _ in range(rng.randrange(4))]
            most = rng.randrange(1, len(pieces) + 2)
            answers.append(pieces)
            wanted.append((stops, rng.random() < 0.5, most))
        server = self.serve_answers(answers)
        stopped = 0
        for index, (stops, include, most) in enumerate(wanted):
            fields = {"stop": stops, "include_stop_str_in_output": include, "max_tokens": most}
            expected = reference(answers[index], stops, include, most)
            stopped += expected[2] is not None
            self.assertEqual(self.both(server, index, **fields), expected, (seed, index, answers[index], fields))
        self.assertGreater(stopped, 20, "too few stops to tell anything")

    def test_chat_streams_and_intervals(self):
        text = "Emoji \U0001F600, CJK \u4f60\u597d, e\u0301 and \U0001F468\u200D\U0001F469\u200D\U0001F467."
        data = text.encode()
        server = self.serve_answers([[data[i:i + 1] for i in range(len(data))]])
        body = {"messages": [{"role": "user", "content": "x"}]}
        self.assertEqual(server.post("/v1/chat/completions", body).json["choices"][0]["message"]["content"], text)
        for interval in (1, 2, 7, 100):
            reply = server.post("/v1/chat/completions", body | {"stream": True, "stream_interval": interval})
            self.assertEqual(streamed_text(sse_events(reply.body)), text)

    def test_json_of_all_controls(self):
        text = "".join(map(chr, range(1, 128))) + "\u2028\u2029\u0085\\\"/"
        server = self.serve_answers([[text]])
        self.assertEqual(self.both(server, 0)[0], text)
        raw = server.post("/v1/completions", {"prompt": [0], "stream": True}).body
        self.assertTrue(all(json.loads(line[6:]) for line in raw.decode().split("\n") if line.startswith("data: {")))


if __name__ == "__main__":
    main()
