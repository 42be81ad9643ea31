"""What the tests of `kvarto serve` share: a server of their own on a free port, scripts for it, and requests in all forms.

Imported first: a test that was started by a Python without the packages of requirements.txt goes on in the one that
tools/test_venv makes. Started as `python3 FILE PATH_TO_KVARTO [unittest's arguments]`.
"""
import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


sys.path.insert(0, str(ROOT / "tests/support"))
from venv_of_tests import enter_venv  # noqa: E402

enter_venv("jsonschema", "msgspec", "openai", "prometheus_client", "zmq")

import openai  # noqa: E402
from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

KVARTO = str(pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else "build/dev/kvarto").resolve())
TINY = ROOT / "tests/tiny"
SMOLLM2 = ROOT / "models/smollm2-135m-q4_1.gguf"
WATCHDOG_S = 120  # ends what hangs; nothing is judged by it
NAME = "tiny"     # under which every server of these tests serves its model
BLOCK = 16


def need_model(path):
    if not path.exists():
        raise unittest.SkipTest(f"{path.relative_to(ROOT)} is not there; tools/fetch_models fetches it")
    return path


def eventually(condition, what="the condition", watchdog_s=WATCHDOG_S):
    """Waits until condition() is true and returns what it gave."""
    until = time.monotonic() + watchdog_s
    while not (result := condition()):
        if time.monotonic() > until:
            raise AssertionError(f"{what} did not come true")
        time.sleep(0.01)
    return result


class Reply:
    def __init__(self, response):
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json["error"]


class Numbers:
    """One scrape of /metrics."""

    def __init__(self, text):
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples = [sample for family in self.families.values() for sample in family.samples]

    def all(self, name, **labels):
        found = [s for s in self.samples if s.name == name and all(s.labels.get(k) == v for k, v in labels.items())]
        if not found:
            raise AssertionError(f"no series {name} {labels}")
        return found

    def total(self, name, **labels):
        return sum(sample.value for sample in self.all(name, **labels))

    def __getitem__(self, name):
        return self.total(name)


class Server:
    """A running `kvarto serve`. Its log is a file, whose end is shown when a test fails."""

    running = []

    def __init__(self, model, *flags, env=None, wait=True, scheme="http", key=None):
        self.key = key  # with which numbers() asks
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvarto-serve-"))
        self.log_path = self.folder / "log"
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "LLAMA_"))}
        self.command = [KVARTO, "serve", str(model), "--port", "0", "--served-model-name", NAME, *map(str, flags)]
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT,
                                            env=clean | (env or {}))
        Server.running.append(self)
        self.scheme = scheme
        try:
            self.url = self.wait_for(r"listening at (\S+);").group(1)
            if not self.url.startswith("unix:"):
                self.host, port = re.fullmatch(r"https?://\[?(.*?)\]?:(\d+)", self.url).groups()
                self.port = int(port)
            if wait:
                self.wait_ready()
        except BaseException:
            self.show_log()
            self.kill()
            raise

    @property
    def log(self):
        if not self.log_path.exists():
            return self.last_log
        return re.sub("\x1b\\[[0-9;]*m", "", self.log_path.read_text(errors="replace"))

    def wait_for(self, pattern):
        def look():
            found = re.search(pattern, self.log)
            if not found and self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}")
            return found
        return eventually(look, f"'{pattern}' in the log")

    def wait_ready(self):
        self.wait_for("Application startup complete")

    def show_log(self, lines=40):
        print(f"--- log of {' '.join(self.command)}", *self.log.splitlines()[-lines:], "---", sep="\n", file=sys.stderr)

    def kill(self):
        self.process.kill()
        self.forget()

    def forget(self):
        self.process.wait()
        if self in Server.running:
            Server.running.remove(self)
        self.last_log = self.log
        shutil.rmtree(self.folder, ignore_errors=True)

    def stop(self):
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(WATCHDOG_S)
        except subprocess.TimeoutExpired:
            self.show_log()
            self.kill()
            raise
        if code != 0:
            self.show_log()
        self.forget()
        return code

    # --- requests

    def connection(self):
        return http.client.HTTPConnection(self.host, self.port, timeout=WATCHDOG_S)

    def request(self, method, path, body=None, headers=None, connection=None):
        """`body`: bytes, a string, or what becomes JSON."""
        headers = dict(headers or {})
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        if isinstance(body, str):
            body = body.encode()
        if body is not None and not any(name.lower() == "content-type" for name in headers):
            headers["Content-Type"] = "application/json"
        used = connection or self.connection()
        try:
            used.request(method, path, body, headers)
            return Reply(used.getresponse())
        finally:
            if connection is None:
                used.close()

    def get(self, path, **headers):
        return self.request("GET", path, headers=headers)

    def post(self, path, body, headers=None, connection=None):
        return self.request("POST", path, body, headers, connection)

    def complete(self, prompt, **fields):
        """A completion that must succeed, as JSON."""
        reply = self.post("/v1/completions", {"prompt": prompt, "temperature": 0, **fields})
        if reply.status != 200:
            raise AssertionError(f"{reply.status} {reply.body!r}")
        return reply.json

    def chat(self, messages, **fields):
        reply = self.post("/v1/chat/completions", {"messages": messages, "temperature": 0, **fields})
        if reply.status != 200:
            raise AssertionError(f"{reply.status} {reply.body!r}")
        return reply.json

    def numbers(self):
        reply = self.request("GET", "/metrics", headers={"Authorization": f"Bearer {self.key}"} if self.key else None)
        if reply.status != 200:
            raise AssertionError(f"/metrics: {reply.status} {reply.body!r}")
        return Numbers(reply.body.decode())

    def client(self, **options):
        return openai.OpenAI(base_url=self.url + "/v1", api_key=options.pop("api_key", "none"), max_retries=0,
                             timeout=WATCHDOG_S, **options)

    # --- below HTTP

    def open(self, path, body, headers=""):
        """A socket on which a POST was sent and nothing was read."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connected = socket.create_connection((self.host, self.port), timeout=WATCHDOG_S)
        connected.sendall(f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n{headers}"
                          f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
        return connected

    def at_rest(self):
        """Nothing runs or waits, no sequence holds a block, and the books balance."""
        n = self.numbers()
        return (n["vllm:num_requests_running"] == 0 and n["vllm:num_requests_waiting"] == 0 and
                n.total("kvarto:kv_bytes", state="active") == 0 and n.total("kvarto:kv_blocks", state="open") == 0 and
                n.total("kvarto:kv_blocks", state="active") == 0 and n["kvarto:kv_balanced"] == 1 and
                n["kvarto:queued_tokens"] == 0)


def reset(connected):
    """Closes with RST instead of FIN."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connected.close()


