#!/usr/bin/env python3
"""`kvarto bench serve` against a scripted server on 127.0.0.1: bench_serve_test.py PATH_TO_KVARTO. Counts and requests are
checked, no times.
"""
import collections
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

sys.dont_write_bytecode = True
import openai_stub
from openai_stub import MODEL, TEMPLATE, count_words

KVARTO = str(pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else "build/dev/kvarto").resolve())
WATCHDOG_S = 120


class BenchServe(unittest.TestCase):
    def setUp(self):
        self.stub = openai_stub.Server()
        self.addCleanup(self.stub.close)
        folder = tempfile.TemporaryDirectory(prefix="kvarto-load-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def command(self, *flags):
        url = [] if "--url" in flags else ["--url", self.stub.url]
        return [KVARTO, "bench", "serve", *url, *map(str, flags)]

    def run_bench(self, *flags, code=0, stdin=""):
        done = subprocess.run(self.command(*flags), input=stdin, capture_output=True, text=True, timeout=WATCHDOG_S)
        self.assertEqual(done.returncode, code, done.stderr + done.stdout)
        return done

    def bench(self, *flags, **options):
        return json.loads(self.run_bench("--json", *flags, **options).stdout)

    def fails(self, *flags, words, code=1):
        done = self.run_bench(*flags, code=code)
        lines = [line for line in done.stderr.splitlines() if line.startswith("kvarto: error: ")]
        self.assertEqual(len(lines), 1, done.stderr)
        for word in words:
            self.assertIn(word, lines[0])
        self.assertEqual(done.stdout, "")

    def prompts(self):
        return [body["prompt"] for body in self.stub.generations()]

    # --- single prompts

    def test_prompts_have_their_length_and_fixed_answers(self):
        report = self.bench("-n", 12, "-c", 3, "--prompt-tokens", "20-40", "--output-tokens", 5)
        bodies = self.stub.generations()
        self.assertEqual(len(bodies), 12)
        for body in bodies:
            self.assertTrue(20 <= 1 + count_words(body["prompt"]) <= 40)
            self.assertEqual((body["max_tokens"], body["min_tokens"], body["ignore_eos"]), (5, 5, True))
            self.assertEqual((body["model"], body["stream"], body["temperature"]), (MODEL, True, 0))
            self.assertEqual(body["stream_options"], {"include_usage": True})
        self.assertEqual((report["requests"], report["done"], report["output_tokens"]), (12, 12, 60))
        wanted = sum(1 + count_words(body["prompt"]) for body in bodies)
        self.assertEqual((report["prompt_tokens"], report["prompt_lengths_hit"], report["prompt_lengths_asked"]), (wanted, 12, 12))
        self.assertEqual(report["cached_tokens"], sum((1 + count_words(body["prompt"])) // 2 for body in bodies))
        self.assertEqual([report[name]["count"] for name in ("ttft", "tpot", "gap", "e2e")], [12, 12, 48, 12])
        self.assertTrue(report["exact_lengths"])
        self.assertEqual(report["remarks"], [])
        self.assertLessEqual(self.stub.most_running, 3)

    def test_the_seed_decides(self):
        def sent(*flags):
            self.stub.log.clear()
            self.bench("-n", 8, "--prompt-tokens", "log:10-300", *flags)
            return sorted(self.prompts())
        first = sent()
        self.assertEqual(first, sent("-c", 4))
        self.assertNotEqual(first, sent("--seed", 2))
        self.assertEqual(len(set(first)), 8)

    def test_connections_stay_open(self):
        self.bench("-n", 30, "-c", 3, "--output-tokens", 2)
        self.assertLess(self.stub.connections, 3 + 12)  # three streams, and the questions before

    def test_families_share_their_prefix(self):
        self.bench("-n", 30, "--prefix-tokens", 60, "--suffix-tokens", 20, "--families", 3, "--output-tokens", 1)
        prefixes = collections.Counter(tuple(prompt.split()[:59]) for prompt in self.prompts())  # and the start token
        self.assertEqual(len(prefixes), 3)
        self.assertTrue(all(1 + count_words(prompt) == 80 for prompt in self.prompts()))
        self.assertEqual(len(set(self.prompts())), 30)

    def test_half_of_the_prompts_share(self):
        self.bench("-n", 80, "-c", 4, "--prompt-tokens", "log:10-400", "--prefix-tokens", 200, "--prefix-share", 0.5,
                   "--output-tokens", 1)
        starts = collections.Counter(tuple(prompt.split()[:8]) for prompt in self.prompts())
        self.assertTrue(20 <= starts.most_common(1)[0][1] <= 60, starts.most_common(2))
        self.assertEqual(starts.most_common(2)[1][1], 1)

    def test_llama_servers_tokenizer_and_timings(self):
        self.stub.rules.tokenizer, self.stub.rules.cached = "llama", "timings"
        report = self.bench("-n", 3, "--prompt-tokens", 50, "--output-tokens", 3)
        self.assertEqual((report["prompt_tokens"], report["prompt_lengths_hit"], report["cached_tokens"]), (150, 3, 75))

    def test_lengths_by_usage_where_there_is_no_tokenizer(self):
        self.stub.rules.tokenizer = None
        report = self.bench("-n", 3, "--prompt-tokens", 50, "--output-tokens", 3)
        self.assertEqual((report["prompt_tokens"], report["prompt_lengths_hit"]), (150, 3))

    def test_words_of_several_tokens_are_left_out(self):
        self.stub.rules.word_tokens = lambda word: 2 if len(word) > 7 else 1
        report = self.bench("-n", 3, "--prompt-tokens", 50, "--output-tokens", 3)
        self.assertEqual((report["prompt_lengths_hit"], report["exact_lengths"]), (3, True))

    def test_a_tokenizer_without_words_is_said(self):
        self.stub.rules.word_tokens = len
        report = self.bench("-n", 5, "--prompt-tokens", 1000, "--output-tokens", 3)
        self.assertFalse(report["exact_lengths"])
        self.assertIn("on average", report["remarks"][0])
        self.assertTrue(4000 < report["prompt_tokens"] < 6000, report["prompt_tokens"])

    def test_whole_replies(self):
        report = self.bench("-n", 4, "--no-stream", "--output-tokens", 6)
        self.assertEqual((report["done"], report["output_tokens"], report["ttft"], report["gap"]), (4, 24, None, None))
        self.assertEqual(report["e2e"]["count"], 4)
        self.assertTrue(all(body["stream"] is False and "stream_options" not in body for body in self.stub.generations()))

    def test_answers_may_end_and_bodies_be_changed(self):
        self.bench("-n", 1, "--allow-eos", "--extra-body", '{"top_k": 7, "temperature": 0.5}', "--endpoint", "chat")
        body = self.stub.generations()[-1]
        self.assertEqual((body["top_k"], body["temperature"]), (7, 0.5))
        self.assertTrue("ignore_eos" not in body and "min_tokens" not in body and "messages" in body)

    # --- streams

    def test_streams_cut_anywhere(self):
        rules = self.stub.rules
        for rules.line_end, rules.piece, rules.comments, rules.end in (("\r\n", 1, True, "[DONE]"), ("\r", 7, True, "[DONE]"),
                                                                       ("\n", 4096, False, None), ("\r\n", 3, False, "[DONE]")):
            report = self.bench("-n", 2, "--output-tokens", 7, "--endpoint", "chat")
            self.assertEqual((report["done"], report["gap"]["count"], report["output_tokens"]), (2, 12, 14))

    def test_several_tokens_in_an_event(self):
        self.stub.rules.per_event = 4
        report = self.bench("-n", 1, "--output-tokens", 10)
        self.assertEqual((report["output_tokens"], report["gap"]["count"]), (10, 2))

    def test_without_usage_events_count(self):
        self.stub.rules.usage = False
        report = self.bench("-n", 2, "--output-tokens", 5)
        self.assertEqual((report["output_tokens"], report["cached_tokens"]), (10, None))
        self.assertIn("no `usage`", " ".join(report["remarks"]))

    def test_a_cut_connection_is_counted_and_the_run_goes_on(self):
        self.stub.rules.cut_after = 2
        report = self.bench("-n", 3, "--output-tokens", 5, code=1)
        self.assertEqual((report["done"], sum(report["broken"].values())), (0, 3))
        self.assertIn("closed early", next(iter(report["broken"])))

    def test_an_error_inside_the_stream(self):
        self.stub.rules.error_after = 2
        report = self.bench("-n", 2, "--output-tokens", 5, code=1)
        self.assertEqual(report["broken"], {"the stream reports: the engine fell over": 2})

    # --- errors

    def test_statuses_are_counted_503_apart(self):
        self.stub.rules.statuses.extend([503, 500, 503, 400])
        done = self.run_bench("-n", 10, "--output-tokens", 2)
        self.assertIn("6 done, 2 times 503, 2 failed", done.stdout)
        self.assertIn("1 request refused with status 500: scripted 500", done.stdout)
        self.stub.rules.statuses.extend([503, 500, 503, 400])
        report = self.bench("-n", 10, "--output-tokens", 2)
        self.assertEqual(report["refused"], {"503": 2, "400": 1, "500": 1})

    def test_one_line_says_what_is_wrong(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        done = subprocess.run([KVARTO, "bench", "serve", "--url", f"http://127.0.0.1:{port}"], capture_output=True, text=True,
                              timeout=WATCHDOG_S)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
        self.assertIn("is the server running", done.stderr)
        self.fails("--model", "other", words=[f'no model "other"; it has {MODEL}'])
        self.stub.rules.key = "secret"
        self.fails(words=["give it with --api-key"])
        self.fails("--api-key", "wrong", words=["does not accept this key"])
        self.assertEqual(self.bench("-n", 1, "--api-key", "secret")["done"], 1)
        self.stub.rules.key, self.stub.rules.models = None, None
        self.fails(words=["404", "--model"])
        self.assertEqual(self.bench("-n", 1, "--model", "any")["done"], 1)
        self.stub.rules.models = []
        self.fails(words=["lists no model"])

    def test_flags_that_make_no_sense(self):
        for flags, word in ((["--prompt-tokens", "0"], "--prompt-tokens"), (["--output-tokens", "9-3"], "--output-tokens"),
                            (["--slo", "ttft"], "ttft=1s"), (["--duration", "5"], "--duration"), (["--abort", "2"], "--abort"),
                            (["--rate", "0"], "--rate"), (["--trace-times"], "--trace"), (["--turns", "0"], "--turns"),
                            (["--turns", "2", "--prefix-tokens", "9"], "give one"), (["--suffix-tokens", "9"], "--prefix-tokens"),
                            (["--concurrency", "3000"], "2000"), (["--extra-body", "[]"], "JSON object"),
                            (["--url", "ftp://x"], "--url"), (["--turns", "2", "--endpoint", "completions"], "chat"),
                            (["--jsonl", "absent.jsonl"], "absent.jsonl")):
            with self.subTest(flags=flags):
                self.fails(*flags, words=[word])
        self.fails("--endpoint", "nothing", words=["nothing"], code=2)
        done = subprocess.run([KVARTO, "bench", "-p", "5", "serve"], capture_output=True, text=True, timeout=WATCHDOG_S)
        self.assertIn("before the word serve", done.stderr)

    def test_the_url_may_end_in_v1(self):
        for url in (f"{self.stub.url}/v1", f"{self.stub.url}/v1/", f"127.0.0.1:{self.stub.port}"):
            self.assertEqual(self.bench("--url", url, "-n", 1)["done"], 1)

    # --- other workloads

    def test_chats_of_several_turns(self):
        report = self.bench("--turns", 3, "--system-tokens", 30, "--prompt-tokens", 10, "--output-tokens", 4, "-n", 5, "-c", 5,
                            "--think-time", "1ms-2ms")
        bodies = self.stub.generations()
        self.assertEqual((len(bodies), report["done"]), (15, 15))
        self.assertEqual(len({body["messages"][0]["content"] for body in bodies}), 1)
        self.assertEqual(count_words(bodies[0]["messages"][0]["content"]), 30)
        by_length = collections.Counter(len(body["messages"]) for body in bodies)
        self.assertEqual(by_length, {2: 5, 4: 5, 6: 5})
        for body in bodies:
            roles = [message["role"] for message in body["messages"]]
            self.assertEqual(roles, ["system"] + ["user", "assistant"] * (len(roles) // 2 - 1) + ["user"])
            for message in body["messages"][1:]:
                if message["role"] == "assistant":
                    self.assertEqual(message["content"], " word" * 4)
                else:
                    self.assertEqual(count_words(message["content"]), 10)
        longest = 6 * TEMPLATE + 30 + 3 * 10 + 2 * 4
        self.assertEqual(max(self.stub.prompt_tokens(body) for body in bodies), longest)

    def test_lines_of_a_file(self):
        path = self.folder / "requests.jsonl"
        path.write_text('{"prompt": "one two", "max_tokens": 3}\n'
                        '{"custom_id": "a", "body": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}}\n')
        report = self.bench("--jsonl", path)
        self.assertEqual((report["done"], report["output_tokens"]), (2, 5))
        self.assertEqual(self.stub.generations()[0]["prompt"], "one two")
        self.assertEqual(self.stub.generations()[1]["messages"][0]["content"], "hi")
        self.assertEqual(self.bench("--jsonl", "-", stdin=path.read_text())["done"], 2)
        path.write_text('{"prompt": "one"}\nnothing\n')
        self.fails("--jsonl", path, words=["line 2"])

    def test_a_trace_of_blocks(self):
        lines = [{"timestamp": 0, "input_length": 150, "output_length": 4, "hash_ids": [1, 2, 3]},
                 {"timestamp": 40, "input_length": 130, "output_length": 2, "hash_ids": [1, 2, 9]},
                 {"timestamp": 90, "input_length": 64, "output_length": 1, "hash_ids": [5]}]
        path = self.folder / "trace.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        report = self.bench("--trace", path, "--trace-times", "--trace-speed", 2)
        self.assertEqual((report["done"], report["output_tokens"], report["prompt_tokens"]), (3, 7, 344))
        self.assertEqual(report["prompt_lengths_hit"], 3)
        words = [prompt.split() for prompt in sorted(self.prompts(), key=len, reverse=True)]
        shared = os.path.commonprefix([words[0], words[1]])
        self.assertTrue(127 <= len(shared) <= 129, len(shared))  # 128 tokens with the start; the next word may agree by chance
        self.assertLess(len(os.path.commonprefix([words[0], words[2]])), 5)
        self.assertEqual(self.bench("--trace", path, "--trace-scale", 0.5)["prompt_tokens"], 75 + 65 + 32)
        path.write_bytes(b"\x1f\x8b\x08\x00")
        self.fails("--trace", path, words=["zcat"])

    # --- loops

    def test_open_loop(self):
        report = self.bench("--rate", 400, "-n", 40, "--output-tokens", 2)
        self.assertEqual((report["done"], report["late"]["count"]), (40, 40))
        self.assertIn("Poisson", report["workload"])

    def test_open_loop_does_not_wait_for_answers(self):
        self.stub.rules.gate = threading.Event()
        process = subprocess.Popen(self.command("--rate", 1000, "-n", 12, "--json"), stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(process.kill)
        for _ in range(WATCHDOG_S * 50):  # all twelve hang at the gate at once
            if self.stub.running == 12:
                break
            threading.Event().wait(0.02)
        self.assertEqual(self.stub.running, 12)
        self.stub.rules.gate.set()
        self.assertEqual(json.loads(process.communicate(timeout=WATCHDOG_S)[0])["done"], 12)

    def test_duration_ends_a_run(self):
        report = self.bench("--duration", "300ms", "-c", 2, "--output-tokens", 1)
        self.assertGreater(report["done"], 0)
        self.assertEqual(report["done"], report["requests"])

    def test_aborts(self):
        report = self.bench("--abort", 0.5, "--abort-within", "20ms", "-n", 60, "-c", 6, "--output-tokens", 40)
        self.assertEqual(report["done"] + report["aborted"], 60)
        self.assertGreater(report["aborted"], 0)
        self.assertGreater(report["done"], 0)

    def test_ctrl_c_shows_what_was_measured(self):
        process = subprocess.Popen(self.command("-n", 1000, "-c", 4, "--output-tokens", 3, "--json"), stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        for _ in range(WATCHDOG_S * 100):
            if len(self.stub.generations()) > 10:
                break
            threading.Event().wait(0.01)
        self.stub.rules.gate = threading.Event()  # from here on no stream ends
        self.addCleanup(self.stub.rules.gate.set)
        self.assertTrue(self.stub.rules.reached.wait(WATCHDOG_S))
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=WATCHDOG_S)
        self.assertEqual(process.returncode, 130, errors)
        report = json.loads(out)
        self.assertTrue(report["interrupted"])
        self.assertGreater(report["done"], 0)
        self.assertGreater(report["unfinished"], 0)
        self.assertEqual(report["broken"], {})

    # --- what comes out

    def test_goodput_and_page(self):
        page = self.folder / "load.html"
        done = self.run_bench("-n", 6, "--slo", "ttft=100s,e2e=0us", "--html", page)
        self.assertIn("0 of 6 requests kept the limits", done.stdout)
        text = page.read_text()
        self.assertEqual(text.count("<svg"), 6)
        self.assertNotIn("<script", text)
        self.assertEqual(self.bench("-n", 6, "--slo", "ttft=100s,tpot=100s")["slo"]["good"], 6)


if __name__ == "__main__":
    if not os.access(KVARTO, os.X_OK):
        sys.exit(f"{KVARTO}: not built")
    unittest.main(verbosity=2)
