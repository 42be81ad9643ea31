#!/usr/bin/env python3
"""`kvarto eval --url` against `kvarto serve` and a server without log-probabilities: eval_url_test.py PATH_TO_KVARTO."""
import contextlib
import json
import pathlib
import subprocess
import tempfile

from serve_harness import KVARTO, NAME, SMOLLM2, WATCHDOG_S, ServeTest, Server, main, need_model

import openai_stub

FAMILIES = ("table", "sums")
FLAGS = ("--only", ",".join(FAMILIES), "--samples", "4", "--context", "512", "--quick", "--json")


class Eval:
    """One run: its report, and its records as {task: record} for each setting."""

    def __init__(self, *arguments, code=0):
        with tempfile.TemporaryDirectory(prefix="kvarto-eval-") as folder:
            command = [KVARTO, "eval", *map(str, arguments), *FLAGS, "--output", folder]
            done = subprocess.run(command, capture_output=True, text=True, timeout=8 * WATCHDOG_S)
            if done.returncode != code:
                raise AssertionError(f"{command}: {done.returncode}\n{done.stderr}\n{done.stdout}")
            self.error = done.stderr
            if code == 0:
                self.report = json.loads(done.stdout)
                lines = (pathlib.Path(folder) / "records.jsonl").read_text().splitlines()
                self.page = (pathlib.Path(folder) / "report.html").read_text()
                self.settings = [{} for _ in self.report["settings"]]
                for record in map(json.loads, lines[1:]):
                    if "task" in record:
                        self.settings[record["setting"]][record["task"]] = record

    def families(self, setting):
        return {family["family"]: family for family in self.report["settings"][setting]["families"]}


class SampleModel(ServeTest):
    """What a server says of a model is what the model itself says."""

    @classmethod
    def serve(cls):
        return Server(need_model(SMOLLM2), "--kv-cache-dtype", "float16", "--max-model-len", 1024)

    def agree(self, one, other):
        self.assertEqual(set(one), set(other))
        self.assertGreaterEqual(len(one), 2 * len(FAMILIES))
        for name, record in one.items():
            twin = other[name]
            self.assertEqual((record["wrote"], record["right"], record["answer_tokens"]),
                             (twin["wrote"], twin["right"], twin["answer_tokens"]), name)
            self.assertGreater(record["answer_tokens"], 0, name)
            self.assertIsNotNone(record["nll"], name)
            self.assertAlmostEqual(record["nll"], twin["nll"], delta=1e-3, msg=name)

    def test_a_model_and_its_server(self):
        run = Eval(SMOLLM2, "--baseline", "kv=f16", "--url", self.server.url)
        self.assertEqual([setting["baseline"] for setting in run.report["settings"]], [True, False])
        self.assertIsNone(run.report["settings"][1]["text"])  # texts are not for servers
        self.agree(*run.settings)
        for name, family in run.families(1).items():
            self.assertEqual((family["lost"], family["gained"]), (0, 0), name)
            if family["retention"] is not None:
                self.assertAlmostEqual(family["retention"]["value"], 1, delta=1e-2, msg=name)
        self.assertIn(self.server.url, run.page)

    def test_two_servers(self):
        # One server under two names.
        run = Eval("--url", self.server.url, "--url", f"localhost:{self.server.port}/v1")
        self.agree(*run.settings)
        self.assertEqual(run.report["run"]["model"], NAME)
        self.assertEqual(run.report["run"]["servers"],
                         [{"url": url, "model": NAME, "echoes": True}
                          for url in (f"{self.server.url}/", f"http://localhost:{self.server.port}/")])
        for name, family in run.families(1).items():
            self.assertEqual(family["drop_share"]["value"], 0, name)
            self.assertIsNotNone(family["nll_per_token_nats"], name)


class Stub(ServeTest):
    """A server that echoes nothing, as llama-server; every word is a token, and every answer is "word word"."""

    def setUp(self):
        self.stub, self.other = openai_stub.Server(), openai_stub.Server()
        self.addCleanup(self.stub.close)
        self.addCleanup(self.other.close)

    def test_without_log_probabilities_the_texts_count(self):
        run = Eval("--url", self.stub.url, "--url", self.other.url + "/v1")
        self.assertEqual(run.report["run"]["model"], openai_stub.MODEL)
        self.assertEqual([server["echoes"] for server in run.report["run"]["servers"]], [False, False])
        for setting in run.settings:
            self.assertGreaterEqual(len(setting), 2 * len(FAMILIES))
            for name, record in setting.items():
                self.assertIsNone(record["nll"], name)
                self.assertIn("word", record["wrote"], name)
                self.assertFalse(record["right"], name)
        for name, family in run.families(1).items():
            self.assertIsNone(family["retention"], name)
            self.assertIsNone(family["nll_per_token_nats"], name)
            self.assertEqual((family["right"], family["lost"], family["gained"]), (0, 0, 0), name)
        for stub, setting in zip((self.stub, self.other), run.settings):
            bodies = stub.generations()
            # Whether it echoes was asked by one prompt, which is no task's.
            self.assertEqual(len({body["prompt"] for body in bodies if "echo" in body}), 1)
            written = [body for body in bodies if "echo" not in body]
            self.assertEqual(len(written), len(setting))
            self.assertTrue(all(body["temperature"] == 0 and body["max_tokens"] > 0 for body in written))

    def test_a_refused_task_is_one_that_failed(self):
        self.other.rules.statuses.extend([200] * 3 + [400])
        run = Eval("--url", self.stub.url, "--url", self.other.url)
        self.assertEqual(set(run.settings[0]), set(run.settings[1]))
        failed = [record for record in run.settings[1].values() if record["failed"]]
        self.assertEqual(len(failed), 1)
        self.assertIn("answers 400: scripted 400", failed[0]["failed"])
        self.assertEqual((failed[0]["right"], failed[0]["nll"]), (False, None))
        self.assertEqual([family["failed"] for family in run.families(1).values()].count(1), 1)

    def test_a_server_that_refuses_all_ends_the_run(self):
        self.other.rules.statuses.extend([200] + [400] * 1000)
        run = Eval("--url", self.other.url, "--url", self.stub.url, code=1)
        self.assertIn("scripted 400", run.error)

    def test_busy_servers_are_waited_for(self):
        self.stub.rules.statuses.extend([503] * 3)
        run = Eval("--url", self.stub.url, "--url", self.other.url)
        self.assertGreaterEqual(len(run.settings[0]), 2 * len(FAMILIES))

    def test_one_server_in_two_spellings_comes_twice(self):
        for again in (f"127.0.0.1:{self.stub.port}", self.stub.url + "/v1/", self.stub.url + "/"):
            self.assertIn("comes twice", Eval("--url", self.stub.url, "--url", again, code=1).error)

    def test_one_line_says_what_is_wrong(self):
        self.stub.rules.key = "secret"
        self.assertIn("give it with --api-key", Eval("--url", self.stub.url, "--url", self.stub.url, code=1).error)
        self.stub.rules.key, self.stub.rules.models = None, []
        self.assertIn("lists no model", Eval("--url", self.stub.url, "--url", self.stub.url, code=1).error)
        with contextlib.closing(openai_stub.Server()) as gone:
            url = gone.url
        refused = Eval("--url", url, "--url", url, code=1).error
        self.assertIn("is the server running", refused)
        self.assertEqual(sum(line.startswith("kvarto: error: ") for line in refused.splitlines()), 1, refused)


if __name__ == "__main__":
    main()
