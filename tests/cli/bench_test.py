#!/usr/bin/env python3
"""`kvarto bench` as a user sees it: `tests/cli/bench_test.py KVARTO [CHECK]`. No speed is tested: what belongs together agrees,
and bounds follow from the rates.
"""
import json
import pathlib
import resource
import subprocess
import sys

sys.dont_write_bytecode = True
import cli_test
from cli_test import GEMMA, LLAMA, error_line, kvarto, kvarto_json, main


def near(value, wanted):
    assert abs(value - wanted) <= 1e-9 * abs(wanted), (value, wanted)


def bench_has_its_rows(_):
    bench = ["bench", LLAMA, "-p", 32, "-n", 8, "-d", "0,64", "-b", "1,2", "--threads", "1", "-r", 1, "-q"]
    rows = kvarto_json(*bench, "--recompute", "--json")
    rates = {"bandwidth_gb_s", "fma_gflops", "int8_gops", "int8_few_gops", "sha256_gb_s"}
    keys = rates | {"test", "depth", "batch", "threads", "kv_dtype", "tokens_per_s", "bytes_per_token", "int8_ops_per_token",
                    "f32_ops_per_token", "share_of_bandwidth", "share_of_int8", "share_of_fma", "bound_tokens_per_s", "bound_by",
                    "share_of_bound", "logits_sha256"}
    assert all(set(row) == keys for row in rows)
    assert {(r["test"], r["depth"], r["batch"]) for r in rows} == {
        (t, d, b) for t in ("pp32", "tg8", "tg8 recompute") for d in (0, 64) for b in (1, 2)}
    assert all(row["tokens_per_s"] > 0 and row["threads"] == 1 and row["kv_dtype"] == "float16" for row in rows)
    for row in rows:
        assert row["bound_tokens_per_s"] > 0 and row["bound_by"] in ("memory", "arithmetic"), row
        assert abs(row["share_of_bound"] * row["bound_tokens_per_s"] / row["tokens_per_s"] - 1) < 1e-9, row
        assert min(row[rate] for rate in rates) > 0, row
        assert {rate: row[rate] for rate in rates} == {rate: rows[0][rate] for rate in rates}, row  # the best of the run, for all
        near(row["share_of_bandwidth"], row["tokens_per_s"] * row["bytes_per_token"] / row["bandwidth_gb_s"] / 1e9)
        near(row["share_of_fma"], row["tokens_per_s"] * row["f32_ops_per_token"] / row["fma_gflops"] / 1e9)
        arithmetic = row["share_of_int8"] + row["share_of_fma"]
        near(row["share_of_bound"], max(row["share_of_bandwidth"], arithmetic))
        assert (row["bound_by"] == "memory") == (row["share_of_bandwidth"] > arithmetic), row
        if row["test"] == "tg8":  # steps of one or two rows
            near(row["share_of_int8"], row["tokens_per_s"] * row["int8_ops_per_token"] / row["int8_few_gops"] / 1e9)
    # Rows behind deeper histories and in larger batches have further to go.
    bound = {(r["test"], r["depth"], r["batch"]): r["bound_tokens_per_s"] for r in rows}
    assert bound["tg8", 64, 1] < bound["tg8", 0, 1] < bound["tg8", 0, 2] and bound["pp32", 64, 1] < bound["pp32", 0, 1]
    table = kvarto(*bench)[0].splitlines()
    # What was measured; a blank line, the machine's rates; what bounds it.
    assert len(table) == 1 + 8 + 2 + 1 + 8 and "1 thread: reads" in table[10] and "for at most 16 rows" in table[10], table
    assert [line.split()[:4] for line in table[:9]] == [line.split()[:4] for line in table[11:]], table
    assert "left out" in kvarto("bench", LLAMA, "-p", 8, "-n", 0, "-d", "0,4096", "-r", 1)[1]


def bench_leaves_out_only_what_does_not_fit(_):
    """The context is 2,048 tokens."""
    out, err = kvarto("bench", LLAMA, "-d", 2040, "-p", 512, "-n", 2, "-r", 1, "--threads", 1, "--json", "-q")
    assert [row["test"] for row in json.loads(out)] == ["tg2"], out
    assert "pp512 at depth 2040 left out: it needs 2553 tokens" in err and "give less with -p or -d" in err, err
    for flags, remedy in ((["-p", 2049, "-n", 0], "give less with -p\n"), (["-p", 0, "-n", 2047], "give less with -n\n"),
                          (["-p", 4294967295, "-n", 0], "give less with -p\n"),
                          (["-p", 100, "-n", 0, "--max-model-len", 64], "give less with -p, or more with --max-model-len\n")):
        out, err = kvarto("bench", LLAMA, *flags, "-r", 1, "-q", code=1)
        assert out == "" and remedy in err and "nothing was measured; give less with -p, -n or -d" in err, (flags, out, err)


