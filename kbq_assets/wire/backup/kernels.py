"""Kernels that lay records into blocks of a backup file, and find them there, without a Python object per record."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from kbq_assets.wire.jit import copy_bytes, inlined, kernel, store_byte
from kbq_assets.wire.records.scan import read_long, write_long

# A record's numbers, for laying.
OFFSET: Final = 0
TIME: Final = 1
TIME_TYPE: Final = 2
LEADER_EPOCH: Final = 3
NUMBERS: Final = 4

# A record's columns in a block, after its numbers.
KEY: Final = 4
VALUE: Final = 6
HEADERS: Final = 8
RAW: Final = 10
COLUMNS: Final = 12

MOST_NUMBER_BYTES: Final = 10
#: Most bytes of a row besides its key, value and headers, and what precedes every row.
ROW_OVERHEAD: Final = MOST_NUMBER_BYTES * (NUMBERS + 4) + 8


@kernel
def lay_rows(
    numbers: Any, spans: Any, parts: Any, prefix: Any, row: int, out: Any, at: int, full: int
) -> tuple[int, int]:
    """Lay records from ``row`` on into ``out`` from ``at`` on, until it has ``full`` bytes or no room for the next one.
    ``parts`` are the buffers of values, keys, headers and raw headers. Return the next record, and the position after
    the last one."""
    values, keys, headers, raw = parts
    room = len(out) - ROW_OVERHEAD - len(prefix)
    while row < numbers.shape[1] and at < full:
        size = 0
        for part in range(0, 8, 2):
            size += spans[part + 1, row] - spans[part, row]
        if size > room - at:
            break
        copy_bytes(out, at, prefix, 0, len(prefix))
        at += len(prefix)
        for number in range(NUMBERS):
            at = write_long(out, at, numbers[number, row])
        at = _put_nullable(out, at, keys, spans[0, row], spans[1, row])
        at = _put_nullable(out, at, values, spans[2, row], spans[3, row])
        if spans[4, row] < 0 or spans[5, row] == spans[4, row]:
            store_byte(out, at, 0)
            at += 1
        else:
            copy_bytes(out, at, headers, spans[4, row], spans[5, row] - spans[4, row])
            at += spans[5, row] - spans[4, row]
        at = _put_nullable(out, at, raw, spans[6, row], spans[7, row])
        row += 1
    return row, at


@inlined
def _put_nullable(out: Any, at: int, buffer: Any, start: int, end: int) -> int:
    if start < 0:
        store_byte(out, at, 0)
        return at + 1
    store_byte(out, at, 2)
    at = write_long(out, at + 1, end - start)
    copy_bytes(out, at, buffer, start, end - start)
    return at + end - start


@kernel
def find_rows(block: Any, end: int, prefix: Any, fields: Any) -> int:
    """Fill ``fields`` with the records of a block; return the position after the last one, -1 if it is damaged."""
    at = 0
    for row in range(fields.shape[1]):
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
    """Beginning and end of nullable bytes, and the position after; -1, -1 for null; position -1: damaged."""
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
    """The position after an array of headers; -1: damaged."""
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
    numbers, spans = np.zeros((NUMBERS, 1), np.int64), np.zeros((8, 1), np.int64)
    lay_rows(numbers, spans, (buffer, buffer, buffer, buffer), buffer[:2], 0, buffer, 0, 1)
    find_rows(buffer, 0, buffer[:2], np.zeros((COLUMNS, 1), np.int64))
