#!/usr/bin/env python3
"""`kvarto eval` as a user sees it: `tests/cli/eval_test.py KVARTO [CHECK]`. On a tiny random model, which solves nothing: what is
tested is that equal settings are equal, that faults are seen in the order of their size, and that runs go on and repeat.

Reports are compared byte for byte, but for what a run takes: the fields `seconds` and `prompt_tokens_per_s` of its settings.
"""
import contextlib
import json
import math
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import time

sys.dont_write_bytecode = True
sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "http"))
import cli_test
import openai_stub
from cli_test import LLAMA, error_line, kvarto, kvarto_json, main

SUBJECTS = ["the miller", "a heron", "her brother", "the night train", "an old map", "the harbour"]
VERBS = ["waits beside", "remembers", "never reached", "was painted on", "turns towards", "sleeps under"]
OBJECTS = ["the white bridge", "a field of rye", "the third window", "an empty boat", "the county road"]
ROW = struct.Struct("<iiiff256i256f")  # of a dump


def text_file(folder, sentences=240):
    path = folder / "notes.txt"
    path.write_text(" ".join(f"{SUBJECTS[i % 6].capitalize()} {VERBS[i * i % 7 % 6]} {OBJECTS[i * 3 % 5]}, {i} times."
                             for i in range(sentences)))
    return path


def own_tasks(folder, answers=()):
    """Prompts, of which the first few have an answer (None: none)."""
    path = folder / "own.jsonl"
    lines = [{"id": f"q{i}", "prompt": f"{s} {v} ", "max_tokens": 12} for i, (s, v) in enumerate(zip(SUBJECTS * 2, VERBS * 2))]
    for line, answer in zip(lines, answers):
        if answer is not None:
            line["answer"] = answer
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def command(folder, *flags, output="out"):
    return ["eval", LLAMA, "--output", str(folder / output), "--threads", "1", *map(str, flags)]


def texts(folder, *flags, output="out"):
    return command(folder, "--only", "text", "--text", text_file(folder), "--context", "256", *flags, output=output)


def report_of(folder, output="out"):
    return json.loads((folder / output / "report.json").read_text())


def records_of(folder, output="out"):
    return [json.loads(line) for line in (folder / output / "records.jsonl").read_text().splitlines()[1:]]


def without_times(folder, output):
    text = (folder / output / "report.json").read_text()
    text, count = re.subn(r'"(seconds|prompt_tokens_per_s)": [^,\n]+', r'"\1": 0', text)
    assert count == 2 * len(json.loads(text)["settings"]), text
    return text


def kl(setting):
    return setting["text"]["kl_mean_nats"]["value"]


# --- the checks, in order of appearance


def equal_settings_are_equal(folder):
    flags = ["--only", "text,needle,table", "--samples", 6, "--context", 1024, "--text", text_file(folder), "-q"]
    report = kvarto_json(*command(folder, "--candidate", "kv=f16", *flags, "--json"))
    assert [s["name"] for s in report["settings"]] == ["kv=f16", "kv=f16"], report
    assert report == report_of(folder)
    baseline, candidate = report["settings"]
    text = candidate["text"]
    assert text["kl_mean_nats"] == {"value": 0, "low": 0, "high": 0} and text["kl_max_nats"] == 0, text
    assert text["same_top_share"]["value"] == 1 and text["nll_difference_nats"]["value"] == 0, text
    assert text["nll_nats"] == baseline["text"]["nll_nats"] and text["verdict"] == "safe", text
    assert all(bucket["kl_mean_nats"] == 0 and bucket["same_top_share"] == 1 for bucket in text["positions"]), text
    # Nearly uniform: a random model knows nothing of the text.
    assert 1 < text["nll_nats"]["value"] < 4 * math.log(512), text
    assert [f["family"] for f in candidate["families"]] == ["needle", "table"], candidate
    for family in candidate["families"]:
        assert family["retention"]["value"] == 1 and family["lost"] == family["gained"] == 0, family
        assert family["mcnemar_p"] == 1 and family["nll_per_token_nats"] > 0 and not family["judged"], family
    assert candidate["retrieval_map"], candidate
    assert not (folder / "out" / "logprobs").exists()
    html = (folder / "out" / "report.html").read_text()
    assert "<html" in html and not re.search(r"<script|<link|src=|@import|url\(", html), "the page loads something"


