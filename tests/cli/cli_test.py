#!/usr/bin/env python3
"""The program as a user sees it: `tests/cli/cli_test.py KVARTO`. Standard library only; tiny models, and SmolLM2 where it is.

Expected tokens, texts and likelihoods come from the goldens beside the tiny models (PyTorch), never from the program.
"""
import ctypes
import errno
import json
import os
import pathlib
import pty
import re
import resource
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TINY = ROOT / "tests" / "tiny"
LLAMA = str(TINY / "tiny_llama.gguf")
GEMMA = str(TINY / "tiny_gemma3.gguf")
SMOLLM2 = ROOT / "models" / "smollm2-135m-q4_1.gguf"
KVARTO = ""


def kvarto(*arguments, stdin="", code=0):
    done = subprocess.run([KVARTO, *map(str, arguments)], input=stdin.encode(), capture_output=True, timeout=600)
    assert done.returncode == code, f"exit code {done.returncode}, wanted {code}: {arguments}\n{done.stderr.decode()}"
    return done.stdout.decode(), done.stderr.decode()


def kvarto_json(*arguments, **options):
    return json.loads(kvarto(*arguments, **options)[0])


def golden(model, case):
    cases = json.loads((TINY / f"{model}.json").read_text())["cases"]
    return next(c for c in cases if c["name"] == case)


def certain(case):
    """The greedy tokens up to the first choice that float arithmetic could turn."""
    gaps = case["greedy_gap"]
    count = next((i for i, gap in enumerate(gaps) if gap < 0.01), len(gaps))
    return case["greedy"][:count]


def error_line(arguments, code):
    out, err = kvarto(*arguments, code=code)
    lines = [line for line in err.splitlines() if line.startswith("kvarto: ")]
    assert out == "" and len(lines) == 1 and lines[0].startswith("kvarto: error: "), (out, err)
    return lines[0]


def batch(folder, lines, *flags, code=0, name="in", said=""):
    source, output = folder / f"{name}.jsonl", folder / f"{name}.out.jsonl"
    source.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    _, err = kvarto("run", LLAMA, "--prompts", source, "-o", output, *flags, code=code)
    assert said in err, err
    return [json.loads(line) for line in output.read_text().splitlines()]


def cpu_has(flag):
    return re.search(rf"^flags\t*:.* {flag}( |$)", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE) is not None


def tiles_are_granted():
    """Whether Linux gives a child of this process the AMX tile registers: arch_prctl(ARCH_REQ_XCOMP_PERM, 18)."""
    ask = "import ctypes, sys; sys.exit(ctypes.CDLL(None).syscall(158, 0x1023, 18) != 0)"
    return subprocess.run([sys.executable, "-c", ask]).returncode == 0


def refuse_tiles():
    """For a child: from now on the kernel answers ARCH_REQ_XCOMP_PERM with EPERM. A seccomp filter over arch_prctl's first argument."""
    load, equal, give = 0x20, 0x15, 0x06
    code = [(load, 0, 0, 0), (equal, 0, 3, 158), (load, 0, 0, 16), (equal, 0, 1, 0x1023),
            (give, 0, 0, 0x00050000 | errno.EPERM), (give, 0, 0, 0x7fff0000)]
    words = b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
    memory = ctypes.create_string_buffer(words)
    program = ctypes.create_string_buffer(struct.pack("@HP", len(code), ctypes.addressof(memory)))
    libc = ctypes.CDLL(None)
    if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, program) != 0:
        os._exit(77)  # a container that allows no filters


# --- the checks, in order of appearance


