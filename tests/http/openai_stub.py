"""A server of OpenAI's API for tests, on 127.0.0.1 only, as vLLM or llama-server answer: every word is a token. A test sets
`rules` to make it misbehave, and reads what it was asked in `log`. Standard library only.
"""
import collections
import http.server
import json
import threading

MODEL = "stub/model-1"
TEMPLATE = 4  # tokens that the chat template adds to each message


def count_words(text):
    return len(text.split())


class Rules:
    """How a server behaves; the defaults are those of a good one."""

    def __init__(self):
        self.models = [MODEL]      # None: no such route
        self.key = None            # wanted in Authorization
        self.tokenizer = "vllm"    # "llama": reads `content`, gives no count; None: no such route
        self.word_tokens = lambda word: 1
        self.usage = True
        self.cached = "details"    # "timings": as llama-server; None: not said
        self.statuses = collections.deque()  # of the next requests; 200 once it is empty
        self.retry_after = "0"
        self.per_event = 1         # tokens in an event
        self.line_end = "\n"
        self.comments = False      # comments between events
        self.piece = None          # bytes of a write; None: an event each
        self.cut_after = None      # events after which the connection is cut
        self.error_after = None    # events after which the stream reports an error
        self.end = "[DONE]"        # None: only finish_reason
        self.gate = None           # threading.Event that every stream waits for before its second event
        self.reached = threading.Event()  # a stream waits at the gate


class Server:
    def __init__(self):
        self.rules, self.log, self.lock = Rules(), [], threading.Lock()
        self.running = self.most_running = self.connections = self.hung_up = 0
        stub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self):
                super().setup()
                with stub.lock:
                    stub.connections += 1

            def do_GET(self):
                stub.get(self)

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                try:
                    stub.post(self, body)
                except OSError:
                    self.close_connection = True
                    with stub.lock:
                        stub.hung_up += 1

            def log_message(self, *arguments):
                pass

        class Listener(http.server.ThreadingHTTPServer):
            request_queue_size = 128

            def handle_error(self, *arguments):
                pass  # clients that leave are part of the tests

        self.server = Listener(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def generations(self):
        """Bodies of the requests that asked for a streamed or whole answer."""
        with self.lock:
            return [body for path, body in self.log if path.startswith("/v1/")]

    def get(self, handler):
        if not self.allowed(handler):
            return
        if handler.path == "/v1/models" and self.rules.models is not None:
            self.send_json(handler, 200, {"object": "list", "data": [{"id": name, "object": "model"} for name in self.rules.models]})
        else:
            self.send_json(handler, 404, {"detail": "Not Found"})

    def post(self, handler, body):
        if not self.allowed(handler):
            return
        if handler.path == "/tokenize":
            return self.tokenize(handler, body)
        with self.lock:
            self.log.append((handler.path, body))
            status = self.rules.statuses.popleft() if self.rules.statuses else 200
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        try:
            if status != 200:
                headers = {"Retry-After": self.rules.retry_after} if status == 503 else {}
                self.send_json(handler, status, {"error": {"message": f"scripted {status}", "code": status}}, headers)
            elif body.get("stream"):
                self.stream(handler, body)
            else:
                self.send_json(handler, 200, self.whole(handler, body))
        finally:
            with self.lock:
                self.running -= 1

    def allowed(self, handler):
        if self.rules.key and handler.headers.get("Authorization") != f"Bearer {self.rules.key}":
            self.send_json(handler, 401, {"error": {"message": "Unauthorized"}})
            return False
        return True

    def send_json(self, handler, status, value, headers=()):
        text = json.dumps(value).encode()
        handler.send_response(status)
        for name, header in {"Content-Type": "application/json", "Content-Length": str(len(text)), **dict(headers)}.items():
            handler.send_header(name, header)
        handler.end_headers()
        handler.wfile.write(text)

    # --- tokens

    def count(self, text):
        return sum(self.rules.word_tokens(word) for word in text.split())

    def prompt_tokens(self, body):
        if "messages" in body:
            return sum(TEMPLATE + self.count(message["content"]) for message in body["messages"])
        return 1 + self.count(body["prompt"])  # a start token

    def tokenize(self, handler, body):
        if self.rules.tokenizer is None:
            return self.send_json(handler, 404, {"detail": "Not Found"})
        tokens = list(range(1 + self.count(body["content" if self.rules.tokenizer == "llama" else "prompt"])))
        return self.send_json(handler, 200, {"tokens": tokens} if self.rules.tokenizer == "llama" else
                              {"count": len(tokens), "max_model_len": 100000, "tokens": tokens})

    # --- answers

    def usage(self, body, tokens):
        prompt = self.prompt_tokens(body)
        usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
        if self.rules.cached == "details":
            usage["prompt_tokens_details"] = {"cached_tokens": prompt // 2}
        return {"usage": usage, **({"timings": {"cache_n": prompt // 2}} if self.rules.cached == "timings" else {})}

    def whole(self, handler, body):
        text = " word" * body["max_tokens"]
        chat = handler.path.endswith("chat/completions")
        choice = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        return {"choices": [{"index": 0, **choice, "finish_reason": "length"}], **self.usage(body, body["max_tokens"])}

    def events(self, handler, body):
        chat, tokens = handler.path.endswith("chat/completions"), body["max_tokens"]

        def event(text, finish=None):
            piece = {"delta": {"content": text} if text else {}} if chat else {"text": text}
            return json.dumps({"choices": [{"index": 0, **piece, "finish_reason": finish}]})
        if chat:
            yield json.dumps({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
        for first in range(0, tokens, self.rules.per_event):
            yield event(" word" * min(self.rules.per_event, tokens - first))
        yield event("", "length")
        if self.rules.usage:
            yield json.dumps({"choices": [], **self.usage(body, tokens)})
        if self.rules.end:
            yield self.rules.end

    def stream(self, handler, body):
        rules, end = self.rules, self.rules.line_end
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream; charset=utf-8")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for number, data in enumerate(self.events(handler, body)):
            if number == 1 and rules.gate:
                rules.reached.set()
                rules.gate.wait(60)
            if number == rules.cut_after:
                handler.close_connection = True
                return
            if number == rules.error_after:
                data = json.dumps({"error": {"message": "the engine fell over", "code": 500}})
            text = (f": ping{end}{end}" if rules.comments else "") + f"data: {data}{end}{end}"
            raw, size = text.encode(), rules.piece or len(text)
            for first in range(0, len(raw), size):
                piece = raw[first:first + size]
                handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                handler.wfile.flush()
        handler.wfile.write(b"0\r\n\r\n")