def another_dtype_differs(folder):
    # With --reference nothing but the cache rounds: int8 activations would tip over at the smallest change.
    out, err = kvarto(*texts(folder, "--reference"))
    assert "kv=bf16" in out and "kv=f16: texts" in err and "report.html" in err, (out, err)
    baseline, candidate = report_of(folder)["settings"]
    assert candidate["name"] == "kv=bf16" and 0 < kl(candidate) < 0.1, candidate["text"]
    assert baseline["kv_bytes_per_token"] == candidate["kv_bytes_per_token"] > 0
    assert candidate["text"]["tokens"] == 2 * 255, candidate["text"]
    kvarto(*texts(folder, "--reference", "-q", "--candidate", "kv=f32", output="f32"))
    wide = report_of(folder, "f32")["settings"][1]
    assert wide["kv_bytes_per_token"] == 2 * baseline["kv_bytes_per_token"] and 0 < kl(wide) < kl(candidate), wide


def planted_faults_are_seen_in_order(folder):
    faults = ["--candidate", "noise=60,noise=30,noise=10", "--candidate", "hide=0.05,hide=0.5"]
    kvarto(*texts(folder, *faults, "--reference", "-q"))
    settings = report_of(folder)["settings"]
    assert [s["name"] for s in settings] == ["kv=f16", "noise=60", "noise=30", "noise=10", "hide=0.05", "hide=0.5"]
    small, middle, large, few, many = map(kl, settings[1:])
    assert 0 < small < middle < large, (small, middle, large)
    assert 0 < few < many, (few, many)
    tops = [s["text"]["same_top_share"]["value"] for s in settings[1:]]
    assert 1 >= tops[0] > tops[2], tops


def the_same_command_gives_the_same_report(folder):
    flags = ["--text", text_file(folder), "--context", 1024, "--samples", 5, "--tasks", own_tasks(folder, [" the", " a"]),
             "--candidate", "noise=20", "--only", "text,needles,sums"]
    for output in ("one", "two"):
        kvarto(*command(folder, *flags, "-q", output=output))
    assert without_times(folder, "one") == without_times(folder, "two")
    # Once more in the same folder computes nothing: not even the times change.
    before = (folder / "one" / "report.json").read_text()
    err = kvarto(*command(folder, *flags, output="one"))[1]
    assert "going on with the run" in err and (folder / "one" / "report.json").read_text() == before, err
    # Another seed: other tasks, the same texts.
    kvarto(*command(folder, *flags, "-q", "--seed", 2, output="three"))
    one, three = report_of(folder, "one")["settings"][0], report_of(folder, "three")["settings"][0]
    assert one["text"] == three["text"] and one["families"] != three["families"], (one, three)