def help_lists_every_verb(_):
    lines = kvarto("--help")[0].splitlines()
    for verb in ("run", "score", "bench", "inspect", "tokenize", "render", "pull"):
        assert any(line.startswith(f"  {verb} ") for line in lines), verb
        assert "Examples:" in kvarto(verb, "--help")[0], verb
        assert kvarto("help", verb) == kvarto(verb, "--help"), verb
        assert "{false}" not in kvarto(verb, "--help")[0], verb
    assert "--no-enable-prefix-caching" in kvarto("run", "--help")[0]
    assert kvarto("help") == kvarto("--help") and kvarto("version") == kvarto("--version")
    assert "no verb \"foo\"" in error_line(["help", "foo"], 2)
    for flags in (["--help"], ["--version"], ["run", "--help"]):  # a full disk loses the help
        with open("/dev/full", "w") as full:
            done = subprocess.run([KVARTO, *flags], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        assert done.returncode == 1 and done.stderr.startswith("kvarto: error: cannot write to stdout"), (flags, done)


def what_is_not_expected_stands_in_order(_):
    assert "not expected: --port 8000;" in error_line(["run", LLAMA, "--port", "8000"], 2)
    line = error_line(["bench", "serve", "no\nsuch", "--port", "8000"], 2)
    assert "not expected: no\\x0asuch --port 8000; see `kvarto bench serve --help`" in line, line


def errors_are_one_line_with_a_remedy(folder):
    assert "--help" in error_line(["run", LLAMA, "--bogus"], 2)
    assert "--help" in error_line(["run"], 2)
    assert "none.gguf" in error_line(["run", "none.gguf", "-p", "x"], 1)
    assert "512M" in error_line(["run", LLAMA, "-p", "x", "--kv-cache-memory-bytes", "much"], 1)
    assert "auto: float16" in error_line(["inspect", LLAMA, "--kv-cache-dtype", "fp8"], 1)
    assert "text is missing" in error_line(["tokenize", LLAMA], 1) and '"Hello"' in error_line(["tokenize", "Hello"], 1)
    assert "2 times" in error_line(["tokenize", LLAMA, "a", "--stdin"], 1)
    assert "messages are missing" in error_line(["render", LLAMA], 1)
    assert "exclude each other" in error_line(["render", LLAMA, "-p", "x", "--messages", "m.json"], 1)
    assert "none.gguf" in error_line(["bench", "none.gguf"], 1)  # no table's head before it
    assert "17" in error_line(["run", LLAMA, "-p", "x", "--block-size", "17"], 1)
    assert "temperature" in error_line(["run", LLAMA, "-p", "x", "--temperature", "3"], 1)
    assert "2048" in error_line(["run", LLAMA, "--raw", "-p", "word " * 3000], 1)
    assert "--raw" in error_line(["run", LLAMA, "--raw", "-p", "x", "--system", "y"], 1)
    assert "belongs" not in error_line(["run", LLAMA, "--prompts", folder / "none.jsonl"], 1)
    broken = folder / "broken.gguf"
    broken.write_bytes(pathlib.Path(LLAMA).read_bytes()[:1000])
    assert "broken.gguf" in error_line(["inspect", broken], 1)


def tokenize_gives_the_goldens(folder):
    for model in ("tiny_llama", "tiny_qwen2", "tiny_gemma3", "tiny_llama3"):
        case, path = golden(model, "text"), TINY / f"{model}.gguf"
        out = kvarto_json("tokenize", path, case["text"], "--json", "--bos")
        assert out["ids"] == case["ids"] and len(out["pieces"]) == len(out["ids"]), model
        (folder / "text").write_text(case["text"])
        assert kvarto_json("tokenize", path, "--file", folder / "text", "--ids", "--bos") == case["ids"], model
        assert kvarto_json("tokenize", path, "--stdin", "--ids", "--bos", stdin=case["text"]) == case["ids"], model
    special, plain = "<|im_end|>", ["--plain", "--ids"]
    assert len(kvarto_json("tokenize", LLAMA, special, "--ids")) == 1
    assert len(kvarto_json("tokenize", LLAMA, special, *plain)) > 1


def render_gives_the_goldens(folder):
    for model in ("tiny_llama", "tiny_gemma3", "tiny_llama3"):
        case = golden(model, "chat")
        (folder / "messages.json").write_text(json.dumps(case["messages"]))
        out = kvarto_json("render", TINY / f"{model}.gguf", "--messages", folder / "messages.json", "--json")
        assert out == {"text": case["rendered"], "ids": case["ids"]}, (model, out)


def score_gives_the_goldens(folder):
    for model in ("tiny_llama", "tiny_gemma3"):
        case = golden(model, "ids_130")
        (folder / "ids").write_text(json.dumps(case["ids"]))
        out, _ = kvarto("score", TINY / f"{model}.gguf", "--ids", folder / "ids", "--reference",
                        "--kv-cache-dtype", "float32")
        lines = [json.loads(line) for line in out.splitlines()]
        assert [line["pos"] for line in lines] == list(range(130)) and [line["id"] for line in lines] == case["ids"]
        assert lines[0]["nll"] is None
        assert abs(sum(line["nll"] for line in lines[1:]) / 129 - case["prompt_nll_mean"]) < 1e-4
        assert [line["argmax"] for line in lines] == case["argmax_each_pos"]
        assert [i for i, _ in lines[-1]["top"]] == [i for i, _ in case["top20"]]
        assert all(abs(a[1] - b[1]) < 1e-3 for a, b in zip(lines[-1]["top"], case["top20"]))
    spaced = kvarto("score", LLAMA, "--ids", "-", "--top-k", "3", stdin="1 2\n3")[0].splitlines()
    assert len(spaced) == 3 and len(json.loads(spaced[2])["top"]) == 3


def run_gives_the_goldens(_):
    for model, case_name in (("tiny_llama", "text"), ("tiny_llama", "chat"), ("tiny_llama3", "text"), ("tiny_llama3", "chat")):
        case = golden(model, case_name)
        prompt = ["--raw", "-p", case["text"]] if case_name == "text" else ["-p", case["messages"][0]["content"]]
        if case_name == "chat" and len(case["messages"]) > 1:
            continue
        out = kvarto_json("run", TINY / f"{model}.gguf", *prompt, "--json", "--max-tokens", 24, "--ignore-eos",
                          "--reference", "--kv-cache-dtype", "float32")
        wanted = certain(case)
        assert out["tokens"][:len(wanted)] == wanted, (model, case_name, out["tokens"], wanted)
        assert out["usage"] == {"prompt_tokens": case["n_prompt"], "cached_tokens": 0, "completion_tokens": 24}
        assert out["finish_reason"] == "length" and out["ttft_ms"] > 0 and out["tpot_ms"] > 0
        assert set(out["kv"]) == {"blocks_used", "blocks_total", "waste", "preemptions", "saturated_values", "numerics"}
        needed = (case["n_prompt"] + 23 + 15) // 16
        assert needed - 1 <= out["kv"]["blocks_used"] <= needed and out["kv"]["blocks_total"] > needed, out["kv"]


def run_shows_text_and_figures(_):
    out, err = kvarto("run", LLAMA, "-p", "hello", "--max-tokens", 5)
    assert out.endswith("\n") and "tiny_llama.gguf (path)" in err
    for figure in ("TTFT", "TPOT", "tokens/s", "weights", "KV blocks", "waste", "cached"):
        assert figure in err, (figure, err)
    text = kvarto_json("run", LLAMA, "-p", "hello", "--max-tokens", 5, "--json")["text"]
    assert out == text + "\n"
    assert kvarto("run", LLAMA, "--max-tokens", 5, "-q", stdin="hello") == (out, "")
    assert kvarto("run", LLAMA, "--max-tokens", 5, "-q", "--file", "-", stdin="hello") == (out, "")
    two = kvarto("run", LLAMA, "-p", "hello", "--max-tokens", 5, "--n", 2, "-q")[0]
    assert two == f"--- sample 0\n{text}\n--- sample 1\n{text}\n"


def threads_steps_and_blocks_change_no_bit(_):
    run = ["run", GEMMA, "--raw", "-p", "words " * 60, "--max-tokens", 12, "--ignore-eos", "--json", "--logits-hash"]
    both = set()
    for path in ([], ["--reference"]):
        results = [kvarto_json(*run, *path, *flags)
                   for flags in ([], ["--threads", 1], ["--threads", 2], ["--max-num-batched-tokens", 7],
                                 ["--block-size", 64], ["--no-enable-prefix-caching"])]
        assert len({r["logits_sha256"] for r in results}) == 1 and len(results[0]["logits_sha256"]) == 64
        both.add((results[0]["logits_sha256"], results[0]["kv"]["numerics"]))
    assert len({sha for sha, _ in both}) == 2 and {numerics for _, numerics in both} == {"f32-1", "int8-1"}


def children_are_single_runs(_):
    run = ["run", LLAMA, "-p", "hello", "--temperature", 1, "--seed", 5, "--max-tokens", 10, "--json", "--logits-hash"]
    samples = kvarto_json(*run, "--n", 3)["samples"]
    assert len({tuple(s["tokens"]) for s in samples}) == 3
    for index, sample in enumerate(samples):
        single = kvarto_json(*run, "--sample-index", index)
        assert (single["tokens"], single["logits_sha256"]) == (sample["tokens"], sample["logits_sha256"]), index


def beams_and_logprobs(_):
    beams = kvarto_json("run", LLAMA, "-p", "hello", "--beam-width", 3, "--n", 2, "--max-tokens", 4, "--json")["samples"]
    assert len(beams) == 2 and beams[0]["cumulative_logprob"] >= beams[1]["cumulative_logprob"]
    out = kvarto_json("run", LLAMA, "-p", "hello", "--logprobs", 2, "--max-tokens", 3, "--json")
    assert [entry["id"] for entry in out["logprobs"]] == out["tokens"]
    for entry in out["logprobs"]:
        assert entry["logprob"] == entry["top_logprobs"][0]["logprob"] < 0 and len(entry["top_logprobs"]) == 2


def inspect_knows_the_geometry(_):
    # 3 layers x 2 KV heads x (24 padded to 32) dims x K and V.
    for dtype, size in (("float16", 2), ("float32", 4), ("bf16", 2)):
        out = kvarto_json("inspect", LLAMA, "--json", "--kv-cache-dtype", dtype)
        assert out["kv_bytes_per_token"] == 3 * 2 * 32 * 2 * size, out["kv_bytes_per_token"]
    assert out["chat_template"] is True and out["context_length"] == 2048 and len(out["layers"]) == 3
    gemma = kvarto_json("inspect", GEMMA, "--json", "--block-size", 32)
    assert [g["kind"] for g in gemma["groups"]] == ["window", "full"] and gemma["groups"][0]["window"] == 32
    assert [g["layers"] for g in gemma["groups"]] == [6, 1] and gemma["block_size"] == 32
    assert sum(g["kv_bytes_per_token"] for g in gemma["groups"]) == gemma["kv_bytes_per_token"] == 7 * 1 * 32 * 2 * 2
    assert {"Q8_0", "Q5_0", "Q4_0", "Q6_K", "Q4_K"} <= set(gemma["tensor_types"])
    assert "kv_arena" in {line["name"] for line in gemma["plan"]["lines"]}
    for word in ("window", "tokenizer", "plan", "Q8_0"):
        assert word in kvarto("inspect", GEMMA)[0]
    names = {line.split("\t")[0] for line in kvarto("inspect", "--list-architectures")[0].splitlines()}
    assert {"llama", "qwen2", "qwen3", "gemma3"} <= names


def inspect_refuses_what_cannot_run(_):
    for flags, words in ((["--max-model-len", 2048, "--kv-cache-memory-bytes", "64K"], "max_model_len 2048 needs"),
                         (["--max-model-len", 10000], "exceeds the model's context of 2048"),
                         (["--kv-cache-memory-bytes", "900T"], "bytes available; give at most")):
        out, err = kvarto("inspect", LLAMA, *flags, "-q", code=1)
        assert err.startswith("kvarto: error: ") and len(err.splitlines()) == 1 and words in err, (flags, err)
        assert "layers:" in out and out.endswith("plan: none\n"), (flags, out)
        out, again = kvarto("inspect", LLAMA, *flags, "-q", "--json", code=1)
        assert again == err and words in json.loads(out)["plan"]["error"], (flags, out, again)


def all_targets_agree(_):
    out = kvarto_json("inspect", "--numerics", "--json")
    assert out["agree"] is True and out["numerics"].startswith("int8-")
    reference = kvarto_json("inspect", "--numerics", "--reference", "--json")
    assert reference["agree"] is True and reference["numerics"].startswith("f32-")
    targets = ["scalar", "avx2", "avx512", "amx"]
    run = [t for t in targets if t not in out["not_run"]]
    assert run[0] == "scalar" and all(out["not_run"][t] for t in targets if t not in run), out["not_run"]
    if cpu_has("amx_int8") and tiles_are_granted():
        assert run == targets, out["not_run"]
    for model in ("tiny_llama", "tiny_gemma3"):
        for result in (out, reference):
            rows = [row for row in result["rows"] if row["model"] == model]
            assert [row["target"] for row in rows] == run
            assert len({row["sha256"] for row in rows}) == len({row["logits_sha256"] for row in rows}) == 1
            assert all(len(row["logits_sha256"]) == 64 for row in rows)
    assert not {row["logits_sha256"] for row in out["rows"]} & {row["logits_sha256"] for row in reference["rows"]}
    named = kvarto_json("inspect", LLAMA, "--numerics", "--json", "-q")
    for key in ("sha256", "logits_sha256"):
        assert named["rows"][0][key] == next(r[key] for r in out["rows"] if r["model"] == "tiny_llama")
    text = kvarto("inspect", "--numerics")[0]
    assert ("all targets agree" if run == targets else "all targets that run here agree") in text, text
    assert all(f"{t}: not run: {why}\n" in text for t, why in out["not_run"].items()), text


def refused_tiles_are_named(_):
    if not (cpu_has("amx_int8") and tiles_are_granted()):
        print("   left out: no AMX here")
        return
    for flags in ([], ["--json"]):
        done = subprocess.run([KVARTO, "inspect", "--numerics", *flags], capture_output=True, text=True, preexec_fn=refuse_tiles)
        if done.returncode == 77:
            print("   left out: no seccomp filters here")
            return
        assert done.returncode == 0, done.stderr
        reason = "the kernel refused this process the tile registers: Operation not permitted"
        if flags:
            out = json.loads(done.stdout)
            assert out["not_run"] == {"amx": reason} and {r["target"] for r in out["rows"]} == {"scalar", "avx2", "avx512"}
        else:
            assert f"\namx: not run: {reason}\n" in done.stdout and "all targets that run here agree" in done.stdout, done.stdout


def many_prompts_equal_single_ones(folder):
    shared = list(range(3, 43))
    lines = [{"ids": shared + [100 + i], "max_tokens": 20, "seed": i, "temperature": 1.0} for i in range(8)]
    together = batch(folder, lines, "--logits-hash", "--ignore-eos")
    assert all(answer["batch_peers_max"] == 8 for answer in together), [a["batch_peers_max"] for a in together]
    # Two whole blocks are shared; who came first computed them.
    assert sum(answer["cached_tokens"] == 32 for answer in together) == 7
    for i in (0, 5):
        alone = batch(folder, [lines[i]], "--logits-hash", "--ignore-eos", name="alone")[0]
        assert alone["cached_tokens"] == 0 and alone["batch_peers_max"] == 1 and alone["miss_reason"] == "no_match"
        assert alone["logits_sha256"] == together[i]["logits_sha256"] and alone["tokens"] == together[i]["tokens"]
    prompt = batch(folder, [{"prompt": "hello", "max_tokens": 6}], name="prompt")[0]
    assert prompt["tokens"] == kvarto_json("run", LLAMA, "-p", "hello", "--max-tokens", 6, "--json")["tokens"]


def short_of_blocks_the_texts_stay(folder):
    # Blocks for three and a half of four streams of 320 tokens, 768 bytes a token.
    lines = [{"ids": [20 + i] * 20, "max_tokens": 300} for i in range(4)]
    roomy = batch(folder, lines, "--ignore-eos", "--logits-hash")
    tight = batch(folder, lines, "--ignore-eos", "--logits-hash", "--kv-cache-memory-bytes", 768 * 1120, "--max-model-len", 400)
    assert [a["logits_sha256"] for a in roomy] == [a["logits_sha256"] for a in tight]
    assert sum(a["preemptions"] for a in roomy) == 0 < sum(a["preemptions"] for a in tight)


def bad_lines_harm_no_others(folder):
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    answers = batch(folder, [
        {"prompt": "hello", "max_tokens": 3},
        "not json\n",
        "\n",
        {"prompt": "x", "best_of": 3},
        {"ids": [99999]},
        {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": chat},
        {"custom_id": "b", "method": "POST", "url": "/v1/completions", "body": {"prompt": "hi", "tools": []}},
        {"messages": chat["messages"], "max_tokens": 3, "n": 2, "cache_salt": "s"},
    ], code=1, said="4 of 7 lines failed (2, 4, 5, 7)")
    assert "line 4: " in answers[2]["error"]["message"] and "line 2: " in answers[1]["error"]["message"], answers
    assert ["error" in a and a["error"] is not None for a in answers] == [False, True, True, True, False, True, False]
    assert "best_of" in answers[2]["error"]["message"]
    for answer in (answers[0], answers[4], answers[6]):
        assert {"text", "tokens", "cached_tokens", "miss_reason", "preemptions", "recomputed_tokens",
                "batch_peers_max"} <= set(answer)
    response = answers[4]["response"]
    assert answers[4]["custom_id"] == "a" and response["status_code"] == 200
    choice = response["body"]["choices"][0]
    assert choice["message"]["content"] == answers[4]["text"] and choice["finish_reason"] == "length"
    assert answers[4]["tokens"] == answers[6]["tokens"] and len(answers[6]["samples"]) == 2
    assert answers[5]["custom_id"] == "b" and answers[5]["response"] is None
    twice = batch(folder, ['{"prompt": "x", "seed": 1, "seed": 2}\n'], code=1, name="twice")
    assert '"seed" comes twice' in twice[0]["error"]["message"], twice


def interrupted_runs_resume(folder):
    lines = [{"ids": [i + 1] * 5, "max_tokens": 1200, "seed": i, "temperature": 1.0} for i in range(16)]
    flags = ["--ignore-eos", "--max-num-seqs", "2"]
    whole = batch(folder, lines, *flags, name="whole")
    source, output = folder / "cut.jsonl", folder / "cut.out.jsonl"
    partial = folder / "cut.out.jsonl.partial"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = ["run", LLAMA, "--prompts", str(source), "-o", str(output), *flags]
    process = subprocess.Popen([KVARTO, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if partial.exists() and partial.read_bytes().count(b"\n") >= 3:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, (process.returncode, err)
    assert b"again" in err and partial.exists() and not output.exists()
    assert "belongs to another run" in error_line([*command, "--seed", "9"], 1)
    _, err = kvarto(*command)
    assert "resuming" in err and not partial.exists()
    resumed = [json.loads(line) for line in output.read_text().splitlines()]
    assert [a["tokens"] for a in resumed] == [a["tokens"] for a in whole]


def a_full_disk_leaves_what_can_be_resumed(folder):
    lines = [{"ids": [i + 1] * 5, "max_tokens": 20 + 10 * i} for i in range(16)]
    flags = ["--ignore-eos", "--max-num-seqs", "4"]
    whole = batch(folder, lines, *flags, name="whole")
    source, output = folder / "full.jsonl", folder / "full.out.jsonl"
    partial = folder / "full.out.jsonl.partial"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [KVARTO, "run", LLAMA, "--prompts", str(source), "-o", str(output), *flags]
    perturbed = os.environ | {"MALLOC_PERTURB_": "165"}  # what is used after it is freed shows
    for room in (20, 4000):  # not even the header fits; some answers do, and others are on their way
        done = subprocess.run(command, capture_output=True, timeout=600, env=perturbed,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)))
        errors = [line for line in done.stderr.decode().splitlines() if line.startswith("kvarto: ")]
        assert done.returncode == 1 and len(errors) == 1, (room, done.returncode, done.stderr)
        assert "full.out.jsonl.partial: cannot write" in errors[0], errors
        assert not output.exists() and partial.stat().st_size <= room
    _, err = kvarto(*command[1:])
    assert "resuming" in err and not partial.exists(), err
    resumed = [json.loads(line) for line in output.read_text().splitlines()]
    assert [a["tokens"] for a in resumed] == [a["tokens"] for a in whole]


def another_model_does_not_resume(folder):
    model = folder / "model.gguf"
    content = pathlib.Path(LLAMA).read_bytes()
    model.write_bytes(content)
    source = folder / "in.jsonl"
    source.write_text("".join(json.dumps({"ids": [i + 1], "max_tokens": 60}) + "\n" for i in range(9)))
    command = ["run", str(model), "--prompts", str(source), "-o", str(folder / "out.jsonl"), "--ignore-eos"]
    done = subprocess.run([KVARTO, *command], capture_output=True, timeout=600,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000)))
    assert done.returncode == 1 and (folder / "out.jsonl.partial").exists(), done.stderr
    model.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))  # one bit of a weight, the size stays
    assert "belongs to another run" in error_line(command, 1)
    moved = folder / "moved.gguf"
    moved.write_bytes(content)
    assert "resuming" in kvarto("run", moved, *command[2:])[1]  # the file may go elsewhere
    err = kvarto("run", moved, *command[2:])[1]  # a run that came to its end is not resumed
    assert "all 9 lines are computed anew" in err and "resuming" not in err, err


