#!/usr/bin/env python3
"""docs/asks.md names a test for every row that is required, and the tests exist: tools/asks_test.py."""
import ast
import functools
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
REQUIRED = {1, 3, 6, 8, *range(10, 13), *range(14, 21), 22, 23, 24, 27, 28, *range(32, 36), *range(37, 41), 42, 45}


def rows():
    for line in (ROOT / "docs/asks.md").read_text().splitlines():
        if cells := re.fullmatch(r"\| (\d+) \| (.+) \| (.+) \| (.+) \|", line):
            yield int(cells[1]), re.findall(r"`([^`]+)`", cells[4])


@functools.cache
def cc_tests():
    """Suite.Test of every test in C++."""
    macro = re.compile(r"^(?:TEST(?:_[FP])?|RC_GTEST_PROP)\(\s*(\w+),\s*(\w+)", re.M)
    return {f"{suite}.{name}" for folder in ("src", "tests") for path in (ROOT / folder).rglob("*_test.cc")
            for suite, name in macro.findall(path.read_text())}


@functools.cache
def python_tests(name):
    """Class.test of every test of a file below tests/."""
    return {f"{one.name}.{method.name}" for path in (ROOT / "tests").rglob(name) for one in ast.parse(path.read_text()).body
            if isinstance(one, ast.ClassDef) for method in one.body
            if isinstance(method, ast.FunctionDef) and method.name.startswith("test")}


class Asks(unittest.TestCase):
    def test_every_required_row_is_there_once(self):
        numbers = [number for number, _ in rows()]
        self.assertEqual(sorted(REQUIRED - set(numbers)), [])
        self.assertEqual(numbers, sorted(set(numbers)))

    def test_every_row_names_tests_that_exist(self):
        for number, tests in rows():
            self.assertTrue(tests, f"row {number} names no test")
            for test in tests:
                file, _, name = test.rpartition(" ")
                self.assertIn(name, python_tests(file) if file else cc_tests(), f"row {number}")

    def test_what_is_not_there_is_noticed(self):
        self.assertNotIn("Nobody.Nothing", cc_tests())
        self.assertEqual(python_tests("nowhere_test.py"), set())
        self.assertGreater(len(cc_tests()), 500)


if __name__ == "__main__":
    unittest.main(verbosity=2)
