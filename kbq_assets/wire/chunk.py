"""The interface between readers and the encoder: many records of one topic-partition, as arrays over one buffer.

A reader yields :class:`Chunk` values in offset order. Code after it creates no Python object per record. Buffers end
with :data:`PADDING` spare bytes, because the kernels load and store eight bytes at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kbq_assets.core.errors import EncoderMisuse

PADDING = 8
"""Bytes that must be readable after the last span of a buffer; their content does not matter."""

NO_HEADERS = b"\x00"
"""An empty Avro array."""

UNREADABLE = "kbq_unreadable_headers"
"""The only header of a record whose headers are unreadable because a name is not UTF-8."""

NO_TIMESTAMP = -1
END_OF_TIME = 253_402_300_800_000
"""10000-01-01 in milliseconds, where warehouses' calendars have ended. Producers that confuse milliseconds with
microseconds exceed it. One such record would fail a whole load job, so its timestamp counts as missing."""

Bytes: TypeAlias = NDArray[np.uint8]
Longs: TypeAlias = NDArray[np.int64]


class RawRecord(NamedTuple):
    """One Kafka record as Python objects, for the ``objects`` reader and for tests."""

    value: bytes | None
    offset: int
    timestamp: int = -1
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Byte strings as half-open spans of one buffer; ``(-1, -1)`` is null."""

    buffer: Bytes
    starts: Longs
    ends: Longs

    def __post_init__(self) -> None:
        _check_buffer(self.buffer, self.ends)
        _check_longs(self.starts, self.ends)

    def __len__(self) -> int:
        return len(self.starts)

    def get(self, index: int) -> bytes | None:
        """A copy of one byte string."""
        start, end = int(self.starts[index]), int(self.ends[index])
        return None if start < 0 else self.buffer[start:end].tobytes()

    def slice(self, from_index: int, until_index: int) -> Spans:
        """The spans ``[from_index, until_index)`` over the same buffer, without a copy."""
        return Spans(self.buffer, self.starts[from_index:until_index], self.ends[from_index:until_index])

    @classmethod
    def of(cls, values: Sequence[bytes | None]) -> Spans:
        """Joined copies of ``values`` in a padded buffer."""
        lengths = np.fromiter((len(value or b"") for value in values), np.int64, len(values))
        null = np.fromiter((value is None for value in values), np.bool_, len(values))
        ends = np.cumsum(lengths, dtype=np.int64)
        starts = ends - lengths
        starts[null] = ends[null] = -1
        joined = bytearray().join([*(value for value in values if value is not None), bytes(PADDING)])
        return cls(np.frombuffer(joined, np.uint8), starts, ends)


