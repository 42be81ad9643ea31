#!/usr/bin/env python3
"""GET /metrics of `kvarto serve` as Prometheus reads it: serve_metrics_test.py PATH_TO_KVARTO. Prints each check."""
import random
import re
import threading
import time

from serve_harness import BLOCK, NAME, TINY, Numbers, ServeTest, Server, eventually, main

# vLLM 0.33's V1 series that have a meaning here, without the suffixes that a type adds.
VLLM = """
num_requests_running num_requests_waiting num_requests_waiting_by_reason kv_cache_usage_perc engine_sleep_state
prefix_cache_queries prefix_cache_hits external_prefix_cache_queries external_prefix_cache_hits num_preemptions
prompt_tokens prompt_tokens_by_source prompt_tokens_cached generation_tokens request_success admission_rejections
time_to_first_token_seconds inter_token_latency_seconds request_time_per_output_token_seconds e2e_request_latency_seconds
request_queue_time_seconds request_prefill_time_seconds request_decode_time_seconds request_inference_time_seconds
request_prompt_tokens request_generation_tokens request_max_num_generation_tokens request_params_max_tokens
request_params_n request_prefill_kv_computed_tokens iteration_tokens_total cache_config_info
""".split()


class Families(ServeTest):
    @classmethod
    def serve(cls):
        return Server(cls.script(["a", "b", "c"]), "--kv-cache-metrics", "--kv-cache-metrics-sample", 1,
                      "--show-hidden-metrics-for-version", "0.10", "--custom-histogram-buckets",
                      '{"time_to_first_token": [0.5, 5]}')

    def test_content_type_and_families(self):
        reply = self.server.get("/metrics")
        self.assertEqual(reply.headers["Content-Type"], "text/plain; version=0.0.4; charset=utf-8")
        numbers = Numbers(reply.body.decode())
        for name in VLLM:
            self.assertIn("vllm:" + name, numbers.families)
        for family in numbers.families.values():
            self.assertTrue(family.documentation, family.name)
            self.assertNotEqual(family.type, "unknown", family.name)
        for sample in numbers.samples:
            if sample.name.startswith(("vllm:", "kvarto:")) and sample.name != "vllm:cache_config_info":
                self.assertEqual(sample.labels["model_name"], NAME, sample)
        self.assertEqual(numbers.all("vllm:num_requests_running")[0].labels, {"model_name": NAME, "engine": "0"})
        self.assertIn("vllm:gpu_cache_usage_perc", numbers.families)
        self.assertIn("vllm:kv_block_lifetime_seconds", numbers.families)

    def test_buckets(self):
        numbers = self.server.numbers()
        bounds = [s.labels["le"] for s in numbers.all("vllm:time_to_first_token_seconds_bucket")]
        self.assertEqual([float(b) for b in bounds], [0.5, 5, float("inf")])
        bounds = [float(s.labels["le"]) for s in numbers.all("vllm:e2e_request_latency_seconds_bucket")]
        self.assertEqual(bounds[:4] + bounds[-2:], [0.3, 0.5, 0.8, 1.0, 7680.0, float("inf")])

    def test_requests_are_counted(self):
        before = self.server.numbers()
        self.server.complete("x" * 20, n=2, temperature=1)
        self.server.complete("x" * 20, max_tokens=2)
        after = self.server.numbers()
        grown = lambda name, **labels: after.total(name, **labels) - before.total(name, **labels)
        self.assertEqual(grown("vllm:prompt_tokens_total"), 40)
        self.assertEqual(grown("vllm:prompt_tokens_by_source_total", source="local_cache_hit"), 16)
        self.assertEqual(grown("vllm:prompt_tokens_by_source_total", source="local_compute"), 24)
        self.assertEqual(grown("vllm:generation_tokens_total"), 4 + 4 + 2)
        self.assertEqual(grown("vllm:request_success_total", finished_reason="length"), 1)
        self.assertEqual(grown("vllm:request_success_total", finished_reason="stop"), 1)
        for name in ("e2e_request_latency_seconds", "time_to_first_token_seconds", "request_queue_time_seconds",
                     "request_prompt_tokens", "request_generation_tokens", "request_params_n"):
            self.assertEqual(grown(f"vllm:{name}_count"), 2, name)
        self.assertEqual(grown("vllm:request_prompt_tokens_sum"), 40)
        self.assertEqual(grown("vllm:request_params_n_sum"), 3)
        self.assertEqual(grown("vllm:inter_token_latency_seconds_count"), 3 + 3 + 1)
        self.assertEqual(grown("kvarto:prefix_cache_hit_requests_total"), 1)

    def test_memory_is_that_of_the_process(self):
        numbers = self.server.numbers()
        with open(f"/proc/{self.server.process.pid}/statm") as statm:
            resident = int(statm.read().split()[1]) * 4096
        self.assertLess(abs(numbers["process_resident_memory_bytes"] - resident), 8 << 20)
        self.assertEqual(numbers["kvarto:kv_balanced"], 1)

    def test_every_byte_of_the_arena_has_a_state(self):  # row 42
        server = self.start(TINY / "tiny_qwen2.gguf", "--threads", 1, "--kv-cache-memory-bytes", "4M", "--max-model-len", 256)
        server.complete("x" * 50, max_tokens=20, ignore_eos=True)
        numbers = server.numbers()
        arena = sum(numbers.total("kvarto:kv_bytes", state=s) for s in ("free", "active", "cached", "remainder"))
        self.assertEqual(arena, 4 << 20)
        self.assertEqual(arena, numbers.total("kvarto:memory_bytes", tag="kv_arena"))
        self.assertGreater(numbers.total("kvarto:memory_bytes", tag="weights"), 0)
        self.assertEqual(server.stop(), 0)

    def test_lives_of_blocks(self):
        # 64 blocks of 16 tokens, 64 bytes each.
        server = self.start(self.script(["x"]), "--kv-cache-metrics", "--kv-cache-metrics-sample", 1,
                            "--kv-cache-memory-bytes", "64k")
        count = lambda name: server.numbers()[f"vllm:kv_block_{name}_seconds_count"]
        for i in range(3):
            server.complete("x" * 33, max_tokens=1)
            self.assertEqual(count("reuse_gap"), 2 * i)  # two blocks are found each time but the first
        self.assertEqual(count("lifetime"), 0)
        for i in range(20):
            server.complete(f"{i:02}" * 32, max_tokens=1)  # 4 blocks each, shared with none
        replaced = server.numbers()["kvarto:kv_replaced_blocks_total"]
        self.assertGreater(replaced, 10)
        self.assertEqual((count("lifetime"), count("idle_before_evict"), count("reuse_gap")), (replaced, replaced, 4))
        self.assertEqual(server.stop(), 0)

    def test_cache_config(self):
        labels = self.server.numbers().all("vllm:cache_config_info")[0].labels
        self.assertEqual((labels["block_size"], labels["enable_prefix_caching"]), (str(BLOCK), "True"))
        self.assertGreater(int(labels["num_gpu_blocks"]), 0)
        self.assertEqual((labels["user_specified_block_size"], labels["gpu_memory_utilization"]), ("False", "None"))
        server = self.start(TINY / "tiny_qwen2.gguf", "--threads", 1, "--max-model-len", 256, "--block-size", 32,
                            "--gpu-memory-utilization", "0.25", "--num-gpu-blocks-override", 64)
        labels = server.numbers().all("vllm:cache_config_info")[0].labels
        self.assertEqual([labels[name] for name in ("block_size", "user_specified_block_size", "gpu_memory_utilization",
                                                    "num_gpu_blocks_override", "kv_cache_memory_bytes")],
                         ["32", "True", "0.25", "64", "None"])
        # The fields of vLLM 0.33's CacheConfig, and no other.
        self.assertEqual(set(labels), set("""block_size user_specified_block_size kv_cache_layout prefix_match_unit
            gpu_memory_utilization cache_dtype is_attention_free num_gpu_blocks_override sliding_window enable_prefix_caching
            prefix_caching_hash_algo prefix_cache_retention_interval kv_cache_dtype_skip_layers mamba_page_size_padded
            skip_page_size_padded mamba_block_size mamba_cache_dtype mamba_ssm_cache_dtype mamba_cache_mode
            enable_mamba_shared_prefix_checkpoint replayssm_buffer_len use_replayssm use_kda_recoverssm num_gpu_blocks
            num_cpu_blocks simple_cpu_offload_num_blocks effective_attention_block_size kv_cache_size_tokens
            kv_cache_max_concurrency hash_block_size cache_hit_alignment_tokens kv_sharing_fast_prefill swa_bounded_replay
            kv_cache_memory_bytes kv_offloading_size kv_offloading_backend _block_size_resolved engine""".split()))

    def test_scrapes_while_it_works(self):
        done = threading.Event()

        def work():
            while not done.is_set():
                self.server.complete("y" * 50)

        worker = threading.Thread(target=work)
        worker.start()
        counters = {}
        for _ in range(30):
            for sample in self.server.numbers().samples:
                if sample.name.endswith("_total"):
                    key = (sample.name, tuple(sorted(sample.labels.items())))
                    self.assertGreaterEqual(sample.value, counters.get(key, 0), key)
                    counters[key] = sample.value
        done.set()
        worker.join()


