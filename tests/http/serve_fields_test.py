#!/usr/bin/env python3
"""Fields that completions and chats share do the same on both: serve_fields_test.py PATH_TO_KVARTO. Prints each check.

What each does to a completion is shown by serve_openai_test.py, with PyTorch's numbers; here the tokens of a chat's prompt
are given to a completion, and both have to come to the same, which is another answer than without the field.
"""
from serve_harness import NAME, TINY, ServeTest, Server, main, sse_events

CHAT = [{"role": "user", "content": "What is the capital of France?"}]
DRAWN = {"temperature": 1, "seed": 7}
TOKENS = 16


class BothRoutes(ServeTest):
    @classmethod
    def serve(cls):
        return Server(TINY / "tiny_qwen2.gguf", "--reference", "--kv-cache-dtype", "float32", "--threads", 1,
                      "--max-model-len", 256)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.prompt = cls.server.post("/tokenize", {"messages": CHAT}).json["tokens"]
        cls.plain = cls.completion({"ignore_eos": True})["choices"][0]

    @classmethod
    def completion(cls, fields):
        body = {"max_tokens": TOKENS, "return_token_ids": True, **fields}
        return cls.server.complete(cls.prompt, **body)

    @classmethod
    def chat(cls, fields):
        body = {"max_tokens": TOKENS, "return_token_ids": True, **fields}
        return cls.server.chat(CHAT, **body)

    @staticmethod
    def answers(reply):
        """What came out, in the words of completions."""
        return [(c.get("text", c.get("message", {}).get("content")), c["token_ids"], c["finish_reason"], c["stop_reason"])
                for c in reply["choices"]]

    def both(self, fields, without):
        """`fields` change what `without` gives, on both routes alike."""
        completion, chat = self.completion({**without, **fields}), self.chat({**without, **fields})
        self.assertEqual(self.answers(chat), self.answers(completion), fields)
        self.assertNotEqual(self.answers(chat), self.answers(self.chat(without)), (fields, "changes nothing"))
        return chat

    def test_what_is_drawn(self):
        endless, drawn = {"ignore_eos": True}, {"ignore_eos": True, **DRAWN}
        self.both({"temperature": 1.5}, drawn)
        self.both({"seed": 8}, drawn)
        two = self.both({"n": 2}, drawn)["choices"]
        self.assertNotEqual(two[0]["token_ids"], two[1]["token_ids"])
        for one_left in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}):
            chat = self.both(one_left, drawn)
            self.assertEqual(chat["choices"][0]["token_ids"], self.plain["token_ids"], one_left)
        repeats = {"ignore_eos": True, "max_tokens": 24}
        for penalty in ({"presence_penalty": 2}, {"frequency_penalty": 2}, {"repetition_penalty": 5.0}):
            self.both(penalty, repeats)
        first = self.plain["token_ids"][0]
        self.both({"logit_bias": {str(first): -100}}, endless)
        chat = self.both({"allowed_token_ids": [65, 66]}, endless)
        self.assertLessEqual(set(chat["choices"][0]["token_ids"]), {65, 66})
        word = next(w for w in (self.server.post("/detokenize", {"tokens": [t]}).json["prompt"] for t in self.plain["token_ids"])
                    if w.isalpha())
        chat = self.both({"bad_words": [word]}, endless)
        self.assertNotIn(word, chat["choices"][0]["message"]["content"])

    def test_beams(self):
        beams = {"use_beam_search": True, "n": 3, "max_tokens": 6, "ignore_eos": True}
        chat = self.both(beams, {})
        found = [c["token_ids"] for c in chat["choices"]]
        self.assertEqual(len({tuple(ids) for ids in found}), 3)
        # A token that ends some beams early, so that their lengths differ.
        ends = [t for t in dict.fromkeys(found[0][1:]) if not all(t in ids[:2] for ids in found)]
        self.both({"length_penalty": -2.0}, {**beams, "stop_token_ids": ends[:1]})

    def test_where_it_ends(self):
        endless = {"ignore_eos": True}
        self.both({"max_tokens": 3}, endless)
        text = self.plain["text"]
        stop = next(t for t in (text[i:i + 2] for i in range(2, len(text) - 2)) if "\ufffd" not in t)
        chat = self.both({"stop": [stop]}, endless)
        self.assertEqual(chat["choices"][0]["stop_reason"], stop)
        self.both({"include_stop_str_in_output": True}, {**endless, "stop": [stop]})
        token = self.plain["token_ids"][3]
        self.both({"stop_token_ids": [token]}, endless)
        later = self.plain["token_ids"].index(token) + 2
        self.both({"min_tokens": later}, {**endless, "stop_token_ids": [token]})

    def test_the_end_of_a_turn_is_passed_over(self):
        end = next(t for t in self.prompt
                   if self.server.post("/detokenize", {"tokens": [t]}).json["prompt"] == "<|im_end|>")
        only = {"logit_bias": {str(end): 100}, "max_tokens": 4}
        self.assertEqual(self.answers(self.chat(only)), [("", [end], "stop", None)])
        chat = self.both({"ignore_eos": True}, only)
        self.assertEqual((chat["choices"][0]["token_ids"], chat["choices"][0]["finish_reason"]), ([end] * 4, "length"))
        chat = self.both({"skip_special_tokens": False}, {**only, "ignore_eos": True})
        self.assertEqual(chat["choices"][0]["message"]["content"], "<|im_end|>" * 4)

    def test_prompts_are_cut(self):
        def ids(**fields):
            chat, completion = self.chat(fields | {"max_tokens": 1}), self.completion(fields | {"max_tokens": 1})
            self.assertEqual(chat["usage"]["prompt_tokens_details"]["truncated_tokens"], len(self.prompt) - 9)
            self.assertEqual(chat["prompt_token_ids"], completion["choices"][0]["prompt_token_ids"])
            return chat["prompt_token_ids"]
        self.assertEqual(ids(truncate_prompt_tokens=9), self.prompt[-9:])
        self.assertEqual(ids(truncate_prompt_tokens=9, truncation_side="right"), self.prompt[:9])

    def test_log_probabilities(self):
        chat = self.chat({"prompt_logprobs": 2})
        wanted = self.completion({"prompt_logprobs": 2})["choices"][0]["prompt_logprobs"]
        self.assertEqual(len(wanted), len(self.prompt))
        self.assertEqual(chat["prompt_logprobs"], wanted)
        rows = self.chat({"logprobs": True, "return_tokens_as_token_ids": True})["choices"][0]
        self.assertEqual([row["token"] for row in rows["logprobs"]["content"]], [f"token_id:{t}" for t in rows["token_ids"]])

    def test_salts(self):
        def cached(**fields):
            return self.chat(fields)["usage"]["prompt_tokens_details"]["cached_tokens"]
        whole = (len(self.prompt) - 1) // 16 * 16
        self.assertEqual([cached(cache_salt=salt) for salt in ("s1", "s1", "s2")], [0, whole, 0])
        given = self.completion({"cache_salt": "s1"})["usage"]["prompt_tokens_details"]["cached_tokens"]
        self.assertEqual(given, whole, "a completion of the same tokens finds what a chat left")

    def test_best_of(self):
        for path, body in (("/v1/completions", {"prompt": self.prompt}), ("/v1/chat/completions", {"messages": CHAT})):
            body = body | {"max_tokens": 1, "n": 2, "temperature": 1}
            self.assertEqual(self.server.post(path, body | {"best_of": 2}).status, 200)
            self.refused(self.server.post(path, body | {"best_of": 3}), "best_of")

    def test_a_chat_without_max_tokens_may_use_what_is_left(self):  # row 12
        chat = self.server.chat(CHAT, ignore_eos=True)
        self.assertEqual(chat["usage"]["total_tokens"], 256)
        self.assertEqual(chat["choices"][0]["finish_reason"], "length")
        shorter = self.server.chat(CHAT, ignore_eos=True, max_completion_tokens=5)
        self.assertEqual(shorter["usage"]["completion_tokens"], 5)

    def test_cached_tokens_of_a_streams_last_chunk(self):  # row 28
        whole = (len(self.prompt) - 1) // 16 * 16
        for path, body in (("/v1/completions", {"prompt": self.prompt}), ("/v1/chat/completions", {"messages": CHAT})):
            body = body | {"cache_salt": path.replace("/", "."), "max_tokens": 1, "stream": True,
                           "stream_options": {"include_usage": True}}
            usages = [sse_events(self.server.post(path, body).body)[-1]["usage"] for _ in range(2)]
            self.assertEqual([u["prompt_tokens_details"]["cached_tokens"] for u in usages], [0, whole])
            self.assertEqual([u["prompt_tokens"] for u in usages], [len(self.prompt)] * 2)

    def test_cached_tokens_of_every_chunk(self):
        whole = (len(self.prompt) - 1) // 16 * 16
        for path, body in (("/v1/completions", {"prompt": self.prompt}), ("/v1/chat/completions", {"messages": CHAT})):
            body = body | {"cache_salt": "every" + path.replace("/", "."), "max_tokens": 5, "ignore_eos": True, "stream": True,
                           "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
            for cached in (0, whole):
                events = sse_events(self.server.post(path, body).body)
                self.assertGreater(len(events), 2)
                self.assertEqual({e["usage"]["prompt_tokens_details"]["cached_tokens"] for e in events}, {cached}, path)

    def test_echo_of_a_chat_is_its_last_message_when_the_assistants(self):
        asked = {"max_tokens": 3, "ignore_eos": True}
        self.assertEqual(self.answers(self.chat({**asked, "echo": True})), self.answers(self.chat(asked)),
                         "a user's message was echoed")
        begun = [*CHAT, {"role": "assistant", "content": "It is"}]
        body = {"messages": begun, "temperature": 0, "continue_final_message": True, "add_generation_prompt": False, **asked}
        plain = self.server.post("/v1/chat/completions", body).json["choices"][0]["message"]["content"]
        for stream in (False, True):
            reply = self.server.post("/v1/chat/completions", body | {"echo": True, "stream": stream})
            text = "".join(e["choices"][0]["delta"].get("content") or "" for e in sse_events(reply.body)) if stream \
                else reply.json["choices"][0]["message"]["content"]
            self.assertEqual(text, "It is" + plain, f"stream: {stream}")


class InFront(ServeTest):
    """A template that prints no BOS, and a tokenizer that has one."""

    @classmethod
    def serve(cls):
        return Server(TINY / "tiny_llama3.gguf", "--threads", 1, "--max-model-len", 256, "--chat-template",
                      "{{ messages[0]['content'] }}")

    def test_special_tokens_in_front_of_chats(self):
        plain = self.server.post("/tokenize", {"prompt": CHAT[0]["content"], "add_special_tokens": False}).json["tokens"]
        with_bos = self.server.post("/tokenize", {"prompt": CHAT[0]["content"]}).json["tokens"]
        self.assertEqual(with_bos[1:], plain)
        for fields, wanted in (({}, plain), ({"add_special_tokens": True}, with_bos)):
            self.assertEqual(self.server.post("/tokenize", {"messages": CHAT, **fields}).json["tokens"], wanted)
            chat = self.server.chat(CHAT, max_tokens=1, return_token_ids=True, **fields)
            self.assertEqual((chat["prompt_token_ids"], chat["model"]), (wanted, NAME))


if __name__ == "__main__":
    main()
