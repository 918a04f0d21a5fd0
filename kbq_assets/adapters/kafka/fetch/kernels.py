"""Kernels that parse the records of unpacked batches into a chunk's arrays, without a Python object per record.

https://kafka.apache.org/documentation/#recordbatch. Every length is checked against its batch.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from kbq_assets.wire.jit import copy_bytes, inlined, int64, kernel, load_byte, prefetch, store_byte
from kbq_assets.wire.records.scan import is_utf8, read_long, write_long

# Columns of a batch's row in the table that kernels read.
FROM: Final = 0
UNTIL: Final = 1
BASE_OFFSET: Final = 2
LAST_DELTA: Final = 3
RECORDS: Final = 4
TIMESTAMP: Final = 5
IS_APPEND_TIME: Final = 6
COLUMNS: Final = 7

# A record's columns.
VALUE: Final = 0
VALUE_END: Final = 1
KEY: Final = 2
KEY_END: Final = 3
HEADERS: Final = 4
HEADERS_END: Final = 5
OFFSET: Final = 6
TIME: Final = 7
FIELDS: Final = 8

# Columns of a piece of an lz4 batch: its kind, the bounds of its bytes, and the most bytes to which it unpacks.
PIECE_KIND: Final = 0
PIECE_FROM: Final = 1
PIECE_UNTIL: Final = 2
PIECE_ROOM: Final = 3
PIECE_COLUMNS: Final = 4
#: The kinds: an uncompressed block, a packed block, and a frame whose blocks depend on earlier blocks.
STORED: Final = 0
PACKED: Final = 1
FRAME: Final = 2

# Error codes, returned instead of the room of an lz4 batch.
NO_FRAME: Final = -1
CUT_BLOCK: Final = -2
TOO_MANY_BLOCKS: Final = -3

_LZ4_MAGIC: Final = 0x184D2204
_LZ4_HEAD: Final = 7

SMALLEST_RECORD: Final = 7
"""Minimum bytes of a record: length, attributes, two deltas, two lengths, number of headers."""


@kernel
def parse_records(buffer: Any, batches: Any, from_offset: int, until: int, fields: Any) -> int:
    """Parse the records of ``[from_offset, until)``. Returns their number, or -1 - the index of a damaged batch."""
    row = 0
    for index in range(len(batches)):
        batch = batches[index]
        position, end, delta = batch[FROM], batch[UNTIL], -1
        for _ in range(batch[RECORDS]):
            length, position = read_long(buffer, position, end)
            if position < 0 or length < 0 or length > end - position:
                return -1 - index
            last, behind = delta, position + length
            prefetch(buffer, behind + length)  # the record after the next one, if all have the same length
            stamp, position = read_long(buffer, position + 1, behind)
            if position < 0:
                return -1 - index
            delta, position = read_long(buffer, position, behind)
            if position < 0 or delta <= last or delta > batch[LAST_DELTA]:
                return -1 - index
            key, key_end, position = _span(buffer, position, behind)
            if position < 0:
                return -1 - index
            value, value_end, position = _span(buffer, position, behind)
            if position < 0:
                return -1 - index
            offset = batch[BASE_OFFSET] + delta
            if from_offset <= offset < until:
                fields[VALUE, row], fields[VALUE_END, row] = value, value_end
                fields[KEY, row], fields[KEY_END, row] = key, key_end
                fields[HEADERS, row], fields[HEADERS_END, row] = position, behind
                fields[OFFSET, row] = offset
                fields[TIME, row] = batch[TIMESTAMP] if batch[IS_APPEND_TIME] else batch[TIMESTAMP] + stamp
                row += 1
            position = behind
        if position != end:
            return -1 - index
    return row


@inlined
def _span(buffer: Any, position: int, end: int) -> tuple[int, int, int]:
    """Start and end of length-prefixed bytes, -1 and -1 for null, and the position after them, -1 if damaged."""
    length, position = read_long(buffer, position, end)
    if position < 0 or length > end - position or length < -1:
        return -1, -1, -1
    if length < 0:
        return -1, -1, position
    return position, position + length, position + length


@kernel
def encode_headers(
    buffer: Any, froms: Any, untils: Any, unreadable: Any, out: Any, starts: Any, ends: Any
) -> None:
    """Write headers as Avro arrays, or ``unreadable`` if they do not parse or a name is not UTF-8.

    ``out`` has room for `headers_room` bytes.
    """
    position = 0
    for row in range(len(froms)):
        starts[row] = position
        end = _encode_one(buffer, froms[row], untils[row], out, position)
        if end < 0:
            copy_bytes(out, position, unreadable, 0, len(unreadable))
            end = position + len(unreadable)
        ends[row] = position = end


@inlined
def _encode_one(buffer: Any, at: int, end: int, out: Any, to: int) -> int:
    """Encode a record's headers. Returns the position after them in ``out``, or -1 if they are unreadable."""
    count, at = read_long(buffer, at, end)
    if at < 0 or count < 0 or count > end - at:
        return -1
    if count:
        to = write_long(out, to, count)
    for _ in range(count):
        name, name_end, at = _span(buffer, at, end)
        if at < 0 or name < 0 or not is_utf8(buffer, name, name_end):
            return -1
        to = _put_bytes(out, to, buffer, name, name_end)
        value, value_end, at = _span(buffer, at, end)
        if at < 0:
            return -1
        to = write_long(out, to, 0 if value < 0 else 1)
        if value >= 0:
            to = _put_bytes(out, to, buffer, value, value_end)
    if at != end:
        return -1
    store_byte(out, to, 0)
    return to + 1


