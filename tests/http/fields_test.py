#!/usr/bin/env python3
"""Every field of every route in /openapi.json has a test: fields_test.py PATH_TO_KVARTO. The table is fields.txt.

`fields_test.py PATH_TO_KVARTO --write` makes the table anew from /openapi.json: it keeps the tests that it has, and a field
without one gets a `?`, which the tests refuse.
"""
import ast
import functools
import pathlib
import re
import sys
import unittest

from serve_harness import TINY, ServeTest, Server, main

HERE = pathlib.Path(__file__).resolve().parent
TABLE = HERE / "fields.txt"
ROUTES = {"CompletionRequest": "completions", "ChatRequest": "chat", "TokenizeRequest": "tokenize",
          "DetokenizeRequest": "detokenize"}
# Those that go over all fields of a kind take their names from /openapi.json, on every route that has such.
OVER_ALL = ("test_harmless_fields_are_accepted", "test_refused_fields_are_named_and_their_neutral_value_is_not")
# By what a test, or the method of its class that it calls, is seen to ask a route.
ASKS = {"completions": r"/v1/completions|\bcompletions\.create|\.complete[(,]",
        "chat": r"/v1/chat/completions|\bchat\.completions\.create|\.chat[(,]",
        "tokenize": r"/tokenize", "detokenize": r"/detokenize"}


def header():
    return [line for line in TABLE.read_text().splitlines() if line.startswith("#")]


def table():
    """(route, field): file and test."""
    rows = [line.split("\t") for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    found = {(route, field): test for route, field, test in rows}
    assert len(found) == len(rows), "a row stands there twice"
    return found


def fields_of(server):
    schemas = server.get("/openapi.json").json["components"]["schemas"]
    return [(ROUTES[name], field) for name, schema in schemas.items() if name.endswith("Request")
            for field in schema["properties"]]


def tiny_server():
    return Server(TINY / "tiny_qwen2.gguf", "--threads", 1, "--max-model-len", 64)


@functools.cache
def tests_of(file):
    """Class.method: its text, of a file of this folder."""
    text = (HERE / file).read_text()
    lines = text.splitlines()
    return {f"{one.name}.{method.name}": "\n".join(lines[method.lineno - 1:method.end_lineno])
            for one in ast.parse(text).body if isinstance(one, ast.ClassDef)
            for method in one.body if isinstance(method, ast.FunctionDef)}


def with_called(name, tests):
    """The text of a test and of the methods of its class that it calls, and so on."""
    kind, seen, todo = name.split(".")[0], set(), [name]
    while todo:
        one = todo.pop()
        if one in tests and one not in seen:
            seen.add(one)
            todo += [f"{kind}.{called}" for called in re.findall(r"self\.(\w+)\(", tests[one])]
    return "\n".join(tests[one] for one in seen)


def names_field(body, field):
    """The field's name as a keyword or as a key; not as a part of another word."""
    return re.search(rf'(?<!\w){field}=(?!=)|"{field}"|\\"{field}\\"', body) is not None


class Fields(ServeTest):
    @classmethod
    def serve(cls):
        return tiny_server()

    def test_every_field_of_every_route_has_a_test_and_no_other(self):
        fields = set(fields_of(self.server))
        self.assertGreater(len(fields), 200)
        self.assertEqual({route for route, _ in fields}, set(ROUTES.values()))
        self.assertEqual(sorted(fields - set(table())), [], "fields without a test")
        self.assertEqual(sorted(set(table()) - fields), [], "rows of fields that are gone")


class Table(unittest.TestCase):
    def test_the_tests_exist_and_speak_of_their_field_and_route(self):
        for (route, field), test in table().items():
            with self.subTest(route=route, field=field, test=test):
                file, _, name = test.partition(" ")
                tests = tests_of(file)
                self.assertIn(name, tests)
                self.assertTrue(name.partition(".")[2].startswith("test"), "no test")
                if name.endswith(OVER_ALL):
                    continue
                self.assertTrue(names_field(tests[name], field), "the field is not in it")
                self.assertRegex(with_called(name, tests), ASKS[route], "the route is not in it")

    def test_a_part_of_a_word_is_no_field(self):
        for body in ("return 1", "when=2", "stop_token_ids=[1]", 'min_tokens="x"', "n == 1"):
            for field in ("n", "stop", "tokens"):
                self.assertFalse(names_field(body, field), (body, field))
        for body in ('{"n": 2}', "complete(n=2)", "f(a, n=2)"):
            self.assertTrue(names_field(body, "n"), body)


def write():
    server = tiny_server()
    known, rows = table(), fields_of(server)
    server.stop()
    TABLE.write_text("\n".join(header() + ["\t".join((*row, known.get(row, "?"))) for row in rows]) + "\n")
    sys.exit(f"{len(rows)} rows, {sum(row not in known for row in rows)} of them without a test")


if __name__ == "__main__":
    write() if sys.argv[1:] == ["--write"] else main()
