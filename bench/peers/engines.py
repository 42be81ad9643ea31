"""The engines that bench/peers/compare runs, one class each: `prompt`, `generate` and `together` are rates in tokens per second,
`memory` is the peak in MiB; None: this engine has no such figure; `Failed`: it could not do the work.
"""
import json
import os
import pathlib
import queue
import re
import signal
import statistics
import subprocess
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PEERS = ROOT / "build/peers"
THREADS = 2
GENERATE = 64
TOGETHER = 8
MEMORY_CONTEXT = 8192
TIMEOUT_S = 1800


class Failed(Exception):
    """An engine could not do the work; the text is for the note."""


def without_paths(text):
    return re.sub(r"(?<![\w.])/\S*/", "", text)


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return without_paths(lines[-1])[:120] if lines else "no message"


def end_of(code, errors):
    how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"{how}: {last_line(errors)}"


def run(*command):
    """(stdout, stderr, peak resident MiB). The kernel's count of the peak comes only with wait4."""
    if not pathlib.Path(command[0]).exists():
        raise Failed(f"{pathlib.Path(command[0]).name} is not there; run bench/peers/setup")
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen([str(part) for part in command], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out,
                                   stderr=errors)
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > deadline:
                process.kill()
                process.wait()
                raise Failed(f"not done after {TIMEOUT_S} s")
            time.sleep(0.02)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        errors.seek(0)
        printed, complained = out.read(), errors.read()
    if process.returncode != 0:
        raise Failed(end_of(process.returncode, complained or printed))
    return printed, complained, usage.ru_maxrss / 1024


class Kvarto:
    name = "kvarto"

    def __init__(self, program, runs):
        self.program, self.runs = program, runs
        self.rows = []  # of `kvarto bench --json`, one per round of the test that runs

    def bench(self, model, *flags):
        printed = run(self.program, "bench", model.path, "-q", "--json", "--threads", THREADS, "-r", self.runs, *flags)[0]
        row = json.loads(printed)[0]
        self.rows.append(row)
        return row["tokens_per_s"]

    def prompt(self, model, tokens):
        return self.bench(model, "-p", tokens, "-n", 0)

    def generate(self, model, depth):
        return self.bench(model, "-p", 0, "-n", GENERATE, "-d", depth)

    def together(self, model):
        return self.bench(model, "-p", 0, "-n", GENERATE, "-b", TOGETHER)

    def memory(self, model):
        with tempfile.TemporaryDirectory() as folder:
            source, out = pathlib.Path(folder) / "in.jsonl", pathlib.Path(folder) / "out.jsonl"
            ids = [(i * 7919) % 40000 + 10 for i in range(MEMORY_CONTEXT - GENERATE)]
            source.write_text(json.dumps({"ids": ids, "max_tokens": GENERATE, "ignore_eos": True}) + "\n")
            return run(self.program, "run", model.path, "-q", "--prompts", source, "-o", out, "--threads", THREADS,
                       "--max-model-len", MEMORY_CONTEXT, "--max-num-seqs", 1, "--kv-cache-memory-bytes",
                       MEMORY_CONTEXT * model.kv_bytes)[2]

    def close(self):
        pass


class LlamaCpp:
    name = "llama.cpp"

    def __init__(self, runs, folder="llama.cpp"):
        self.runs, self.programs = runs, PEERS / folder / "bin"

    def bench(self, model, runs, *flags):
        printed = run(self.programs / "llama-bench", "-m", model.path, "-t", THREADS, "-fa", 1, "-ctk", "f16",
                      "-ctv", "f16", "-r", runs, "-o", "json", *flags)
        return statistics.median(json.loads(printed[0])[0]["samples_ts"]), printed[2]

    def prompt(self, model, tokens):
        return self.bench(model, 1, "-p", tokens, "-n", 0)[0]  # it runs the whole prompt once to warm up

    def generate(self, model, depth):
        return self.bench(model, self.runs, "-p", 0, "-n", GENERATE, "-d", depth)[0]

    def together(self, model):
        printed = run(self.programs / "llama-batched-bench", "-m", model.path, "-t", THREADS, "-fa", "on", "-c", 2048,
                      "-npp", 1, "-ntg", ",".join([str(GENERATE)] * self.runs), "-npl", TOGETHER,
                      "--output-format", "jsonl")[0]
        rates = [json.loads(line)["speed_tg"] for line in printed.splitlines() if line.startswith("{")]
        if not rates:
            raise Failed("llama-batched-bench printed no row")
        return statistics.median(rates)

    def memory(self, model):
        # A depth (-d) would be kept twice; one pass over prompt and generation is not.
        return self.bench(model, 1, "-p", 0, "-n", 0, "-pg", f"{MEMORY_CONTEXT - GENERATE},{GENERATE}", "--no-warmup")[1]

    def close(self):
        pass


class OpenVino:
    """One process per model, asleep between its turns, for loading takes long."""
    name = "OpenVINO GenAI"

    def __init__(self):
        self.process, self.model = None, None
        self.refused = {}  # model: why it cannot be loaded

    def start(self, model):
        if model in self.refused:
            raise Failed(self.refused[model])
        self.close()
        try:
            self.launch(model)
            self.answer()
        except Failed as failure:
            self.refused[model] = str(failure)
            self.close()
            raise

    def launch(self, model):
        python = PEERS / "venv/bin/python"
        if not python.exists():
            raise Failed("build/peers/venv is not there; run bench/peers/setup")
        worker = pathlib.Path(__file__).with_name("openvino_worker.py")
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([python, worker, ROOT / model.path, str(THREADS)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=self.errors, text=True)
        self.model = model
        self.answers = queue.Queue()
        threading.Thread(target=self.listen, args=(self.process.stdout, self.answers), daemon=True).start()

    @staticmethod
    def listen(stream, answers):
        for line in stream:
            answers.put(line)
        answers.put(None)

    def answer(self):
        """The next line that is one of the worker's; the library prints lines of its own."""
        while True:
            try:
                line = self.answers.get(timeout=TIMEOUT_S)
            except queue.Empty:
                raise Failed(f"not done after {TIMEOUT_S} s") from None
            if line is None:
                self.errors.seek(0)
                raise Failed(end_of(self.process.wait(), self.errors.read()))
            if line.startswith("{"):
                return json.loads(line)

    def work(self, model, prompt, generate):
        try:
            if self.model != model:
                self.start(model)
                self.ask(512, 8)  # warms up
            return self.ask(prompt, generate)
        except Failed:
            self.close()
            raise

    def ask(self, prompt, generate):
        try:
            self.process.stdin.write(json.dumps({"prompt": prompt, "generate": generate}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the answer says how it ended
        return self.answer()

    def prompt(self, model, tokens):
        return self.work(model, tokens, 1)["prompt_per_s"]

    def generate(self, model, depth):
        return self.work(model, max(depth, 1), GENERATE)["generate_per_s"]

    def together(self, model):
        return None  # its figures are those of one sequence

    def memory(self, model):
        """In a process of its own."""
        self.start(model)
        self.ask(MEMORY_CONTEXT - GENERATE, GENERATE - 1)
        self.process.stdin.close()
        _, status, usage = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        self.process = self.model = None
        return usage.ru_maxrss / 1024

    def close(self):
        if self.process:
            self.process.kill()
            self.process.wait()
        self.process = self.model = None
