#!/usr/bin/env python3
"""Writes tests/golden/metrics.txt: the text of /metrics after the events of src/server/metrics_test.cc (Metrics,
EverySeries), worked out by hand from what each metric means. Standard library only: make_metrics_golden.py [OUTPUT].

What happens there, in seconds of a scripted clock. Layout: a full group and one with a window of 32 tokens, blocks of
16 tokens and 1024 bytes each; an arena of 57344 bytes, so 128 bytes per token and 448 tokens in the long run; a request
of 100 tokens needs 7 blocks in both groups, 14336 bytes: 4 of them fit, 400 tokens.

Steps   1: 10.0 to 10.1, admits a prompt of 40 tokens (nothing known) and one of 50 (32 found, all there was); computes
           58 prompt tokens, generates 2; 4096 bytes are in use.
        2: admits 10 tokens (shorter than a block); computes 10, generates 3; 8192 bytes.
        3: admits 20 tokens that must not use the cache; computes 20, generates 2; 8192 bytes.
        4: nothing to compute.
Tokens  two samples, both first at 10.1; then 0 at 10.15 and 10.9, 1 at 10.25.
First   bytes of streams after 0.12 and 0.3 s.
Ends    a: stream, n 2, may generate 64: 40 prompt tokens, none cached, 3 and 2 generated (stop, length), preempted
           once; arrived 9.9 (in the engine 9.95), scheduled 10.0, first token 10.1, last 10.9, over 11.0.
        b: no stream, may generate 16: 50 prompt tokens, 32 cached, 1 generated (stop); arrived 9.5 (9.6), scheduled
           10.0, its token 10.1, over 10.2.
        c: failed before it was scheduled: 20 prompt tokens, might generate 8; arrived 10.0, over 10.5.
        d, e, f: cancelled while decoding (a stream), in prefill, in the queue; one more given up before the engine.
Refused 2 for queued requests, 1 for queued tokens, 3 because nobody had room to read them.
Lives   one block used again after 0.5 s, one replaced after 10 s, the last 3 of them unused.
"""
import argparse
import math
import pathlib
import sys

OUTPUT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/metrics.txt"

T = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560]
I = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80]
R = [0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680]
K = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800]
L = [1, 2, 5, 10, 20, 50, 100]
STEPS = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]
N = [1, 2, 5, 10, 20]
PREEMPTIONS = [1, 2, 3, 4, 5, 10, 20]

ENGINE = {"engine": "0", "model_name": "tiny"}
FAMILIES = {}  # name -> (type, lines)


def number(value):
    if value == math.inf:
        return "+Inf"
    text = repr(float(value))
    if "e" in text or text.index(".") <= 6:
        return text
    whole, fraction = text.split(".")
    mantissa = (whole[0] + "." + whole[1:] + fraction).rstrip("0").rstrip(".")
    return f"{mantissa}e+{len(whole) - 1:02d}"


def line(name, labels, value):
    inside = ",".join(f'{key}="{labels[key]}"' for key in sorted(labels))
    return name + ("{" + inside + "}" if inside else "") + " " + number(value)


def add(kind, name, value, /, labels=ENGINE, **extra):
    """One series; those of a family are given in the order of their labels."""
    known, lines = FAMILIES.setdefault(name, (kind, []))
    assert known == kind
    lines.append(line(name, {**labels, **extra}, value))


def gauge(name, value, /, **extra):
    add("gauge", name, value, **extra)


def counter(name, value, /, **extra):
    add("counter", name + "_total", value, **extra)


def histogram(name, bounds, observed, /, **extra):
    lines = FAMILIES.setdefault(name, ("histogram", []))[1]
    labels = {**ENGINE, **extra}
    for bound in [*bounds, math.inf]:
        lines.append(line(name + "_bucket", {**labels, "le": number(bound)}, sum(o <= bound for o in observed)))
    lines.append(line(name + "_count", labels, len(observed)))
    total = 0.0
    for value in observed:  # one after the other, as a running sum; sum() is more exact in newer Pythons
        total += value
    lines.append(line(name + "_sum", labels, total))


