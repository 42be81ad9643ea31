#!/usr/bin/env python3
"""The flags of `kvarto serve`: `tests/cli/serve_flags_test.py KVARTO`. Standard library only; loads no model but a tiny one.

What becomes of each flag is written down by hand in tests/data/flags.txt.
"""
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FLAGS = ROOT / "tests" / "data" / "flags.txt"
LLAMA = str(ROOT / "tests" / "tiny" / "tiny_llama.gguf")  # a context of 2048
KVARTO = ""
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "LLAMA_"))}


def serve(*arguments, code=0, env=None):
    done = subprocess.run([KVARTO, "serve", *map(str, arguments)], capture_output=True, timeout=600, text=True, cwd=ROOT,
                          env=CLEAN | (env or {}))
    assert done.returncode == code, f"exit code {done.returncode}, wanted {code}: {arguments}\n{done.stdout}{done.stderr}"
    return done.stdout, done.stderr


def error_line(*arguments, env=None):
    out, err = serve(*arguments, code=2, env=env)
    lines = [line for line in err.splitlines() if line.startswith("kvarto: ")]
    assert out == "" and len(lines) == 1 and lines[0].startswith("kvarto: error: "), (out, err)
    return lines[0]


def check(*arguments, code=None, env=None):
    done = subprocess.run([KVARTO, "serve", "--check-flags", *map(str, arguments)], capture_output=True, timeout=600, text=True,
                          cwd=ROOT, env=CLEAN | (env or {}))
    assert done.returncode in (0, 2) and (code is None or done.returncode == code), (arguments, done)
    assert done.stderr == "", (arguments, done.stderr)
    return [line.split("\t") for line in done.stdout.splitlines()]


# --- the checks, in order of appearance


def every_flag_of_the_list_is_known(_):
    for number, line in enumerate(FLAGS.read_text().splitlines(), 1):
        if line.startswith("#"):
            continue
        flag, value, wanted = line.split("\t")
        words = [value] if value.startswith(("{", "[")) else shlex.split(value)
        rows = check(flag, *words)
        fates = {row[0] for row in rows}
        worst = next(fate for fate in ("refused", "warned", "works") if fate in fates)
        assert worst == wanted, (number, line, rows)
        if wanted != "works":
            told = [row for row in rows if row[0] == wanted]
            assert any(len(row[3]) > 10 for row in told), (line, rows)


def every_flag_of_the_program_is_in_the_list(_):
    listed = {line.split("\t")[0] for line in FLAGS.read_text().splitlines() if not line.startswith("#")}
    table = json.loads(serve("--help=json")[0])
    for group in table["groups"]:
        for flag in group["flags"]:
            if flag["fate"] != "works":
                continue
            assert listed & set(flag["names"]) or group["name"] in ("load", "kvarto", "llama"), flag["names"]
    names = [name for group in table["groups"] for flag in group["flags"] for name in flag["names"]]
    assert len(names) == len(set(names)), sorted(n for n in names if names.count(n) > 1)


def the_page_is_current(_):
    subprocess.run([sys.executable, ROOT / "tools" / "make_flags", "--check", KVARTO], check=True)


def unknown_flags_name_the_nearest(_):
    assert "--max-model-len" in error_line(LLAMA, "--max-model-length", "5")
    assert "--enable-prefix-caching" in error_line(LLAMA, "--enable-prefix-cachng")
    assert "--help=all" in error_line(LLAMA, "--bogus")
    assert error_line(LLAMA, "--bogus").count("see `") + error_line(LLAMA, "--bogus").count("See `") == 1
    assert "needs a value" in error_line(LLAMA, "--port")
    assert "needs a value" in error_line(LLAMA, "--port", "--host", "x")
    assert "two models" in error_line(LLAMA, "other")
    assert "MODEL is missing" in error_line()
    assert "--port 70000" in error_line(LLAMA, "--port", "70000")
    assert "not built" in error_line(LLAMA, "--slot-save-path", "dir")