def hostile_arguments_are_refused(folder):
    source = folder / "in.jsonl"
    source.write_text('{"ids": [1], "max_tokens": 2}\n')
    for bad in (folder, source, "/dev/null"):
        assert "regular file" in error_line(["run", LLAMA, "--prompts", source, "-o", bad], 1) or bad == source
    assert source.read_text().startswith('{"ids"')
    target, link = folder / "target.jsonl", folder / "link.jsonl"
    link.symlink_to("target.jsonl")
    kvarto("run", LLAMA, "--prompts", source, "-o", link)
    assert link.is_symlink() and "text" in json.loads(target.read_text())
    deep = folder / "deep.json"
    deep.write_text("[" * 100000 + "]" * 100000)
    assert "deeper than 64" in error_line(["render", LLAMA, "--messages", deep], 1)
    assert "deeper than 64" in error_line(["render", LLAMA, "-p", "x", "--tools", deep], 1)
    for value in ("-1", str(2**64), "010", "0x10", "1.0"):
        assert str(2**64 - 1) in error_line(["run", LLAMA, "-p", "x", f"--seed={value}"], 2), value
    assert "4294967295" in error_line(["run", LLAMA, "-p", "x", "--max-tokens=-1"], 2)
    assert "no verb \"foo\"" in error_line(["foo"], 2) and "tokenize" in error_line(["foo"], 2)
    assert "max_num_seqs 0" in error_line(["inspect", LLAMA, "--max-num-seqs", "0"], 1)
    (folder / "latin1").write_bytes(b"caf\xe9")
    for raw in ([], ["--raw"]):
        assert "UTF-8 at byte 3" in error_line(["run", LLAMA, "--file", folder / "latin1", *raw], 1)
    for ids in ("[1,,2]", "[1 2]"):
        (folder / "ids").write_text(ids)
        error_line(["score", LLAMA, "--ids", folder / "ids"], 1)
    assert "nothing was measured" in kvarto("bench", LLAMA, "-d", "999999", code=1)[1]
    assert "\\x0a" in error_line(["inspect", "a\nb\x1b[31m.gguf"], 1)