@inlined
def _put_bytes(out: Any, to: int, buffer: Any, start: int, end: int) -> int:
    to = write_long(out, to, end - start)
    copy_bytes(out, to, buffer, start, end - start)
    return to + end - start


@kernel
def lz4_pieces(data: Any, most_blocks: int, pieces: Any) -> tuple[int, int]:
    """Find the pieces of one or more lz4 frames, and write as many as fit into ``pieces``. Returns the most bytes to
    which all unpack, or a negative error code, and the number of pieces."""
    at = total = found = blocks = 0
    while at == 0 or at < len(data):
        if at + _LZ4_HEAD > len(data) or _word(data, at) != _LZ4_MAGIC:
            return NO_FRAME, 0
        flags, size_code = load_byte(data, at + 4), load_byte(data, at + 5) >> 4
        if flags >> 6 != 1 or size_code < 4 or size_code > 7:
            return NO_FRAME, 0
        most, stands_alone = int64(1) << (8 + 2 * size_code), flags & 32 != 0
        start, first = at, total
        at += _LZ4_HEAD + 8 * (flags >> 3 & 1) + 4 * (flags & 1)
        while True:
            if at + 4 > len(data):
                return CUT_BLOCK, 0
            word = _word(data, at)
            at += 4
            if blocks == most_blocks:
                return TOO_MANY_BLOCKS, 0
            blocks += 1  # the end of a frame counts as a block
            if word == 0:
                break
            size, is_stored = word & 0x7FFFFFFF, word >> 31 != 0
            if size > len(data) - at:
                return CUT_BLOCK, 0
            room = size if is_stored else min(most, 255 * size)
            total += room
            if stands_alone:
                _note(pieces, found, STORED if is_stored else PACKED, at, at + size, room)
                found += 1
            at += size + 4 * (flags >> 4 & 1)
        at += 4 * (flags >> 2 & 1)
        if not stands_alone:
            _note(pieces, found, FRAME, start, min(at, len(data)), total - first)
            found += 1
    return total, found


@inlined
def _word(data: Any, at: int) -> int:
    """The unsigned little-endian number in four bytes."""
    low = load_byte(data, at) | load_byte(data, at + 1) << 8
    return low | load_byte(data, at + 2) << 16 | load_byte(data, at + 3) << 24


@inlined
def _note(pieces: Any, row: int, kind: int, start: int, until: int, room: int) -> None:
    if row < len(pieces):
        pieces[row, PIECE_KIND], pieces[row, PIECE_FROM] = kind, start
        pieces[row, PIECE_UNTIL], pieces[row, PIECE_ROOM] = until, room


def warm_up() -> None:
    """Compile the kernels, or load them from the disk cache."""
    buffer, none = np.zeros(16, np.uint8), np.zeros((FIELDS, 1), np.int64)
    parse_records(buffer, np.zeros((0, COLUMNS), np.int64), 0, 0, none)
    lz4_pieces(buffer, 0, np.zeros((0, PIECE_COLUMNS), np.int64))
    encode_headers(buffer, none[0][:0], none[0][:0], buffer, buffer, none[0], none[0])
