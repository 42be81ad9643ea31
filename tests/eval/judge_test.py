#!/usr/bin/env python3
"""`kvarto eval` against an independent judge and against PyTorch, on SmolLM2: judge_test.py PATH_TO_KVARTO. Prints the figures.

judge.py recomputes from the dumped rows what the report says of the text. On the reference path (float32) the rows themselves
are compared with PyTorch's, made from the same weights with K and V kept in the same types.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent


sys.path.insert(0, str(ROOT / "tests/support"))
from venv_of_tests import enter_venv  # noqa: E402

sys.dont_write_bytecode = True
enter_venv("numpy")

import numpy as np  # noqa: E402

import judge  # noqa: E402

KVARTO = str(pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else "build/dev/kvarto").resolve())
MODEL = ROOT / "models/smollm2-135m-q4_1.gguf"
GOLDEN = HERE / "smollm2_kv.npz"
SETTINGS = ["kv=f16", "kv=bf16", "k=f16:v=f16"]  # the last one is the baseline once more
WATCHDOG_S = 1200  # ends what hangs; nothing is judged by it


class Judged:
    """One run, judged once more."""
    flags = []

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        subprocess.run([KVARTO, "eval", MODEL, "--baseline", SETTINGS[0], "--candidate", ",".join(SETTINGS[1:]),
                        "--text", HERE / "text.txt", "--text-pieces", "1", "--context", "1024", "--only", "text", "--dump",
                        "--output", cls.folder.name, *cls.flags], check=True, timeout=WATCHDOG_S)
        report = json.loads(pathlib.Path(cls.folder.name, "report.json").read_text())
        assert [setting["name"] for setting in report["settings"]] == SETTINGS, report["settings"]
        cls.reported = [setting["text"] for setting in report["settings"]]
        cls.judged = judge.judge_dump(cls.folder.name)
        cls.beside_torch = judge.judge_torch(GOLDEN, cls.folder.name)
        for what in ("torch", "dump"):
            print(f"{cls.__name__}, {what}, every third position, bf16 against f16:",
                  {name: cls.beside_torch[what][name] for name in ("kl_mean_nats", "kl_p99_nats", "same_top_share")})
        print(f"{cls.__name__}: from PyTorch {cls.beside_torch['distance']}", flush=True)

    def assertNear(self, mine, theirs, what):
        """The same doubles, summed in another order: nothing else may differ. The constant is for sums that nearly cancel."""
        self.assertLessEqual(abs(mine - theirs), 1e-9 * abs(mine) + 1e-12, (what, mine, theirs))

    def test_the_report_says_what_the_judge_finds(self):
        for name, mine, theirs in zip(SETTINGS, self.judged, self.reported, strict=True):
            self.assertEqual((mine["tokens"], theirs["tokens"]), (1023, 1023), name)
            self.assertEqual([bucket["from"] for bucket in theirs["positions"]], [1, 256, 512])
            # Of a baseline only what needs no other setting counts.
            left = ("nll_nats", "perplexity") if name == SETTINGS[0] else set(mine) - {"tokens", "positions"}
            for figure in left:
                parts = theirs[figure]
                parts = [parts[part] for part in ("value", "low", "high")] if isinstance(parts, dict) else [parts]
                for one, other in zip(np.atleast_1d(mine[figure]), parts, strict=True):
                    self.assertNear(one, other, (name, figure))
            for mine_there, theirs_there in zip(mine["positions"], theirs["positions"], strict=True):
                for figure in ("tokens", "nll_nats") if name == SETTINGS[0] else mine_there:
                    self.assertNear(mine_there[figure], theirs_there[figure], (name, mine_there["from"], figure))

    def test_the_baseline_against_itself_is_exactly_0(self):
        again = self.reported[2]
        for figure in ("nll_difference_nats", "kl_mean_nats", "kl_excess_nats"):
            self.assertEqual(set(again[figure].values()), {0}, figure)
        self.assertEqual((again["kl_p99_nats"], again["kl_max_nats"]), (0, 0))
        self.assertEqual(set(again["same_top_share"].values()), {1})
        self.assertEqual(self.judged[2]["kl_max_nats"], 0)


class ReferencePath(Judged, unittest.TestCase):
    flags = ["--reference"]

    def test_log_probabilities_are_pytorchs(self):
        """The float32 sums of the two run in different orders. A key or value near the middle between two neighbours of its type
        may then round differently, which moves all later layers a little, bfloat16's eight times as much as float16's. Kvarto's
        side is the same to the bit on every machine; measured: at most 6.0e-3 and 7.8e-2, on average 4.4e-4 and 3.6e-3,
        perplexities 2.6e-5 and 2.2e-4 apart."""
        apart = self.beside_torch["distance"]
        for setting, most, mean, perplexity in ((0, 1e-2, 6e-4, 1e-4), (1, 0.1, 5e-3, 3e-4)):
            self.assertLess(apart["logprob_max"][setting], most, SETTINGS[setting])
            self.assertLess(apart["logprob_mean"][setting], mean, SETTINGS[setting])
            self.assertLess(abs(apart["perplexity"][setting]), perplexity, SETTINGS[setting])
            self.assertGreaterEqual(apart["same_top"][setting], 0.99, SETTINGS[setting])

    def test_the_cost_of_bfloat16_is_pytorchs(self):
        torch, own = self.beside_torch["torch"], self.beside_torch["dump"]
        self.assertLess(abs(own["kl_mean_nats"][0] / torch["kl_mean_nats"][0] - 1), 0.1)
        for figures in (torch, own):
            self.assertTrue(1.5e-5 <= figures["kl_mean_nats"][0] <= 3e-4, figures["kl_mean_nats"])
            self.assertGreater(figures["same_top_share"][0], 0.97)


class FastPath(Judged, unittest.TestCase):
    """Activations are rounded to 8 bits: what bfloat16 changes tips some of them over, so that its cost seems larger. What is
    beyond that noise floor is its own."""

    def test_the_cost_of_bfloat16_beyond_the_noise_floor_is_small(self):
        """The bits, and so these figures, are the same on every machine. What PyTorch finds lies within the interval."""
        excess = self.reported[1]["kl_excess_nats"]
        print("FastPath: beyond the noise floor", excess)
        for part, figure in (("value", 1.12471e-4), ("low", -1.01e-5), ("high", 2.37e-4)):
            self.assertLess(abs(excess[part] / figure - 1), 0.01, part)
        torch = self.beside_torch["torch"]["kl_mean_nats"][0]
        self.assertTrue(excess["low"] <= torch <= excess["high"], (excess, torch))

    def test_the_cost_of_bfloat16_is_small(self):
        own, apart = self.beside_torch["dump"], self.beside_torch["distance"]
        self.assertTrue(1e-3 <= own["kl_mean_nats"][0] <= 1e-2, own["kl_mean_nats"])
        for setting in (0, 1):
            self.assertLess(abs(apart["perplexity"][setting]), 0.02, SETTINGS[setting])


if __name__ == "__main__":
    if not os.access(KVARTO, os.X_OK):
        sys.exit(f"{KVARTO}: not built")
    if not MODEL.exists():
        print(f"{MODEL.relative_to(ROOT)} is not there; tools/fetch_models fetches it")
        sys.exit(77)
    unittest.main(verbosity=2)
