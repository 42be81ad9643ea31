#!/usr/bin/env python3
"""The official openai client drives `kvarto serve`: serve_openai_test.py PATH_TO_KVARTO. Prints each check."""
import json

from serve_harness import BLOCK, NAME, TINY, ServeTest, Server, main

import openai  # behind serve_harness, which finds a Python that has it

QWEN2 = TINY / "tiny_qwen2.gguf"
GOLDEN = {case["name"]: case for case in json.loads((TINY / "tiny_qwen2.json").read_text())["cases"]}
IDS = GOLDEN["ids_130"]["ids"]


def cached(reply):
    return reply.usage.prompt_tokens_details.cached_tokens


class TinyModel(ServeTest):
    """A random model, in float32: what it computes was computed by PyTorch, too."""

    @classmethod
    def serve(cls):
        return Server(QWEN2, "--reference", "--kv-cache-dtype", "float32", "--threads", "1", "--max-model-len", 512)

    def setUp(self):
        self.client = self.server.client()

    def complete(self, prompt, **fields):
        extra = {k: fields.pop(k) for k in list(fields) if k in EXTRA}
        return self.client.completions.create(**{"model": NAME, "prompt": prompt, "temperature": 0, "extra_body": extra,
                                                 **fields})

    def ids(self, prompt, **fields):
        return self.complete(prompt, return_token_ids=True, **fields).choices[0].token_ids

    # --- completions

    def test_greedy_ids_are_pytorchs(self):
        for name in ("ids_1", "ids_5", "ids_33", "text"):
            case = GOLDEN[name]
            reply = self.complete(case["ids"], max_tokens=24, return_token_ids=True, ignore_eos=True)
            choice = reply.choices[0]
            self.assertEqual(choice.token_ids, case["greedy"], name)
            self.assertEqual(choice.prompt_token_ids, case["ids"])
            self.assertEqual(choice.finish_reason, "length")
            self.assertEqual((reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.usage.total_tokens),
                             (len(case["ids"]), 24, len(case["ids"]) + 24))
        self.assertEqual(reply.object, "text_completion")
        self.assertEqual(reply.model, NAME)
        self.assertTrue(reply.id.startswith("cmpl-"))

    def test_texts_become_the_same_ids(self):
        case = GOLDEN["text"]
        reply = self.complete(case["text"], max_tokens=4, return_token_ids=True, ignore_eos=True)
        self.assertEqual(reply.choices[0].prompt_token_ids, case["ids"])
        self.assertEqual(reply.choices[0].token_ids, case["greedy"][:4])

    def test_sixteen_tokens_unless_asked_otherwise(self):
        self.assertEqual(self.complete(IDS[:20], ignore_eos=True).usage.completion_tokens, 16)
        self.assertEqual(self.complete(IDS[:20], max_tokens=1).choices[0].finish_reason, "length")

    def test_several_prompts(self):
        prompts = [IDS[:5], IDS[5:25], IDS[25:60]]
        alone = [self.ids(p, max_tokens=6, ignore_eos=True) for p in prompts]
        reply = self.complete(prompt=prompts, max_tokens=6, return_token_ids=True, ignore_eos=True)
        self.assertEqual([c.index for c in reply.choices], [0, 1, 2])
        self.assertEqual([c.token_ids for c in reply.choices], alone)
        self.assertEqual(reply.usage.prompt_tokens, 5 + 20 + 35)
        texts = self.complete(["one", "two"], max_tokens=2, n=2, temperature=1, seed=3)
        self.assertEqual([c.index for c in texts.choices], [0, 1, 2, 3])

    def test_stream_equals_whole(self):
        whole = self.complete(IDS[:40], max_tokens=30, ignore_eos=True, return_token_ids=True)
        text, ids, last = "", [], None
        for chunk in self.complete(IDS[:40], max_tokens=30, ignore_eos=True, return_token_ids=True, stream=True):
            text += chunk.choices[0].text
            ids += chunk.choices[0].token_ids
            last = chunk
            self.assertIsNone(chunk.usage, "usage was not asked for")
        self.assertEqual(text, whole.choices[0].text)
        self.assertEqual(ids, whole.choices[0].token_ids)
        self.assertEqual(last.choices[0].finish_reason, "length")
        interval = list(self.complete(IDS[:40], max_tokens=30, ignore_eos=True, stream_interval=10, stream=True))
        self.assertLessEqual(len(interval), 5)
        self.assertEqual("".join(c.choices[0].text for c in interval), whole.choices[0].text)

    def test_usage_comes_last_and_only_when_asked_for(self):
        fields = {"max_tokens": 6, "ignore_eos": True, "n": 2, "temperature": 1, "seed": 7, "stream": True}
        chunks = list(self.complete(IDS[:40], stream_options={"include_usage": True}, **fields))
        self.assertTrue(all(c.usage is None and c.choices for c in chunks[:-1]))
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual((chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens), (40, 12))
        self.assertTrue(all(c.usage is None for c in self.complete(IDS[:40], **fields)))
        options = {"include_usage": True, "continuous_usage_stats": True}
        counts = [c.usage.completion_tokens for c in self.complete(IDS[:40], stream_options=options,
                                                                  **{**fields, "n": 1})]
        self.assertEqual(counts, sorted(counts))
        self.assertEqual(counts[-1], 6)

    def test_usage_sums_choices_that_end_at_different_times(self):  # B20
        fields = {"max_tokens": 12, "n": 2, "temperature": 1, "seed": 7, "ignore_eos": True}
        both = self.complete(IDS[:40], return_token_ids=True, **fields).choices
        early = next(t for t in both[0].token_ids[:6] if t not in both[1].token_ids)
        after = both[0].token_ids.index(early) + 1
        chunks = list(self.complete(IDS[:40], stop_token_ids=[early], stream=True, return_token_ids=True,
                                    stream_options={"include_usage": True}, **fields))
        reasons = {c.choices[0].index: c.choices[0].finish_reason for c in chunks[:-1] if c.choices[0].finish_reason}
        self.assertEqual(reasons, {0: "stop", 1: "length"})
        self.assertEqual(chunks[-1].usage.completion_tokens, after + 12)
        # Told of its end when it ends: the other one's remaining tokens come behind it.
        ended = next(i for i, c in enumerate(chunks) if c.choices[0].index == 0 and c.choices[0].finish_reason)
        behind = chunks[ended + 1:-1]
        self.assertEqual({c.choices[0].index for c in behind}, {1})
        self.assertGreaterEqual(sum(len(c.choices[0].token_ids) for c in behind), 12 - after)

    # --- sampling

    def test_seeds(self):  # B20
        fields = {"max_tokens": 12, "n": 2, "temperature": 1, "ignore_eos": True, "return_token_ids": True}
        pair = [c.token_ids for c in self.complete(IDS[:40], seed=7, **fields).choices]
        self.assertNotEqual(pair[0], pair[1])
        again = [c.token_ids for c in self.complete(IDS[:40], seed=7, **fields).choices]
        self.assertEqual(pair, again)
        other = [c.token_ids for c in self.complete(IDS[:40], seed=8, **fields).choices]
        self.assertNotEqual(pair, other)
        unseeded = [self.ids(IDS[:40], max_tokens=12, temperature=1, ignore_eos=True) for _ in range(2)]
        self.assertNotEqual(*unseeded)
        beside = self.complete([IDS[:40], IDS[40:80]], seed=7, **fields).choices
        self.assertEqual([c.token_ids for c in beside[:2]], pair, "a neighbour changed a seeded text")

    def test_two_samples_compute_their_prompt_once(self):
        before = self.server.numbers()["kvarto:computed_prompt_tokens_total"]
        self.complete(IDS[:100], n=4, temperature=1, max_tokens=4, cache_salt="alone", ignore_eos=True)
        self.assertEqual(self.server.numbers()["kvarto:computed_prompt_tokens_total"] - before, 100)

    def test_logit_bias_and_allowed_and_bad(self):
        free = self.ids(IDS[:40], max_tokens=4, ignore_eos=True)
        other = (free[0] + 1) % 256
        self.assertEqual(self.ids(IDS[:40], max_tokens=1, logit_bias={str(other): 100}), [other])
        banned = self.ids(IDS[:40], max_tokens=4, ignore_eos=True, logit_bias={str(free[0]): -100})
        self.assertNotIn(free[0], banned)
        allowed = self.ids(IDS[:40], max_tokens=6, allowed_token_ids=[65, 66], temperature=1)
        self.assertLessEqual(set(allowed), {65, 66})
        plain = self.complete(IDS[:40], max_tokens=8, ignore_eos=True, return_token_ids=True).choices[0]
        words = [self.server.post("/detokenize", {"tokens": [token]}).json["prompt"] for token in plain.token_ids]
        word = next(w for w in words if w.isascii() and w.strip())
        self.assertIn(word, plain.text)
        self.assertNotIn(word, self.complete(IDS[:40], max_tokens=8, bad_words=[word], ignore_eos=True).choices[0].text)

    def test_filters_and_penalties_change_what_is_drawn(self):
        greedy = self.ids(IDS[:40], max_tokens=8, ignore_eos=True)
        for one_left in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"temperature": 0.01}):
            self.assertEqual(self.ids(IDS[:40], max_tokens=8, ignore_eos=True, **{"temperature": 1, **one_left}), greedy,
                             one_left)
        case = GOLDEN["ids_5"]  # its greedy text repeats one token
        self.assertEqual(case["greedy"][1:3], [270, 270])
        for penalty in ({"presence_penalty": 2}, {"frequency_penalty": 2}, {"repetition_penalty": 5.0}):
            ids = self.ids(case["ids"], max_tokens=12, ignore_eos=True, **penalty)
            self.assertNotEqual(ids, case["greedy"][:12], penalty)

    def test_beams(self):
        reply = self.complete(IDS[:20], use_beam_search=True, n=3, max_tokens=4, length_penalty=1.0, return_token_ids=True,
                              ignore_eos=True)
        self.assertEqual(len({tuple(c.token_ids) for c in reply.choices}), 3)

    def test_the_length_penalty_orders_beams(self):
        prompt, beams = IDS[:20], {"use_beam_search": True, "n": 3, "max_tokens": 6, "ignore_eos": True}
        free = [tuple(c.token_ids) for c in self.complete(prompt, return_token_ids=True, **beams).choices]
        end = next(t for t in free[2] if t not in free[0])  # it ends beams early, so that their lengths differ

        def found(penalty):
            reply = self.complete(prompt, length_penalty=penalty, stop_token_ids=[end], return_token_ids=True, **beams)
            return [tuple(c.token_ids) for c in reply.choices]

        def worth(beam, penalty):
            rows = self.complete(prompt + list(beam), max_tokens=1, prompt_logprobs=0).choices[0].prompt_logprobs
            total = sum(row[str(token)]["logprob"] for row, token in zip(rows[len(prompt):], beam))
            return total / len(beam) ** penalty

        orders = {penalty: found(penalty) for penalty in (-2.0, 0.0, 1.0, 3.0)}
        for penalty, order in orders.items():
            self.assertEqual(order, sorted(order, key=lambda beam: worth(beam, penalty), reverse=True), penalty)
        self.assertEqual(set(orders[-2.0]), set(orders[0.0]), "the same beams")
        self.assertNotEqual(orders[-2.0], orders[0.0], "in another order")
        self.assertLess(len(orders[0.0][0]), len(orders[3.0][0]), "a higher penalty prefers the longer one")

    # --- how it ends

    def test_stops(self):
        plain = self.complete(IDS[:40], max_tokens=20, ignore_eos=True, return_token_ids=True).choices[0]
        stop = next(t for t in (plain.text[i:i + 2] for i in range(3, len(plain.text) - 2)) if "\ufffd" not in t)
        cut = self.complete(IDS[:40], max_tokens=20, ignore_eos=True, stop=[stop]).choices[0]
        self.assertEqual(cut.text, plain.text[:plain.text.index(stop)])
        self.assertEqual((cut.finish_reason, cut.stop_reason), ("stop", stop))
        kept = self.complete(IDS[:40], max_tokens=20, ignore_eos=True, stop=stop, include_stop_str_in_output=True)
        self.assertEqual(kept.choices[0].text, plain.text[:plain.text.index(stop)] + stop)
        token = plain.token_ids[3]
        first = plain.token_ids.index(token) + 1
        by_id = self.complete(IDS[:40], max_tokens=20, ignore_eos=True, stop_token_ids=[token], return_token_ids=True)
        self.assertEqual(by_id.choices[0].stop_reason, token)
        self.assertEqual(by_id.choices[0].token_ids, plain.token_ids[:first])
        late = self.complete(IDS[:40], max_tokens=first + 2, min_tokens=first + 1, ignore_eos=True, stop_token_ids=[token])
        self.assertGreater(late.usage.completion_tokens, first)

    def test_a_stop_on_the_last_allowed_token_is_a_stop(self):  # B20
        plain = self.complete(IDS[:40], max_tokens=6, ignore_eos=True, return_token_ids=True).choices[0]
        last = next(i for i in range(1, 6) if plain.token_ids[i] not in plain.token_ids[:i])
        reply = self.complete(IDS[:40], max_tokens=last + 1, stop_token_ids=[plain.token_ids[last]], ignore_eos=True)
        self.assertEqual(reply.choices[0].finish_reason, "stop")
        self.assertEqual(reply.usage.completion_tokens, last + 1)

    # --- log-probabilities

    def test_logprobs(self):
        case = GOLDEN["ids_33"]
        best = [(token, value - case["logsumexp"]) for token, value in case["top20"]]
        reply = self.complete(case["ids"], max_tokens=3, logprobs=5, ignore_eos=True, return_tokens_as_token_ids=True)
        logprobs = reply.choices[0].logprobs
        self.assertEqual(logprobs.tokens, [f"token_id:{t}" for t in case["greedy"][:3]])
        self.assertAlmostEqual(logprobs.token_logprobs[0], best[0][1], delta=2e-3)
        self.assertEqual(set(logprobs.top_logprobs[0]), {f"token_id:{t}" for t, _ in best[:5]})
        for token, value in best[:5]:
            self.assertAlmostEqual(logprobs.top_logprobs[0][f"token_id:{token}"], value, delta=2e-3)
        self.assertEqual(len(logprobs.text_offset), 3)
        none = self.complete(case["ids"], max_tokens=3, logprobs=0, ignore_eos=True).choices[0].logprobs
        self.assertEqual(len(none.token_logprobs), 3)

    def test_logprobs_of_a_stream_are_those_of_the_whole(self):
        fields = {"max_tokens": 8, "logprobs": 2, "ignore_eos": True}
        whole = self.complete(IDS[:40], **fields).choices[0].logprobs
        tokens, values, offsets = [], [], []
        for chunk in self.complete(IDS[:40], stream=True, **fields):
            if chunk.choices[0].logprobs:
                tokens += chunk.choices[0].logprobs.tokens
                values += chunk.choices[0].logprobs.token_logprobs
                offsets += chunk.choices[0].logprobs.text_offset
        self.assertEqual((tokens, values, offsets), (whole.tokens, whole.token_logprobs, whole.text_offset))

    def test_prompt_logprobs_of_a_cached_prompt(self):  # B11
        for length in (55, 56, 57):
            prompt = IDS[-length:]
            cold = self.complete(prompt, max_tokens=1, prompt_logprobs=2, cache_salt=f"cold{length}")
            self.assertEqual(cached(self.complete(prompt, max_tokens=1)), 0)
            asked = self.complete(prompt, max_tokens=1, prompt_logprobs=2)
            self.assertEqual(cached(asked), 0)
            self.assertEqual(cached(self.complete(prompt, max_tokens=1)), (length - 1) // BLOCK * BLOCK)
            rows = asked.choices[0].prompt_logprobs
            self.assertEqual(len(rows), length)
            self.assertIsNone(rows[0])
            for row, other, token in zip(rows[1:], cold.choices[0].prompt_logprobs[1:], prompt[1:]):
                self.assertIn(str(token), row)
                self.assertEqual(set(row), set(other))
                for key in row:
                    self.assertAlmostEqual(row[key]["logprob"], other[key]["logprob"], delta=1e-5)
                    self.assertEqual(row[key]["rank"], other[key]["rank"])

    def test_echo(self):
        text = "Hello, world!"
        plain = self.complete(text, max_tokens=4, ignore_eos=True).choices[0].text
        self.assertEqual(self.complete(text, max_tokens=4, ignore_eos=True, echo=True).choices[0].text, text + plain)
        streamed = "".join(c.choices[0].text for c in self.complete(text, max_tokens=4, ignore_eos=True, echo=True,
                                                                    stream=True))
        self.assertEqual(streamed, text + plain)
        case = GOLDEN["ids_70"]
        scored = self.complete(case["ids"], max_tokens=0, echo=True, logprobs=1, return_tokens_as_token_ids=True)
        logprobs = scored.choices[0].logprobs
        self.assertEqual(logprobs.tokens, [f"token_id:{t}" for t in case["ids"]])
        self.assertIsNone(logprobs.token_logprobs[0])
        mean = -sum(logprobs.token_logprobs[1:]) / (len(case["ids"]) - 1)
        self.assertAlmostEqual(mean, case["prompt_nll_mean"], delta=1e-3)
        self.assertEqual(scored.usage.completion_tokens, 0)

    def test_echo_with_logprobs_is_the_same_in_a_stream(self):
        for fields in ({"max_tokens": 4}, {"max_tokens": 0}):
            fields |= {"ignore_eos": True, "echo": True, "logprobs": 1}
            whole = self.complete(IDS[:20], **fields).choices[0]
            self.assertEqual(len(whole.logprobs.tokens), 20 + fields["max_tokens"])
            text, got = "", {"tokens": [], "token_logprobs": [], "text_offset": [], "top_logprobs": []}
            chunks = list(self.complete(IDS[:20], stream=True, **fields))
            # The first one brings the prompt with the first token; nothing waits for the end.
            self.assertEqual([len(c.choices[0].logprobs.tokens) for c in chunks], [21, 1, 1, 1] if fields["max_tokens"] else [20])
            for chunk in chunks:
                text += chunk.choices[0].text
                for key, values in got.items():
                    values += getattr(chunk.choices[0].logprobs, key) if chunk.choices[0].logprobs else []
            self.assertEqual(text, whole.text)
            self.assertEqual(got, {key: getattr(whole.logprobs, key) for key in got})

    # --- the cache

    def test_shared_beginnings(self):  # B07
        def misses(reason):
            return self.server.numbers().total("kvarto:prefix_cache_requests_total", miss_reason=reason)
        for shared, expected in ((15, 0), (16, 16), (17, 16), (31, 16)):
            salt = f"pair{shared}"
            self.complete(IDS[:shared] + [1] * 20, max_tokens=1, cache_salt=salt)
            before = misses("shorter_than_block")
            reply = self.complete(IDS[:shared] + [2] * 20, max_tokens=1, cache_salt=salt)
            self.assertEqual(cached(reply), expected, shared)
            self.assertEqual(misses("shorter_than_block") - before, 1 if shared == 15 else 0, shared)
        for length, expected in ((16, 0), (32, 16)):
            salt = f"repeat{length}"
            self.complete(IDS[:length], max_tokens=1, cache_salt=salt)
            self.assertEqual(cached(self.complete(IDS[:length], max_tokens=1, cache_salt=salt)), expected, length)
        before = misses("no_match")
        self.complete([9] * 40, max_tokens=1, cache_salt="stranger")
        self.assertEqual(misses("no_match") - before, 1)

    def test_salts(self):  # B08
        prompt = [i * 7 % 250 + 1 for i in range(70)]  # of this test alone
        got = [cached(self.complete(prompt, max_tokens=1, **({"cache_salt": salt} if salt else {})))
               for salt in ("s1", "s1", "s2", None)]
        self.assertEqual(got, [0, 64, 0, 0])
        with self.assertRaises(openai.BadRequestError) as refused:
            self.complete(prompt, cache_salt="")
        self.assertEqual(refused.exception.param, "cache_salt")

    def test_a_hit_changes_nothing(self):
        cold = self.ids(IDS[:100], max_tokens=16, ignore_eos=True, cache_salt="bits")
        reply = self.complete(IDS[:100], max_tokens=16, ignore_eos=True, cache_salt="bits", return_token_ids=True)
        self.assertEqual(cached(reply), 96)
        self.assertEqual(reply.choices[0].token_ids, cold)

    # --- lengths

    def test_truncation_is_told(self):  # row 12
        reply = self.complete(IDS[:100], max_tokens=1, truncate_prompt_tokens=30, return_token_ids=True)
        self.assertEqual(reply.choices[0].prompt_token_ids, IDS[70:100])
        self.assertEqual(reply.usage.prompt_tokens, 30)
        self.assertEqual(reply.usage.prompt_tokens_details.truncated_tokens, 70)
        right = self.complete(IDS[:100], max_tokens=1, truncate_prompt_tokens=30, truncation_side="right",
                              return_token_ids=True)
        self.assertEqual(right.choices[0].prompt_token_ids, IDS[:30])
        whole = self.complete(IDS[:100], max_tokens=1, truncate_prompt_tokens=-1)
        self.assertEqual(whole.usage.prompt_tokens, 100)

    def test_too_long(self):  # row 12
        with self.assertRaises(openai.BadRequestError) as refused:
            self.complete([1] * 513)
        self.assertIn("maximum context length is 512 tokens", str(refused.exception))
        self.assertIn("513", str(refused.exception))
        with self.assertRaises(openai.BadRequestError) as refused:
            self.complete([1] * 512)
        with self.assertRaises(openai.BadRequestError) as refused:
            self.complete([1] * 5, max_tokens=513)
        self.assertEqual(refused.exception.param, "max_tokens")
        reply = self.complete([1] * 500, max_tokens=100, ignore_eos=True)
        self.assertEqual((reply.usage.completion_tokens, reply.choices[0].finish_reason), (12, "length"))

    # --- errors and lists

    def test_errors_are_the_clients_exceptions(self):
        with self.assertRaises(openai.NotFoundError) as refused:
            self.client.completions.create(model="nobody", prompt="x")
        self.assertEqual((refused.exception.status_code, refused.exception.param), (404, "model"))
        for fields, param in (({"temperature": 3}, "temperature"), ({"top_p": 0}, "top_p"), ({"n": 0}, "n"),
                              ({"logprobs": 100}, "logprobs"), ({"presence_penalty": 3}, "presence_penalty"),
                              ({"stop": ["a"] * 9}, "stop"), ({"suffix": "x"}, "suffix"), ({"n": 2}, "n"),
                              ({"best_of": 2}, "best_of"), ({"priority": 1}, "priority"),
                              ({"min_tokens": 5, "max_tokens": 3}, "min_tokens")):
            with self.assertRaises(openai.BadRequestError) as refused:
                self.complete("x", **fields)
            self.assertEqual(refused.exception.param, param, fields)

    def test_models(self):
        models = self.client.models.list().data
        self.assertEqual([m.id for m in models], [NAME])
        self.assertEqual(models[0].max_model_len, 512)

    def test_tokenize_and_back(self):
        case = GOLDEN["text"]
        tokenized = self.server.post("/tokenize", {"prompt": case["text"], "return_token_strs": True}).json
        self.assertEqual((tokenized["tokens"], tokenized["count"], tokenized["max_model_len"]),
                         (case["ids"], len(case["ids"]), 512))
        self.assertEqual(len(tokenized["token_strs"]), len(case["ids"]))
        self.assertEqual(self.server.post("/detokenize", {"tokens": case["ids"]}).json, {"prompt": case["text"]})
        chat = GOLDEN["chat"]
        rendered = self.server.post("/tokenize", {"messages": chat["messages"]}).json
        self.assertEqual(rendered["tokens"], chat["ids"])
        self.assertEqual(self.server.post("/detokenize", {"tokens": rendered["tokens"]}).json["prompt"], chat["rendered"])

    # --- chats

    def test_chat(self):
        case = GOLDEN["chat"]
        reply = self.client.chat.completions.create(model=NAME, messages=case["messages"], temperature=0, max_tokens=8,
                                                    extra_body={"ignore_eos": True, "return_token_ids": True,
                                                                "return_prompt_text": True})
        self.assertEqual(reply.choices[0].token_ids, case["greedy"][:8])
        self.assertEqual(reply.prompt_token_ids, case["ids"])
        self.assertEqual(reply.prompt_text, case["rendered"])
        self.assertEqual((reply.object, reply.choices[0].message.role), ("chat.completion", "assistant"))
        self.assertTrue(reply.id.startswith("chatcmpl-"))
        chunks = list(self.client.chat.completions.create(model=NAME, messages=case["messages"], temperature=0,
                                                          max_completion_tokens=8, stream=True,
                                                          extra_body={"ignore_eos": True}))
        self.assertEqual((chunks[0].choices[0].delta.role, chunks[0].choices[0].delta.content), ("assistant", ""))
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks), reply.choices[0].message.content)

    def test_chat_logprobs(self):
        case = GOLDEN["chat"]
        fields = {"model": NAME, "messages": case["messages"], "temperature": 0, "max_tokens": 4, "logprobs": True,
                  "top_logprobs": 3, "extra_body": {"ignore_eos": True}}
        rows = self.client.chat.completions.create(**fields).choices[0].logprobs.content
        best = [(token, value - case["logsumexp"]) for token, value in case["top20"]]
        self.assertAlmostEqual(rows[0].logprob, best[0][1], delta=2e-3)
        self.assertEqual([len(row.top_logprobs) for row in rows], [3] * 4)
        streamed = [row for c in self.client.chat.completions.create(stream=True, **fields)
                    if c.choices[0].logprobs for row in c.choices[0].logprobs.content]
        self.assertEqual(streamed, rows)

    def test_a_token_with_a_space_in_front_has_that_byte(self):  # B17
        for spaced in range(256, 400):
            text = self.server.post("/detokenize", {"tokens": [spaced]}).json["prompt"]
            if text.startswith(" ") and len(text) > 2:
                break
        reply = self.client.chat.completions.create(model=NAME, messages=[{"role": "user", "content": "x"}], max_tokens=1,
                                                    logprobs=True, extra_body={"allowed_token_ids": [spaced]})
        row = reply.choices[0].logprobs.content[0]
        self.assertEqual((row.token, row.bytes), (text, list(text.encode())))

    def test_continue_final_message(self):
        messages = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "One, two"}]
        reply = self.client.chat.completions.create(
            model=NAME, messages=messages, max_tokens=2, temperature=0,
            extra_body={"continue_final_message": True, "add_generation_prompt": False, "return_prompt_text": True,
                        "echo": True, "ignore_eos": True})
        self.assertTrue(reply.prompt_text.endswith("One, two"), reply.prompt_text)
        self.assertTrue(reply.choices[0].message.content.startswith("One, two"))

        def tokenized(**fields):
            return self.server.post("/tokenize", {"messages": messages, **fields}).json["tokens"]
        whole = tokenized()
        without = tokenized(add_generation_prompt=False)
        self.assertEqual(whole[:len(without)], without)
        self.assertGreater(len(whole), len(without))
        begun = tokenized(continue_final_message=True, add_generation_prompt=False)
        self.assertEqual(begun, without[:len(begun)])
        self.assertEqual(self.server.post("/detokenize", {"tokens": begun}).json["prompt"], reply.prompt_text)

    def test_parts_and_null(self):  # B21
        text = {"messages": [{"role": "user", "content": "a\nb"}]}
        parts = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}
        self.assertEqual(self.server.post("/tokenize", text).json["tokens"],
                         self.server.post("/tokenize", parts).json["tokens"])
        turn = [{"role": "user", "content": "x"},
                {"role": "assistant", "content": None, "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": "1", "content": "y"}]
        ids = self.server.post("/tokenize", {"messages": turn}).json["tokens"]
        rendered = self.server.post("/detokenize", {"tokens": ids}).json["prompt"]
        self.assertEqual(rendered, "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n"
                                   "<|im_start|>tool\ny<|im_end|>\n<|im_start|>assistant\n")
        empty = [{"role": "system", "content": ""}, {"role": "user", "content": "x"}]
        ids = self.server.post("/tokenize", {"messages": empty}).json["tokens"]
        rendered = self.server.post("/detokenize", {"tokens": ids}).json["prompt"]
        self.assertEqual(rendered, "<|im_start|>system\n<|im_end|>\n<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n")