@dataclass(frozen=True, slots=True, eq=False)
class Origins:
    """Kafka's metadata of a chunk's records: the leader epoch of each (-1: unknown), the type of its timestamp (0: the
    producer's, 1: the broker's, -1: unknown), and a function for single records' headers as Kafka encodes them.
    """

    leader_epochs: Longs
    timestamp_types: Longs
    raw_headers: Callable[[int], bytes] | None = None

    def slice(self, from_index: int, until_index: int) -> Origins:
        """The origins of the records ``[from_index, until_index)``."""
        part, raw = slice(from_index, until_index), self.raw_headers
        return Origins(
            self.leader_epochs[part],
            self.timestamp_types[part],
            None if raw is None else lambda index: raw(from_index + index),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Records of one topic-partition in offset order.

    ``buffer[starts[i]:ends[i]]`` is the value of record ``i`` (``-1, -1``: null), ``timestamps`` are milliseconds since
    1970 (-1: none). ``keys`` and ``headers`` are None unless the caller requested them from the reader; each header
    span is an Avro array (:func:`encode_headers`), and a null span means no headers. A reader without headers may offer
    ``late_headers``, which fetches the headers of one record until the next chunk is read. That is enough for error
    rows, which are few; fetching the headers of all records takes as long as validating. ``origins`` returns the
    origins of all records, until the next chunk is read.
    """

    buffer: Bytes
    starts: Longs
    ends: Longs
    offsets: Longs
    timestamps: Longs
    keys: Spans | None = None
    headers: Spans | None = None
    late_headers: Callable[[int], bytes] | None = None
    #: values that choose the table, as JSON scalars, if they cannot be read from the records themselves
    #: (`json_columns`)
    chosen_by: tuple[Spans, ...] | None = None
    origins: Callable[[], Origins] | None = None

    def __post_init__(self) -> None:
        _check_buffer(self.buffer, self.ends)
        _check_longs(self.starts, self.ends, self.offsets, self.timestamps)
        for spans in (self.keys, self.headers, *(self.chosen_by or ())):
            if spans is not None and len(spans) != len(self.starts):
                raise EncoderMisuse("a chunk's keys, headers and choices must be as many as its records")

    def __len__(self) -> int:
        return len(self.starts)

    def value(self, index: int) -> bytes | None:
        """A copy of one value, prefix included."""
        start, end = int(self.starts[index]), int(self.ends[index])
        return None if start < 0 else self.buffer[start:end].tobytes()

    def key(self, index: int) -> bytes | None:
        """A copy of one key; None if it is null or the chunk has no keys."""
        return None if self.keys is None else self.keys.get(index)

    def header_bytes(self, index: int) -> bytes | None:
        """A copy of one record's encoded headers; None if it has no headers or they are not available."""
        if self.headers is not None:
            return self.headers.get(index)
        return None if self.late_headers is None else self.late_headers(index)

    def slice(self, from_index: int, until_index: int) -> Chunk:
        """The records ``[from_index, until_index)`` over the same buffers, without a copy."""
        part, late, origins = slice(from_index, until_index), self.late_headers, self.origins
        return Chunk(
            self.buffer,
            self.starts[part],
            self.ends[part],
            self.offsets[part],
            self.timestamps[part],
            None if self.keys is None else self.keys.slice(from_index, until_index),
            None if self.headers is None else self.headers.slice(from_index, until_index),
            None if late is None else lambda index: late(from_index + index),
            None
            if self.chosen_by is None
            else tuple(spans.slice(from_index, until_index) for spans in self.chosen_by),
            None if origins is None else lambda: origins().slice(from_index, until_index),
        )

    @classmethod
    def from_messages(
        cls, messages: Iterable[RawRecord], *, keys: bool = False, headers: bool = False
    ) -> Chunk:
        """A chunk with copies of the messages' bytes; keys and headers only if requested."""
        rows = list(messages)
        values = Spans.of([row.value for row in rows])
        return cls(
            values.buffer,
            values.starts,
            values.ends,
            np.array([row.offset for row in rows], np.int64),
            np.array([row.timestamp for row in rows], np.int64),
            Spans.of([row.key for row in rows]) if keys else None,
            Spans.of([encode_headers(row.headers) for row in rows]) if headers else None,
        )


def encode_long(value: int) -> bytes:
    """Avro's zigzag variable-length encoding of a 64-bit integer."""
    rest = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append((rest & 0x7F) | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def encode_bytes(value: bytes) -> bytes:
    """Avro's ``bytes`` and, for UTF-8 input, ``string``: the length, then the bytes."""
    return encode_long(len(value)) + value


def encode_nullable_bytes(value: bytes | None) -> bytes:
    """Avro's ``["null", "bytes"]``."""
    return b"\x00" if value is None else b"\x02" + encode_bytes(value)


def encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """Kafka headers as an Avro ``array<record{key: string, value: ["null", "bytes"]}>``.

    A header name with lone surrogates (clients decode names leniently) is written with ``?`` in their place.
    """
    if not headers:
        return NO_HEADERS
    items = (
        encode_bytes(name.encode("utf-8", "replace")) + encode_nullable_bytes(value)
        for name, value in headers
    )
    return encode_long(len(headers)) + b"".join(items) + b"\x00"


UNREADABLE_HEADERS = encode_headers([(UNREADABLE, None)])
"""Replaces headers with a name that is not UTF-8, so that such a record does not stop its partition."""


def decode_headers(encoded: bytes) -> list[tuple[str, bytes | None]]:
    """The inverse of :func:`encode_headers`, to display one record."""
    count, position = decode_long(encoded, 0)
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, position = _decode_bytes(encoded, position)
        branch, position = decode_long(encoded, position)
        value = None
        if branch == 1:
            value, position = _decode_bytes(encoded, position)
        headers.append((name.decode("utf-8"), value))
    return headers


def decode_long(encoded: bytes, position: int) -> tuple[int, int]:
    """The long at a position, and the position after it. Raises IndexError past the end."""
    raw = shift = 0
    while True:
        byte = encoded[position]
        raw |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), position


def _decode_bytes(encoded: bytes, position: int) -> tuple[bytes, int]:
    length, position = decode_long(encoded, position)
    return encoded[position : position + length], position + length


def _check_buffer(buffer: Bytes, ends: Longs) -> None:
    # Numba has a separate type for read-only arrays, so it would compile every kernel again, which takes seconds.
    if buffer.dtype != np.uint8 or not buffer.flags.c_contiguous or not buffer.flags.writeable:
        raise EncoderMisuse("a chunk's buffer must be a writeable, contiguous array of uint8")
    if len(ends) and int(ends.max()) + PADDING > len(buffer):
        raise EncoderMisuse(f"a chunk's buffer needs {PADDING} bytes after its last record")


def _check_longs(*arrays: Longs) -> None:
    for array in arrays:
        if array.dtype != np.int64 or array.ndim != 1 or len(array) != len(arrays[0]):
            raise EncoderMisuse("a chunk's positions must be arrays of int64, as many as its records")
