#!/usr/bin/env python3
"""Plants each breach that tools/check_house knows into a small clean tree and sees it reported, and only it."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

CHECKER = pathlib.Path(__file__).with_name("check_house")

CLEAN = {
    "CMakeLists.txt": "project(kvarto VERSION 1.2.0 LANGUAGES CXX)\n",
    "CHANGELOG.md": "# Changes\n\n## 1.2.0\n- first\n\n## 1.1.0\n",
    "include/kvarto/types.h": '#pragma once\n#include <vector>\n#include <tl/expected.hpp>\n#include "kvarto/result.h"\n',
    "include/kvarto/result.h": "#pragma once\n",
    "src/base/file.h": "#pragma once\n#include <fcntl.h>\n",
    "src/codec/list.h": "#pragma once\n#define CODECS(X) \\\n  X(f16, A) \\\n  X(bf16, B)\n",
    "src/ops/weight/list.h": "#pragma once\ninline constexpr F kList[] = {\n    kQ4_0,\n    kF32,\n};\n",
    "src/model/list.cc": 'const Row kRows[] = {{"llama", make_llama}, {"qwen2", make_llama}};\n',
    "src/kv/pool.cc": '#include "base/file.h"\n#include "codec/list.h"\n#include "kv/pool.h"\n#include <spdlog/spdlog.h>\n',
    "src/kv/pool.h": '#pragma once\n#include "kvarto/types.h"\nstruct BasicBlock {};\n',
    "src/http/server.h": "#pragma once\n#include <boost/asio.hpp>\n",
    "docs/index.md": "# Index\n\n<!-- rows: codec -->\n| name | bits |\n|---|---|\n| `f16` | 16 |\n| `bf16` | 16 |\n\n"
                     "<!-- rows: weight -->\n| name |\n|---|\n| `Q4_0` |\n| `F32` |\n\n"
                     "<!-- rows: model -->\n| name |\n|---|\n| `llama`, `qwen2` |\n",
}

ROW_BF16 = "| `bf16` | 16 |\n"
# (name of the test, file, its new text or a function of the old text, what the report must say)
# Put together, so that this file does not hold what the rules forbid.
TASK, REPAIR, WORK = "TO" "DO", "FIX" "ME", "/" "work"
BREACHES = [
    ("upward include", "src/kv/pool.cc", '#include "engine/engine.h"\n', "includes upward: engine/engine.h"),
    ("upward include in a test", "src/base/a_test.cc", '#include "kv/pool.h"\n', "includes upward: kv/pool.h"),
    ("sibling include", "src/codec/a.cc", '#include "format/gguf.h"\n', "sibling of the same rank: format/gguf.h"),
    ("tests from a source", "src/kv/a.cc", '#include "tests/x.h"\n', "not a path from src/"),
    ("include without folder", "src/kv/a.cc", '#include "pool.h"\n', "not a path from src/"),
    ("folder without rank", "src/misc/a.cc", "int a;\n", "folder misc has no rank"),
    ("public header and a library", "include/kvarto/a.h", "#pragma once\n#include <openssl/evp.h>\n", "public header includes"),
    ("public header and src", "include/kvarto/a.h", '#pragma once\n#include "kv/pool.h"\n', "public header includes kv/pool.h"),
    ("library in a header", "src/kv/a.h", "#pragma once\n#include <spdlog/spdlog.h>\n", "spdlog/spdlog.h in a header"),
    ("json in a header", "src/text/a.h", "#pragma once\n#include <nlohmann/json.hpp>\n", "nlohmann/json.hpp in a header"),
    ("json's type in a header", "src/server/sse.h", "#pragma once\nvoid send(const nlohmann::ordered_json& event);\n",
     "sse.h:2: a type of nlohmann's"),
    ("its forward declaration", "src/kv/a.h", "#pragma once\n#include <nlohmann/json_fwd.hpp>\n", "a.h:2: a type of nlohmann's"),
    ("Boost in the server", "src/server/a.cc", "#include <boost/asio.hpp>\n", "only src/http includes Boost"),
    ("long file", "src/kv/a.cc", "int a;\n" * 601, "601 lines"),
    ("long script", "tools/b", "#!/usr/bin/env bash\n" + "true\n" * 600, "601 lines"),
    ("no pragma once", "src/kv/a.h", "int a;\n", "no #pragma once"),
    ("open task", "src/kv/a.cc", f"// {TASK}: later\n", f"{TASK} without an existing file"),
    ("open task, file absent", "src/kv/a.cc", f"// {REPAIR}(tests/issues/a_test.cc)\n", f"{REPAIR} without an existing file"),
    ("type name", "src/kv/a.cc", "class BlockManager {};\n", "name BlockManager"),
    ("base class name", "src/kv/a.cc", "struct BaseCodec {};\n", "name BaseCodec"),
    ("file name", "src/kv/string_utils.cc", "int a;\n", "file name says nothing"),
    ("machine path", "docs/a.md", "see /home/someone/notes\n", "path of one machine"),
    ("version", "CHANGELOG.md", "## 1.3.0\n", "newest version is 1.3.0"),
    ("undocumented row", "docs/index.md", lambda text: text.replace(ROW_BF16, ""), "table codec lacks `bf16`"),
    ("documented ghost", "docs/index.md", lambda text: text.replace(ROW_BF16, ROW_BF16 + "| `int8` | 8 |\n"), "shows `int8`"),
    ("undocumented weight", "docs/index.md", lambda text: text.replace("| `Q4_0` |\n", ""), "table weight lacks `Q4_0`"),
    ("undocumented architecture", "docs/index.md", lambda text: text.replace(", `qwen2`", ""), "table model lacks `qwen2`"),
    ("no table", "docs/index.md", "# Index\n", "no table under `<!-- rows: weight -->`"),
]
# What looks like a breach and is none.
ALLOWED = [
    ("task with its issue", {"src/kv/a.cc": f"// {TASK}(tests/issues/a_test.cc)\n", "tests/issues/a_test.cc": "int a;\n"}),
    ("guard per SIMD target", {"src/codec/a.h": "#if defined(HWY_TARGET_TOGGLE)\n#endif\n"}),
    ("generated table", {"src/text/a.cc": "// Generated by tools/make_tables\n" + "int a;\n" * 700}),
    ("test helper from a test", {"src/kv/a_test.cc": '#include "tests/tiny/models.h"\n'}),
    ("forward declarations", {"src/text/json_text.h": "#pragma once\n#include <nlohmann/json_fwd.hpp>\nnlohmann::json parse();\n"}),
    ("a path that only contains the word", {"docs/a.md": f"`build{WORK}/x`, https://example.org/home/x, src/tmp\n"}),
]


def report(files):
    with tempfile.TemporaryDirectory() as root:
        for path, text in files.items():
            target = pathlib.Path(root, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        run = subprocess.run([sys.executable, str(CHECKER), root], capture_output=True, text=True)
        return run.returncode, run.stdout + run.stderr


class CheckHouse(unittest.TestCase):
    def test_clean_tree_passes(self):
        code, text = report(CLEAN)
        self.assertEqual(code, 0, text)

    def test_each_breach_is_reported(self):
        for name, path, change, wanted in BREACHES:
            with self.subTest(name):
                text = change(CLEAN[path]) if callable(change) else change
                if callable(change):
                    self.assertNotEqual(text, CLEAN[path])
                code, said = report({**CLEAN, path: text})
                self.assertEqual(code, 1)
                self.assertIn(wanted, said)
                others = [line for line in said.splitlines() if path not in line and not line.startswith("docs")]
                self.assertEqual(others, [])

    def test_what_only_looks_like_a_breach_passes(self):
        for name, files in ALLOWED:
            with self.subTest(name):
                code, said = report({**CLEAN, **files})
                self.assertEqual(code, 0, said)


if __name__ == "__main__":
    unittest.main()
