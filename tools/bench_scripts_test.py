#!/usr/bin/env python3
"""bench/measure and bench/peers/compare: the rows that they make of what the programs say, on figures written by hand."""
import argparse
import importlib.machinery
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent


def script(path):
    loader = importlib.machinery.SourceFileLoader(pathlib.Path(path).name, str(ROOT / path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    sys.path.insert(0, str((ROOT / path).parent))
    loader.exec_module(module)
    return module


MEASURE, COMPARE = script("bench/measure"), script("bench/peers/compare")
ROW = {"test": "tg8", "depth": 64, "batch": 1, "threads": 2, "kv_dtype": "float16", "tokens_per_s": 100.04, "bytes_per_token": 5e6,
       "int8_ops_per_token": 2e6, "f32_ops_per_token": 3e6, "share_of_bandwidth": 0.504, "share_of_int8": 0.1, "share_of_fma": 0.2,
       "bound_tokens_per_s": 200.0, "bound_by": "memory", "share_of_bound": 0.504, "logits_sha256": "0123456789abcdef",
       "bandwidth_gb_s": 1.0, "fma_gflops": 100.0, "int8_gops": 400.0, "int8_few_gops": 200.0, "sha256_gb_s": 2.0}


class Measure(unittest.TestCase):
    def test_speed_and_what_a_token_costs(self):
        self.assertEqual(MEASURE.shown("M", [ROW]), [
            {"model": "M", "test": "tg8", "depth": 64, "batch": 1, "tokens per s": 100.0, "bound": 200.0, "bound by": "memory",
             "share of bound": 0.5, "share of bandwidth": 0.5, "logits": "01234567"}])
        self.assertEqual(MEASURE.costs("M", [ROW]), [
            {"model": "M", "test": "tg8", "depth": 64, "batch": 1, "MB": 5.0, "of the reads": 0.5, "int8 Mop": 2.0, "of int8": 0.1,
             "f32 Mop": 3.0, "of FMA": 0.2}])

    def test_of_two_rates_the_larger_counts(self):
        self.assertEqual(MEASURE.rates([ROW, dict(ROW, bandwidth_gb_s=1.25, int8_gops=300.0)]),
                         {"bandwidth_gb_s": 1.2, "fma_gflops": 100.0, "int8_gops": 400.0, "int8_few_gops": 200.0})

    def test_prefix_has_both_bounds(self):
        results = [{"ttft_ms": ttft, "queue_ms": queue, "cached_tokens": cached} for ttft, queue, cached in
                   ((1000, 0, 0), (20, 5, 1488), (1100, 50, 0), (16, 2, 1488), (900, 0, 0), (30, 0, 1488))]
        row = MEASURE.prefix_row("M", results, dict(ROW, bound_tokens_per_s=3000.0), dict(ROW, bound_tokens_per_s=2000.0))
        self.assertEqual(row, {"model": "M", "prompt tokens": 1500, "cached tokens": 1488, "cold ms": 1000, "bound ms": 500.0,
                               "share of bound": 0.5, "cached ms": 15, "its bound ms": 6.0, "share of its bound": 0.4})

    def test_cold_prompts_differ_from_the_first_block_on(self):
        prompts = [tuple(MEASURE.prompt_ids(number)[:MEASURE.BLOCK]) for number in range(5)]
        self.assertEqual(len(set(prompts)), 5)

    def test_start_is_bound_by_hashing_and_repacking(self):
        row = MEASURE.start_row("M", 1.0, file_bytes=4e8, weight_bytes=6e8, sha256_gb_s=2.0, bandwidth_gb_s=10.0)
        self.assertEqual(row, {"model": "M", "seconds": 1.0, "hashing": 0.2, "repacking": 0.1, "share of bound": 0.3})

    def test_accuracy_is_read_from_the_golden_tests(self):
        text = ("[ RUN      ] Real/GoldenModel.FastPathStaysClose/smollm2\n"
                "682 positions: top token right in 97.51 %, mean divergence 0.00315 nats\n"
                "[       OK ] Real/GoldenModel.FastPathStaysClose/smollm2 (1 ms)\n"
                "[ RUN      ] Real/GoldenModel.FastPathStaysClose/qwen2_0\nmodel is not here\n"
                "[  SKIPPED ] Real/GoldenModel.FastPathStaysClose/qwen2_0 (0 ms)\n"
                "[ RUN      ] Real/GoldenModel.FastPathStaysClose/gemma3_270m\n"
                "9 positions: top token right in 97.13 %, mean divergence 0.00225 nats\n"
                "[       OK ] Real/GoldenModel.FastPathStaysClose/gemma3_270m (1 ms)\n")
        self.assertEqual(MEASURE.accuracy_rows(text, MEASURE.MODELS), [
            {"model": "SmolLM2-135M", "positions": 682, "top token right %": 97.51, "mean KL, nats": 0.00315},
            {"model": "Gemma-3-270M", "positions": 9, "top token right %": 97.13, "mean KL, nats": 0.00225}])


class WithoutAProgram(unittest.TestCase):
    def test_one_line_says_what_to_do(self):
        for path, flags in (("bench/measure", ["none/kvarto"]), ("bench/serve_load", ["--quick", "--kvarto", "none/kvarto"]),
                            ("bench/peers/compare", ["--quick", "--kvarto", "none/kvarto"])):
            with self.subTest(path), tempfile.TemporaryDirectory() as folder:
                output = pathlib.Path(folder) / "out"
                done = subprocess.run([sys.executable, ROOT / path, *flags, "--output", output], capture_output=True, text=True)
                self.assertEqual((done.returncode, done.stdout), (1, ""))
                self.assertEqual(done.stderr.splitlines()[-1], "none/kvarto is not there; build it first with ./run")
                self.assertNotIn("Traceback", done.stderr)
                self.assertFalse(output.exists())

    def test_the_setup_of_the_others_explains_itself(self):
        setup = ROOT / "bench/peers/setup"
        done = subprocess.run(["bash", setup, "--help"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("usage: bench/peers/setup [--avx2]", done.stdout)
        done = subprocess.run(["bash", setup, "--bogus"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("--bogus", done.stderr)


class Engine:
    def __init__(self, name, rates, rows=()):
        self.name, self.rates, self.rows, self.benched = name, list(rates), [], list(rows)

    def work(self):
        if self.benched:
            self.rows.append(self.benched.pop(0))
        rate = self.rates.pop(0)
        if rate is None:
            raise COMPARE.Failed("no such thing")
        return rate


class Compare(unittest.TestCase):
    test = COMPARE.Test("gen0", "generation", lambda engine, model: engine.work(), 10, 3)
    model = COMPARE.Model("M", "m.gguf", 8192, 1)

    def test_a_row_has_kvartos_bound(self):
        benched = [dict(ROW, share_of_bound=share, share_of_bandwidth=share) for share in (0.5, 0.7, 0.6)]
        engines = Engine("kvarto", (30, 10, 20), benched), Engine("other", (8, 8, 8))
        row, behind = COMPARE.measure(self.test, self.model, engines, {})
        self.assertEqual(row, {"model": "M", "test": "generation", "kvarto": 20, "other": 8, "kvarto / other": 2.5,
                               "kvarto's bound": 200.0, "bound by": "memory", "kvarto's share of bound": 0.6,
                               "kvarto's share of bandwidth": 0.6})
        self.assertEqual(behind, benched)

    def test_memory_has_none_and_a_failure_leaves_its_cell_empty(self):
        failures = {}
        row, behind = COMPARE.measure(self.test, self.model, (Engine("kvarto", (3, 1, 2)), Engine("other", (None,))), failures)
        self.assertEqual((row["kvarto"], row["other"], row["kvarto's bound"], behind), (2, None, None, []))
        self.assertEqual(failures, {("other", "M", "no such thing"): ["gen0"]})

    def test_the_machines_rates_come_from_the_rows(self):
        arguments = argparse.Namespace(repetitions=5, avx2=False)
        rows = [dict(ROW, bandwidth_gb_s=rate) for rate in (10.0, 30.0, 20.0)]
        result = COMPARE.result_of([{"model": "M"}], rows, {}, arguments, 3, 0.0)
        self.assertEqual([result[key] for key in ("bandwidth_gb_s", "fma_gflops", "int8_gops", "int8_few_gops")],
                         [20.0, 100.0, 400.0, 200.0])
        self.assertEqual(result["what"], "peers")

    def test_what_is_kept_to_avx2_has_a_section_of_its_own_and_says_so(self):
        result = COMPARE.result_of([{"model": "M"}], [ROW], {}, argparse.Namespace(repetitions=5, avx2=True), 3, 0.0)
        self.assertEqual(result["what"], "peers_avx2")
        self.assertIn("(AVX2 only)", result["cpu"])
        self.assertIn("bench/peers/compare --avx2", result["command"])
        self.assertNotIn("OpenVINO", result["note"])


if __name__ == "__main__":
    unittest.main()
