#!/usr/bin/env python3
"""500 requests given up at random moments leave nothing behind: aborts_test.py PATH_TO_KVARTO. Prints each check.

KVARTO_ABORTS sets their number (10,000 is the long soak), KVARTO_ABORTS_SEED repeats a run.
"""
import os
import random
import threading
import time

from serve_harness import TINY, ServeTest, Server, eventually, main, reset

COUNT = int(os.environ.get("KVARTO_ABORTS", 500))
SEED = int(os.environ.get("KVARTO_ABORTS_SEED", random.randrange(1 << 32)))
CLIENTS = 16
# What a request leaves behind, should it leave something, is its state in the engine, its reply or its connection with
# their buffers: more than 4 KiB together. What may grow is bounded and less: the turns that are remembered, rows of the
# dashboard, heaps whose fullest moment comes late (measured: 0.1 to 0.2 MiB per 125 requests, and for 10,000 as much as
# 0.2 KiB per request in the second half).
LEAK_BYTES_PER_REQUEST = 4096


class Aborts:
    """What both servers are put through."""

    def make_body(self, rng):
        raise NotImplementedError

    def client(self, seed, count):
        rng = random.Random(seed)
        for _ in range(count):
            chat = rng.random() < 0.2
            body = self.make_body(rng)
            prompt = body.pop("prompt")
            if chat and isinstance(prompt, str):
                connected = self.server.open("/v1/chat/completions", {"messages": [{"role": "user", "content": prompt}], **body})
            else:
                connected = self.server.open("/v1/completions", {"prompt": prompt, **body})
            # Most in the first milliseconds, some after the end.
            time.sleep(rng.random() ** 2 * 0.05)
            if rng.random() < 0.3:
                connected.setblocking(False)
                try:
                    connected.recv(1 << 16)
                except BlockingIOError:
                    pass
            reset(connected) if rng.random() < 0.5 else connected.close()

    def round(self, number, count):
        clients = [threading.Thread(target=self.client, args=(f"{SEED} {number} {i}", -(-count // CLIENTS)))
                   for i in range(CLIENTS)]
        for one in clients:
            one.start()
        for one in clients:
            one.join()
        eventually(self.server.at_rest, "rest")
        eventually(lambda: self.server.numbers()["kvarto:http_open_connections"] <= 1, "no open connections")
        with open(f"/proc/{self.server.process.pid}/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def test_aborts_at_random_moments(self):
        print(f"KVARTO_ABORTS_SEED={SEED}", flush=True)
        start = self.server.numbers()
        resident = [self.round(quarter, COUNT // 4) for quarter in range(4)]
        numbers = self.server.numbers()
        aborted = numbers["kvarto:aborted_requests_total"]
        print(f"{aborted:.0f} of {COUNT} were aborted; resident after each quarter: "
              f"{[f'{r / 2**20:.2f} MiB' for r in resident]}", flush=True)
        # The others were done before.
        self.assertGreater(aborted, COUNT / 5)
        states = {s: numbers.total("kvarto:aborted_requests_total", state=s) for s in ("queued", "prefill", "decode")}
        self.assertGreater(states["decode"], 0, states)
        self.assertEqual(numbers["kvarto:internal_errors_total"], 0)
        self.assertEqual(numbers["kvarto:watchdog_pushes_total"], 0)
        # What is used is cached: at_rest() saw no open or active block. Nobody holds those, and without them all is free.
        self.assertEqual(numbers["kvarto:kv_shared_blocks"], 0)
        self.assertGreater(numbers.total("kvarto:kv_blocks", state="cached"), 0)
        self.assertTrue(self.server.post("/reset_prefix_cache", "").json["success"])
        end = self.server.numbers()
        for state in ("free", "active", "cached", "remainder"):
            self.assertEqual(end.total("kvarto:kv_bytes", state=state), start.total("kvarto:kv_bytes", state=state), state)
        self.assertEqual(end.total("kvarto:kv_blocks", state="free"), start.total("kvarto:kv_blocks", state="free"))
        self.assertLess(resident[3] - resident[1], COUNT // 2 * LEAK_BYTES_PER_REQUEST, resident)
        self.assertEqual(self.server.complete("and now", max_tokens=16, ignore_eos=True)["usage"]["completion_tokens"], 16)


class Scripted(Aborts, ServeTest):
    """The HTTP path: the engine takes no time, and prompts share their beginnings."""

    @classmethod
    def serve(cls):
        return Server(cls.script([f"w{i} " for i in range(16)], endless=True, step_us=500), "--max-num-seqs", 8,
                      "--kv-cache-memory-bytes", "1M", env={"VLLM_SERVER_DEV_MODE": "1"})

    def make_body(self, rng):
        prompt = "shared beginning of every one " * rng.randrange(4) + "x" * rng.randrange(1, 200)
        return {"prompt": prompt, "max_tokens": rng.randrange(1, 60), "stream": rng.random() < 0.5, "n": 1 + rng.randrange(2),
                "temperature": 1}


class Computed(Aborts, ServeTest):
    """A model that computes, on a pool that is too small for all, so that samples are preempted, too."""

    @classmethod
    def serve(cls):
        return Server(TINY / "tiny_gemma3.gguf", "--threads", 1, "--max-num-seqs", 8, "--max-model-len", 256,
                      "--num-gpu-blocks-override", 48, env={"VLLM_SERVER_DEV_MODE": "1"})

    def make_body(self, rng):
        prompt = [1 + i % 300 for i in range(rng.choice((0, 32, 64)))] + [rng.randrange(1, 300) for _ in range(rng.randrange(1, 60))]
        return {"prompt": prompt, "max_tokens": rng.randrange(1, 120), "stream": rng.random() < 0.5, "n": 1 + rng.randrange(3),
                "temperature": 1, "ignore_eos": True, "logprobs": rng.choice((None, 2))}


if __name__ == "__main__":
    main()
