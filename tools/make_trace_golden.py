#!/usr/bin/env python3
"""Prints the block ids that src/server/trace_recorder_test.cc expects, computed with hashlib and CBOR by hand.

A chain begins with SHA-256 of "LENGTH:SECRET" and the cache salt; a block's hash is SHA-256 of the CBOR of
[the hash before, [tokens], null]; its id is the last 8 bytes, without the highest bit.
"""
import hashlib

SECRET, SALT, BLOCK = "secret", "salt", 16
PROMPT, OUTPUT = list(range(100, 120)), list(range(30))


def head(major, number):
    if number < 24:
        return bytes([major << 5 | number])
    return bytes([major << 5 | 24, number])  # nothing here is above 255


def block_hash(parent, tokens):
    return hashlib.sha256(head(4, 3) + head(2, 32) + parent + head(4, len(tokens)) +
                          b"".join(head(0, token) for token in tokens) + b"\xf6").digest()


def ids(tokens):
    parent, found = hashlib.sha256(f"{len(SECRET)}:{SECRET}{SALT}".encode()).digest(), []
    for first in range(0, len(tokens), BLOCK):
        parent = block_hash(parent, tokens[first:first + BLOCK])
        found.append(int.from_bytes(parent[-8:], "big") & (2**63 - 1))
    return found


computed = PROMPT + OUTPUT[:-1]
print("hash_ids", ids(PROMPT))
print("output_hash_ids", ids(computed)[len(PROMPT) // BLOCK:len(computed) // BLOCK])
