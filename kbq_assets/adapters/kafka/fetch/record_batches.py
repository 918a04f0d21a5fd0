"""Unpacks the record batches of an answer into chunks, without those of aborted transactions.

https://kafka.apache.org/documentation/#recordbatch
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import google_crc32c
import numpy as np

from kbq_assets.adapters.kafka.fetch import codecs, kernels
from kbq_assets.adapters.kafka.fetch.errors import Damaged, DamagedBatch, NotSpoken
from kbq_assets.core.plurals import counted
from kbq_assets.wire.chunk import NO_HEADERS, PADDING, UNREADABLE_HEADERS, Bytes, Chunk, Longs, Origins, Spans

#: A chunk's room in bytes. Most answers have 2 MB and unpack into one chunk, so there are costs per chunk, schema and
#: table only once per answer.
CHUNK_BYTES: Final = 8 * 1024 * 1024

_HEAD: Final = struct.Struct(">qiibIhiqqqhii")
_BEFORE_LENGTH: Final = 12
_CHECKED_FROM: Final = 21
_CODEC: Final = 7
_APPEND_TIME: Final = 8
_TRANSACTIONAL: Final = 16
_CONTROL: Final = 32
_ABORT: Final = b"\x00\x00"
#: Room for a control record. A control batch has one.
_CONTROL_BYTES: Final = 4096
#: Most batches of one answer. Later ones are left for the next answer. The smallest batches take six megabytes.
_MOST_BATCHES: Final = 100_000
#: Bytes of a record's fields while its batch is parsed.
_FIELD_BYTES: Final = 8 * kernels.FIELDS


class BatchHead(NamedTuple):
    """The header of a batch. ``start``, ``records_from`` and ``until`` are positions in the answer's bytes."""

    start: int
    records_from: int
    until: int
    base_offset: int
    leader_epoch: int
    crc: int
    attributes: int
    last_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    records: int

    @property
    def next_offset(self) -> int:
        """The offset after the batch's last one."""
        return self.base_offset + self.last_delta + 1

    def damaged(self, text: str, *, is_oversized: bool = False) -> DamagedBatch:
        where = f"the batch of offsets {self.base_offset} to {self.next_offset - 1}"
        return DamagedBatch(f"{where}: {text}", self.base_offset, self.next_offset, is_oversized=is_oversized)


@dataclass(frozen=True)
class Delivered:
    """Records up to ``position``, with the leader epochs of the last record (-1 if there is none) and last batch."""

    chunk: Chunk
    position: int
    record_epoch: int
    batch_epoch: int


@dataclass(frozen=True)
class WantedOffsets:
    """Which records to deliver, which of their parts, and how many per chunk. ``most_bytes`` limits an unpacked batch,
    and the fields of its records."""

    from_offset: int
    until: int
    keys: bool
    headers: bool
    chunk_records: int
    most_bytes: int

    def room(self) -> Unpacked:
        """An empty buffer for one chunk."""
        return Unpacked(CHUNK_BYTES, self.chunk_records)


def survey(data: Bytes, start: int, end: int) -> list[BatchHead]:
    """The complete batches in ``[start, end)``. Brokers may cut off the last batch.

    Raises Damaged, or NotSpoken for messages of the formats before Kafka 0.11.
    """
    found: list[BatchHead] = []
    while end - start > 16 and len(found) < _MOST_BATCHES:
        base, length, epoch, magic, crc, attributes, last, stamp, latest, producer, _, _, count = _head(
            data, start, end
        )
        if magic in (0, 1):
            raise NotSpoken(f"messages of the old format {magic}")
        until = start + _BEFORE_LENGTH + length
        if length < 0 or magic != 2:
            raise Damaged(f"a batch of {length} bytes and format {magic} at offset {base}")
        if until > end:
            break
        if length < _HEAD.size - _BEFORE_LENGTH or last < 0 or not 0 <= base < 2**62 or count < 0:
            raise Damaged(
                f"a batch of {length} bytes, {counted(count, 'record')} and {counted(last + 1, 'offset')} from {base}"
            )
        if found and base < found[-1].next_offset:
            raise Damaged(f"a batch from offset {base} after one until {found[-1].next_offset}")
        records = start + _HEAD.size
        found.append(
            BatchHead(
                start, records, until, base, epoch, crc, attributes, last, stamp, latest, producer, count
            )
        )
        start = until
    return found


def next_offset(data: Bytes, start: int, end: int) -> int:
    """The offset after a batch that is cut off; -1 if its header is cut off too."""
    if end - start < _HEAD.size:
        return -1
    base, _, _, _, _, _, last, *_ = _head(data, start, end)
    return base + last + 1


def _head(data: Bytes, start: int, end: int) -> tuple[int, ...]:
    if end - start >= _HEAD.size:
        return _HEAD.unpack_from(data.data, start)
    # Cut off within its header, which has the format byte near its beginning.
    return _HEAD.unpack(data[start:end].tobytes().ljust(_HEAD.size, b"\x00"))