def bench_refuses_before_it_measures(_):
    for flags, words in ((["-b", "-1"], "-b '-1' is not a list of counts; write one such as 1,8"),
                         (["--threads", "-3"], "write one such as 1,2"), (["-d", "x"], "write one such as 0,4096"),
                         (["--threads", "1,9999"], "9999"), (["--threads", "1,4294967295"], "[0, 1024]")):
        line = error_line(["bench", LLAMA, *flags], 1)
        assert words in line, (flags, line)
    assert "see `kvarto bench kernels --help`" in error_line(["bench", "kernels", "--min-time", "soon"], 2)


def limited(arguments, limits):
    """`kvarto` under limits of bytes, for which no measurement may wait for ever."""
    def limit():
        for what, size in limits.items():
            resource.setrlimit(what, (size, resource.getrlimit(what)[1]))
    done = subprocess.run([cli_test.KVARTO, *map(str, arguments)], capture_output=True, text=True, timeout=300, preexec_fn=limit)
    return done.returncode, done.stdout, done.stderr


def what_cannot_be_measured_is_left_out(_):
    if limited(["--version"], {resource.RLIMIT_AS: 140 << 20})[0] != 0:
        print("   left out: this build needs more address space")  # a sanitizer
        return
    bench = ["bench", LLAMA, "-p", 8, "-n", 2, "-r", 1, "-q"]
    rates = ("bandwidth_gb_s", "fma_gflops", "int8_gops", "int8_few_gops")
    # No room to read from: speed and bound of memory are unknown, not 0.
    code, out, err = limited([*bench, "--threads", 1, "--json"], {resource.RLIMIT_AS: 140 << 20})
    assert code == 0 and "reads memory was not measured" in err, (code, err)
    for row in json.loads(out):
        assert row["tokens_per_s"] > 0 and row["fma_gflops"] > 0 and row["share_of_int8"] is not None, row
        for key in ("bandwidth_gb_s", "share_of_bandwidth", "bound_tokens_per_s", "bound_by", "share_of_bound"):
            assert row[key] is None, (key, row)
    code, out, err = limited([*bench, "--threads", 1], {resource.RLIMIT_AS: 140 << 20})
    assert code == 0 and "reads - GB/s" in out and "arithmetic" not in out, (code, out, err)
    # A thread's stack takes its limit from the address space: some threads start, the next does not.
    for stack, space in ((1024, 2048), (400, 1200), (300, 900), (300, 1400)):
        limits = {resource.RLIMIT_STACK: stack << 20, resource.RLIMIT_AS: space << 20}
        code, out, err = limited([*bench, "--threads", 3, "--json"], limits)
        assert code == 0, (stack, space, code, err)
        for row in json.loads(out):
            assert row["tokens_per_s"] > 0 and all(row[rate] is None or row[rate] > 0 for rate in rates), row
            assert (row["bound_tokens_per_s"] is None) == (row["bound_by"] is None) == (row["share_of_bound"] is None), row
        if stack == 1024:  # one for computing, none for measuring
            assert "1 of 2 threads could be started" in err and "pids limit" in err, err
            assert all(row["fma_gflops"] is None and row["bound_by"] is None for row in json.loads(out)), out


def bench_hashes_what_it_computes(_):
    """Threads, steps, blocks and prefix caching change no logit; seeds and KV dtypes do."""
    def hashes(*flags):
        rows = kvarto_json("bench", GEMMA, "-p", 48, "-n", 6, "-d", "0,40", "-b", "1,3", "-r", 1, "-q", "--json", *flags)
        return {(row["test"], row["depth"], row["batch"]): row["logits_sha256"] for row in rows}
    one = hashes("--threads", 1)
    assert len(set(one.values())) == len(one) == 8 and all(len(h) == 64 for h in one.values()), one
    for flags in (["--threads", 2], ["--max-num-batched-tokens", 16], ["--block-size", 32], ["--no-enable-prefix-caching"]):
        assert hashes(*flags) == one, flags
    for flags in (["--seed", 2], ["--kv-cache-dtype", "float32"]):
        assert not set(hashes(*flags).values()) & set(one.values()), flags