def events():
    counter("vllm:prompt_tokens", 40 + 50 + 10 + 20)
    counter("vllm:prompt_tokens_by_source", 0, source="external_kv_transfer")
    counter("vllm:prompt_tokens_by_source", 32, source="local_cache_hit")
    counter("vllm:prompt_tokens_by_source", 120 - 32, source="local_compute")
    counter("vllm:prompt_tokens_cached", 32)
    for tier, tokens in (("device", 32), ("disk", 0), ("external_unspecified", 0), ("host", 0), ("p2p", 0)):
        counter("vllm:prompt_tokens_cached_by_source", tokens, source=tier)
    for old in ("", "gpu_"):
        counter(f"vllm:{old}prefix_cache_queries", 40 + 50 + 10)
        counter(f"vllm:{old}prefix_cache_hits", 32)
    for reason, requests, tokens in (("disabled", 1, 20), ("evicted", 0, 0), ("no_match", 1, 40), ("none", 1, 18),
                                     ("salt", 0, 0), ("shorter_than_block", 1, 10)):
        counter("kvarto:prefix_cache_requests", requests, miss_reason=reason)
        counter("kvarto:prefix_cache_missed_tokens", tokens, miss_reason=reason)
    counter("kvarto:prefix_cache_hit_requests", 1)
    for reason, requests in (("abort", 4), ("error", 1), ("length", 1), ("repetition", 0), ("stop", 1)):
        counter("vllm:request_success", requests, finished_reason=reason)
    for reason, requests in (("max_num_queued_reqs", 2), ("max_num_queued_tokens", 1), ("text_queue", 3)):
        counter("vllm:admission_rejections", requests, labels={"model_name": "tiny"}, reason=reason)
    for state, requests in (("decode", 1), ("prefill", 1), ("queued", 2)):
        counter("kvarto:aborted_requests", requests, state=state)
    gauge("kvarto:kv_active_peak_bytes", 8192)
    gauge("kvarto:kv_active_peak_step", 2)

    histogram("vllm:time_to_first_token_seconds", T, [0.12, 0.3, 0.6])
    for name in ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"):
        histogram(name, I, [0.05, 0.15, 0.75])
    histogram("vllm:request_time_per_output_token_seconds", I, [0.8 / 2])
    histogram("vllm:e2e_request_latency_seconds", R, [1.1, 0.7, 0.5])
    histogram("vllm:request_queue_time_seconds", R, [0.05, 0.4])
    histogram("vllm:request_prefill_time_seconds", R, [0.1, 0.1])
    histogram("vllm:request_decode_time_seconds", R, [0.8, 0])
    histogram("vllm:request_inference_time_seconds", R, [0.9, 0.1])
    histogram("vllm:request_prompt_tokens", L, [40, 50, 20])
    histogram("vllm:request_generation_tokens", L, [5, 1, 0])
    histogram("vllm:request_max_num_generation_tokens", L, [3, 1, 0])
    histogram("vllm:request_params_max_tokens", L, [64, 16, 8])
    histogram("vllm:request_params_n", N, [2, 1, 1])
    histogram("vllm:request_prefill_kv_computed_tokens", L, [40, 18, 20])
    histogram("vllm:request_num_preemptions", PREEMPTIONS, [1, 0, 0])
    histogram("vllm:iteration_tokens_total", STEPS, [60, 13, 22])
    histogram("vllm:kv_block_lifetime_seconds", K, [10])
    histogram("vllm:kv_block_idle_before_evict_seconds", K, [3])
    histogram("vllm:kv_block_reuse_gap_seconds", K, [0.5])


