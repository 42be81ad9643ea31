#!/usr/bin/env python3
"""`kvarto pull` against a hub, a store and a proxy of our own on 127.0.0.1: pull_test.py PATH_TO_KVARTO. Prints each check."""
import base64
import hashlib
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import hub_stub
from hub_stub import COMMIT

KVARTO = str(pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else "build/dev/kvarto").resolve())
REPO = "acme/Tiny-GGUF"
WATCHDOG_S = 120


def content(seed, size=300_000):
    """Bytes that differ by seed and never repeat in step with a buffer."""
    block = b"".join(hashlib.sha256(f"{seed}:{i}".encode()).digest() for i in range(1024))
    return (block * (size // len(block) + 1))[:size]


Q4 = content("q4")
Q8 = content("q8")
PARTS = [content(f"part{n}", 70_000 + n) for n in (1, 2, 3)]
FILES = {
    (REPO, "README.md"): b"# Tiny\n",
    (REPO, "tiny-Q4_K_M.gguf"): Q4,
    (REPO, "tiny-Q8_0.gguf"): Q8,
    (REPO, "mmproj-tiny-Q8_0.gguf"): content("mmproj", 1000),
    (REPO, "tiny-F16.gguf"): content("f16", 1000),
    (REPO, "tiny-BF16.gguf"): content("bf16", 1001),
    **{(REPO, f"BIG/tiny-Q6_K-0000{n}-of-00003.gguf"): part for n, part in enumerate(PARTS, 1)},
    ("acme/single", "only.gguf"): content("only", 5000),
    ("acme/empty", "config.json"): b"{}",
    ("acme/git", "git-kept.gguf"): content("git", 4000),
    ("acme/hole", "m-00001-of-00002.gguf"): content("hole", 100),
}
SECRET = "hf_aSecretThatMustNotLeak"


class PullTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvarto-pull-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.hub = self.start()
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "HF_HOME": str(self.folder / "hf"),
                            "HF_ENDPOINT": self.hub.url}
        self.repo = self.folder / "hf/hub/models--acme--Tiny-GGUF"

    def start(self, certificate=None):
        hub = hub_stub.Hub(FILES, certificate)
        self.addCleanup(hub.close)
        return hub

    def command(self, name, *options):
        return [KVARTO, "pull", name, *options]

    def pull(self, name=f"{REPO}:Q4_K_M", *options, **keywords):
        done = subprocess.run(self.command(name, *options), env=self.environment, cwd=self.folder, capture_output=True,
                              text=True, timeout=WATCHDOG_S, **keywords)
        self.assertNotIn(SECRET, done.stdout + done.stderr, "the token was shown")
        self.assertNotIn("signature=secret", done.stderr, "a signed address was shown")
        return done

    def succeeds(self, *arguments, **keywords):
        done = self.pull(*arguments, **keywords)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def fails(self, *words, name=f"{REPO}:Q4_K_M", options=(), **keywords):
        done = self.pull(name, *options, **keywords)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(done.stdout, "")
        errors = [line for line in done.stderr.splitlines() if line.startswith("kvarto: error: ")]
        self.assertEqual(len(errors), 1, done.stderr)
        for word in words:
            self.assertIn(word, errors[0])
        return done

    def blob(self, data):
        return self.repo / "blobs" / hashlib.sha256(data).hexdigest()

    def incomplete(self, data):
        return self.blob(data).with_name(self.blob(data).name + ".incomplete")

    def assert_in_cache(self, path, data):
        name = self.repo / "snapshots" / COMMIT / path
        self.assertTrue(name.is_symlink())
        depth = path.count("/")
        self.assertEqual(os.readlink(name), "../" * (2 + depth) + "blobs/" + self.blob(data).name)
        self.assertEqual(name.read_bytes(), data)
        self.assertFalse(self.incomplete(data).exists())

    # What it is for.

    def test_fresh_pull(self):
        done = self.succeeds()
        self.assert_in_cache("tiny-Q4_K_M.gguf", Q4)
        self.assertEqual((self.repo / "refs/main").read_text(), COMMIT)
        self.assertEqual(done.stdout.strip(), str(self.repo / "snapshots" / COMMIT / "tiny-Q4_K_M.gguf"))
        self.assertNotIn("\r", done.stderr, "progress is for terminals")
        bodies = self.hub.requests("GET", "/resolve/")
        self.assertEqual([b["path"] for b in bodies], [f"/{REPO}/resolve/{COMMIT}/tiny-Q4_K_M.gguf"])
        self.assertFalse(any("Authorization" in r["headers"] for r in self.hub.log))

    def test_cached_pull_fetches_no_body(self):
        self.succeeds()
        self.hub.log.clear()
        self.assertIn("already", self.succeeds().stderr)
        self.assertEqual(self.hub.requests("GET", "/resolve/"), [])
        self.assert_in_cache("tiny-Q4_K_M.gguf", Q4)

    def test_new_commit_shares_the_blob(self):
        self.succeeds()
        self.hub.rules.wrong_commit, self.hub.log[:] = "f" * 40, []
        self.succeeds()
        self.assertEqual(self.hub.requests("GET", "/resolve/"), [])
        self.assertEqual((self.repo / "refs/main").read_text(), "f" * 40)
        self.assertEqual((self.repo / "snapshots" / ("f" * 40) / "tiny-Q4_K_M.gguf").read_bytes(), Q4)

    def test_parts(self):
        done = self.succeeds(f"{REPO}:q6_k")
        for n, part in enumerate(PARTS, 1):
            self.assert_in_cache(f"BIG/tiny-Q6_K-0000{n}-of-00003.gguf", part)
        self.assertTrue(done.stdout.strip().endswith("BIG/tiny-Q6_K-00001-of-00003.gguf"))

    def test_places(self):
        for name, value, root in (("HF_HUB_CACHE", "cache", "cache"), ("HF_HOME", "home", "home/hub"),
                                  ("XDG_CACHE_HOME", "xdg", "xdg/huggingface/hub"), (None, "", ".cache/huggingface/hub")):
            self.environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "HF_ENDPOINT": self.hub.url}
            if name:
                self.environment[name] = str(self.folder / value)
            done = self.succeeds("acme/single")
            self.assertEqual(pathlib.Path(done.stdout.strip()),
                             self.folder / root / "models--acme--single/snapshots" / COMMIT / "only.gguf")

    def test_choice(self):
        self.succeeds(f"{REPO}:f16")
        self.assert_in_cache("tiny-F16.gguf", FILES[REPO, "tiny-F16.gguf"])
        self.assertEqual(len(self.hub.requests("GET", "/resolve/")), 1, "BF16 holds F16, too, and was not meant")
        self.fails("tiny-Q4_K_M.gguf", "tiny-Q8_0.gguf", "BIG/tiny-Q6_K-00001-of-00003.gguf", name=REPO)
        self.fails("Q5_K", "tiny-Q8_0.gguf", name=f"{REPO}:Q5_K")
        self.fails("GGUF", name="acme/empty")
        self.fails("1 of its 2 parts", name="acme/hole")

    def test_pages_of_the_list(self):
        self.hub.rules.page_size = 3
        self.succeeds(f"{REPO}:Q8_0")
        self.assert_in_cache("tiny-Q8_0.gguf", Q8)
        self.assertGreater(len(self.hub.requests("GET", "/tree/")), 2)

    def test_file_kept_in_git(self):
        done = self.succeeds("acme/git")
        data = FILES["acme/git", "git-kept.gguf"]
        name = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        self.assertEqual(os.readlink(done.stdout.strip()), f"../../blobs/{name}")

    def test_revision(self):
        self.succeeds("acme/single", "--revision", "refs/pr/7")
        self.assertEqual(self.hub.requests("GET", "/tree/")[0]["path"],
                         "/api/models/acme/single/tree/refs%2Fpr%2F7?recursive=true")
        folder = self.folder / "hf/hub/models--acme--single"
        self.assertEqual((folder / "refs/refs/pr/7").read_text(), COMMIT)
        self.fails("--revision", options=("--revision", "../x"))

    def test_mirror_without_head(self):
        self.hub.rules.no_head = True
        self.succeeds()
        self.assert_in_cache("tiny-Q4_K_M.gguf", Q4)
        self.hub.rules.wrong_commit = "../evil"
        self.fails("names no commit")

    def test_endpoint_with_a_path(self):
        self.environment["HF_ENDPOINT"] += "/mirror/"
        self.fails("HTTP 404", "/mirror/api/models/" + REPO)

    # Interruptions.

    def test_cut_connection_goes_on_by_itself(self):
        self.hub.rules.cuts.extend([100_000, 100_000])
        self.succeeds()
        self.assert_in_cache("tiny-Q4_K_M.gguf", Q4)
        ranges = [r["headers"].get("Range") for r in self.hub.requests("GET", "/resolve/")]
        self.assertEqual(ranges, [None, "bytes=100000-", "bytes=200000-"])

    def test_resume_in_another_run(self):
        self.hub.rules.cuts.extend([50_000, 0])
        self.fails("50000 bytes are kept")
        self.assertEqual(self.incomplete(Q4).read_bytes(), Q4[:50_000])
        self.hub.log.clear()
        self.succeeds()
        bodies = self.hub.requests("GET", "/resolve/")
        self.assertEqual([b["headers"]["Range"] for b in bodies], ["bytes=50000-"])
        self.assertEqual(bodies[0]["sent"], len(Q4) - 50_000)
        self.assert_in_cache("tiny-Q4_K_M.gguf", Q4)

    def test_killed_in_the_middle(self):
        self.hub.rules.slow = threading.Event()
        process = subprocess.Popen(self.command(f"{REPO}:Q4_K_M"), env=self.environment, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + WATCHDOG_S
        while not (self.incomplete(Q4).exists() and self.incomplete(Q4).stat().st_size >= 65536):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        process.kill()
        process.wait()
        self.hub.rules.slow.set()
        self.hub.log.clear()
        self.succeeds()
        self.assertEqual(self.hub.requests("GET", "/resolve/")[0]["headers"]["Range"], "bytes=65536-")
        self.assert_in_cache("tiny-Q4_K_M.gguf", Q4)

    def test_server_without_ranges_starts_anew(self):
        self.hub.rules.cuts.extend([50_000, 0])
        self.fails()
        self.hub.rules.ranges = False
        self.succeeds()
        self.assert_in_cache("tiny-Q4_K_M.gguf", Q4)

    def test_rotten_rest_is_thrown_away(self):
        self.incomplete(Q4).parent.mkdir(parents=True)
        self.incomplete(Q4).write_bytes(b"x" * 1000)
        self.fails("checksum", "run it again")
        self.assertFalse(self.incomplete(Q4).exists())
        self.succeeds()
        self.assert_in_cache("tiny-Q4_K_M.gguf", Q4)

    def test_two_at_once_fetch_one_body(self):
        self.hub.rules.slow = threading.Event()
        start = lambda: subprocess.Popen(self.command(f"{REPO}:Q4_K_M"), env=self.environment, text=True,
                                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        first = start()
        deadline = time.monotonic() + WATCHDOG_S
        while not self.hub.requests("GET", "/resolve/"):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        second = start()
        self.assertIn("waiting", second.stderr.readline())
        self.hub.rules.slow.set()
        for process in (first, second):
            output, errors = process.communicate(timeout=WATCHDOG_S)
            self.assertEqual(process.returncode, 0, errors)
        self.assertEqual(len(self.hub.requests("GET", "/resolve/")), 1)
        self.assert_in_cache("tiny-Q4_K_M.gguf", Q4)

    def test_full_disk_keeps_what_came(self):
        # A limit on the size of files stands for the full disk; its signal is ignored as write() shall fail.
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        self.fails("cannot write", "make room", preexec_fn=limit, restore_signals=False)
        self.assertEqual(self.incomplete(Q4).read_bytes(), Q4[:100_000])
        self.succeeds()
        self.assert_in_cache("tiny-Q4_K_M.gguf", Q4)

    def test_more_than_the_disk_holds_is_refused_before(self):
        self.hub.rules.announced_size = 1 << 60
        self.fails("make room")
        self.assertEqual(self.hub.requests("GET", "/resolve/"), [])

    # Hubs that misbehave.

    def test_wrong_checksum(self):
        self.hub.rules.wrong_content = True
        self.fails("checksum", self.blob(Q4).name)
        self.assertFalse(self.blob(Q4).exists())
        self.assertFalse(self.incomplete(Q4).exists())
        self.assertFalse((self.repo / "snapshots" / COMMIT / "tiny-Q4_K_M.gguf").exists())
        self.assertFalse((self.repo / "refs/main").exists())

    def test_sizes_that_do_not_match(self):
        self.hub.rules.lie_length = 5
        self.fails(f"body of {len(Q4) + 5} bytes, wanted {len(Q4)}")
        self.hub.rules.lie_length, self.hub.rules.chunked, self.hub.rules.surplus = 0, True, b"more"
        self.fails("more than the 300000 bytes")
        self.assertFalse(self.blob(Q4).exists())

    def test_chunked_body(self):
        self.hub.rules.chunked = True
        self.succeeds()
        self.assert_in_cache("tiny-Q4_K_M.gguf", Q4)

    def test_path_tricks(self):
        for path in ("../../evil.gguf", "/evil.gguf", "a//evil.gguf", "a/../../evil.gguf", "evil\0.gguf", "evil\n.gguf",
                     "a\\evil.gguf", "x" * 300 + ".gguf", ""):
            self.hub.rules.extra_entries = [{"type": "file", "path": path, "size": 4, "oid": "0" * 40}]
            self.fails("refused", name="acme/single")
        self.assertEqual(self.hub.requests("GET", "/resolve/"), [])
        self.assertFalse((self.folder / "hf").exists())

    def test_names_that_become_files(self):
        for oid in ("../../../evil", "0" * 63, "Z" * 64, "", 7, None):
            entry = {"type": "file", "path": "evil.gguf", "size": 4, "oid": "0" * 40, "lfs": {"oid": oid, "size": 4}}
            self.hub.rules.extra_entries = [entry]
            self.fails("no checksum", name="acme/single")
        self.hub.rules.extra_entries = []
        self.hub.rules.wrong_commit = "../../../../evil"
        self.fails("X-Repo-Commit", name="acme/single")
        for entry in ("text", {"type": "file", "path": "a.gguf", "oid": "0" * 40, "size": -1}):
            self.hub.rules.extra_entries = [entry]
            self.fails(name="acme/single")

    def test_bad_names_ask_nobody(self):
        for name in ("tiny", "a/b/c", "../x", "a/..", "a/b:", "a/b:../x", "a b/c", "/a", "a/", "-a/b", "a/b%2f..", ".a/b"):
            done = self.pull("--", name) if name.startswith("-") else self.pull(name)
            self.assertNotEqual(done.returncode, 0, name)
        self.assertEqual(self.hub.log, [])

    def test_redirect_loop(self):
        self.hub.rules.loop = True
        self.fails("more than 10 redirects")
        self.assertEqual(len(self.hub.log), 11)

    def test_endless_headers(self):
        self.hub.rules.big_header = 60_000
        self.succeeds("acme/single")
        self.hub.rules.big_header = 70_000
        self.fails("headers longer than 65536 bytes", name="acme/single")

    def test_not_there(self):
        self.fails("HTTP 404", "acme/nothing", name="acme/nothing")

    def test_nobody_listens(self):
        self.hub.close()
        self.fails("cannot connect to 127.0.0.1", "set HF_ENDPOINT to a mirror", "needs no pull")

    def test_offline(self):
        for name in ("KVARTO_OFFLINE", "HF_HUB_OFFLINE"):
            self.environment[name] = "1"
            self.fails(f"{name} is set")
            del self.environment[name]
        self.assertEqual(self.hub.log, [])

    # Tokens, stores, proxies, certificates.

    def test_token(self):
        self.hub.rules.token = SECRET
        self.fails("HTTP 401", "HF_TOKEN")
        self.environment["HF_TOKEN"] = SECRET + "x"
        self.fails("HTTP 401", "not accepted")
        self.environment["HF_TOKEN"] = f" {SECRET}\n"
        self.succeeds()
        del self.environment["HF_TOKEN"]
        (self.folder / "hf/token").write_text(SECRET + "\n")
        self.succeeds(f"{REPO}:Q8_0")
        (self.folder / "hf/token").write_text("two words\nInjected: yes")
        self.fails("holds no token")

    def test_token_stays_with_the_hub(self):
        store = self.start()
        self.hub.rules.token, self.hub.rules.store = SECRET, store.url
        self.environment["HF_TOKEN"] = SECRET
        self.succeeds()
        self.assert_in_cache("tiny-Q4_K_M.gguf", Q4)
        self.assertTrue(all(r["headers"].get("Authorization") == f"Bearer {SECRET}" for r in self.hub.log))
        self.assertEqual(len(store.log), 1)
        self.assertNotIn("Authorization", store.log[0]["headers"])
        self.assertEqual(self.hub.requests("GET", "/resolve/")[0]["sent"], 0, "the content came from the store")

    def test_resume_from_a_store(self):
        store = self.start()
        self.hub.rules.store = store.url
        store.rules.cuts.append(70_000)
        self.succeeds()
        self.assertEqual([r["headers"].get("Range") for r in store.log], [None, "bytes=70000-"])
        self.assert_in_cache("tiny-Q4_K_M.gguf", Q4)

    def test_https(self):
        authority, certificate = hub_stub.make_certificates(self.folder)
        hub = self.start(certificate)
        self.environment["HF_ENDPOINT"] = hub.url
        self.fails("not trusted", "SSL_CERT_FILE")
        self.assertEqual(hub.log, [])
        self.environment["SSL_CERT_FILE"] = str(authority)
        self.environment["HF_ENDPOINT"] = f"https://localhost:{hub.port}"
        self.fails("not trusted", "mismatch")
        self.assertEqual(hub.log, [])
        self.environment["HF_ENDPOINT"] = hub.url
        hub.rules.cuts.append(100_000)
        self.succeeds()
        self.assert_in_cache("tiny-Q4_K_M.gguf", Q4)
        self.assertEqual(hub.requests("GET", "/resolve/")[1]["headers"]["Range"], "bytes=100000-")
        hub.rules.store = self.hub.url
        self.fails("from https down to http", name=f"{REPO}:Q8_0")

    def test_http_proxy(self):
        proxy = hub_stub.Proxy()
        self.addCleanup(proxy.close)
        self.environment.update(http_proxy=f"127.0.0.1:{proxy.port}", HF_ENDPOINT=f"http://hub.test:{self.hub.port}")
        self.succeeds("acme/single")
        self.assertEqual(len(proxy.log), 3)
        self.assertTrue(all(line.split(" ")[1].startswith(f"http://hub.test:{self.hub.port}/") for line in proxy.log))
        self.environment["HF_ENDPOINT"] = self.hub.url
        for exception in ("127.0.0.1", f"other.test, 127.0.0.1:{self.hub.port}", "*"):
            self.environment["no_proxy"] = exception
            self.succeeds("acme/single")
        self.assertEqual(len(proxy.log), 3)

    def test_https_proxy(self):
        authority, certificate = hub_stub.make_certificates(self.folder)
        hub = self.start(certificate)
        proxy = hub_stub.Proxy(base64.b64encode(b"user:pass word").decode())
        self.addCleanup(proxy.close)
        self.environment.update(https_proxy=f"http://127.0.0.1:{proxy.port}", SSL_CERT_FILE=str(authority),
                                HF_ENDPOINT=f"https://hub.test:{hub.port}", HF_TOKEN=SECRET)
        self.fails("CONNECT", "407", name="acme/single")
        self.environment["https_proxy"] = f"http://user:pass%20word@127.0.0.1:{proxy.port}"
        self.succeeds("acme/single")
        self.assertEqual(set(proxy.log), {f"CONNECT hub.test:{hub.port} HTTP/1.1"})
        self.assertFalse(any(SECRET in head for head in proxy.headers), "the token is the server's, not the proxy's")
        self.assertTrue(all("Proxy-Authorization" not in r["headers"] for r in hub.log))
        self.environment["https_proxy"] = "socks5://127.0.0.1:1"
        self.fails("https_proxy", "http://host:port", name="acme/single")

    def test_endpoint_that_is_no_url(self):
        for endpoint in ("ftp://127.0.0.1", "http://", "http://user:pw@127.0.0.1", "http://127.0.0.1:99999"):
            self.environment["HF_ENDPOINT"] = endpoint
            self.fails()
        self.assertEqual(self.hub.log, [])


if __name__ == "__main__":
    if not os.access(KVARTO, os.X_OK):
        sys.exit(f"{KVARTO}: not built")
    unittest.main(verbosity=2)