class FirstTokens(ServeTest):
    """B22: 100 ms per step, one request at a time."""

    @classmethod
    def serve(cls):
        return Server(cls.script(["a", "b", "c", "d", "e", "f"], step_us=100_000), "--max-num-seqs", 1)

    def first_tokens(self, stream):
        """Two requests of 5 tokens together, then one that is given up: (sum, count) of TTFT and the clients' own sum."""
        before = self.server.numbers()
        seen = []

        def ask():
            start = time.monotonic()
            if stream:
                connected = self.server.open("/v1/completions", {"prompt": "x", "max_tokens": 5, "stream": True})
                data = b""
                while b'"text"' not in data:
                    data += connected.recv(4096)
                seen.append(time.monotonic() - start)
                while b"[DONE]" not in data:
                    data += connected.recv(4096)
                connected.close()
            else:
                self.server.complete("x", max_tokens=5)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for one in threads:
            one.start()
        eventually(lambda: self.server.numbers()["vllm:num_requests_waiting"] == 1, "a waiting request")
        given_up = self.server.open("/v1/completions", {"prompt": "z", "max_tokens": 5, "stream": stream})
        eventually(lambda: self.server.numbers()["vllm:num_requests_waiting"] == 2, "two waiting requests")
        given_up.close()
        for one in threads:
            one.join()
        eventually(self.server.at_rest, "rest")
        after = self.server.numbers()
        grown = lambda name: after.total(name) - before.total(name)
        ends = {reason: after.total("vllm:request_success_total", finished_reason=reason) -
                before.total("vllm:request_success_total", finished_reason=reason)
                for reason in ("stop", "length", "abort", "error", "repetition")}
        self.assertEqual(ends, {"stop": 0, "length": 2, "abort": 1, "error": 0, "repetition": 0},
                         "the one that was given up is no success")
        self.assertEqual(grown("kvarto:aborted_requests_total"), 1)
        self.assertEqual(grown("vllm:time_to_first_token_seconds_count"), 2)
        return grown("vllm:time_to_first_token_seconds_sum"), sum(seen), grown("vllm:request_queue_time_seconds_sum")

    def test_the_queue_is_part_of_it(self):
        total, _, queued = self.first_tokens(stream=False)
        # Steps of 100 ms sleep at least so long: the second one waits for five of them and its own.
        self.assertGreaterEqual(total, 0.1 + 0.6)
        self.assertGreaterEqual(queued, 0.4)
        self.assertLess(total, 60, "seconds, not milliseconds")

    def test_streams_agree_with_the_clients_clock(self):
        total, clients, _ = self.first_tokens(stream=True)
        self.assertGreaterEqual(total, 0.7)
        # The client sees a first token after the server wrote it and started its clock before the server did.
        self.assertLessEqual(total, clients)