def totals():
    """What the test puts into the snapshot."""
    gauge("vllm:num_requests_running", 3)
    gauge("vllm:num_requests_waiting", 2)
    gauge("vllm:num_requests_waiting_by_reason", 2, reason="capacity")
    gauge("vllm:num_requests_waiting_by_reason", 0, reason="deferred")
    for name in ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"):
        gauge(name, 8192 / 57344)
    for state in ("awake", "discard_all", "weights_offloaded"):
        gauge("vllm:engine_sleep_state", state == "awake", sleep_state=state)
    counter("vllm:external_prefix_cache_queries", 0)
    counter("vllm:external_prefix_cache_hits", 0)
    counter("vllm:num_preemptions", 6)
    counter("vllm:generation_tokens", 1234567)
    add("gauge", "vllm:cache_config_info", 1, labels={
        "engine": "0", "block_size": "16", "user_specified_block_size": "True", "hash_block_size": "16",
        "cache_dtype": "float16", "gpu_memory_utilization": "0.9", "kv_cache_memory_bytes": "57344",
        "kv_cache_size_tokens": "400", "kv_cache_max_concurrency": "4.00", "enable_prefix_caching": "True",
        "prefix_caching_hash_algo": "sha256_cbor", "sliding_window": "32", "is_attention_free": "False",
        "num_gpu_blocks_override": "56", "num_cpu_blocks": "None", "num_gpu_blocks": "56",
        # The other fields of vLLM 0.33's CacheConfig.
        "_block_size_resolved": "True", "effective_attention_block_size": "16", "cache_hit_alignment_tokens": "16",
        "prefix_match_unit": "None", "kv_cache_layout": "None", "prefix_cache_retention_interval": "0",
        "kv_cache_dtype_skip_layers": "[]", "simple_cpu_offload_num_blocks": "None", "kv_offloading_size": "None",
        "kv_offloading_backend": "native", "kv_sharing_fast_prefill": "False", "swa_bounded_replay": "False",
        "mamba_page_size_padded": "None", "skip_page_size_padded": "None", "mamba_block_size": "None",
        "mamba_cache_dtype": "auto", "mamba_ssm_cache_dtype": "auto", "mamba_cache_mode": "none",
        "enable_mamba_shared_prefix_checkpoint": "False", "replayssm_buffer_len": "None", "use_replayssm": "False",
        "use_kda_recoverssm": "False"})

    counter("kvarto:steps", 9)
    counter("kvarto:computed_prompt_tokens", 88)
    counter("kvarto:cut_passes", 8)
    gauge("kvarto:queued_tokens", 70)
    counter("kvarto:preempted_tokens", 90)
    for how, samples in (("from_cache", 3), ("in_part", 2), ("recomputed", 1)):
        counter("kvarto:resumes", samples, restored=how)
    counter("kvarto:resume_cached_tokens", 64)
    counter("kvarto:recomputed_tokens", 26)
    counter("kvarto:internal_errors", 4)
    counter("kvarto:watchdog_pushes", 5)
    counter("kvarto:saturated_kv_values", 7)
    for state, size in (("active", 8192), ("cached", 6144), ("free", 40960), ("remainder", 2048)):
        gauge("kvarto:kv_bytes", size, state=state)
    gauge("kvarto:kv_live_bytes", 6144)
    gauge("kvarto:kv_token_occupancy", 6144 / 8192)
    gauge("kvarto:kv_live_tokens", 6144 / 128)
    gauge("kvarto:kv_capacity_tokens", 57344 / 128)
    gauge("kvarto:kv_balanced", 1)
    gauge("kvarto:kv_blocks_stale_seconds", 2.5)
    counter("kvarto:kv_replaced_blocks", 11)
    counter("kvarto:kv_window_blocks_freed", 12)
    counter("kvarto:kv_copied_tails", 13)

    # Blocks: three free; of group 0 one open (0.5 s old), one active (4 s, two sequences), two cached (20 s old and 7 s
    # idle, 2000 s old and 0.001 s idle); of group 1 one active (4 s).
    for group, kind, counts in ((0, "full", (1, 2, 1)), (1, "window", (1, 0, 0))):
        for state, count in zip(("active", "cached", "open"), counts):
            gauge("kvarto:kv_blocks", count, group=group, kind=kind, state=state)
    gauge("kvarto:kv_blocks", 3, group="none", kind="none", state="free")
    gauge("kvarto:kv_shared_blocks", 1)
    histogram("kvarto:kv_block_age_seconds", K, [4, 4], state="active")
    histogram("kvarto:kv_block_age_seconds", K, [20, 2000], state="cached")
    histogram("kvarto:kv_block_age_seconds", K, [0.5], state="open")
    histogram("kvarto:kv_block_idle_seconds", K, [7, 0.001])

    for tag, now, peak, step in (("logits", 2048, 4096, 2), ("weights", 134217728, 134217728, 0)):
        gauge("kvarto:memory_bytes", now, tag=tag)
        gauge("kvarto:memory_peak_bytes", peak, tag=tag)
        gauge("kvarto:memory_peak_step", step, tag=tag)

    gauge("kvarto:resident_memory_bytes", 300000)
    process = {"labels": {}}
    add("gauge", "process_resident_memory_bytes", 300000, **process)
    add("gauge", "process_virtual_memory_bytes", 2500000, **process)
    add("counter", "process_cpu_seconds_total", 12.25, **process)
    add("gauge", "process_start_time_seconds", 1795000000.5, **process)
    add("gauge", "process_open_fds", 17, **process)
    add("gauge", "process_max_fds", 1024, **process)
    gauge("kvarto:http_open_connections", 21)
    for name, value in (("connections", 22), ("requests", 23), ("refused", 24), ("dropped_slow", 25)):
        counter(f"kvarto:http_{name}", value)
    counter("kvarto:ignored_fields", 31)
    counter("kvarto:prefix_breakers", 32)
    counter("kvarto:volatile_text_saved_tokens", 33)
    for name, value in (("lookups", 41), ("hits", 42), ("spliced_tokens", 43), ("refused", 44)):
        counter(f"kvarto:turn_memory_{name}", value)
    for name, value in (("turns", 45), ("chats", 46), ("bytes", 47)):
        gauge(f"kvarto:turn_memory_{name}", value)
    counter("kvarto:trace_requests", 48)
    counter("kvarto:trace_dropped_requests", 49)
    counter("kvarto:kv_events", 51)
    for name, value in (("batches", 50), ("bytes", 52), ("dropped_batches", 53), ("replays", 54),
                        ("replayed_batches", 55), ("bad_requests", 56)):
        counter(f"kvarto:kv_event_{name}", value)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", nargs="?", type=pathlib.Path, default=OUTPUT)
    output = parser.parse_args().output
    events()
    totals()
    lines = []
    for name in sorted(FAMILIES):
        kind, series = FAMILIES[name]
        lines += [f"# TYPE {name} {kind}", *series]
    output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
