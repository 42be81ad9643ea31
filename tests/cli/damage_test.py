#!/usr/bin/env python3
"""Model files that are damaged, or become so while the program reads them: `tests/cli/damage_test.py KVARTO [CHECK]`."""
import os
import pathlib
import resource
import signal
import struct
import subprocess
import sys
import time

sys.dont_write_bytecode = True
import cli_test
from cli_test import GEMMA, LLAMA, error_line, kvarto_json, main


def damaged_context_lengths_are_refused_at_once(folder):
    content, key = bytearray(pathlib.Path(GEMMA).read_bytes()), b"gemma3.context_length"
    at, path = content.index(key) + len(key) + 4, folder / "gemma.gguf"  # behind the value's type
    assert struct.unpack_from("<I", content, at) == (2048,)
    for length in (2**31 - 1, 2**24 + 1, 0):
        struct.pack_into("<I", content, at, length)
        path.write_bytes(content)
        assert f"{key.decode()} is {length}; expected 1 to 16777216 (a damaged file?)" in error_line(["inspect", path], 1)
    struct.pack_into("<I", content, at, 2**24)
    path.write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    assert kvarto_json("inspect", path, "--json")["context_length"] == 2**24
    spent = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    assert spent < 5, f"the plan took {spent} s"  # under a second; sanitizers need more


def a_file_cut_while_it_is_read_is_one_line(folder):
    """Mapped pages behind the new end raise SIGBUS: while it is parsed, while it is loaded, and harmless later."""
    path, line = folder / "model.gguf", "a file that is mapped (the model?) was changed or cut while it was read"
    said = 0
    for turn in range(40):
        path.write_bytes(pathlib.Path(LLAMA).read_bytes())
        run = subprocess.Popen([cli_test.KVARTO, "run", path, "-p", "hello", "--max-tokens", "8", "-q"], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
        maps = pathlib.Path(f"/proc/{run.pid}/maps")
        if turn % 4 == 3:
            time.sleep(0.002 * turn)
        else:  # as soon as it is mapped, stopped so that it does not get ahead
            while run.poll() is None:
                try:
                    if str(path) in maps.read_text():
                        break
                except OSError:  # it has ended
                    break
        if run.poll() is None:
            run.send_signal(signal.SIGSTOP)
        os.truncate(path, 0)
        if run.returncode is None:
            run.send_signal(signal.SIGCONT)
        _, err = run.communicate(timeout=120)
        assert run.returncode in (0, 1), (run.returncode, err)
        lines = err.splitlines()
        assert len(lines) == run.returncode and all(text.startswith("kvarto: error: ") for text in lines), (run.returncode, err)
        said += line in err
        if said >= 3 and turn >= 8:
            break
    assert said, "no run met the end of its file"


CHECKS = (damaged_context_lengths_are_refused_at_once, a_file_cut_while_it_is_read_is_one_line)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], CHECKS))
