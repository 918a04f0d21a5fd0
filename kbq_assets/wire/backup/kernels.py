"""Kernels that write records into the blocks of a backup file and find them again, without a Python object per
record."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from kbq_assets.wire.jit import inlined, kernel, load_byte, store_byte
from kbq_assets.wire.records.scan import read_long, write_long, write_span

# The numbers of a record, as `lay_rows` takes them.
OFFSET: Final = 0
TIME: Final = 1
TIME_TYPE: Final = 2
LEADER_EPOCH: Final = 3
NUMBERS: Final = 4

# The columns of a record in `find_rows`, after its numbers.
KEY: Final = 4
VALUE: Final = 6
HEADERS: Final = 8
RAW: Final = 10
COLUMNS: Final = 12

#: Returned instead of a schema id: no value has one, or the values have different ones.
NO_ID: Final = -1
SEVERAL: Final = -2

MOST_NUMBER_BYTES: Final = 10
#: The maximum size in bytes of a row without its key, value, headers and prefix.
ROW_OVERHEAD: Final = MOST_NUMBER_BYTES * (NUMBERS + 4) + 8


@kernel
def lay_rows(
    numbers: Any, spans: Any, parts: Any, prefix: Any, row: int, out: Any, at: int, full: int
) -> tuple[int, int]:
    """Write the records from ``row`` on into ``out``, starting at ``at``, until it has ``full`` bytes or no room for
    the next record. ``parts`` are the buffers of values, keys, headers and raw headers. ``spans`` are the starts and
    ends of keys, values, headers and raw headers. Returns the next record and the position after the last one."""
    values, keys, headers, raw = parts
    offsets, times, types, epochs = numbers
    key, key_end, value, value_end, header, header_end, raw_from, raw_end = spans
    room = len(out) - ROW_OVERHEAD - len(prefix)
    while row < len(offsets) and at < full:
        size = key_end[row] - key[row] + value_end[row] - value[row]
        size += header_end[row] - header[row] + raw_end[row] - raw_from[row]
        if size > room - at:
            break
        for index in range(len(prefix)):
            store_byte(out, at + index, load_byte(prefix, index))
        at = write_long(out, at + len(prefix), offsets[row])
        at = write_long(out, at, times[row])
        at = write_long(out, at, types[row])
        at = write_long(out, at, epochs[row])
        at = _put_nullable(out, at, keys, key[row], key_end[row])
        at = _put_nullable(out, at, values, value[row], value_end[row])
        if header[row] < 0 or header_end[row] == header[row]:
            store_byte(out, at, 0)
            at += 1
        else:
            at = write_span(out, at, headers, header[row], header_end[row])
        at = _put_nullable(out, at, raw, raw_from[row], raw_end[row])
        row += 1
    return row, at


@kernel
def one_schema_id(buffer: Any, starts: Any, ends: Any) -> int:
    """The schema id that all values with a Confluent prefix share, NO_ID if no value has one, SEVERAL if they
    differ."""
    found = NO_ID
    for row in range(len(starts)):
        start = starts[row]
        if start < 0 or ends[row] - start < 5 or load_byte(buffer, start) != 0:
            continue
        named = 0
        for byte in range(1, 5):
            named = named << 8 | load_byte(buffer, start + byte)
        if found >= 0 and named != found:
            return SEVERAL
        found = named
    return found


@inlined
def _put_nullable(out: Any, at: int, buffer: Any, start: int, end: int) -> int:
    if start < 0:
        store_byte(out, at, 0)
        return at + 1
    store_byte(out, at, 2)
    at = write_long(out, at + 1, end - start)
    return write_span(out, at, buffer, start, end)


@kernel
def find_rows(block: Any, at: int, end: int, prefix: Any, fields: Any, first: int, count: int) -> int:
    """Fill ``fields`` from ``first`` on with the records of a block from ``at`` on. Returns the position after the last
    record, -1 if the block is damaged."""
    for row in range(first, first + count):
        if len(prefix) > end - at:
            return -1
        for index in range(len(prefix)):
            if block[at + index] != prefix[index]:
                return -1
        at += len(prefix)
        for number in range(NUMBERS):
            fields[number, row], at = read_long(block, at, end)
            if at < 0:
                return -1
        for column in (KEY, VALUE):
            fields[column, row], fields[column + 1, row], at = _nullable(block, at, end)
            if at < 0:
                return -1
        fields[HEADERS, row] = at
        at = _after_headers(block, at, end)
        if at < 0:
            return -1
        fields[HEADERS + 1, row] = at
        fields[RAW, row], fields[RAW + 1, row], at = _nullable(block, at, end)
        if at < 0:
            return -1
    return at


@inlined
def _nullable(block: Any, at: int, end: int) -> tuple[int, int, int]:
    """The start and end of nullable bytes, and the position after them. Start and end are -1 for null; the position is
    -1 if the bytes are damaged."""
    branch, at = read_long(block, at, end)
    if at < 0 or branch < 0 or branch > 1:
        return -1, -1, -1
    if branch == 0:
        return -1, -1, at
    size, at = read_long(block, at, end)
    if at < 0 or size < 0 or size > end - at:
        return -1, -1, -1
    return at, at + size, at + size


@inlined
def _after_headers(block: Any, at: int, end: int) -> int:
    """The position after an array of headers, -1 if it is damaged."""
    count, at = read_long(block, at, end)
    if at < 0 or count < 0 or count > end - at:
        return -1
    if count == 0:
        return at
    for _ in range(count):
        size, at = read_long(block, at, end)
        if at < 0 or size < 0 or size > end - at:
            return -1
        _, _, at = _nullable(block, at + size, end)
        if at < 0:
            return -1
    last, at = read_long(block, at, end)
    return at if at >= 0 and last == 0 else -1


def warm_up() -> None:
    """Compile the kernels, or load them from the disk cache."""
    buffer = np.zeros(256, np.uint8)
    row = np.zeros(1, np.int64)
    numbers, spans = (row, row, row, row), (row, row, row, row, row, row, row, row)
    lay_rows(numbers, spans, (buffer, buffer, buffer, buffer), buffer[:2], 0, buffer, 0, 1)
    one_schema_id(buffer, row, row)
    find_rows(buffer, 0, 0, buffer[:2], np.zeros((COLUMNS, 1), np.int64), 0, 1)