def interrupted_runs_go_on(folder):
    flags = ["--text", text_file(folder), "--context", 1024, "--samples", 24, "--only", "text,needle,needles",
             "--tasks", own_tasks(folder), "--candidate", "noise=20"]
    kvarto(*command(folder, *flags, "-q", output="whole"))
    records = folder / "cut" / "records.jsonl"

    def lines():
        return records.read_bytes().count(b"\n") if records.exists() else 0

    for _ in range(2):
        before = lines()
        process = subprocess.Popen([cli_test.KVARTO, *command(folder, *flags, output="cut")], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        deadline = time.monotonic() + 120
        while lines() < before + 12 and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 130 and out == b"", (process.returncode, out, err)
        assert b"the same command goes on" in err and b"error" not in err, err
        assert not (folder / "cut" / "report.json").exists()
    assert "going on with the run" in kvarto(*command(folder, *flags, output="cut"))[1]
    assert without_times(folder, "cut") == without_times(folder, "whole")
    assert not (folder / "cut" / "logprobs").exists()


def a_torn_last_line_is_done_again(folder):
    flags = ["--text", text_file(folder), "--context", 512, "--samples", 4, "--only", "text,needle", "-q"]
    kvarto(*command(folder, *flags))
    whole, records = without_times(folder, "out"), folder / "out" / "records.jsonl"
    content = records.read_bytes()
    for share in (0.3, 0.7, 0.95):
        os.truncate(records, int(len(content) * share))
        kvarto(*command(folder, *flags))
        assert without_times(folder, "out") == whole, share
    damaged = content.splitlines(keepends=True)
    damaged[2] = damaged[2][:20] + b"\n"
    records.write_bytes(b"".join(damaged))
    assert "records.jsonl: line 3: " in error_line(command(folder, *flags), 1)
    kvarto(*command(folder, *flags, "--fresh"))
    assert without_times(folder, "out") == whole


def threads_are_no_other_run(folder):
    flags = ["--text", text_file(folder), "--context", 512, "--samples", 2, "--only", "text,needle", "-q"]
    kvarto(*command(folder, *flags))
    before = report_of(folder)
    other = ["2" if word == "1" else word for word in command(folder, *flags)]
    kvarto(*other)
    after = report_of(folder)
    assert (before["run"]["threads"], after["run"]["threads"]) == (1, 2), after["run"]
    assert before["settings"] == after["settings"]
    os.truncate(folder / "out" / "records.jsonl", 9 * (folder / "out" / "records.jsonl").stat().st_size // 10)
    kvarto(*other)
    again = report_of(folder)
    for setting in (*before["settings"], *again["settings"]):
        setting["seconds"] = setting["prompt_tokens_per_s"] = 0
    assert before["settings"] == again["settings"], "threads change a figure"


def another_run_is_refused(folder):
    kvarto(*texts(folder, "-q"))
    for flags, words in ((["--seed", 2], "seed is 1 there and 2 here"), (["--candidate", "noise=10"], "settings[1] is"),
                         (["--text-pieces", 1], "texts is"), (["--block-size", 32], "block_size is 16 there and 32 here")):
        line = error_line(texts(folder, "-q", *flags), 1)
        assert words in line and "--fresh" in line and "another folder" in line, (flags, line)
    kvarto(*texts(folder, "-q", "--seed", 2, "--fresh"))
    assert report_of(folder)["run"]["seed"] == 2
    # What cannot begin throws nothing away: neither a wrong plan nor an engine that finds no memory.
    before = {path: path.read_bytes() for path in (folder / "out").iterdir()}
    for flags in (["--candidate", "kv=fp9"], ["--text", folder / "none.txt"], ["--kv-cache-memory-bytes", 4096]):
        error_line(texts(folder, "-q", "--seed", 3, "--fresh", *flags), 1)
        assert before == {path: path.read_bytes() for path in (folder / "out").iterdir()}, flags


def max_drop_decides_the_exit_code(folder):
    flags = ["--only", "none", "--tasks", own_tasks(folder), "--context", 256, "-q", "--max-drop", 0.1]
    # Without answers what the baseline writes is measured, and whether it is written again counts for nothing.
    kvarto(*command(folder, *flags, "--candidate", "kv=f16", output="same"))
    baseline, same = report_of(folder, "same")["settings"]
    assert [f["family"] for f in same["families"]] == ["own-agreement"] and same["families"][0]["agreement"], same
    own = same["skills"][0]
    assert own["skill"] == "own" and own["verdict"] == "safe" and own["lost"] is None, own
    assert own["compared"] >= 6 and own["retention"]["value"] == 1 and own["retention_of"] == "likelihood", own
    bad = command(folder, *flags, "--candidate", "noise=-20", output="bad")
    out, err = kvarto(*bad, code=1)
    assert "noise=-20" in out and len(err.splitlines()) == 1 and "noise=-20, own: retention is " in err, (out, err)
    assert report_of(folder, "bad")["settings"][1]["skills"][0]["retention"]["value"] < 0.9
    # What is unsafe fails whatever may be lost.
    _, err = kvarto(*[1 if word == "0.1" else word for word in bad], code=1)
    assert "noise=-20, own: the verdict is unsafe" in err, err
    # With what the baseline writes as the answer it is right, and answers are lost.
    wrote = {r["task"]: r["wrote"] for r in records_of(folder, "bad") if "task" in r and r["setting"] == 0}
    answers = [wrote[f"q{i}"] for i in range(12)]
    tasks = own_tasks(folder, [a if a.strip() else None for a in answers])
    flags[3] = tasks
    out, err = kvarto(*command(folder, *flags, "--candidate", "noise=-20", output="answers"), code=1)
    baseline, bad = report_of(folder, "answers")["settings"]
    families = {f["family"]: f for f in bad["families"]}
    own = families["own"]
    assert own["baseline_right"] >= 6 and own["judged"] and own["lost"] > 0.1 * own["tasks"], own
    assert abs(own["drop_share"]["value"] - (own["lost"] - own["gained"]) / own["tasks"]) < 1e-9, own
    assert "noise=-20, own: the share of right answers dropped by " in err, err
    # Likelihoods are of what the baseline wrote, as without answers, not of the answer.
    flags[3] = own_tasks(folder, ["the"] * 12)
    kvarto(*command(folder, *flags[:-2], "--candidate", "noise=-20", output="short"))
    for setting in (0, 1):
        likely, now = ({r["task"]: r for r in records_of(folder, output) if "task" in r and r["setting"] == setting}
                       for output in ("bad", "short"))
        assert {k: (r["nll"], r["answer_tokens"]) for k, r in now.items()} == \
            {k: (r["nll"], r["answer_tokens"]) for k, r in likely.items()}, setting
        assert all(r["family"] == "own" and not r["agreement"] and r["floor_nll"] is None for r in now.values()), now


def chats_are_as_long_as_their_template_makes_them(folder):
    messages = [{"role": "system", "content": 'Say "yes".'}, {"role": "user", "content": "Do you?\n" * 60}]
    (folder / "messages.json").write_text(json.dumps(messages))
    (folder / "chat.jsonl").write_text(json.dumps({"id": "chat", "messages": messages, "answer": "yes", "max_tokens": 4}) + "\n")
    flags = ["--only", "none", "--tasks", folder / "chat.jsonl", "--context", 1024, "--candidate", "kv=f16", "-q"]
    kvarto(*command(folder, *flags))
    rendered = kvarto_json("render", LLAMA, "--messages", folder / "messages.json", "--json", "-q")
    (record,) = [r for r in records_of(folder) if r.get("task") == "chat" and r["setting"] == 0]
    assert record["length_tokens"] - len(rendered["ids"]) in (0, 1), (record, rendered)
    assert record["family"] == "own" and not record["agreement"] and not record["failed"], record
    assert record["nll"] > 0 or not record["wrote"], record
    line = error_line(command(folder, *flags[:4], "--context", 128), 1)
    assert '"chat" of ' in line and "with what its chat template adds; give --context that much or more" in line, line
    # Without a template there is no chat.
    bare = folder / "bare.gguf"
    bare.write_bytes(pathlib.Path(LLAMA).read_bytes().replace(b"tokenizer.chat_template", b"tokenizer.chat_tempXate"))
    line = error_line(["eval", bare, "--output", folder / "bare", "--threads", 1, *flags], 1)
    assert 'task "chat" of ' in line and "no chat template" in line and not (folder / "bare").exists(), line


def fresh_removes_what_is_its_own(folder):
    kvarto(*texts(folder, "--dump", "-q"))
    out = folder / "out"
    (out / "logprobs" / "mine.npy").write_text("mine")
    (out / "notes.md").write_text("mine")
    assert (out / "logprobs" / "1-0.npy").exists()
    flags = ["--only", "none", "--tasks", own_tasks(folder), "--context", 256, "--candidate", "kv=f16", "-q"]
    assert "another run" in error_line(command(folder, *flags), 1)
    kvarto(*command(folder, *flags, "--fresh"))
    assert sorted(p.name for p in (out / "logprobs").iterdir()) == ["mine.npy"]
    assert (out / "notes.md").read_text() == "mine"
    # The tasks are part of the run.
    own_tasks(folder, ["an answer"])
    line = error_line(command(folder, *flags), 1)
    assert "there and" in line and "--fresh" in line, line


def servers_get_no_texts(folder):
    with contextlib.closing(openai_stub.Server()) as stub:
        flags = ["--url", stub.url, "--only", "text,table", "--samples", 2, "--context", 1024]
        kinds = (["eval", *flags], ["eval", LLAMA, "--threads", 1, *flags, "--text", text_file(folder)])
        for i, arguments in enumerate(kinds):
            err = kvarto(*arguments, "--output", folder / f"{i}")[1]
            assert "\nservers get no texts\n" in "\n" + err, err
            assert report_of(folder, f"{i}")["run"]["texts"] == [], arguments
        # A candidate that runs here is compared on them.
        err = kvarto(*kinds[1], "--candidate", "kv=f16", "--output", folder / "both")[1]
        texts = [setting["text"] for setting in report_of(folder, "both")["settings"]]
        assert "get no texts" not in err and texts[1] is not None and texts[2] is None, (err, texts)


def dumps_can_be_read(folder):
    flags = ["--dump", "--candidate", "noise=30", "-q", "--text-pieces", 1]
    kvarto(*texts(folder, *flags))
    ids = kvarto_json("tokenize", LLAMA, "--file", folder / "notes.txt", "--ids", "-q")[:256]
    settings = report_of(folder)["settings"]
    rows = []
    for setting in (0, 1):
        content = (folder / "out" / "logprobs" / f"{setting}-0.npy").read_bytes()
        length = struct.unpack("<H", content[8:10])[0]
        assert content[:8] == b"\x93NUMPY\x01\x00" and b"'shape': (255,)" in content[10:10 + length], content[:200]
        rows.append([ROW.unpack_from(content, 10 + length + i * ROW.size) for i in range(255)])
        assert len(content) == 10 + length + 255 * ROW.size
        mean = sum(-row[3] for row in rows[-1]) / 255
        assert abs(mean - settings[setting]["text"]["nll_nats"]["value"]) < 1e-6, mean
    assert [row[:2] for row in rows[0]] == [(i, ids[i]) for i in range(1, 256)]
    (folder / "ids.json").write_text(json.dumps(ids))
    scored = [json.loads(line) for line in kvarto("score", LLAMA, "--ids", folder / "ids.json", "--threads", "1")[0].splitlines()]
    for before, after, row, other in zip(scored, scored[1:], *rows):
        assert abs(after["nll"] + row[3]) < 1e-5 and before["argmax"] == row[2], (after, row[:5])
        top, logprobs = row[5:261], row[261:]
        assert list(logprobs) == sorted(logprobs, reverse=True) and len(set(top)) == 256 and top[0] == row[2], row
        assert other[5:261] == top, "a candidate's rows are of the baseline's tokens"
        for values in (logprobs, other[261:]):
            rest = row[4] if values is logprobs else other[4]
            assert abs(sum(map(math.exp, values)) + math.exp(rest) - 1) < 1e-5
    kvarto(*texts(folder, *flags[1:]))  # the same run without the dump leaves it
    dump = folder / "out" / "logprobs" / "1-0.npy"
    good = dump.read_bytes()
    dump.write_bytes(good[:-5] + bytes([good[-5] ^ 1]) + good[-4:])  # damaged, it is made anew
    kvarto(*texts(folder, *flags))
    assert dump.read_bytes() == good


def a_short_model_has_a_shorter_context(folder):
    flags = ["--only", "needle", "--samples", 1, "--candidate", "kv=f16"]
    err = kvarto(*command(folder, *flags))[1]
    assert "--context is 2048, all that the model has" in err and report_of(folder)["run"]["context_tokens"] == 2048, err
    assert re.search(r"kv=f16: needle, 0 of \d+ tasks, 0 % of the run done", err), err


def bad_input_is_one_line(folder):
    text, latin1, short = text_file(folder), folder / "latin1.txt", folder / "short.txt"
    latin1.write_bytes(b"caf\xe9 " * 100)
    short.write_text("Too short.")
    (folder / "tasks.jsonl").write_text('{"prompt": "a"}\n{"prompt": \n')
    (folder / "number.jsonl").write_text('\n\n{"prompt": "6 times 7?", "answer": 42}\n')
    (folder / "empty.jsonl").write_text("\n")
    (folder / "long.jsonl").write_text(json.dumps({"id": "huge", "prompt": "word " * 2000}) + "\n")
    (folder / "file").write_text("")
    line = error_line(command(folder, "--only", "needle,nose", "--context", 512), 1)
    assert 'no family "nose"' in line and "needle, needles, table, facts" in line and "none" in line, line
    for flags, words in (
            (["--context", 4096], "--context 4096 is beyond the model's context of 2048"),
            (["--context", 5], "--context 5 is not from 128"),
            (["--samples", 0, "--context", 512], "--samples 0"),
            (["--text-pieces", 0, "--context", 512], "--text-pieces 0"),
            (["--candidate", "kv=fp9"], "fp9"), (["--baseline", "half"], '"half"'), (["--candidate", ""], "setting"),
            (["--candidate", "noise=10,noise=10"], '"noise=10" is there twice'),
            (["--max-drop", 2], "--max-drop"),
            (["--text", folder / "none.txt", "--context", 512], "none.txt"),
            (["--text", latin1, "--context", 512], "latin1.txt: not valid UTF-8 at byte 3"),
            (["--text", text, "--text", short, "--context", 512], "short.txt has "),
            (["--only", "none", "--context", 512], "nothing is left to measure"),
            (["--only", "none", "--tasks", folder / "tasks.jsonl", "--context", 512], "tasks.jsonl: line 2: "),
            (["--only", "none", "--tasks", folder / "number.jsonl", "--context", 512],
             'number.jsonl: line 3: "answer" is not a text; write it in double quotes'),
            (["--only", "none", "--tasks", folder / "empty.jsonl", "--context", 512], "empty.jsonl: there is no task"),
            (["--only", "none", "--tasks", "/dev/zero", "--context", 512], "/dev/zero: longer than 64 MiB; cut it in parts"),
            (["--text", text, "--text", f"{folder}/./notes.txt", "--context", 512], "notes.txt comes twice; give it once"),
            (["--baseline", "k=bf16:v=bf16"], '"k=bf16:v=bf16" is what would be compared with it'),
            (["--candidate", "kv=bf16", "--candidate", "v=bf16:k=bf16"], '"v=bf16:k=bf16" is the same as "kv=bf16"'),
            (["--candidate", "hide=0,kv=f16"], '"kv=f16" is the same as "hide=0"'),
            (["--candidate", "k=bf16", "--candidate", "k=bf16:v=f16"], '"k=bf16:v=f16" is the same as "k=bf16"'),
            (["--url", "http://127.0.0.1:9", "--api-key", "k\nX-Other: 1"], "--api-key has control characters"),
            (["--only", "none", "--tasks", folder / "long.jsonl", "--context", 512], '"huge"'),
            (["--kv-cache-dtype", "bf16"], "--candidate kv=bf16"), (["--max-model-len", 99], "--context"),
            (["--api-key", "k"], "--url"), (["--url", "ftp://x", "--context", 512], "http://"),
            (["--url", "http://127.0.0.1:9", "--context", 512], "127.0.0.1:9")):
        line = error_line(command(folder, *flags), 1)
        assert words in line, (flags, line)
    assert not (folder / "out").exists()  # nothing was begun
    assert "file: cannot make the folder" in error_line(texts(folder, output="file"), 1)
    assert "MODEL is missing" in error_line(["eval"], 1)
    assert "name MODEL beside --url" in error_line(["eval", "--url", "http://127.0.0.1:9", "--dump"], 1)
    assert "--samples" in error_line(["eval", LLAMA, "--samples", "many"], 2)
    help_text = kvarto("eval", "--help")[0]
    assert all(word in help_text for word in ("needle", "tool-call", "noise=DB", "Exit codes", "--max-drop")), help_text


CHECKS = (equal_settings_are_equal, another_dtype_differs, planted_faults_are_seen_in_order,
          the_same_command_gives_the_same_report, interrupted_runs_go_on, a_torn_last_line_is_done_again,
          threads_are_no_other_run, another_run_is_refused, max_drop_decides_the_exit_code,
          chats_are_as_long_as_their_template_makes_them, fresh_removes_what_is_its_own, servers_get_no_texts,
          dumps_can_be_read, a_short_model_has_a_shorter_context, bad_input_is_one_line)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], CHECKS))