def spellings_are_those_of_vllm(_):
    assert check("--max_model_len=8_000", code=2)[0][1] == "--max-model-len"
    assert check("--max_model_len", "8000") == check("--max-model-len=8000")
    assert check("--no_enable_prefix_caching")[0][:3] == ["works", "--enable-prefix-caching", "false"]
    assert check("--enable-prefix-caching=false") == check("--no-enable-prefix-caching")
    # The last one counts; of keys all.
    assert check("--port", "1", "--port", "2") == [["works", "--port", "2", ""]]
    dotted = check("--kv-events-config.topic", "t", "--kv-events-config", '{"hwm": 5}', "--kv_events_config.enable_kv_cache_events",
                   "true")
    assert json.loads(dotted[0][2]) == {"topic": "t", "hwm": 5, "enable_kv_cache_events": True}, dotted
    appended = check("--custom-histogram-buckets.time_to_first_token+", "1", "--custom-histogram-buckets.time_to_first_token+", "2")
    assert json.loads(appended[0][2]) == {"time_to_first_token": [1, 2]} and appended[0][0] == "works", appended
    assert check("-O3")[0][0] == "warned" and check("-O.level=3")[0][0] == "warned"
    assert "hidden" not in str(check("--api-key", "hidden")) and "not shown" in str(check("--api-key", "hidden"))


def a_config_file_comes_below_the_command_line(folder):
    config = folder / "serve.yaml"
    config.write_text("port: 9000\nhost: 0.0.0.0\nserved-model-name: [a, b]\nenable_prefix_caching: false\nmax-model-len: auto\n"
                      "kv-events-config: {enable_kv_cache_events: true, topic: \"5\"}\nseed: null\n")
    rows = {row[1]: row[2] for row in check("--config", config, "--port", 9001)}
    assert rows["--port"] == "9001" and rows["--host"] == "0.0.0.0" and rows["--served-model-name"] == "a b", rows
    assert rows["--enable-prefix-caching"] == "false" and rows["--max-model-len"] == "auto", rows
    assert json.loads(rows["--kv-events-config"]) == {"enable_kv_cache_events": True, "topic": "5"}, rows
    config.write_text("prot: 9000\n")
    assert "--port" in error_line(LLAMA, "--config", config) and "serve.yaml" in error_line(LLAMA, "--config", config)
    config.write_text("a: [b\n")
    assert "line" in error_line(LLAMA, "--config", config)


def the_environment_is_read(_):
    assert check(env={"VLLM_CPU_KVCACHE_SPACE": "2"}) == [["works", "VLLM_CPU_KVCACHE_SPACE", "2", ""]]
    assert check(env={"VLLM_CPU_KVCACHE_SPACE": "two"}, code=2)[0][0] == "refused"
    for name, value, wanted in (("ALLOW_LONG_MAX_MODEL_LEN", "1", "works"), ("SKIP_MODEL_NAME_VALIDATION", "1", "works"),
                                ("MAX_N_SEQUENCES", "16", "works"), ("MAX_N_SEQUENCES", "0", "refused"),
                                ("MAX_COMPLETION_PROMPTS", "16", "works"), ("MAX_STOP_STRINGS", "16", "works"),
                                ("MAX_STOP_STRINGS", "many", "refused"), ("USE_SIMPLE_KV_OFFLOAD", "1", "warned"),
                                ("COMPUTE_NANS_IN_LOGITS", "0", "works"), ("COMPUTE_NANS_IN_LOGITS", "1", "warned"),
                                ("ALLOW_RUNTIME_LORA_UPDATING", "1", "warned"), ("SERVER_DEV_MODE", "1", "works"),
                                ("CPU_NUM_OF_RESERVED_CPU", "1", "works"), ("LOG_STATS_INTERVAL", "5", "works"),
                                ("HTTP_TIMEOUT_KEEP_ALIVE", "5", "works"), ("KV_EVENTS_USE_INT_BLOCK_HASHES", "0", "works")):
        assert check(env={"VLLM_" + name: value})[0][0] == wanted, (name, value)
    assert check(env={"VLLM_CPU_OMP_THREADS_BIND": "0-1"})[0][0] == "works"
    assert check(env={"VLLM_CPU_OMP_THREADS_BIND": "0-1|2-3"}, code=2)[0][0] == "refused"
    assert check(env={"VLLM_LOGGING_LEVEL": "LOUD"}, code=2)[0][0] == "refused"