def ctrl_c_without_a_file_says_what_is_lost(folder):
    source = folder / "in.jsonl"
    source.write_text("".join(json.dumps({"ids": [i + 1], "max_tokens": 1900}) + "\n" for i in range(64)))
    command = [KVARTO, "run", LLAMA, "--prompts", str(source), "--ignore-eos", "--max-num-seqs", "1"]
    pid, fd = pty.fork()  # on a terminal progress is shown, which says when the run is under way
    if pid == 0:
        os.execv(KVARTO, command)
    wait_for(fd, rb"answering")
    os.kill(pid, signal.SIGINT)
    assert b"give -o FILE" in wait_for(fd, rb"lines done; [^\n]*\n")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130


def ctrl_c_ends_a_run_cleanly(_):
    command = [KVARTO, "run", LLAMA, "-p", "hello", "--max-tokens", "1900", "--ignore-eos"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130 and b"TTFT" in err, (process.returncode, err)


def a_closed_pipe_ends_quietly(_):
    command = [KVARTO, "run", LLAMA, "-p", "hello", "--max-tokens", "1900", "--ignore-eos", "-q"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.wait(timeout=120) == 1 and process.stderr.read() == b""
    process.stderr.close()


def wait_for(fd, pattern):
    seen, deadline = b"", time.monotonic() + 60
    while not re.search(pattern, seen, re.DOTALL):
        assert time.monotonic() < deadline, seen
        if select.select([fd], [], [], 1)[0]:
            seen += os.read(fd, 65536)
    return seen


def a_closed_stdout_gets_into_no_file(folder):
    (folder / "text.txt").write_text(" ".join(f"The {i}th lamp burns." for i in range(100)))
    arguments = ["eval", LLAMA, "--only", "text", "--text", folder / "text.txt", "--text-pieces", 1, "--context", 128,
                 "--candidate", "kv=f16", "--threads", 1, "--output", folder / "out", "-q"]
    done = subprocess.run(["sh", "-c", 'exec "$0" "$@" >&-', KVARTO, *map(str, arguments)], stderr=subprocess.PIPE, text=True,
                          timeout=600)
    assert done.returncode == 1 and re.fullmatch(r"kvarto: error: cannot write to stdout: .*\n", done.stderr), done
    records = (folder / "out" / "records.jsonl").read_text()
    assert len([json.loads(line) for line in records.splitlines()]) > 6 and records.endswith("\n"), records[:500]
    assert "kv=f16" in kvarto(*arguments)[0]
    assert (folder / "out" / "records.jsonl").read_text() == records, "something was done again"


def chat_keeps_its_history(_):
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(KVARTO, [KVARTO, "run", LLAMA, "--max-tokens", "1200", "--ignore-eos", "--temperature", "0"])
    turn = re.compile(rb"\[prompt (\d+) \((\d+) cached\), generated (\d+),")
    wait_for(fd, b"> ")
    os.write(fd, "grüß dich\n".encode())
    # Ctrl-C also throws away a line that is not read yet, so it waits for some of the answer.
    wait_for(fd, rb"dich\r\n.")
    os.write(fd, b"\x03")
    first = wait_for(fd, rb"tokens/s\]\r\n> ")
    prompt, cached, generated = map(int, turn.search(first).groups())
    assert cached == 0 and 0 < generated < 1200, first
    os.write(fd, b"\x03")
    wait_for(fd, rb"leaves\r\n> ")
    os.write(fd, b"more\n")
    wait_for(fd, rb"more\r\n.")
    os.write(fd, b"\x03")
    second = turn.search(wait_for(fd, rb"tokens/s\]\r\n> ")).groups()
    assert int(second[0]) > prompt and int(second[1]) >= prompt // 16 * 16 > 0, second
    os.write(fd, b"/nosuch thing\n")
    wait_for(fd, rb"there is no /nosuch: /exit or Ctrl-D leaves[^\n]*\n> ")
    os.write(fd, b"/help\n")
    wait_for(fd, rb"/clear starts anew[^\n]*\n> ")
    os.write(fd, b"/clear\n")
    wait_for(fd, b"> ")
    os.write(fd, b"/exit\n")
    deadline = time.monotonic() + 60
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        assert time.monotonic() < deadline
        if select.select([fd], [], [], 0.1)[0]:
            try:
                os.read(fd, 65536)
            except OSError:
                pass
    assert os.waitstatus_to_exitcode(status) == 0
    os.close(fd)


def the_sample_model_answers(_):
    if not SMOLLM2.exists():
        print(f"   left out: {SMOLLM2.name} is not in models/")
        return
    out = kvarto_json("run", SMOLLM2, "-p", "What is the capital of France?", "--max-tokens", 12, "--json")
    assert "Paris" in out["text"] and out["finish_reason"] in ("stop", "length"), out


CHECKS = (help_lists_every_verb, what_is_not_expected_stands_in_order, errors_are_one_line_with_a_remedy,
          tokenize_gives_the_goldens, render_gives_the_goldens,
          score_gives_the_goldens, run_gives_the_goldens, run_shows_text_and_figures, threads_steps_and_blocks_change_no_bit,
          children_are_single_runs, beams_and_logprobs, inspect_knows_the_geometry, inspect_refuses_what_cannot_run,
          all_targets_agree, refused_tiles_are_named,
          many_prompts_equal_single_ones, short_of_blocks_the_texts_stay, bad_lines_harm_no_others, interrupted_runs_resume,
          a_full_disk_leaves_what_can_be_resumed, another_model_does_not_resume,
          hostile_arguments_are_refused, ctrl_c_without_a_file_says_what_is_lost,
          ctrl_c_ends_a_run_cleanly, a_closed_pipe_ends_quietly, a_closed_stdout_gets_into_no_file, chat_keeps_its_history,
          the_sample_model_answers)


def main(arguments, checks=CHECKS):
    global KVARTO
    if len(arguments) not in (1, 2):
        print(f"usage: {pathlib.Path(sys.argv[0]).name} KVARTO [CHECK]")
        return 2
    KVARTO = str(pathlib.Path(arguments[0]).resolve())
    if not pathlib.Path(KVARTO).exists():
        print(f"{KVARTO} is not built")
        return 77
    failed = 0
    for check in checks:
        if len(arguments) == 2 and arguments[1] != check.__name__:
            continue
        start = time.monotonic()
        try:
            with tempfile.TemporaryDirectory() as folder:
                check(pathlib.Path(folder))
            verdict = "ok"
        except Exception as error:  # each check stands alone
            failed += 1
            verdict = f"FAIL: {type(error).__name__}: {error}"
        print(f"{check.__name__} ({time.monotonic() - start:.1f} s): {verdict}", flush=True)
    print(f"{failed} of {len(checks)} checks failed" if failed else "all checks passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