def bench_kernels_has_its_rows(_):
    matmuls = [f"matmul/Q4_K/576x1536/rows:{rows}" for rows in (1, 8, 64)]
    kernels = ["bench", "kernels", "--filter", "^(matmul/Q4_K/576x1536/rows:(1|8|64)|attend_decode/float16/512|quantise)$",
               "--min-time", 0.01, "-r", 3]
    out = kvarto_json(*kernels, "--json")
    assert sorted(row["kernel"] for row in out["rows"]) == sorted(matmuls + ["attend_decode/float16/512", "quantise"]), out
    assert out["threads"] == 1 and out["repetitions"] == 3, out
    assert min(out["bandwidth_gb_s"], out["fma_gflops"], out["int8_gops"], out["int8_few_gops"]) > 0, out
    for row in out["rows"]:
        assert row["seconds"] > 0 and row["gb_s"] > 0 and row["gop_s"] > 0 and row["share_of_bound"] > 0, row
        assert row["bound_by"] in ("memory", "int8", "int8 few", "fma"), row
        if row["bound_by"] == "memory":
            near(row["gb_s"] / out["bandwidth_gb_s"], row["share_of_bound"])
        if row["kernel"].startswith("matmul"):  # 2 operations per weight and row
            rows = int(row["kernel"].split(":")[1])
            near(row["gop_s"] * row["seconds"] * 1e9, 2 * 576 * 1536 * rows)
            assert row["bound_by"] in ("memory", "int8 few" if rows <= 16 else "int8"), row
            if row["bound_by"] != "memory":
                near(row["gop_s"] / out["int8_few_gops" if rows <= 16 else "int8_gops"], row["share_of_bound"])
    scalar = kvarto_json("bench", "kernels", "--filter", "^matmul/Q4_0/576x1536/rows:8$", "--min-time", 0.01,
                         "-r", 1, "--json", "--target", "scalar")
    assert scalar["target"] == "scalar" and scalar["int8_few_gops"] == scalar["int8_gops"], scalar
    assert [row["bound_by"] for row in scalar["rows"]] == ["int8 few"], scalar
    assert len(kvarto(*kernels)[0].splitlines()) == 2 + 5


def bench_kernels_refuses(_):
    kernels = ["bench", "kernels"]
    assert "matches no kernel" in error_line([*kernels, "--filter", "nothing"], 1)
    assert "regular expression" in error_line([*kernels, "--filter", "("], 1)
    assert "30000 bytes" in error_line([*kernels, "--filter", "(" * 30000], 1)
    for filter in ("(.*)*(.*)*(.*)*(.*)*Z", "(.*)*(.*)*(.*)*(.*)*(?=Z)", "(" * 99 + "Z" + ")" * 99, "((Z{900}){900}){900}"):
        assert "--filter" in error_line([*kernels, "--filter", filter], 1), filter  # at once, whatever the complaint
    assert "is unknown; the targets are scalar, avx2, avx512, amx" in error_line([*kernels, "--target", "mmx"], 1)
    if "avx512_vnni" not in pathlib.Path("/proc/cpuinfo").read_text().split():
        assert "does not run here" in error_line([*kernels, "--target", "avx512"], 1)
    for time, code in (("inf", 1), ("nan", 1), ("-1", 1), ("0", 1), ("1e9", 1), ("soon", 2)):
        assert "--min-time" in error_line([*kernels, "--min-time", time], code), time
    for count in (0, 4294967295):
        assert "from 1 to 1000" in error_line([*kernels, "-r", count], 1)
    # Flags before the word would be those of `bench`, which runs a model.
    assert "takes no MODEL" in error_line(["bench", LLAMA, "kernels"], 1)
    assert "takes no --n-prompt" in error_line(["bench", "-p", 5, "kernels"], 1)


def waste_is_small(_):
    for seed in (1, 2, 3):
        out = kvarto_json("bench", "--waste", "--json", "--seed", seed)
        assert out["seed"] == seed and out["running_at_once"] == 64 and out["preemptions"] == 0, out
        assert 0 < out["waste_mean"] < 0.04 and 0 < out["waste_at_peak"] < 0.04, out
        assert out["times_the_sequences"] >= 3, out
        # 7.5 of 16 slots of the open block of each sequence; those have 50 to 2,000 tokens.
        assert 50 < out["live_tokens_mean"] < 2000, out
        assert 0.6 < out["waste_mean"] / out["waste_expected"] < 1.5, out
        assert out["waste_expected"] >= 7.5 / (7.5 + out["live_tokens_mean"]) * 0.99, out
    assert "seed 1" in kvarto("bench", "--waste")[0]


CHECKS = (bench_has_its_rows, bench_leaves_out_only_what_does_not_fit, bench_refuses_before_it_measures,
          what_cannot_be_measured_is_left_out, bench_hashes_what_it_computes, bench_kernels_has_its_rows, bench_kernels_refuses,
          waste_is_small)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], CHECKS))
