"""Converts scalars of Protobuf's wire format to Avro: numbers, strings, enums, Timestamps and wrappers."""

# The interpreter is one chain of comparisons of the kind, because numba compiles plain comparisons best.
# ruff: noqa: PLR0911, PLR0912, PLR1714

from __future__ import annotations

from typing import Any, Final

import numpy as np

from kbq_assets.wire.jit import (
    copy_bytes,
    inlined,
    int64,
    load_byte,
    load_word,
    outlined,
    store_byte,
    store_word,
)
from kbq_assets.wire.protobuf.layout import ENUM, ENUM_VALUE, FieldKind
from kbq_assets.wire.records.scan import is_utf8, write_long

#: Spare bytes at the end of every area: room for a length, and for the word that a store may write past the end.
SPARE: Final = 32
#: Wire types.
VARINT, EIGHT, SPAN, FOUR = 0, 1, 2, 5

_INT64, _INT32, _UINT32, _SINT64 = (
    int(FieldKind.INT64),
    int(FieldKind.INT32),
    int(FieldKind.UINT32),
    int(FieldKind.SINT64),
)
_SINT32, _UINT64, _BOOL, _ENUM = (
    int(FieldKind.SINT32),
    int(FieldKind.UINT64),
    int(FieldKind.BOOL),
    int(FieldKind.ENUM),
)
_FIXED64, _SFIXED64, _DOUBLE = int(FieldKind.FIXED64), int(FieldKind.SFIXED64), int(FieldKind.DOUBLE)
_FIXED32, _SFIXED32, _FLOAT = int(FieldKind.FIXED32), int(FieldKind.SFIXED32), int(FieldKind.FLOAT)
_STRING = int(FieldKind.STRING)

_FIRST_SECOND, _END_SECOND = -62_135_596_800, 253_402_300_800
_LOW_32, _SIGN_32 = 0xFFFFFFFF, 0x80000000
_EXPONENT_32, _FRACTION_32 = 0x7F800000, 0x007FFFFF


@inlined
def varint(buffer: Any, position: int, end: int) -> tuple[int, int]:
    """The 64 bits of a varint, and the position after it. The position is -1 if the varint is invalid."""
    value = shift = 0
    while position < end:
        byte = load_byte(buffer, position)
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value, position) if shift < 63 or byte <= 1 else (0, -1)
        shift += 7
        if shift > 63:
            break
    return 0, -1


@inlined
def _signed_32(value: int) -> int:
    signed: int = ((value & _LOW_32) ^ _SIGN_32) - _SIGN_32
    return signed


@inlined
def _write_unsigned(target: Any, to: int, value: int) -> int:
    """Write an unsigned 64-bit number as an Avro decimal: its bytes in big-endian order, with a sign bit."""
    size, rest = 1, np.uint64(value) >> np.uint64(7)
    while rest != np.uint64(0):
        size, rest = size + 1, rest >> np.uint64(8)
    to = write_long(target, to, size)
    for index in range(size):
        shift = 8 * (size - 1 - index)
        store_byte(target, to + index, (value >> shift) & 0xFF if shift < 64 else 0)
    return to + size


@inlined
def _write_enum(enums: Any, enum: int, number: int, target: Any, to: int) -> int:
    """Write the name of an enum number. Returns the position after it, -1 if the number has no name or there is no
    room."""
    table, values, texts = enums
    low = table[enum * ENUM]
    end = low + table[enum * ENUM + 1]
    high = end
    while low < high:
        middle = (low + high) >> 1
        if values[middle * ENUM_VALUE] < number:
            low = middle + 1
        else:
            high = middle
    if low >= end or values[low * ENUM_VALUE] != number:
        return -1
    start, size = values[low * ENUM_VALUE + 1], values[low * ENUM_VALUE + 2] - values[low * ENUM_VALUE + 1]
    if to + size >= len(target) - SPARE:
        return -1
    copy_bytes(target, to, texts, start, size)
    after: int = to + size
    return after