def without_aborted(
    heads: Sequence[BatchHead], aborted: Longs, data: Bytes
) -> Iterator[tuple[BatchHead, bool]]:
    """Each batch, and whether to deliver its records. ``aborted`` has rows of producer id and first offset.

    Like Kafka's own consumer, this drops a producer's batches from the transaction's first offset to its abort.
    """
    begun = aborted[np.argsort(aborted[:, 1], kind="stable")]
    producers: set[int] = set()
    seen = 0
    for head in heads:
        while seen < len(begun) and begun[seen, 1] < head.next_offset:
            producers.add(int(begun[seen, 0]))
            seen += 1
        if head.attributes & _CONTROL:
            if head.producer_id in producers and _is_abort(head, data):
                producers.discard(head.producer_id)
            yield head, False
        else:
            yield head, not (head.attributes & _TRANSACTIONAL and head.producer_id in producers)


def _is_abort(head: BatchHead, data: Bytes) -> bool:
    """Whether the batch's only record has the key of an abort marker, which is a version followed by type 0."""
    unpacked = Unpacked(_CONTROL_BYTES, 1)
    try:
        unpacked.add(head, data, _CONTROL_BYTES)
        markers = unpacked.chunk(0, head.next_offset, keys=True, headers=False)
    except DamagedBatch:
        raise head.damaged("it is not a control record") from None
    key = markers.key(0) if len(markers) else None
    if key is None or len(key) < 4:
        raise head.damaged("a control record without a type")
    return key[2:4] == _ABORT


def deliver(
    heads: Sequence[BatchHead], wanted: WantedOffsets, aborted: Longs, data: Bytes
) -> Iterator[Delivered]:
    """Chunks of the wanted records. ``data`` must not change meanwhile. Raises DamagedBatch after delivering everything
    before that batch."""
    unpacked, position, epoch = wanted.room(), wanted.from_offset, -1
    behind = wanted.from_offset
    try:
        for head, is_delivered in without_aborted(heads, aborted, data):
            if head.next_offset <= wanted.from_offset:
                continue
            if head.base_offset >= wanted.until:
                position = wanted.until
                break
            check(head, data)
            if is_delivered and not unpacked.add(head, data, wanted.most_bytes):
                yield from _delivered(unpacked, wanted, position, epoch)
                behind, unpacked = position, wanted.room()
                unpacked.add(head, data, wanted.most_bytes)
            position, epoch = min(head.next_offset, wanted.until), head.leader_epoch
        if position > wanted.from_offset:
            yield from _delivered(unpacked, wanted, position, epoch)
    except DamagedBatch as damaged:
        unpacked.drop_from(damaged.first)
        until = min(damaged.first, wanted.until)
        if until > behind:
            yield from _delivered(unpacked, wanted, until, epoch)
        if until < wanted.until:
            raise


def _delivered(
    unpacked: Unpacked, wanted: WantedOffsets, position: int, batch_epoch: int
) -> Iterator[Delivered]:
    """All unpacked records in chunks. The last chunk reaches ``position``."""
    chunk = unpacked.chunk(wanted.from_offset, wanted.until, keys=wanted.keys, headers=wanted.headers)
    ends = [*range(wanted.chunk_records, len(chunk), wanted.chunk_records), len(chunk)]
    for start, end in itertools.pairwise([0, *ends]):
        part = chunk.slice(start, end)
        if end < len(chunk):
            record_epoch = unpacked.leader_epoch(int(part.offsets[-1]))
            yield Delivered(part, int(part.offsets[-1]) + 1, record_epoch, record_epoch)
        else:
            record_epoch = unpacked.leader_epoch(int(part.offsets[-1])) if end else -1
            yield Delivered(part, position, record_epoch, batch_epoch)


def check(head: BatchHead, data: Bytes) -> None:
    """Raise DamagedBatch if a batch's checksum is wrong."""
    if google_crc32c.value(data[head.start + _CHECKED_FROM : head.until]) != head.crc:
        raise head.damaged("its checksum is wrong")


