#!/usr/bin/env python3
"""Writes tests/golden/kv_events.json: MessagePack values and KV event batches as other people's libraries encode them.

Needs msgspec and msgpack from PyPI (a virtual environment will do): make_kv_event_golden.py [OUTPUT]. The structs declare
vLLM's published field names and order; msgspec encodes them. Every value is encoded by both libraries, which must agree.
"""
import argparse
import hashlib
import json
import pathlib
import struct
import sys

import msgpack
import msgspec

OUTPUT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/kv_events.json"


class StoredMap(msgspec.Struct, tag="BlockStored", omit_defaults=True):
    block_hashes: list
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class RemovedMap(msgspec.Struct, tag="BlockRemoved", omit_defaults=True):
    block_hashes: list
    medium: str | None
    group_idx: int | None = None


class ClearedMap(msgspec.Struct, tag="AllBlocksCleared"):
    pass


class StoredArray(msgspec.Struct, tag="BlockStored", array_like=True, omit_defaults=True):
    block_hashes: list
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None


class RemovedArray(msgspec.Struct, tag="BlockRemoved", array_like=True, omit_defaults=True):
    block_hashes: list
    medium: str | None


class ClearedArray(msgspec.Struct, tag="AllBlocksCleared", array_like=True):
    pass


class Batch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list
    data_parallel_rank: int | None = None


KINDS = {"full": "full_attention", "window": "sliding_window", "latent": "mla_attention", "state": "mamba"}


def name(text, full):
    digest = bytes.fromhex(text)
    return digest if full else int.from_bytes(digest[-8:], "big")


def event_struct(event, array, full):
    if event["kind"] == "cleared":
        return ClearedArray() if array else ClearedMap()
    hashes = [name(h, full) for h in event["hashes"]]
    if event["kind"] == "removed":
        return RemovedArray(hashes, "GPU") if array else RemovedMap(hashes, "GPU", event["group"])
    parent = None if event["parent"] is None else name(event["parent"], full)
    fields = (hashes, parent, event["tokens"], event["block_tokens"], None, "GPU")
    if array:
        return StoredArray(*fields)
    keys = [[event["salt"]] if i == 0 and event["salt"] else None for i in range(len(hashes))]
    window = event["window"] if event["group_kind"] == "window" else None
    return StoredMap(*fields, None, keys, event["group"], KINDS[event["group_kind"]], window)


def stored(hashes, parent, tokens, block_tokens, group=0, kind="full", window=0, salt=""):
    return {"kind": "stored", "hashes": hashes, "parent": parent, "tokens": tokens, "block_tokens": block_tokens,
            "group": group, "group_kind": kind, "window": window, "salt": salt}


def removed(digest, group=0):
    return {"kind": "removed", "hashes": [digest], "group": group}


def digest(number):
    return hashlib.sha256(b"block %d" % number).hexdigest()


def batches():
    seven = bytes(31).hex() + "07"
    run = [digest(i) for i in range(20)]
    sizes = [0, 127, 128, 255, 256, 65535, 65536, 151935, 2**31 - 1]
    lists = {
        "one of each": (1.5, 0, [stored([seven], None, [1, 2], 2), removed(seven), {"kind": "cleared"}]),
        "nothing": (0.0, 0, []),
        "a run of twenty blocks, every size of token": (
            1760000000.123456, 0, [stored(run, digest(100), [sizes[i % 9] for i in range(320)], 16)]),
        "a salted first block and its child": (
            1760000001.0, 0, [stored(run[:2], None, list(range(32)), 16, salt="tenant \u00e9\u4e16")]),
        "groups of a hybrid model, rank 3": (2.25, 3, [
            removed(run[5], 1),
            stored(run[:1], None, list(range(16)), 16, 0, "window", 512),
            stored(run[:1], None, list(range(16)), 16, 1, "full"),
            stored(run[:1], None, list(range(16)), 16, 2, "latent"),
            stored(run[:1], None, list(range(16)), 16, 3, "state"),
            removed(run[0], 0)]),
    }
    out = []
    for title, (ts, rank, events) in lists.items():
        for array in (False, True):
            for full in (False, True):
                batch = Batch(ts, [event_struct(e, array, full) for e in events], rank)
                encoded = msgspec.msgpack.encode(batch)
                decoded = msgpack.unpackb(encoded, strict_map_key=False)
                assert msgpack.packb(decoded, use_bin_type=True) == encoded, title
                out.append({"name": title, "array_encoding": array, "full_hashes": full, "ts": ts, "rank": rank,
                            "events": events, "hex": encoded.hex()})
    return out


def values():
    """[kind, value, length, first bytes]: of long values the first 8 bytes and the length are enough."""
    out = []

    def add(kind, shown, value):
        encoded = msgspec.msgpack.encode(value)
        assert encoded == msgpack.packb(value, use_bin_type=True), (kind, shown)
        out.append({"kind": kind, "value": shown, "length": len(encoded), "start": encoded[:9].hex()})

    edges = [0, 1, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1]
    for number in edges:
        add("unsigned", str(number), number)
    for number in [0, 127, 128, 2**63 - 1, -1, -32, -33, -128, -129, -32768, -32769, -2**31, -2**31 - 1, -2**63]:
        add("integer", str(number), number)
    for number in [0.0, -0.0, 1.5, 1e300, -1 / 3, 1760000000.123456]:
        add("float64", struct.pack(">d", number).hex(), number)
    for length in [0, 1, 31, 32, 255, 256, 65535, 65536]:
        add("text", str(length), "a" * length)
        add("binary", str(length), b"a" * length)
    for length in [0, 1, 15, 16, 65535, 65536]:
        add("array", str(length), [None] * length)
        add("map", str(length), {i: None for i in range(length)})
    add("nil", "", None)
    add("boolean", "0", False)
    add("boolean", "1", True)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", nargs="?", type=pathlib.Path, default=OUTPUT)
    output = parser.parse_args().output
    version = ".".join(map(str, msgpack.version))
    lines = [f'"made by": "tools/make_kv_event_golden.py with msgspec {msgspec.__version__}, msgpack {version}"']
    for key, rows in (("values", values()), ("batches", batches())):
        lines.append(f'"{key}": [\n' + ",\n".join(json.dumps(row, ensure_ascii=True) for row in rows) + "\n]")
    output.write_text("{\n" + ",\n".join(lines) + "\n}\n")


main()
