#!/usr/bin/env python3
"""Renders the templates and snippets of tests/golden/templates with Python's jinja2, set up as transformers does it.

Writes NAME.expected.json beside each NAME.jinja, and snippets.expected.json. With --check it writes nothing and compares
what is committed with what jinja2 says now (tests/templates/check_jinja.py does the same in CI).

An expected result is {"text": ...}, {"raises": the words of raise_exception} or {"fails": the class of Python's error}.
"""
import argparse
import datetime
import json
import pathlib
import sys

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "templates"
NOW = datetime.datetime(2026, 3, 7, 13, 5, 9)  # what strftime_now sees; the C++ test injects the same local time


class Raised(Exception):
    """raise_exception was called."""


class Generation(jinja2.ext.Extension):
    """{% generation %} passes its body through."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def raise_exception(message):
    raise Raised(str(message))


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def outcome(env, source, context):
    try:
        return {"text": env.from_string(source).render(**context)}
    except Raised as e:
        return {"raises": str(e)}
    except Exception as e:  # which errors jinja2 lets through is its own business
        return {"fails": type(e).__name__}


def everything():
    """File name -> expected content."""
    env = environment()
    contexts = json.loads((FOLDER / "contexts.json").read_text(encoding="utf-8"))
    result = {}
    for path in sorted(FOLDER.glob("*.jinja")):
        source = path.read_bytes().decode("utf-8")
        result[path.stem + ".expected.json"] = {name: outcome(env, source, c) for name, c in contexts.items()}
    snippets = json.loads((FOLDER / "snippets.json").read_text(encoding="utf-8"))
    result["snippets.expected.json"] = {s: outcome(env, s, snippets["context"]) for s in snippets["snippets"]}
    return result


def differences(expected):
    """Lines that say where the committed files are not what jinja2 says."""
    found = []
    for name, want in expected.items():
        path = FOLDER / name
        have = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        for key in dict.fromkeys([*want, *have]):
            if want.get(key) != have.get(key):
                found.append(f"{name}: {key!r}: committed {have.get(key)!r}, jinja2 {jinja2.__version__} says {want.get(key)!r}")
    committed = {p.name for p in FOLDER.glob("*.expected.json")}
    found += [f"{name}: belongs to no template" for name in sorted(committed - set(expected))]
    return found


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--check", action="store_true", help="compare only")
    expected = everything()
    if options.parse_args().check:
        found = differences(expected)
        print("\n".join(found) or f"{sum(map(len, expected.values()))} renderings agree with jinja2 {jinja2.__version__}")
        return 1 if found else 0
    for name, content in expected.items():
        text = json.dumps(content, ensure_ascii=False, indent=1)
        (FOLDER / name).write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
