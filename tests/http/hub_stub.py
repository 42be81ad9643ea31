"""A model hub for tests, on 127.0.0.1 only: the routes that `kvarto pull` speaks, a store that files are redirected to, and a
forwarding proxy. Each server logs what it was asked; a test sets `rules` to make it misbehave. Standard library only.
"""
import collections
import hashlib
import http.server
import json
import select
import socket
import ssl
import subprocess
import threading
import urllib.parse

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Rules:
    """How a hub behaves; the defaults are those of a good one."""

    def __init__(self):
        self.token = None          # wanted in Authorization
        self.cuts = collections.deque()  # for each body: send so many bytes, then cut the connection
        self.store = None          # base URL of another server that holds the files
        self.extra_entries = []    # further entries of the file list
        self.page_size = 1000
        self.ranges = True         # honours Range
        self.chunked = False       # bodies without a length
        self.surplus = b""         # sent after the content
        self.wrong_content = False  # flips a byte
        self.wrong_commit = None
        self.no_head = False       # HEAD is not allowed
        self.loop = False          # redirects to itself
        self.lie_length = 0        # added to Content-Length
        self.slow = None           # threading.Event that holds the rest of a body back after 64 KiB
        self.announced_size = None
        self.big_header = 0


class Hub:
    """`files`: {(repo, path): bytes}. `log`: one record per request."""

    def __init__(self, files, certificate=None):
        self.files, self.rules, self.log = files, Rules(), []
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                hub.answer(self, body=True)

            def do_HEAD(self):
                hub.answer(self, body=False)

            def log_message(self, *arguments):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *arguments: None  # handshakes that the client refuses are part of the tests
        scheme = "http"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
            scheme = "https"
        self.port = self.server.server_address[1]
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def requests(self, method, part=""):
        return [record for record in self.log if record["method"] == method and part in record["path"]]

    def answer(self, handler, body):
        handler.close_connection = True
        record = {"method": handler.command, "path": handler.path, "headers": dict(handler.headers), "sent": 0}
        self.log.append(record)
        if self.rules.token and handler.headers.get("Authorization") != f"Bearer {self.rules.token}":
            return self.refuse(handler, 401, "Invalid username or password.")
        path = urllib.parse.urlsplit(handler.path).path
        parts = [urllib.parse.unquote(part) for part in path.strip("/").split("/")]
        if self.rules.loop:
            return self.redirect(handler, handler.path + "x", {})
        if parts[:2] == ["api", "models"] and len(parts) >= 6 and parts[4] == "tree":
            return self.send_tree(handler, "/".join(parts[2:4]))
        if parts[:2] == ["api", "models"] and parts[4:] == ["revision", "main"]:
            return self.send_json(handler, {"sha": self.rules.wrong_commit or COMMIT}, {})
        if self.rules.no_head and handler.command == "HEAD":
            return self.refuse(handler, 405, "Method Not Allowed")
        if len(parts) >= 5 and parts[2] == "resolve":
            return self.send_resolve(handler, record, "/".join(parts[:2]), "/".join(parts[4:]), body)
        if parts[0] == "store":
            for content in self.files.values():
                if hashlib.sha256(content).hexdigest() == parts[1]:
                    return self.send_content(handler, record, content, body, {})
        return self.refuse(handler, 404, "Not here")

    def refuse(self, handler, status, message):
        text = json.dumps({"error": message}).encode()
        handler.send_response(status)
        handler.send_header("X-Error-Message", message)
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(text)

    def redirect(self, handler, location, headers):
        handler.send_response(302)
        handler.send_header("Location", location)
        handler.send_header("Content-Length", "0")
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()

    def send_tree(self, handler, repo):
        entries = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": "folder"}]
        for (owner, path), content in self.files.items():
            if owner != repo:
                continue
            size = self.rules.announced_size or len(content)
            entry = {"type": "file", "size": size, "path": path,
                     "oid": hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()}
            if path.endswith(".gguf") and not path.startswith("git-"):
                entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": size, "pointerSize": 134}
            entries.append(entry)
        if len(entries) == 1:
            return self.refuse(handler, 404, "Repository not found")
        entries += self.rules.extra_entries
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(handler.path).query)
        first = int(query.get("cursor", ["0"])[0])
        headers = {}
        if first + self.rules.page_size < len(entries):
            path = urllib.parse.urlsplit(handler.path).path
            following = f"{self.url}{path}?recursive=true&cursor={first + self.rules.page_size}"
            headers["Link"] = f'<{following}>; rel="next"'
        if self.rules.big_header:
            headers["X-Big"] = "x" * self.rules.big_header
        self.send_json(handler, entries[first:first + self.rules.page_size], headers)

    def send_json(self, handler, value, headers):
        text = json.dumps(value).encode()
        handler.send_response(200)
        for name, header in {"Content-Type": "application/json", **headers}.items():
            handler.send_header(name, header)
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text)

    def send_resolve(self, handler, record, repo, path, body):
        content = self.files.get((repo, path))
        if content is None:
            return self.refuse(handler, 404, "Entry not found")
        digest = hashlib.sha256(content).hexdigest()
        headers = {"X-Repo-Commit": self.rules.wrong_commit or COMMIT, "X-Linked-Size": str(len(content)),
                   "X-Linked-Etag": f'"{digest}"', "ETag": f'"{digest}"'}
        if self.rules.store:
            return self.redirect(handler, f"{self.rules.store}/store/{digest}/file?signature=secret", headers)
        return self.send_content(handler, record, content, body, headers)

    def send_content(self, handler, record, content, body, headers):
        rules, first = self.rules, 0
        wanted = handler.headers.get("Range")
        if wanted and rules.ranges:
            first = int(wanted.removeprefix("bytes=").split("-")[0])
            headers = {**headers, "Content-Range": f"bytes {first}-{len(content) - 1}/{len(content)}"}
        if rules.wrong_content:
            content = content[:-1] + bytes([content[-1] ^ 1])
        data = content[first:] + rules.surplus
        handler.send_response(206 if first else 200)
        for name, value in headers.items():
            handler.send_header(name, value)
        if rules.chunked:
            handler.send_header("Transfer-Encoding", "chunked")
        else:
            handler.send_header("Content-Length", str(len(data) + rules.lie_length))
        handler.end_headers()
        if not body:
            return
        cut = rules.cuts.popleft() if rules.cuts else len(data) + 1
        try:
            for start in range(0, min(cut, len(data)), 65536):
                if start and rules.slow:
                    rules.slow.wait(60)
                piece = data[start:min(start + 65536, cut)]
                handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if rules.chunked else piece)
                record["sent"] += len(piece)
            if rules.chunked and cut > len(data):
                handler.wfile.write(b"0\r\n\r\n")
        except OSError:
            record["refused"] = True


