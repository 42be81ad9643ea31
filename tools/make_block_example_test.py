#!/usr/bin/env python3
"""The committed example of docs/block_format.md is what tools/make_block_example.py computes."""
import pathlib
import subprocess
import sys

tool = pathlib.Path(__file__).with_name("make_block_example.py")
sys.exit(subprocess.run([sys.executable, str(tool), "--check"]).returncode)
