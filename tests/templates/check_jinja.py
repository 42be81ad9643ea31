#!/usr/bin/env python3
"""CI: what the C++ test compares with (tests/golden/templates/*.expected.json) is what Python's jinja2 says today."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import make_template_goldens as goldens  # noqa: E402

if __name__ == "__main__":
    expected = goldens.everything()
    found = goldens.differences(expected)
    for line in found:
        print(line)
    shapes = len([name for name in expected if not name.startswith("snippets")])
    count = sum(map(len, expected.values()))
    print(f"{shapes} templates, {count} renderings, {len(found)} differ from jinja2 {goldens.jinja2.__version__}")
    sys.exit(1 if found else 0)
