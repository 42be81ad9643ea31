#!/usr/bin/env python3
"""Writes the seed corpus of tests/fuzz/gguf_fuzz.cc, byte by byte, with struct alone.

Usage: tools/make_gguf_seeds.py [FOLDER]   (default: tests/fuzz/corpus/gguf)

small.gguf is also the independent sample that src/format/gguf_test.cc reads: it holds every value type, arrays of several
and two tensors.
"""
import argparse
import pathlib
import struct

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}


def text(value):
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def element(kind, value):
    return text(value) if kind == STRING else struct.pack("<" + CODES[kind], value)


def scalar(key, kind, value):
    return text(key) + struct.pack("<I", kind) + element(kind, value)


def array(key, kind, values):
    return text(key) + struct.pack("<IIQ", ARRAY, kind, len(values)) + b"".join(element(kind, v) for v in values)


def tensor(name, shape, kind, offset):
    return text(name) + struct.pack("<I%dQIQ" % len(shape), len(shape), *shape, kind, offset)


def file(values=(), tensors=(), data=b"", version=3, alignment=32, counts=None):
    tensor_count, value_count = counts or (len(tensors), len(values))
    head = b"GGUF" + struct.pack("<IQQ", version, tensor_count, value_count) + b"".join(values) + b"".join(tensors)
    return head + b"\0" * (-len(head) % alignment) + data


def small():
    values = [
        scalar("general.architecture", STRING, "llama"),
        scalar("test.u8", U8, 200),
        scalar("test.i8", I8, -100),
        scalar("test.u16", U16, 60000),
        scalar("test.i16", I16, -30000),
        scalar("test.u32", U32, 4000000000),
        scalar("test.i32", I32, -2000000000),
        scalar("test.f32", F32, 0.1),
        scalar("test.bool", BOOL, 1),
        scalar("test.u64", U64, 2**63 + 1),
        scalar("test.i64", I64, -(2**62)),
        scalar("test.f64", F64, 0.1),
        array("test.strings", STRING, ["a", "", "\u00e9\u00df"]),
        array("test.i32s", I32, [-1, 0, 7]),
        array("test.f32s", F32, [0.5, -2.0]),
        array("test.bools", BOOL, [1, 0, 1]),
        array("test.none", U32, []),
    ]
    tensors = [tensor("a.weight", [4, 2], 0, 0), tensor("b.weight", [32], 8, 32)]
    data = struct.pack("<8f", *range(8)) + struct.pack("<e32b", 0.5, *range(-16, 16))
    return file(values, tensors, data)


def nested(depth):
    value = text("deep") + struct.pack("<I", ARRAY)
    for _ in range(depth - 1):
        value += struct.pack("<IQ", ARRAY, 1)
    return file([value + struct.pack("<IQB", U8, 1, 7)])


def split_part(number, count, total, values, tensors, data):
    keys = [scalar("split.no", U16, number), scalar("split.count", U16, count), scalar("split.tensors.count", I32, total)]
    return file(keys + values, tensors, data)


def seeds():
    one = [tensor("t", [8], 0, 0)]
    eight = struct.pack("<8f", *range(8))
    yield "small", small()
    yield "empty", file()
    yield "version2", file([scalar("k", U32, 1)], one, eight, version=2)
    yield "aligned64", file([scalar("general.alignment", U32, 64)], one, eight, alignment=64)
    yield "alignment0", file([scalar("general.alignment", U32, 0)], one, eight)
    yield "nested2", nested(2)
    yield "nested9", nested(9)
    yield "big_endian", b"GGUF" + struct.pack(">IQQ", 3, 0, 0)
    yield "counts", file([scalar("k", U32, 1)], one, eight, counts=(2**63, 2**63))
    yield "long_string", file([text("k") + struct.pack("<IQ", STRING, 2**63) + b"abc"])
    yield "long_array", file([text("k") + struct.pack("<IIQ", ARRAY, U64, 2**63)])
    yield "twice", file([scalar("k", U32, 1), scalar("k", U32, 2)], one + one, eight)
    yield "overlap", file([], [tensor("a", [16], 0, 0), tensor("b", [8], 0, 32)], eight * 2)
    yield "split", split_part(0, 2, 2, [scalar("general.architecture", STRING, "llama")], one, eight)
    yield "blocks", file([], [tensor("q", [256, 2], 12, 0), tensor("h", [2, 2, 2, 2], 1, 288)], bytes(range(160)) * 2)


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=pathlib.Path, default=root / "tests/fuzz/corpus/gguf")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in seeds():
        (folder / (name + ".gguf")).write_bytes(data)


if __name__ == "__main__":
    main()