class Recomputing(ServeTest):
    """B09: computing again is no hit, and a hit counts once."""

    def test_preemptions_are_no_hits(self):
        server = self.start(TINY / "tiny_llama.gguf", "--threads", 1, "--num-gpu-blocks-override", 24, "--max-model-len", 256)
        rng = random.Random(1)
        prompts = [[rng.randrange(1, 500) for _ in range(60)] for _ in range(20)]
        threads = [threading.Thread(target=server.complete, args=(p,), kwargs={"max_tokens": 60, "ignore_eos": True})
                   for p in prompts]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        numbers = server.numbers()
        self.assertEqual(numbers["vllm:prefix_cache_hits_total"], 0)
        self.assertEqual(numbers["vllm:prefix_cache_queries_total"], 20 * 60)
        self.assertGreater(numbers["vllm:num_preemptions_total"], 0)
        self.assertEqual(numbers["kvarto:resumes_total"], numbers["vllm:num_preemptions_total"])
        # What victims held is found again or computed again; a prompt's tail is in no block, so some of it is computed.
        self.assertGreater(numbers["kvarto:recomputed_tokens_total"], 0)
        self.assertEqual(numbers["kvarto:recomputed_tokens_total"] + numbers["kvarto:resume_cached_tokens_total"],
                         numbers["kvarto:preempted_tokens_total"])
        lines = re.findall(r"finished cmpl-.*preempted (\d+)x", server.log)
        self.assertEqual((len(lines), sum(map(int, lines))), (20, numbers["vllm:num_preemptions_total"]))
        self.assertEqual(numbers["vllm:prompt_tokens_total"], 20 * 60)
        self.assertEqual(server.stop(), 0)

    def test_a_hit_of_many_chunks_counts_once(self):
        server = self.start(TINY / "tiny_llama.gguf", "--threads", 1, "--max-num-batched-tokens", 16, "--max-num-seqs", 4)
        for hits in (0, 96):
            before = server.numbers()
            server.complete(list(range(100, 200)), max_tokens=1)
            after = server.numbers()
            self.assertEqual(after["vllm:prefix_cache_queries_total"] - before["vllm:prefix_cache_queries_total"], 100)
            self.assertEqual(after["vllm:prefix_cache_hits_total"] - before["vllm:prefix_cache_hits_total"], hits)
        self.assertEqual(server.stop(), 0)

    def test_caching_that_is_off(self):  # row 6
        server = self.start(self.script(["x"]), "--no-enable-prefix-caching")
        for _ in range(2):
            self.assertEqual(server.complete("y" * 50)["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertEqual(server.numbers().total("kvarto:prefix_cache_requests_total", miss_reason="disabled"), 2)
        self.assertEqual(server.numbers()["vllm:prefix_cache_queries_total"], 0)
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    main()