@outlined
def write_scalar(
    enums: Any, kind: int, inner: int, buffer: Any, position: int, end: int, target: Any, to: int
) -> tuple[int, int]:
    """Write the value at a position. Returns the position after it in the buffer and in the target. The first is -1 if
    the message is left."""
    if to >= len(target) - SPARE:
        return -1, to
    if kind <= _ENUM:
        value, position = varint(buffer, position, end)
        if position < 0:
            return -1, to
        if kind == _INT32:
            value = _signed_32(value)
        elif kind == _UINT32:
            value &= _LOW_32
        elif kind == _SINT64:
            value = ((value >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(value & 1)
        elif kind == _SINT32:
            value &= _LOW_32
            value = (value >> 1) ^ -(value & 1)
        elif kind == _UINT64:
            return position, _write_unsigned(target, to, value)
        elif kind == _BOOL:
            store_byte(target, to, value != 0)
            return position, to + 1
        elif kind == _ENUM:
            to = _write_enum(enums, inner, _signed_32(value), target, to)
            return (position, to) if to >= 0 else (-1, to)
        return position, write_long(target, to, value)
    if kind <= _DOUBLE:
        if end - position < 8:
            return -1, to
        word = load_word(buffer, position)
        if kind == _DOUBLE:
            store_word(target, to, word)
            return position + 8, to + 8
        value = int64(word)
        if kind == _FIXED64:
            return position + 8, _write_unsigned(target, to, value)
        return position + 8, write_long(target, to, value)
    if kind <= _FLOAT:
        if end - position < 4:
            return -1, to
        value = int64(load_word(buffer, position)) & _LOW_32
        if kind == _FLOAT:
            if value & _EXPONENT_32 == _EXPONENT_32 and value & _FRACTION_32 != 0:
                return -1, to  # a library may change the bits of a NaN
            store_word(target, to, np.uint64(value))
            return position + 4, to + 4
        return position + 4, write_long(target, to, value if kind == _FIXED32 else _signed_32(value))
    size, position = varint(buffer, position, end)
    if position < 0 or size < 0 or size > end - position or to + size >= len(target) - SPARE:
        return -1, to
    if kind == _STRING and not is_utf8(buffer, position, position + size):
        return -1, to
    to = write_long(target, to, size)
    copy_bytes(target, to, buffer, position, size)
    return position + size, to + size


@inlined
def wire_type(kind: int) -> int:
    """The wire type of a single value of a field."""
    if kind <= _ENUM:
        return VARINT
    if kind <= _DOUBLE:
        return EIGHT
    return FOUR if kind <= _FLOAT else SPAN


@outlined
def write_timestamp(buffer: Any, position: int, end: int, target: Any, to: int) -> tuple[int, int]:
    """Write the Timestamp between two positions in microseconds."""
    seconds = nanos = before = int64(0)
    while position < end:
        field = load_byte(buffer, position)
        value, position = varint(buffer, position + 1, end)
        if position < 0 or field <= before or (field != 8 and field != 16):
            return -1, to
        before = field
        if field == 8:
            seconds = value
        else:
            nanos = _signed_32(value)
    if seconds <= _FIRST_SECOND + 4 or seconds >= _END_SECOND - 4 or to >= len(target) - SPARE:
        return -1, to
    return position, write_long(target, to, seconds * 1_000_000 + nanos // 1_000)


@outlined
def write_wrapped(
    enums: Any, kind: int, buffer: Any, position: int, end: int, target: Any, to: int
) -> tuple[int, int]:
    """Write the value of the wrapper between two positions. An empty wrapper stands for zero or an empty string."""
    if to >= len(target) - SPARE:
        return -1, to
    if position == end:
        store_word(target, to, np.uint64(0))
        if kind == _UINT64:
            return position, _write_unsigned(target, to, 0)
        return position, to + (8 if kind == _DOUBLE else 4 if kind == _FLOAT else 1)
    if load_byte(buffer, position) != 8 | wire_type(kind):
        return -1, to
    position, to = write_scalar(enums, kind, 0, buffer, position + 1, end, target, to)
    return (position, to) if position == end else (-1, to)
