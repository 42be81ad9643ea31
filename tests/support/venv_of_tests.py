"""Python tests that need packages which are not Debian's run in the virtual environment of tools/test_venv."""
import importlib.util
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def enter_venv(*modules):
    """Starts this program again in that environment, unless this Python has all `modules`."""
    lacking = [module for module in modules if not importlib.util.find_spec(module)]
    if not lacking:
        return
    if "KVARTO_TEST_VENV" in os.environ:
        raise ImportError(f"the test environment lacks {', '.join(lacking)}; remove build/test-venv")
    made = subprocess.run([ROOT / "tools/test_venv"], stdout=subprocess.PIPE, text=True, check=True)
    python = made.stdout.strip()
    os.environ["KVARTO_TEST_VENV"] = python
    os.execv(python, [python, *sys.argv])