class Proxy:
    """A forward proxy: absolute targets for http, CONNECT for the rest. `log` holds the request lines."""

    def __init__(self, credentials=None):
        self.log, self.headers = [], []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.credentials = credentials
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        with client:
            head = b""
            while b"\r\n\r\n" not in head:
                piece = client.recv(4096)
                if not piece:
                    return
                head += piece
            lines = head.decode("latin-1").split("\r\n")
            method, target, version = lines[0].split(" ")
            self.log.append(lines[0])
            self.headers.append(head.decode("latin-1"))
            if self.credentials and f"Proxy-Authorization: Basic {self.credentials}" not in lines:
                client.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
                return
            place = urllib.parse.urlsplit(target if "://" in target else "//" + target)
            # Whatever the host is called, the server of these tests is on this machine.
            with socket.create_connection(("127.0.0.1", place.port)) as server:
                if method == "CONNECT":
                    client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                else:
                    path = place.path + ("?" + place.query if place.query else "")
                    rest = head.split(b"\r\n", 1)[1]
                    server.sendall(f"{method} {path} {version}\r\n".encode("latin-1") + rest)
                self.relay(client, server)

    @staticmethod
    def relay(a, b):
        while True:
            for source in select.select([a, b], [], [], 60)[0] or [None]:
                data = source.recv(65536) if source else b""
                if not data:
                    return
                (b if source is a else a).sendall(data)

    def close(self):
        self.listener.close()


def make_certificates(folder):
    """An authority and a certificate of it for 127.0.0.1 and hub.test: (authority file, (certificate, key))."""
    run = lambda *arguments: subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=folder)
    run("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-keyout",
        "ca.key", "-out", "ca.pem", "-subj", "/CN=Test authority", "-addext", "basicConstraints=critical,CA:TRUE")
    run("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "hub.key", "-out",
        "hub.csr", "-subj", "/CN=hub.test")
    (folder / "hub.ext").write_text("subjectAltName=IP:127.0.0.1,DNS:hub.test\nbasicConstraints=CA:FALSE\n")
    run("x509", "-req", "-in", "hub.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-out",
        "hub.pem", "-extfile", "hub.ext")
    return folder / "ca.pem", (folder / "hub.pem", folder / "hub.key")
