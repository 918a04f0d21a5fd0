"""Hand-made record batches and answers as a broker encodes them, including some that no broker would send."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import cramjam
import google_crc32c
import numpy as np

from kbq_assets.adapters.kafka.fetch import codecs
from kbq_assets.wire.chunk import Bytes, RawRecord, encode_long

ABORT: Final = 0
COMMIT: Final = 1


def _xerial(data: bytes) -> bytes:
    blocks = [
        bytes(cramjam.snappy.compress_raw(data[at : at + 32_768])) for at in range(0, len(data), 32_768)
    ]
    framed = b"".join(struct.pack(">i", len(block)) + block for block in blocks)
    return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + framed


PACK: Final[Mapping[str, tuple[int, Callable[[bytes], Any]]]] = {
    "none": (0, bytes),
    "gzip": (codecs.GZIP, lambda data: gzip.compress(data, 1)),
    "snappy": (codecs.SNAPPY, cramjam.snappy.compress_raw),
    "xerial": (codecs.SNAPPY, _xerial),
    "lz4": (codecs.LZ4, cramjam.lz4.compress),
    "zstd": (codecs.ZSTD, cramjam.zstd.compress),
}


def record(message: RawRecord, delta: int, stamp: int) -> bytes:
    """One record; ``stamp`` is relative to its batch's."""
    head = b"\x00" + encode_long(stamp) + encode_long(delta)
    body = head + _bytes(message.key) + _bytes(message.value) + encode_long(len(message.headers))
    for name, value in message.headers:
        body += _bytes(name.encode("utf-8", "surrogateescape")) + _bytes(value)
    return encode_long(len(body)) + body


def _bytes(value: bytes | None) -> bytes:
    return encode_long(-1) if value is None else encode_long(len(value)) + value


def batch(
    messages: Sequence[RawRecord],
    *,
    codec: str = "none",
    attributes: int = 0,
    producer: int = -1,
    epoch: int = 0,
    next_offset: int | None = None,
    base: int | None = None,
    max_timestamp: int = -1,
) -> bytes:
    """A batch of messages, which carry their offsets."""
    base = messages[0].offset if base is None else base
    stamp = messages[0].timestamp if messages else -1
    records = b"".join(record(m, m.offset - base, m.timestamp - stamp) for m in messages)
    last = (messages[-1].offset + 1 if next_offset is None else next_offset) - base - 1
    number, pack = PACK[codec]
    return seal(
        bytes(pack(records)),
        (base, epoch, attributes | number, last, stamp, max_timestamp, producer, len(messages)),
    )


def seal(records: bytes, head: tuple[int, ...]) -> bytes:
    """Records behind a head with the checksum that fits."""
    base, epoch, attributes, last, stamp, latest, producer, count = head
    checked = struct.pack(">hiqqqhii", attributes, last, stamp, latest, producer, 0, -1, count) + records
    return struct.pack(">qiibI", base, 9 + len(checked), epoch, 2, google_crc32c.value(checked)) + checked


def marker(offset: int, producer: int, kind: int) -> bytes:
    """A control batch: the end of a transaction."""
    control = RawRecord(b"\x00" * 6, offset, 0, struct.pack(">hh", 0, kind))
    return batch([control], attributes=16 | 32, producer=producer)


def as_bytes(*parts: bytes) -> Bytes:
    """What a connection gives."""
    return cast("Bytes", np.frombuffer(bytearray(b"".join(parts)), np.uint8))
