#!/usr/bin/env python3
"""Computes the worked example of docs/block_format.md from the page's own rules, with nothing of Kvarto's code:
`tools/make_block_example.py` writes tests/golden/block_example.json, `--check` compares. src/kv/block_format_test.cc holds the
real code against the same file.

One layer, 2 KV heads, key and value dims 4. K of token t, head h, dim d is 64 h + 4 t + d; V is that plus 0.5.
"""
import argparse
import hashlib
import json
import pathlib
import struct
import sys

OUTPUT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/block_example.json"
HEADS, DIMS, PADDED, SUB_TILE = 2, 4, 16, 16
TOKENS = 40  # two blocks of 16 and an open one of 8; or one block of 32 and the same open tokens


def key(token, head, dim):
    return 64 * head + 4 * token + dim


def value(token, head, dim):
    return key(token, head, dim) + 0.5


def f16(x):
    return struct.pack("<e", x)


def bf16(x):
    return struct.pack("<f", x)[2:]  # exact: every number of the example has at most 8 significant bits in block 0


ZERO = b"\0\0"


def key_tile(encode, first, tokens, head):
    """Sub-tiles of 16 tokens ascending; inside one [dim][16 tokens]."""
    out = b""
    for start in range(first, first + tokens, SUB_TILE):
        for dim in range(PADDED):
            for token in range(start, start + SUB_TILE):
                out += encode(key(token, head, dim)) if dim < DIMS else ZERO
    return out


def value_tile(encode, first, tokens, head):
    """Sub-tiles of 16 tokens ascending; inside one [16 tokens][dim]."""
    out = b""
    for token in range(first, first + tokens):
        for dim in range(PADDED):
            out += encode(value(token, head, dim)) if dim < DIMS else ZERO
    return out


def block(encode, index, tokens):
    """Layers, then heads, then planes: K before V. Each tile here is a multiple of 64 bytes by itself."""
    out = b""
    for head in range(HEADS):
        for tile in (key_tile, value_tile):
            data = tile(encode, index * tokens, tokens, head)
            assert len(data) % 64 == 0
            out += data
    return out


def cbor_head(major, argument):
    for code, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if argument < 24:
            return bytes([major << 5 | argument])
        if argument < 1 << (8 * size):
            return bytes([major << 5 | code]) + argument.to_bytes(size, "big")
    raise ValueError(argument)


def cbor(item):
    if item is None:
        return b"\xf6"
    if isinstance(item, int):
        return cbor_head(0, item) if item >= 0 else cbor_head(1, -1 - item)
    if isinstance(item, bytes):
        return cbor_head(2, len(item)) + item
    if isinstance(item, str):
        text = item.encode()
        return cbor_head(3, len(text)) + text
    return cbor_head(4, len(item)) + b"".join(cbor(entry) for entry in item)


def name(parent, tokens, salt=None):
    extra = [["cache_salt", salt]] if salt is not None else None
    return hashlib.sha256(cbor([parent, tokens, extra])).digest()


def example():
    root = hashlib.sha256(cbor("vllm-none-hash")).digest()
    first, second = list(range(16)), list(range(16, 32))
    wide = [0, 23, 24, 255, 256, 65535, 65536, 151643, 200000, 1, 2, 3, 4, 5, 6, 7]  # every width of an integer
    block_0 = name(root, first)
    salted = name(root, first, "s1")
    adapted = hashlib.sha256(cbor([root, "adapter", "x1"])).digest()
    bytes_0 = block(f16, 0, 16)
    return {
        "heads": HEADS, "dims": DIMS, "padded_dims": PADDED,
        "block_bytes": len(bytes_0),
        "tile_bytes": len(key_tile(f16, 0, 16, 0)),
        "first_bytes": {str(at): bytes_0[at:at + 8].hex() for at in (0, 2, 32, 128, 512, 520, 544, 1024, 1536)},
        "open_block_first_bytes": key_tile(f16, 16, 16, 0)[:10].hex(),  # of an open block with tokens 16 to 20
        "sha256_of_bytes": {
            "float16, block 0 of 16": hashlib.sha256(bytes_0).hexdigest(),
            "float16, block 1 of 16": hashlib.sha256(block(f16, 1, 16)).hexdigest(),
            "bfloat16, block 0 of 16": hashlib.sha256(block(bf16, 0, 16)).hexdigest(),
            "float16, block 0 of 32": hashlib.sha256(block(f16, 0, 32)).hexdigest(),
        },
        "cbor_of_block_0": cbor([root, first, None]).hex(),
        "wide_tokens": wide,
        "names": {
            "root": root.hex(),
            "block 0": block_0.hex(),
            "block 1": name(block_0, second).hex(),
            "block 0, salt s1": salted.hex(),
            "block 1, salt s1": name(salted, second).hex(),
            "wide tokens": name(root, wide).hex(),
            "root, adapter x1": adapted.hex(),
            "block 0, adapter x1": name(adapted, first).hex(),
        },
    }


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare and write nothing")
    check = parser.parse_args(arguments).check
    text = json.dumps(example(), indent=2) + "\n"
    if check:
        if OUTPUT.read_text() != text:
            print(f"{OUTPUT.name} is not what tools/make_block_example.py computes; run it and look at the difference")
            return 1
        return 0
    OUTPUT.write_text(text)
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