def sse_events(body):
    """The data of each event of a stream; checks the framing."""
    text = body.decode() if isinstance(body, bytes) else body
    assert text.endswith("\n\n"), text[-40:]
    events = []
    for event in text[:-2].split("\n\n"):
        if event.startswith(":"):
            continue
        assert event.startswith("data: ") and "\n" not in event, event
        events.append(event[6:])
    assert events[-1] == "[DONE]" and events.count("[DONE]") == 1, events[-3:]
    return [json.loads(event) for event in events[:-1]]


def streamed_text(events, index=0):
    """What the choice's deltas come to."""
    out = ""
    for event in events:
        for choice in event["choices"]:
            if choice["index"] == index:
                out += choice["text"] if "text" in choice else choice["delta"].get("content") or ""
    return out


def free_port():
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# A chat template whose prompts end with the number of messages before the answer, so that a script can answer each turn
# differently, and whose beginning never changes. Shows tool calls as Hermes models write them.
TURNS_TEMPLATE = """\
{%- for m in messages -%}
{%- if m['role'] == 'assistant' -%}
<assistant>{{ loop.index0 }}
{%- if m['tool_calls'] -%}
{{ m['content'] }}{%- for c in m['tool_calls'] -%}
<tool_call>
{"name": "{{ c['function']['name'] }}", "arguments": {{ c['function']['arguments'] | tojson }}}
</tool_call>
{%- endfor -%}
{%- else -%}
{{ m['content'] }}
{%- endif -%}
<end>
{%- else -%}
<{{ m['role'] }}>{{ m['content'] }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<assistant>{{ messages | length }}{%- endif -%}"""


class Scripts:
    """Writes scripts for `scripted:FILE` into a folder that goes with the test class."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="kvarto-scripts-")
        self.count = 0

    def __call__(self, *answers, **options):
        """`answers`: lists of pieces, str or bytes. The id of a prompt's last token, modulo their number, picks one."""
        pieces = [[p if isinstance(p, str) else {"hex": p.hex()} for p in answer] for answer in answers]
        self.count += 1
        path = pathlib.Path(self.folder.name) / f"script{self.count}.json"
        path.write_text(json.dumps({"answers": [{"pieces": p} for p in pieces], **options}))
        return f"scripted:{path}"


class ServeTest(unittest.TestCase):
    """Tests of one class share `server`, which serve() starts; after all of them it has to come to rest without having met
    a bug, and to end with 0."""

    server = None

    @classmethod
    def serve(cls):
        return None

    @classmethod
    def setUpClass(cls):
        cls.script = Scripts()
        cls.server = cls.serve()

    @classmethod
    def tearDownClass(cls):
        if cls.server is not None:
            cls.check_after_all()
            code = cls.server.stop()
            if code != 0:
                raise AssertionError(f"{cls.__name__}: the server ended with {code}")
        cls.script.folder.cleanup()

    @classmethod
    def check_after_all(cls):
        """What is wrong after the last test, whichever that is, whoever caused it."""
        try:
            eventually(cls.server.at_rest, "rest after the tests")
            numbers = cls.server.numbers()
            for name in ("kvarto:internal_errors_total", "kvarto:watchdog_pushes_total"):
                if numbers[name] != 0:
                    raise AssertionError(f"{cls.__name__}: {name} is {numbers[name]:.0f} after the tests")
        except AssertionError:
            cls.server.show_log()
            raise

    def start(self, model, *flags, **options):
        """A server of this test's own."""
        server = Server(model, *flags, **options)
        self.started.append(server)
        self.addCleanup(lambda: server in Server.running and server.kill())
        return server

    def run(self, result=None):
        problems = lambda: len(result.failures) + len(result.errors) if result else 0
        before = problems()
        self.started = [] if self.server is None else [self.server]
        super().run(result)
        if problems() > before:
            for server in self.started:
                server.show_log()
        return result

    def refused(self, reply, param=None, status=400, *words):
        """An error in the envelope that names `param`."""
        self.assertEqual(reply.status, status, reply.body[:500])
        error = reply.error
        self.assertEqual(set(error), {"message", "type", "param", "code"}, error)
        if param is not None:
            named = error["param"] or ""
            self.assertTrue(named == param or re.match(re.escape(param) + r"[.\[]", named), error)
        for word in words:
            self.assertIn(word, error["message"])
        return error


def main():
    if not os.access(KVARTO, os.X_OK):
        sys.exit(f"{KVARTO}: not built")
    try:
        unittest.main(verbosity=2)
    finally:
        for server in list(Server.running):
            server.kill()
