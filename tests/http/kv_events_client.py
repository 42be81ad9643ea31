"""Listens to KV events as a router does: pyzmq for the frames, msgspec for strict decoding of the map form.

Fields that the structs do not name are errors, so is a sequence gap; Router keeps what is stored and says what is wrong
with an event that does not fit.
"""
import struct
import time

import msgspec
import zmq

END = b"\xff" * 8


class BlockStored(msgspec.Struct, tag="BlockStored", forbid_unknown_fields=True):
    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[list[str] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(msgspec.Struct, tag="BlockRemoved", forbid_unknown_fields=True):
    block_hashes: list[int | bytes]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag="AllBlocksCleared", forbid_unknown_fields=True):
    pass


class Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


DECODER = msgspec.msgpack.Decoder(Batch)


class Listener:
    """Batches of one endpoint in order; `replay_endpoint` fills in what was published before it listened."""

    def __init__(self, endpoint, replay_endpoint=None, topic=""):
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.SUB)
        self.socket.setsockopt_string(zmq.SUBSCRIBE, topic)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(endpoint)
        self.replay_endpoint = replay_endpoint
        self.next_number = 0

    def close(self):
        self.context.destroy(linger=0)

    def replay(self, first, watchdog_s=30):
        """[(number, Batch)] of everything that is kept from number `first` on."""
        socket = self.context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVTIMEO, int(watchdog_s * 1000))
        socket.connect(self.replay_endpoint)
        socket.send_multipart([b"", struct.pack(">Q", first)])
        out = []
        try:
            while True:
                empty, topic, number, payload = socket.recv_multipart()
                assert empty == b""
                if number == END:
                    assert (topic, payload) == (b"", b"")
                    return out
                out.append((struct.unpack(">Q", number)[0], DECODER.decode(payload)))
        finally:
            socket.close()

    def batches(self, seconds):
        """Yields batches as they come, none twice, for at most `seconds`."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and self.socket.poll(int(left * 1000)):
            _, number, payload = self.socket.recv_multipart()
            number = struct.unpack(">Q", number)[0]
            if number > self.next_number and self.replay_endpoint:
                for missed, batch in self.replay(self.next_number):
                    assert missed == self.next_number, f"batch {self.next_number} is lost"
                    self.next_number += 1
                    yield batch
            if number >= self.next_number:
                assert number == self.next_number, f"batch {self.next_number} is lost"
                self.next_number += 1
                yield DECODER.decode(payload)


class Router:
    """What a router knows: `blocks` is the set of (hash, group) that are stored."""

    def __init__(self):
        self.blocks = set()
        self.tokens = {}  # hash: the block's tokens

    def apply(self, batch):
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                self.blocks.clear()
            elif isinstance(event, BlockRemoved):
                assert len(event.block_hashes) == 1
                self.blocks.remove((event.block_hashes[0], event.group_idx))
            else:
                self.store(event)

    def store(self, event):
        size = event.block_size
        assert len(event.token_ids) == size * len(event.block_hashes)
        assert len(event.extra_keys) == len(event.block_hashes)
        assert event.medium == "GPU" and event.lora_id is None and event.lora_name is None
        assert (event.kv_cache_spec_kind == "sliding_window") == (event.kv_cache_spec_sliding_window is not None)
        for i, digest in enumerate(event.block_hashes):
            assert (digest, event.group_idx) not in self.blocks, "stored twice"
            self.blocks.add((digest, event.group_idx))
            tokens = event.token_ids[i * size:(i + 1) * size]
            assert self.tokens.setdefault(digest, tokens) == tokens