class Unpacked:
    """The records of several batches in one buffer."""

    def __init__(self, size: int, records: int) -> None:
        self.buffer: Bytes = np.empty(size + PADDING, np.uint8)
        self.used = 0
        self.records = 0
        self.heads: list[BatchHead] = []
        self._most_records = records
        self._rows: list[tuple[int, ...]] = []

    def add(self, head: BatchHead, data: Bytes, most_bytes: int) -> bool:
        """Unpack a batch. Returns False if there is no room for it after the others. Raises DamagedBatch."""
        packed = data[head.records_from : head.until]
        room = self._room(head, packed, most_bytes)
        if not self._has_room(head.records, room):
            if self.heads:
                return False
            self.buffer = np.empty(room + PADDING, np.uint8)
        out = self.buffer[self.used : self.used + room]
        try:
            size = codecs.unpack(head.attributes & _CODEC, packed, out)
        except Damaged as damaged:
            raise head.damaged(str(damaged)) from None
        if head.records > size // kernels.SMALLEST_RECORD:
            raise head.damaged(f"{counted(head.records, 'record')} in {size} bytes")
        is_append_time = bool(head.attributes & _APPEND_TIME)
        stamp = head.max_timestamp if is_append_time else head.base_timestamp
        end = self.used + size
        self._rows.append(
            (self.used, end, head.base_offset, head.last_delta, head.records, stamp, is_append_time)
        )
        self.heads.append(head)
        self.used = end
        self.records += head.records
        return True

    @staticmethod
    def _room(head: BatchHead, packed: Bytes, most_bytes: int) -> int:
        """The number of bytes for unpacking a batch. Raises DamagedBatch if it is too large, before unpacking it."""
        try:
            room = codecs.room(head.attributes & _CODEC, packed, most_bytes)
        except Damaged as damaged:
            raise head.damaged(str(damaged)) from None
        size = max(room, head.records * _FIELD_BYTES)
        if size > most_bytes:
            raise head.damaged(f"it would unpack to {size} bytes, more than {most_bytes}", is_oversized=True)
        return room

    def drop_from(self, offset: int) -> None:
        """Drop the batches from an offset on."""
        kept = sum(head.base_offset < offset for head in self.heads)
        del self.heads[kept:], self._rows[kept:]

    def leader_epoch(self, offset: int) -> int:
        """The leader epoch of the record at ``offset``."""
        return next(head.leader_epoch for head in reversed(self.heads) if head.base_offset <= offset)

    def _has_room(self, records: int, size: int) -> bool:
        is_full = self.records + records > self._most_records and self.records > 0
        return not is_full and self.used + size + PADDING <= len(self.buffer)

    def parse(self, from_offset: int, until: int, fields: Longs) -> int:
        """Fill ``fields``, and return the number of records. Raises DamagedBatch."""
        table = np.array(self._rows, np.int64).reshape(len(self._rows), kernels.COLUMNS)
        count = kernels.parse_records(self.buffer, table, from_offset, until, fields)
        if count < 0:
            raise self.heads[-1 - count].damaged("its records do not parse")
        return count

    def chunk(self, from_offset: int, until: int, *, keys: bool, headers: bool) -> Chunk:
        """The records within ``[from_offset, until)``."""
        fields = np.empty((kernels.FIELDS, self.records), np.int64)
        fields = fields[:, : self.parse(from_offset, until, fields)]
        return Chunk(
            self.buffer,
            fields[kernels.VALUE],
            fields[kernels.VALUE_END],
            fields[kernels.OFFSET],
            fields[kernels.TIME],
            Spans(self.buffer, fields[kernels.KEY], fields[kernels.KEY_END]) if keys else None,
            _headers(self.buffer, fields) if headers else None,
            None
            if headers
            else lambda row: _headers(self.buffer, fields[:, row : row + 1]).get(0) or NO_HEADERS,
            origins=lambda: self._origins(fields),
        )

    def _origins(self, fields: Longs) -> Origins:
        bases = np.array([head.base_offset for head in self.heads], np.int64)
        firsts = np.searchsorted(fields[kernels.OFFSET], bases)
        counts = np.diff(firsts, append=fields.shape[1])
        epochs = np.array([head.leader_epoch for head in self.heads], np.int64)
        types = np.array([bool(head.attributes & _APPEND_TIME) for head in self.heads], np.int64)
        froms, untils, buffer = fields[kernels.HEADERS], fields[kernels.HEADERS_END], self.buffer
        raw = lambda row: buffer[int(froms[row]) : int(untils[row])].tobytes()  # noqa: E731
        return Origins(np.repeat(epochs, counts), np.repeat(types, counts), raw)


def _headers(buffer: Bytes, fields: Longs) -> Spans:
    """The headers as Avro arrays. These take at most one more byte per header, which has two or more bytes, and one for
    the array's end."""
    froms, untils = fields[kernels.HEADERS], fields[kernels.HEADERS_END]
    if (untils - froms == 1).all() and not buffer[froms].any():  # in most topics, no record has headers
        none = np.full(len(froms), -1, np.int64)
        return Spans(buffer, none, none)
    room = 2 * int((untils - froms).sum()) + (2 + len(UNREADABLE_HEADERS)) * len(froms)
    out = np.empty(room + PADDING, np.uint8)
    starts, ends = np.empty(len(froms), np.int64), np.empty(len(froms), np.int64)
    unreadable = np.frombuffer(bytearray(UNREADABLE_HEADERS), np.uint8)
    kernels.encode_headers(buffer, froms, untils, unreadable, out, starts, ends)
    return Spans(out, starts, ends)
