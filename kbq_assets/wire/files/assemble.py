"""The kernel that puts staged records into a block: the unchanged body, followed by the encoded metadata."""

# A call per record would be slower than a branch.
# ruff: noqa: PLR0912

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kbq_assets.core.errors import EncoderMisuse
from kbq_assets.wire.chunk import (
    END_OF_TIME,
    NO_TIMESTAMP,
    PADDING,
    Bytes,
    Chunk,
    Longs,
    Spans,
    encode_bytes,
    encode_long,
)
from kbq_assets.wire.files.blocks import SharedBlocks
from kbq_assets.wire.jit import inlined, int64, kernel, store_byte
from kbq_assets.wire.records.event_time import DAY_MICROS
from kbq_assets.wire.records.scan import write_long, write_span
from kbq_assets.wire.records.staged_schema import BodyKind, StagedSchema

_LONG = 10
"""Bytes of the longest variable-length integer."""

_KINDS = {BodyKind.AVRO: 0, BodyKind.JSON: 1, BodyKind.EMPTY: 2}
_AVRO, _JSON = _KINDS[BodyKind.AVRO], _KINDS[BodyKind.JSON]


@dataclass(frozen=True, slots=True)
class RecordOrigin:
    """The topic-partition and epoch of one window's records."""

    topic: str
    partition: int
    epoch: int


class Suffix:
    """Appends the metadata columns to the bodies of one file. Constant columns are encoded only once."""

    def __init__(self, origin: RecordOrigin, schema: StagedSchema, schema_id: int = 0) -> None:
        self.schema = schema
        self._kind = _KINDS[schema.body]
        self._metadata = schema.metadata
        self._event_time = schema.event_time
        topic = encode_bytes(origin.topic.encode()) + encode_long(origin.partition)
        self._before = _array(topic)
        of_file = encode_long(schema_id) if schema.metadata.schema_id else b""
        self._between = _array(encode_long(origin.epoch) + of_file)
        # Bytes for topic and partition, epoch and schema id, the varying numbers, and lengths and branches of JSON, key
        # and headers.
        self.most_bytes = len(self._before) + len(self._between) + 9 * _LONG

    def append(
        self,
        block: Bytes,
        used: int,
        chunk: Chunk,
        prefix: int,
        rows: Longs,
        times: Longs,
        first: int,
        until: int,
    ) -> tuple[int, int]:
        """Append records from ``rows[first]`` on, until ``block`` has ``until`` bytes or no room for the next record.
        ``times`` are their business times; if empty, Kafka's timestamps are used. Returns the index of the first row
        that is not in the block, and the number of bytes used.
        """
        sizes = np.array([used], np.int64)
        target = (block, len(block), until, sizes, np.zeros(1, np.int64))
        return self._append(target, chunk, prefix, (rows, _NO_LONGS, times, self._event_time, first)), int(
            sizes[0]
        )

    def scatter(
        self,
        blocks: SharedBlocks,
        chunk: Chunk,
        prefix: int,
        rows: Longs,
        slots: Longs,
        times: Longs,
        first: int,
    ) -> int:
        """Append records from ``rows[first]`` on, each to the block of its slot, until a block is full. Returns the
        index of the first row that is not in a block."""
        target = (blocks.pool, blocks.room, blocks.block_bytes, blocks.used, blocks.rows)
        return self._append(target, chunk, prefix, (rows, slots, times, self._event_time, first))

    def _append(self, target: Any, chunk: Chunk, prefix: int, records: Any) -> int:
        return _append(
            target,
            (self._kind, prefix, self._before, self._between, self.most_bytes),
            (chunk.buffer, chunk.starts, chunk.ends, chunk.offsets, chunk.timestamps),
            self._spans(chunk.keys, self._metadata.key, "keys"),
            self._spans(chunk.headers, self._metadata.headers, "headers"),
            records,
        )

    def room_for(self, chunk: Chunk, row: int) -> int:
        """An upper bound on the record's bytes."""
        size = self.most_bytes + int(chunk.ends[row] - chunk.starts[row])
        for wanted, spans in ((self._metadata.key, chunk.keys), (self._metadata.headers, chunk.headers)):
            if wanted and spans is not None:
                size += int(spans.ends[row] - spans.starts[row])
        return size + PADDING

    def _spans(self, spans: Spans | None, wanted: bool, what: str) -> tuple[bool, Bytes, Longs, Longs]:
        if not wanted:
            return False, _NO_BYTES, _NO_LONGS, _NO_LONGS
        if spans is None:
            raise EncoderMisuse(f"the staged schema has a column for {what}, but the chunk has no {what}")
        return True, spans.buffer, spans.starts, spans.ends


def _array(data: bytes) -> Bytes:
    return np.frombuffer(bytearray(data) + bytes(PADDING), np.uint8)[: len(data)]


_NO_BYTES = _array(bytes(PADDING))
_NO_LONGS = np.empty(0, np.int64)


@inlined
def _size(spans: Any, row: int) -> int:
    wanted, _, starts, ends = spans
    return ends[row] - starts[row] if wanted else 0


@kernel
def _append(target: Any, suffix: Any, values: Any, keys: Any, headers: Any, records: Any) -> int:
    """Append rows to blocks, which are in ``pool`` with ``room`` bytes each. Without ``slots``, all rows go to the
    first block."""
    pool, room, until, sizes, laid = target
    kind, prefix, before, between, most_bytes = suffix
    buffer, starts, ends, offsets, timestamps = values
    has_key, key_buffer, key_starts, key_ends = keys
    has_headers, header_buffer, header_starts, header_ends = headers
    rows, slots, times, has_event_time, first = records
    for k in range(first, len(rows)):
        row = rows[k]
        start, end = starts[row], ends[row]
        slot = slots[k] if len(slots) else 0
        used = sizes[slot]
        needed = most_bytes + end - start + _size(keys, row) + _size(headers, row)
        if used >= until or needed > room - PADDING - used:
            return k
        used += slot * room
        if kind == _AVRO:
            used = write_span(pool, used, buffer, start + prefix, end)
        elif kind == _JSON and start < 0:
            store_byte(pool, used, 0)
            used += 1
        elif kind == _JSON:
            store_byte(pool, used, 2)
            used = write_long(pool, used + 1, end - start)
            used = write_span(pool, used, buffer, start, end)
        used = write_span(pool, used, before, 0, len(before))
        used = write_long(pool, used, offsets[row])
        timestamp = timestamps[row]
        if timestamp < 0 or timestamp >= END_OF_TIME:
            timestamp = int64(NO_TIMESTAMP)
        used = write_long(pool, used, timestamp)
        used = write_span(pool, used, between, 0, len(between))
        if has_key and key_starts[row] < 0:
            store_byte(pool, used, 0)
            used += 1
        elif has_key:
            store_byte(pool, used, 2)
            used = write_long(pool, used + 1, key_ends[row] - key_starts[row])
            used = write_span(pool, used, key_buffer, key_starts[row], key_ends[row])
        if has_headers and header_starts[row] < 0:
            store_byte(pool, used, 0)
            used += 1
        elif has_headers:
            used = write_span(pool, used, header_buffer, header_starts[row], header_ends[row])
        time = times[k] if len(times) else max(timestamp, 0) * 1000
        if has_event_time:
            used = write_long(pool, used, time)
        used = write_long(pool, used, time // DAY_MICROS)
        sizes[slot] = used - slot * room
        laid[slot] += 1
    return len(rows)
