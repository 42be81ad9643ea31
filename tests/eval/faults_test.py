#!/usr/bin/env python3
"""Planted faults must be seen, in the order of their size: noise on keys, and tokens that no later one sees. On SmolLM2, whose
figures are the same to the bit on every machine.

    python3 tests/eval/faults_test.py [KVARTO]
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
KVARTO = str(pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else "build/dev/kvarto").resolve())
MODEL = ROOT / "models/smollm2-135m-q4_1.gguf"
NOISE, HIDDEN = ["noise=60", "noise=30", "noise=20", "noise=10"], ["hide=0.01", "hide=0.05", "hide=0.2", "hide=0.5"]
PROMPTS = ["The capital of France is", "Water boils at a temperature of", "One, two, three, four,", "The opposite of hot is",
           "Monday, Tuesday, Wednesday,", "The sun rises in the", "A dog is an animal that", "Red, green and"]
WATCHDOG_S = 1200  # ends what hangs; nothing is judged by it


class Faults(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            own = pathlib.Path(folder, "own.jsonl")  # without answers: what the baseline writes is measured
            own.write_text("".join(json.dumps({"prompt": prompt, "max_tokens": 4}) + "\n" for prompt in PROMPTS))
            done = subprocess.run([KVARTO, "eval", MODEL, "--candidate", ",".join(NOISE + HIDDEN), "--text",
                                   ROOT / "tests/eval/text.txt", "--text-pieces", "1", "--only", "text,table", "--samples", "12",
                                   "--context", "512", "--tasks", own, "--output", pathlib.Path(folder, "out"), "--json", "-q"],
                                  check=True, timeout=WATCHDOG_S, stdout=subprocess.PIPE)
        cls.settings = {setting["name"]: setting for setting in json.loads(done.stdout)["settings"]}

    def of(self, names, figure):
        values = [figure(self.settings[name]) for name in names]
        print(names, values)
        return values

    @staticmethod
    def own(setting):
        return next(family for family in setting["families"] if family["family"] == "own-agreement")

    def assertRises(self, values):
        self.assertEqual(values, sorted(set(values)), "each is above the one before")

    def test_texts_diverge_by_the_size_of_the_fault(self):
        for names in (NOISE, HIDDEN):
            self.assertRises(self.of(names, lambda setting: setting["text"]["kl_excess_nats"]["value"]))
            self.assertRises(self.of(names, lambda setting: setting["text"]["perplexity"]["value"])[1:])

    def test_answers_get_less_likely_by_the_size_of_the_fault(self):
        for names in (NOISE, HIDDEN):
            self.assertRises(self.of(names, lambda setting: setting["families"][0]["nll_per_token_nats"])[1:])

    def test_answers_get_lost(self):
        for names in (NOISE, HIDDEN):
            lost = self.of(names, lambda setting: self.own(setting)["baseline_right"] - self.own(setting)["right"])
            self.assertEqual(lost, sorted(lost))
            self.assertLess(lost[0], lost[-1])

    def test_the_verdict_turns_from_safe_to_watch_to_unsafe(self):
        verdicts = self.of(NOISE, lambda setting: setting["text"]["verdict"])
        self.assertEqual(verdicts, ["safe", "watch", "unsafe", "unsafe"])
        own = self.of(NOISE, lambda setting: setting["skills"][-1]["verdict"])
        self.assertEqual((own[0], own[-1]), ("safe", "unsafe"))


if __name__ == "__main__":
    if not MODEL.exists():
        print(f"{MODEL.relative_to(ROOT)} is not there; tools/fetch_models fetches it")
        sys.exit(77)
    unittest.main(verbosity=2)
