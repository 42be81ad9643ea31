#!/usr/bin/env python3
"""KV events of `kvarto serve` as a router sees them: serve_kv_events_test.py PATH_TO_KVARTO. Prints each check.

Hashes are worked out here from the tokens: SHA-256 over CBOR, chained, vLLM's sha256_cbor.
"""
import hashlib
import json
import struct

from serve_harness import BLOCK, TINY, WATCHDOG_S, ServeTest, eventually, free_port, main

import msgspec  # behind serve_harness, which finds a Python that has it
import zmq

from kv_events_client import Listener, Router


def cbor(value):
    def head(kind, number):
        if number < 24:
            return bytes([kind << 5 | number])
        for code, form in ((24, ">B"), (25, ">H"), (26, ">I"), (27, ">Q")):
            if number < 1 << 8 * struct.calcsize(form):
                return bytes([kind << 5 | code]) + struct.pack(form, number)
    if value is None:
        return b"\xf6"
    if isinstance(value, int):
        return head(0, value)
    if isinstance(value, bytes):
        return head(2, len(value)) + value
    if isinstance(value, str):
        return head(3, len(value.encode())) + value.encode()
    return head(4, len(value)) + b"".join(cbor(v) for v in value)


def chain(tokens, salt=None):
    parent, out = hashlib.sha256(cbor("vllm-none-hash")).digest(), []
    for at in range(0, len(tokens) // BLOCK * BLOCK, BLOCK):
        extra = [["cache_salt", salt]] if salt and at == 0 else None
        parent = hashlib.sha256(cbor([parent, tokens[at:at + BLOCK], extra])).digest()
        out.append(parent)
    return out


def short(digest):
    return int.from_bytes(digest[-8:], "big")


class KvEvents(ServeTest):
    def begin(self, model, *flags, env=None, **config):
        self.port, self.replay_port = free_port(), free_port()
        config = {"enable_kv_cache_events": True, "endpoint": f"tcp://*:{self.port}",
                  "replay_endpoint": f"tcp://*:{self.replay_port}", "topic": "kv", **config}
        return self.start(model, *flags, "--kv-events-config", json.dumps(config), env=env)

    def listener(self):
        listener = Listener(f"tcp://127.0.0.1:{self.port}", f"tcp://127.0.0.1:{self.replay_port}", "kv")
        self.addCleanup(listener.close)
        return listener

    def follow(self, listener, router, done):
        """Feeds the router until done(router)."""
        def look():
            for batch in listener.batches(0.05):
                router.apply(batch)
            if not done(router):  # what came before the subscription
                for number, batch in listener.replay(listener.next_number, WATCHDOG_S):
                    listener.next_number = number + 1
                    router.apply(batch)
            return done(router)
        eventually(look, "the events")

    def test_the_golden_chain(self):
        self.assertEqual(chain([])[:0] + [hashlib.sha256(cbor("vllm-none-hash")).hexdigest()],
                         ["9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0"])
        self.assertEqual([short(h) for h in chain(list(range(32)))], [2233398808101521225, 17911472383915781900])
        self.assertEqual(short(chain(list(range(16)), "s1")[0]), 16868077126905186569)

    def test_a_router_knows_what_is_cached(self):
        server = self.begin(self.script(["x"] * 4))
        listener, router = self.listener(), Router()
        prompt = list(range(100))
        server.complete(prompt, max_tokens=2)
        hashes = {(short(h), 0) for h in chain(prompt)}
        self.follow(listener, router, lambda r: len(r.blocks) >= 6)
        self.assertEqual(router.blocks, hashes)
        server.complete(prompt, max_tokens=2)  # a hit says nothing
        server.complete(prompt[:50] + prompt[:50], max_tokens=2, cache_salt="s1")
        hashes |= {(short(h), 0) for h in chain(prompt[:50] + prompt[:50], "s1")}
        self.follow(listener, router, lambda r: len(r.blocks) >= 12)
        self.assertEqual(router.blocks, hashes)
        self.assertEqual(server.numbers().total("kvarto:kv_blocks", state="cached"), len(hashes))
        eventually(lambda: server.numbers()["kvarto:kv_event_batches_total"] >= 2, "both batches counted")
        numbers = server.numbers()
        self.assertGreaterEqual(numbers["kvarto:kv_events_total"], 2)
        self.assertGreater(numbers["kvarto:kv_event_bytes_total"], 8 * len(hashes))
        self.assertEqual(numbers["kvarto:kv_event_dropped_batches_total"], 0)
        self.assertEqual(server.stop(), 0)

    def test_generated_blocks_and_full_hashes(self):
        server = self.begin(self.script([f"{i}," for i in range(60)]), full_hashes=True)
        listener, router = self.listener(), Router()
        reply = server.complete([7] * 20, max_tokens=50, return_token_ids=True)["choices"][0]
        tokens = [7] * 20 + reply["token_ids"][:-1]  # the last one was only drawn
        self.follow(listener, router, lambda r: len(r.blocks) >= len(tokens) // BLOCK)
        self.assertEqual(router.blocks, {(h, 0) for h in chain(tokens)})
        self.assertEqual(server.stop(), 0)

    def test_blocks_that_are_replaced_are_removed(self):
        server = self.begin(self.script(["x"] * 4, max_model_len=512), "--kv-cache-memory-bytes", "64K")
        listener, router = self.listener(), Router()
        for i in range(12):
            server.complete([i] * 200, max_tokens=1)
        self.assertGreater(server.numbers()["kvarto:kv_replaced_blocks_total"], 0)
        cached = lambda: server.numbers().total("kvarto:kv_blocks", state="cached")
        self.follow(listener, router, lambda r: len(r.blocks) == cached())
        self.assertIn((short(chain([11] * 200)[-1]), 0), router.blocks)
        self.assertNotIn((short(chain([0] * 200)[-1]), 0), router.blocks)
        self.assertEqual(server.stop(), 0)

    def test_a_reset_clears(self):
        server = self.begin(self.script(["x"]), env={"VLLM_SERVER_DEV_MODE": "1"})
        listener, router = self.listener(), Router()
        server.complete([1] * 100)
        self.follow(listener, router, lambda r: len(r.blocks) >= 6)
        self.assertEqual(server.post("/reset_prefix_cache", b"").json, {"success": True})
        self.follow(listener, router, lambda r: not r.blocks)
        self.assertEqual(server.complete([1] * 100)["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertEqual(server.stop(), 0)

    def test_groups_of_a_windowed_model(self):
        server = self.begin(TINY / "tiny_gemma3.gguf", "--threads", 1)
        listener, router = self.listener(), Router()
        server.complete([i % 250 + 3 for i in range(100)], max_tokens=2, ignore_eos=True)
        self.follow(listener, router, lambda r: sum(1 for _, group in r.blocks if group is not None) >= 12)
        self.assertEqual({group for _, group in router.blocks}, {0, 1})
        self.assertEqual(server.stop(), 0)

    def test_who_comes_late_replays(self):
        server = self.begin(self.script(["x"]))
        server.complete([3] * 100)
        listener, router = self.listener(), Router()
        for _, batch in listener.replay(0, WATCHDOG_S):
            router.apply(batch)
        self.assertEqual(router.blocks, {(short(h), 0) for h in chain([3] * 100)})
        self.assertEqual(server.stop(), 0)

    def test_salts_of_keys_tell_nothing_about_them(self):
        keys = ("sk-easily-guessed", "sk-another")
        told = []
        for _ in range(2):
            server = self.begin(self.script(["x"]), "--api-key", *keys, "--salt-from-api-key")
            salts = []
            for number, key in enumerate((keys[0], keys[0], keys[1])):
                reply = server.post("/v1/completions", {"prompt": [number] * 40}, {"Authorization": f"Bearer {key}"})
                self.assertEqual(reply.status, 200, reply.body)
            listener = self.listener()

            def look():
                salts[:] = [event.extra_keys[0][0] for _, batch in listener.replay(0, WATCHDOG_S) for event in batch.events]
                return len(salts) == 3
            eventually(look, "three events")
            self.assertEqual(salts[0], salts[1], "one key, two salts")
            self.assertNotEqual(salts[0], salts[2])
            for salt in salts:
                for key in keys:
                    self.assertNotIn(key, salt)
                    self.assertNotIn(hashlib.sha256(key.encode()).hexdigest()[:16], salt)
            told += salts
            self.assertEqual(server.stop(), 0)
        self.assertEqual(len(set(told)), 4, "a name of a key outlived its process: it can be worked out")

    def test_the_array_form(self):
        server = self.begin(self.script(["x"]), encoding="array")
        prompt = [5] * 40
        socket = zmq.Context.instance().socket(zmq.SUB)
        self.addCleanup(socket.close, 0)
        socket.setsockopt(zmq.RCVTIMEO, WATCHDOG_S * 1000)
        socket.setsockopt_string(zmq.SUBSCRIBE, "")
        socket.connect(f"tcp://127.0.0.1:{self.port}")

        def first():
            server.complete(prompt, cache_salt=f"{len(salts)}")
            salts.append(len(salts))
            return socket.poll(100)

        salts = []
        eventually(first, "a batch")
        topic, number, payload = socket.recv_multipart()
        self.assertEqual((topic, len(number)), (b"kv", 8))
        time, events, rank = msgspec.msgpack.decode(payload)
        salt = struct.unpack(">Q", number)[0]
        self.assertIsInstance(time, float)
        self.assertEqual(rank, 0)
        hashes = [short(h) for h in chain(prompt, f"{salt}")]
        self.assertEqual(events[0][:7], ["BlockStored", hashes, None, prompt[:32], BLOCK, None, "GPU"])

    def test_off_unless_asked_for(self):
        server = self.start(self.script(["x"]))
        self.assertEqual(server.complete("x")["choices"][0]["text"], "x")
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    main()
