"""Finds the field of a key, and writes the columns of an object from its slots."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from kbq_assets.wire.jit import copy_bytes, inlined, int64, load_word, outlined, store_byte
from kbq_assets.wire.json.layout import FACTORS, FIELD, KINDS, TYPE
from kbq_assets.wire.records.event_time import NO_TIME, micros_of_double, micros_of_number, micros_of_text
from kbq_assets.wire.records.scan import write_long

# Fields of a slot: a field's value, as a span of the document (texts) or of the parts; a list's items; the rest.
START, END, ITEMS, REST_START, REST_END, SLOT = range(6)
UNSET, ABSENT = -1, -2
# Kinds of a captured value. It has a kind, a span or value, and its position in the document.
NOTHING, TEXT, LONG, DOUBLE, OTHER = range(5)
CAPTURE: Final = 4
#: Spare bytes at the end of every area, for a length and for a store of a whole word.
SPARE: Final = 32

_STRING, _LIST = KINDS["STRING"], KINDS["LIST"]
_COMMA, _OPEN_OBJECT, _CLOSE_OBJECT = ord(","), ord("{"), ord("}")
_NO_BITS, _ALL = np.uint64(0), np.uint64(0xFFFFFFFFFFFFFFFF)
_K0, _K1, _K2 = (np.uint64(factor) for factor in FACTORS)


@inlined
def _hash(buffer: Any, start: int, size: int) -> Any:
    word = load_word(buffer, start)
    last: Any = _NO_BITS
    if size < 8:
        word &= (np.uint64(1) << np.uint64(8 * size)) - np.uint64(1)
    elif size > 8:
        last = load_word(buffer, start + size - 8)
    mixed = (word * _K0) ^ (last * _K1) ^ (np.uint64(size) * _K2)
    return mixed ^ (mixed >> np.uint64(29))


@inlined
def same(buffer: Any, start: int, other: Any, at: int, size: int) -> bool:
    """Whether two spans have the same bytes. Both buffers must be padded."""
    while size >= 8:
        if load_word(buffer, start) != load_word(other, at):
            return False
        start, at, size = start + 8, at + 8, size - 8
    if size <= 0:
        return True
    mask = _ALL >> np.uint64(64 - 8 * size)
    same: bool = (load_word(buffer, start) & mask) == (load_word(other, at) & mask)
    return same


@inlined
def _is_key(buffer: Any, start: int, size: int, fields: Any, field: int, keys: Any) -> bool:
    at = fields[field * FIELD]
    return fields[field * FIELD + 1] - at == size and same(buffer, start, keys, at, size)


@outlined
def find(buffer: Any, start: int, size: int, layout: Any, type_: int, guess: int) -> int:
    """The field of a key in a record type, or -1. Tries ``guess`` first."""
    types, fields, tables, keys = layout
    first, count = types[type_ * TYPE + 1], types[type_ * TYPE + 2]
    if guess < count and _is_key(buffer, start, size, fields, first + guess, keys):
        guessed: int = first + guess
        return guessed
    base, mask = types[type_ * TYPE + 3], types[type_ * TYPE + 4]
    place = int64(_hash(buffer, start, size) & np.uint64(mask))
    while True:
        field: int = int64(tables[base + place])
        if field < 0 or _is_key(buffer, start, size, fields, field, keys):
            return field
        place = (place + 1) & mask


@outlined
def write_columns(layout: Any, type_: int, slots: Any, base: int, source: Any, target: Any, to: int) -> int:
    """Write the columns of a record. Returns the position after them, or -1 if they do not fit."""
    types, fields, parts, buffer = layout[0], layout[1], source[0], source[1]
    most = len(target) - SPARE
    first = types[type_ * TYPE + 1]
    for index in range(types[type_ * TYPE + 2]):
        slot = base + index * SLOT
        end = slots[slot + END]
        if to >= most:
            return -1
        if end < 0:
            store_byte(target, to, 0)
            to += 1
            continue
        start = slots[slot + START]
        kind = types[fields[(first + index) * FIELD + 2] * TYPE]
        size = end - start if start >= 0 else end - ~start
        if to + size >= most:
            return -1
        if kind == _LIST:
            to = write_long(target, to, slots[slot + ITEMS])
            copy_bytes(target, to, parts, start, size)
            store_byte(target, to + size, 0)
            to += size + 1
            continue
        store_byte(target, to, 2)
        to += 1
        if kind == _STRING:
            to = write_long(target, to, size)
        if kind == _STRING and start >= 0:
            copy_bytes(target, to, buffer, start, size)
        else:
            copy_bytes(target, to, parts, start if start >= 0 else ~start, size)
        to += size
    return to


@outlined
def write_rest(layout: Any, type_: int, slots: Any, base: int, rests: Any, target: Any, to: int) -> int:
    """Write the object of values that fit no column. Returns the position after it, ``to`` if there are none, or -1 if
    it does not fit."""
    types, fields, keys = layout[0], layout[1], layout[3]
    most = len(target) - SPARE
    begin = to
    first = types[type_ * TYPE + 1]
    for index in range(types[type_ * TYPE + 2]):
        slot = base + index * SLOT
        if slots[slot + END] == UNSET or slots[slot + REST_END] < 0:
            continue
        start, size = slots[slot + REST_START], slots[slot + REST_END] - slots[slot + REST_START]
        key = (first + index) * FIELD
        length = fields[key + 4] - fields[key + 3]
        if to + length + size + 2 >= most:
            return -1
        store_byte(target, to, _OPEN_OBJECT if to == begin else _COMMA)
        copy_bytes(target, to + 1, keys, fields[key + 3], length)
        to += 1 + length
        copy_bytes(target, to, rests, start, size)
        to += size
    if to > begin:
        store_byte(target, to, _CLOSE_OBJECT)
        to += 1
    return to


@outlined
def time_of(buffer: Any, time: Any, captures: Any, doubled: Any) -> tuple[int, bool]:
    """The business time in microseconds or `NO_TIME`, and whether it is left to Python."""
    ranks, unit, _ = time
    rank, place = int64(-1), int64(-1)
    while True:
        best, best_rank, best_place = int64(-1), int64(0), int64(0)
        for index in range(len(ranks)):  # few fields have names of times
            at = captures[index * CAPTURE + 3]
            if captures[index * CAPTURE] == NOTHING or (
                ranks[index] < rank or (ranks[index] == rank and at <= place)
            ):
                continue
            if best < 0 or ranks[index] < best_rank or (ranks[index] == best_rank and at < best_place):
                best, best_rank, best_place = int64(index), int64(ranks[index]), int64(at)
        if best < 0:
            return NO_TIME, False
        rank, place = best_rank, best_place
        kind = captures[best * CAPTURE]
        start, end = captures[best * CAPTURE + 1], captures[best * CAPTURE + 2]
        if kind == OTHER:
            return NO_TIME, True
        if kind == TEXT:
            micros = micros_of_text(buffer, start, end, unit)
        elif kind == LONG:
            micros = micros_of_number(start, unit)
        else:
            micros = micros_of_double(doubled[best + 1], unit)
        if micros != NO_TIME:
            return micros, False
