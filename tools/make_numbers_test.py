#!/usr/bin/env python3
"""tools/make_numbers on a small tree: what it writes, what it refuses; and the page of this tree is up to date."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(__file__).with_name("make_numbers")
PAGE = "# Numbers\n\n<!-- numbers: speed2 -->\nold 2\n<!-- end -->\n\n<!-- numbers: speed -->\nold\n<!-- end -->\n\ntext\n\n<!-- numbers: waste -->\n<!-- end -->\n"
RESULT = {"what": "speed", "command": "kvarto bench m -p 512", "commit": "0123456789abcdef0123", "cpu": "Some CPU", "threads": 2,
          "bandwidth_gb_s": 20.53, "date": "2025-01-31",
          "rows": [{"model": "a|b", "tokens_per_s": 30.127}, {"model": "c", "tokens_per_s": 1234567.0, "depth": 16384}]}


class MakeNumbers(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = pathlib.Path(scratch.name)
        (self.root / "docs").mkdir()
        (self.root / "bench/results").mkdir(parents=True)
        self.page = self.root / "docs/numbers.md"
        self.page.write_text(PAGE)

    def put(self, name, result):
        (self.root / "bench/results" / name).write_text(result if isinstance(result, str) else json.dumps(result))

    def run_tool(self, *arguments):
        run = subprocess.run([sys.executable, str(TOOL), str(self.root), *arguments], capture_output=True, text=True)
        return run.returncode, run.stdout + run.stderr

    def test_writes_tables_and_leaves_the_rest(self):
        self.put("speed.json", RESULT)
        self.assertEqual(self.run_tool("--check")[0], 1)
        self.assertEqual(self.page.read_text(), PAGE)
        self.assertEqual(self.run_tool(), (0, ""))
        text = self.page.read_text()
        self.assertIn("| model | tokens per s | depth |\n|---|---:|---:|\n| a\\|b | 30.13 |  |\n| c | 1,234,567 | 16,384 |\n", text)
        self.assertIn("Some CPU; 2 threads; reads 20.53 GB/s. 2025-01-31, commit 0123456789ab, `bench/results/speed.json`:", text)
        self.assertIn("```\nkvarto bench m -p 512\n```\n<!-- end -->\n\ntext\n", text)
        self.assertIn("<!-- numbers: waste -->\nNot measured yet.\n<!-- end -->", text)
        self.assertNotIn("old", text)
        self.assertEqual(self.run_tool("--check"), (0, ""))

    def test_writing_twice_changes_nothing(self):
        self.put("a.json", RESULT)
        self.put("b.json", dict(RESULT, threads=1, fma_gflops=80, int8_gops=500.4, int8_few_gops=250, repetitions=5))
        self.put("c.json", dict(RESULT, repetitions=1))
        self.run_tool()
        once = self.page.read_text()
        self.assertIn("1 thread; reads 20.53 GB/s; 80 GFLOP/s of FMA; 500.4 GOP/s of int8; 250 GOP/s of it for at most 16 rows; "
                      "5 repetitions.", once)
        self.assertIn("; 1 repetition. 2025-01-31", once)
        self.run_tool()
        self.assertEqual(self.page.read_text(), once)

    def test_refuses_what_it_cannot_show(self):
        for name, result, complaint in [
                ("no json", "{", "not JSON"), ("a list", "[]", "not a JSON object"),
                ("no command", {k: v for k, v in RESULT.items() if k != "command"}, "lacks command"),
                ("text for a number", dict(RESULT, bandwidth_gb_s="20"), "bandwidth_gb_s"),
                ("no rows", dict(RESULT, rows=[]), "rows must be"), ("too deep", "[" * 100000, "x.json"),
                ("a list in a cell", dict(RESULT, rows=[{"model": [1]}]), "model of a row is [1]"), ("unknown key", dict(RESULT, cpus=4), "unknown key cpus"),
                ("no section", dict(RESULT, what="memory"), "no <!-- numbers: memory -->")]:
            with self.subTest(name):
                self.put("x.json", result)
                code, text = self.run_tool()
                self.assertEqual(code, 1)
                self.assertIn(complaint, text)
                self.assertEqual(self.page.read_text(), PAGE)

    def test_the_readme_shows_a_column_per_model(self):
        readme = self.root / "README.md"
        readme.write_text("# X\n<!-- numbers -->\nold\n<!-- end -->\nrest\n")
        rows = [{"model": m, "test": t, "depth": 0, "batch": 1, "tokens per s": v}
                for m, t, v in (("A", "pp512", 1234.4), ("A", "tg64", 99.6), ("B", "pp512", 10.0))]
        self.put("speed.json", dict(RESULT, rows=rows))
        self.assertEqual(self.run_tool("--check")[0], 1)
        self.assertEqual(self.run_tool(), (0, ""))
        text = readme.read_text()
        self.assertIn("| | A | B |\n|---|---:|---:|\n", text)
        self.assertIn("| prompt of 512 tokens, tokens/s | 1,234 | 10 |\n| generation, tokens/s | 100 |  |\n", text)
        self.assertIn("Some CPU, 2 threads, 2025-01-31.\n<!-- end -->\nrest\n", text)
        self.assertEqual(self.run_tool("--check"), (0, ""))

    def test_a_row_that_the_readme_cannot_show_is_named(self):
        (self.root / "README.md").write_text("<!-- numbers -->\n<!-- end -->\n")
        for value in (None, "fast"):
            row = {"model": "A", "test": "pp512", "depth": 0, "batch": 1, "tokens per s": value}
            self.put("x.json", dict(RESULT, rows=[row]))
            code, text = self.run_tool()
            self.assertEqual(code, 1)
            self.assertIn("x.json: README.md shows", text)
            self.assertNotIn("Traceback", text)

    def test_what_it_does_not_know_is_an_error(self):
        for arguments, complaint in ((["--bogus"], "--bogus"), ([str(self.root / "none")], "no docs/numbers.md"),
                                     ([str(self.root), "another"], "another")):
            run = subprocess.run([sys.executable, str(TOOL), *arguments], capture_output=True, text=True)
            self.assertEqual((run.returncode, run.stdout), (2, ""), arguments)
            self.assertIn(complaint, run.stderr)
        run = subprocess.run([sys.executable, str(TOOL), "--help"], capture_output=True, text=True)
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.assertIn("--check", run.stdout)
        self.assertEqual(self.page.read_text(), PAGE)

    def test_the_page_of_this_tree_is_up_to_date(self):
        run = subprocess.run([sys.executable, str(TOOL), "--check"], capture_output=True, text=True)
        self.assertEqual((run.returncode, run.stdout), (0, ""))


if __name__ == "__main__":
    unittest.main()
