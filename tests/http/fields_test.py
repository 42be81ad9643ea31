#!/usr/bin/env python3
"""Every field of /openapi.json has a test: fields_test.py PATH_TO_KVARTO. The table is fields.txt."""
import ast
import pathlib
import unittest

from serve_harness import TINY, ServeTest, Server, main

HERE = pathlib.Path(__file__).resolve().parent


def table():
    rows = [line.split("\t") for line in (HERE / "fields.txt").read_text().splitlines() if not line.startswith("#")]
    return {field: test for field, test in rows}


def tests_of(path):
    """Class.test of every test method of a file."""
    return {f"{one.name}.{method.name}" for one in ast.parse(path.read_text()).body if isinstance(one, ast.ClassDef)
            for method in one.body if isinstance(method, ast.FunctionDef)}


class Fields(ServeTest):
    @classmethod
    def serve(cls):
        return Server(TINY / "tiny_qwen2.gguf", "--threads", 1, "--max-model-len", 64)

    def fields(self):
        schemas = self.server.get("/openapi.json").json["components"]["schemas"]
        return {field for name, schema in schemas.items() if name.endswith("Request") for field in schema["properties"]}

    def test_every_field_has_a_test_and_no_other(self):
        fields = self.fields()
        self.assertGreater(len(fields), 100)
        self.assertEqual(fields - set(table()), set(), "fields without a test")
        self.assertEqual(set(table()) - fields, set(), "rows of fields that are gone")


class Table(unittest.TestCase):
    def test_the_tests_exist(self):
        for field, test in table().items():
            file, name = test.split(" ")
            self.assertIn(name, tests_of(HERE / file), field)

    def test_the_tests_speak_of_their_field(self):
        # Those that go over all fields of a kind take their names from /openapi.json.
        over_all = ("test_harmless_fields_are_accepted", "test_refused_fields_are_named_and_their_neutral_value_is_not")
        for field, test in table().items():
            file, name = test.split(" ")
            text = (HERE / file).read_text()
            start = text.index(f"    def {name.split('.')[1]}(")
            body = text[start:text.find("\n    def ", start + 8)]
            self.assertTrue(name.endswith(over_all) or field in body or f"{field}=" in body, (field, test))


if __name__ == "__main__":
    main()