def help_has_groups_and_parts_of_names(_):
    short = serve("--help")[0]
    assert "Examples:" in short and "--max-model-len" in short and len(short.splitlines()) < 60
    everything = serve("--help=all")[0]
    table = json.loads(serve("--help=json")[0])
    for group in table["groups"]:
        for flag in group["flags"]:
            assert flag["names"][0] in everything, flag
    cache = serve("--help=CacheConfig")[0]
    assert "--block-size" in cache and "--port" not in cache
    parts = serve("--help=max_model")[0]
    assert "--max-model-len" in parts and "--port" not in parts
    assert "no flag and no group" in error_line("--help=bogus")


def lengths_that_do_not_fit_are_refused_with_the_largest(_):
    # The command line of vLLM's documentation, on a model with a context of 2048.
    told = error_line(LLAMA, "--gpu-memory-utilization", "0.90", "--max-model-len", "32768", "--block-size", "16",
                      "--enable-prefix-caching")
    assert "32768" in told and "2048" in told and "VLLM_ALLOW_LONG_MAX_MODEL_LEN" in told, told
    assert "estimated maximum model length is 2048" in told, told
    geometry = json.loads(subprocess.run([KVARTO, "inspect", LLAMA, "--json"], capture_output=True, check=True).stdout)
    per_block = sum(group["block_bytes"] for group in geometry["groups"])
    told = error_line(LLAMA, "--max-model-len", "2048", "--num-gpu-blocks-override", "32")
    assert f"estimated maximum model length is {32 * 16}" in told, told
    told = error_line(LLAMA, "--max-model-len", "2048", "--kv-cache-memory-bytes", 32 * per_block)
    assert f"estimated maximum model length is {32 * 16}" in told, told


def start(*arguments, env=None):
    server = subprocess.Popen([KVARTO, "serve", *map(str, arguments)], stderr=subprocess.PIPE, text=True, env=CLEAN | (env or {}))
    lines = []
    for line in server.stderr:
        lines.append(line.rstrip())
        if "Application startup complete." in line:
            return server, lines
    raise AssertionError((server.wait(), lines))


def found(lines, pattern):
    match = next((m for m in (re.search(pattern, line) for line in lines) if m), None)
    assert match, (pattern, lines)
    return match