class SlidingWindow(ServeTest):
    @classmethod
    def serve(cls):
        return Server(TINY / "tiny_gemma3.gguf", "--threads", "1")

    def test_the_same_prompt_four_times(self):  # B10
        ids = [(7 * i) % 250 + 3 for i in range(85)]

        def run(prompt, salt):
            reply = self.server.complete(prompt, max_tokens=8, ignore_eos=True, return_token_ids=True, cache_salt=salt)
            return reply["choices"][0]["token_ids"], reply["usage"]["prompt_tokens_details"]["cached_tokens"]

        cold, first = run(ids[:80], "w")
        self.assertEqual(first, 0)
        for _ in range(3):
            self.assertEqual(run(ids[:80], "w"), (cold, 64))
        longer, hit = run(ids, "w")
        self.assertGreater(hit, 0)
        self.assertEqual(longer, run(ids, "cold1")[0])
        shorter, _ = run(ids[:40], "w")
        self.assertEqual(shorter, run(ids[:40], "cold2")[0])


class BeginningOfText(ServeTest):
    """B24, and which control tokens are shown."""

    @classmethod
    def serve(cls):
        return Server(TINY / "tiny_llama3.gguf", "--threads", 1, "--max-model-len", 256)

    TEXT = next(case for case in json.loads((TINY / "tiny_llama3.json").read_text())["cases"] if case["name"] == "text")

    def ids(self, path="/tokenize", **fields):
        reply = self.server.post(path, fields)
        self.assertEqual(reply.status, 200, reply.body)
        return reply.json["tokens"]

    def test_special_tokens_in_front(self):  # B24
        text, with_bos = self.TEXT["text"], self.TEXT["ids"]
        self.assertEqual(self.ids(prompt=text), with_bos)
        plain = self.ids(prompt=text, add_special_tokens=False)
        self.assertEqual(plain, with_bos[1:])
        bos = self.server.post("/detokenize", {"tokens": with_bos[:1]}).json["prompt"]
        self.assertEqual(self.ids(prompt=bos + text).count(with_bos[0]), 1, "a second one")
        warning = "begins with the text of the BOS token"
        said = self.server.log.count(warning)
        for _ in range(2):
            choice = self.server.complete(bos + text, max_tokens=1, return_token_ids=True)["choices"][0]
            self.assertEqual(choice["prompt_token_ids"], with_bos)
        self.assertEqual((said, self.server.log.count(warning)), (0, 1), "told once")
        for fields, expected in (({}, with_bos), ({"add_special_tokens": False}, plain)):
            choice = self.server.complete(text, max_tokens=1, return_token_ids=True, **fields)["choices"][0]
            self.assertEqual(choice["prompt_token_ids"], expected)
        given = self.server.complete(plain, max_tokens=1, return_token_ids=True)["choices"][0]
        self.assertEqual(given["prompt_token_ids"], plain, "ids are used untouched")
        chat = [{"role": "user", "content": "x"}]
        self.assertEqual(self.ids(messages=chat).count(with_bos[0]), 1, "the template's own")
        self.assertEqual(self.ids(messages=chat, add_special_tokens=True), self.ids(messages=chat))

    def test_special_tokens_are_left_out(self):
        special = self.TEXT["ids"][0]
        fields = {"max_tokens": 3, "allowed_token_ids": [special], "ignore_eos": True}
        shown = self.server.complete("x", skip_special_tokens=False, **fields)["choices"][0]["text"]
        self.assertIn("<|", shown)
        self.assertEqual(self.server.complete("x", skip_special_tokens=True, **fields)["choices"][0]["text"], "")

    def test_only_text_comes_out(self):
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
        self.assertEqual(self.server.post("/v1/chat/completions", body | {"modalities": ["text"]}).status, 200)
        self.refused(self.server.post("/v1/chat/completions", body | {"modalities": ["text", "audio"]}), "modalities")


EXTRA = {"return_token_ids", "ignore_eos", "stream_interval", "stop_token_ids", "cache_salt", "allowed_token_ids", "bad_words",
         "top_k", "min_p", "repetition_penalty", "use_beam_search", "length_penalty", "include_stop_str_in_output",
         "min_tokens", "prompt_logprobs", "return_tokens_as_token_ids", "truncate_prompt_tokens", "truncation_side", "priority"}

if __name__ == "__main__":
    main()