def the_start_says_what_operators_know(_):
    geometry = json.loads(subprocess.run([KVARTO, "inspect", LLAMA, "--json"], capture_output=True, check=True).stdout)
    per_block = sum(group["block_bytes"] for group in geometry["groups"])
    server, lines = start("--model", LLAMA, "--enable-prefix-caching", "--kv-cache-dtype", "auto", "--port", 0,
                          "--kv-cache-memory-bytes", 256 * per_block, "--max-model-len", "auto", "--swap-space", 4, "--api-key", "k1")
    try:
        assert found(lines, r"non-default args: .*\"swap_space\"") and "k1" not in "".join(lines)
        assert found(lines, r"--swap-space has no effect")
        assert found(lines, r"Auto-fit max_model_len: full model context length 2048 ")
        assert found(lines, r"Using max model len 2048\b")
        assert found(lines, r"Chunked prefill is enabled with max_num_batched_tokens=512\.")
        assert found(lines, r"kv_arena ")
        assert found(lines, r"Available KV cache memory: \d+\.\d\d GiB")
        assert found(lines, r"CPU KV cache size: 4,096 tokens, Maximum concurrency for 2,048 tokens per request: 2\.00x")
        assert found(lines, r"init engine .* took \d+\.\d\d s")
        assert found(lines, r"Route: /health, Methods: GET")
        assert found(lines, r"try: +curl .*/v1/")
        url = found(lines, r"Starting Kvarto server on (http://127\.0\.0\.1:\d+)")[1]
        assert f"dashboard: {url}/" in "\n".join(lines)
        with urllib.request.urlopen(url + "/health", timeout=60) as reply:
            assert reply.status == 200
        try:
            urllib.request.urlopen(url + "/v1/models", timeout=60)
            raise AssertionError("no key was needed")
        except urllib.error.HTTPError as refused:
            assert refused.code == 401
        request = urllib.request.Request(url + "/v1/models", headers={"Authorization": "Bearer k1"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            model = json.loads(reply.read())["data"][0]
            assert model["id"] == LLAMA and model["max_model_len"] == 2048, model
        server.send_signal(signal.SIGTERM)
        rest = server.communicate(timeout=60)[1]
        assert server.returncode == 0 and "Application shutdown complete." in rest, (server.returncode, rest)
    finally:
        server.kill()


def without_a_memory_flag_the_line_says_how_to_change_it(_):
    server, lines = start(LLAMA, "--port", 0, "--max-num-seqs", 2)
    try:
        line = found(lines, r"Auto set \((\d+\.\d\d)/(\d+\.\d\d)\) GiB for KV cache on node 0: (.*)")
        assert "--kv-cache-memory-bytes" in line[3] and float(line[1]) <= float(line[2]) / 2
        assert found(lines, r"Maximum concurrency for 2,048 tokens per request: 2\.\d\dx")
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=60) == 0
    finally:
        server.kill()


def lengths_beyond_the_context_are_allowed_by_a_variable(_):
    server, lines = start(LLAMA, "--port", 0, "--max-model-len", 3000, env={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"})
    try:
        assert found(lines, r"--max-model-len 3000 is greater than the 2048 tokens that the model was made for")
        url = found(lines, r"Starting Kvarto server on (http://\S+)")[1]
        body = json.dumps({"prompt": [5] * 2500, "max_tokens": 4, "ignore_eos": True}).encode()
        request = urllib.request.Request(url + "/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as reply:
            usage = json.loads(reply.read())["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (2500, 4), usage
    finally:
        server.kill()
        server.wait()


def a_script_is_served(folder):
    script = folder / "script.json"
    script.write_text(json.dumps({"answers": [{"pieces": ["Hel", "lo"]}]}))
    server, lines = start(f"scripted:{script}", "--port", 0, "--served-model-name", "s")
    try:
        url = found(lines, r"Starting Kvarto server on (\S+)")[1]
        body = json.dumps({"model": "s", "messages": [{"role": "user", "content": "x"}]}).encode()
        request = urllib.request.Request(url + "/v1/chat/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            assert json.loads(reply.read())["choices"][0]["message"]["content"] == "Hello"
        assert "already in use" in subprocess.run([KVARTO, "serve", f"scripted:{script}", "--port", url.rsplit(":", 1)[1]],
                                           capture_output=True, text=True, timeout=60, env=CLEAN).stderr
    finally:
        server.kill()
        server.wait()


CHECKS = [every_flag_of_the_list_is_known, every_flag_of_the_program_is_in_the_list, the_page_is_current,
          unknown_flags_name_the_nearest, spellings_are_those_of_vllm, a_config_file_comes_below_the_command_line,
          the_environment_is_read, help_has_groups_and_parts_of_names, lengths_that_do_not_fit_are_refused_with_the_largest,
          the_start_says_what_operators_know, without_a_memory_flag_the_line_says_how_to_change_it,
          lengths_beyond_the_context_are_allowed_by_a_variable, a_script_is_served]


def main(arguments):
    global KVARTO
    KVARTO = str(pathlib.Path(arguments[0]).resolve())
    wanted = arguments[1:]
    for one in CHECKS:
        if wanted and one.__name__ not in wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            one(pathlib.Path(folder))
        print("ok", one.__name__, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
