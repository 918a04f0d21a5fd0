"""Protobuf messages as Avro records, from bytes to bytes in one pass.

The kernel takes messages whose fields are known, plain, and as Protobuf's own libraries write them. It leaves a message
to Google's library (adapters/protobuf/rows.py) if something in it is rare: an unknown field or enum number, a map, a
Struct, a field that comes twice in parts. So that library defines what a message's record is; tests compare the two.
"""

# An interpreter is one chain of kinds, and numba is best at plain comparisons.
# ruff: noqa: PLR0911, PLR0912, PLR0915, PLR1714

from __future__ import annotations

from typing import Any, Final

import numpy as np

from kbq_assets.wire.chunk import PADDING, Bytes, Chunk, Longs
from kbq_assets.wire.jit import (
    copy_bytes,
    inlined,
    int64,
    kernel,
    load_byte,
    load_word,
    outlined,
    store_byte,
    store_word,
)
from kbq_assets.wire.protobuf.layout import ENUM, ENUM_VALUE, FIELD, MESSAGE, Kind, Layout
from kbq_assets.wire.records.encoded import EncodedRecords
from kbq_assets.wire.records.scan import is_utf8, write_long

#: Bytes for the parts of one message; a larger one is left.
_ROOM: Final = 1 << 20
#: Spare bytes at the end of every area: a length, and the word that a store may reach beyond.
_SPARE: Final = 32
_LEFT, _DONE, _FULL = 0, 1, 2

_INT64, _INT32, _UINT32, _SINT64 = int(Kind.INT64), int(Kind.INT32), int(Kind.UINT32), int(Kind.SINT64)
_SINT32, _UINT64, _BOOL, _ENUM = int(Kind.SINT32), int(Kind.UINT64), int(Kind.BOOL), int(Kind.ENUM)
_FIXED64, _SFIXED64, _DOUBLE = int(Kind.FIXED64), int(Kind.SFIXED64), int(Kind.DOUBLE)
_FIXED32, _SFIXED32, _FLOAT = int(Kind.FIXED32), int(Kind.SFIXED32), int(Kind.FLOAT)
_STRING, _BYTES, _MESSAGE = int(Kind.STRING), int(Kind.BYTES), int(Kind.MESSAGE)
_TIMESTAMP, _WRAPPER = int(Kind.TIMESTAMP), int(Kind.WRAPPER)
_VARINT, _EIGHT, _SPAN, _FOUR = 0, 1, 2, 5

# A frame: a message that is open.
_TYPE, _SLOTS, _PARTS, _STOP, _GUESS, _PARENT, _FRAME = range(7)
# A slot: a field's value or items as a span of the parts, and how many.
_START, _END, _ITEMS, _SLOT = range(4)
_UNSET = -1

_FIRST_SECOND, _END_SECOND = -62_135_596_800, 253_402_300_800
_LOW_32 = 0xFFFFFFFF
_SIGN_32 = 0x80000000
_EXPONENT_32, _FRACTION_32 = 0x7F800000, 0x007FFFFF


class MessageEncoder:
    """Encodes messages of one type, framed by ``schema_id``. Not for threads: it has areas of its own."""

    def __init__(self, layout: Layout, schema_id: int) -> None:
        slots = (len(layout.fields) // FIELD + 1) * _SLOT
        self._layout = (layout.messages, layout.fields, layout.order, layout.texts)
        self._enums = (layout.enums, layout.values, layout.texts)
        self._frame = np.frombuffer(
            bytearray(b"\0" + schema_id.to_bytes(4, "big") + bytes(PADDING)), np.uint8
        )
        self._work = (np.empty((layout.levels + 1) * _FRAME, np.int64), np.empty(slots, np.int64))
        self._areas = tuple(np.empty(_ROOM + _SPARE, np.uint8) for _ in range(2))

    def encode(self, chunk: Chunk, rows: Longs) -> EncodedRecords:
        """The messages of ``rows`` that the kernel takes; the others are left."""
        verdicts = np.zeros(len(rows), np.uint8)
        starts, ends = np.full(len(rows), -1, np.int64), np.full(len(rows), -1, np.int64)
        buffers: list[Bytes] = []
        at = base = 0
        while at < len(rows):
            size = int((chunk.ends[rows[at:]] - chunk.starts[rows[at:]]).sum())
            out, used = np.empty(2 * size + 64 * len(rows) + _ROOM, np.uint8), np.zeros(1, np.int64)
            at = _encode(
                self._layout,
                self._enums,
                (chunk.buffer, chunk.starts, chunk.ends, rows, at),
                self._frame,
                self._work,
                self._areas,
                (out, base, starts, ends, verdicts, used),
            )
            buffers.append(out[: int(used[0])])
            base += int(used[0])
            at += not used[0] and at < len(rows)  # a record larger than any bound: it is left
        joined = np.concatenate([*buffers, np.zeros(PADDING, np.uint8)])
        return EncodedRecords(joined, starts, ends, verdicts == _DONE)


@inlined
def _varint(buffer: Any, position: int, end: int) -> tuple[int, int]:
    """The 64 bits of a varint, and the position after it, or -1."""
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
    """An unsigned number of 64 bits as Avro's decimal: its bytes, the highest first, with a sign bit."""
    size, rest = 1, np.uint64(value) >> np.uint64(7)
    while rest != np.uint64(0):
        size, rest = size + 1, rest >> np.uint64(8)
    to = write_long(target, to, size)
    for index in range(size):
        shift = 8 * (size - 1 - index)
        store_byte(target, to + index, (value >> shift) & 0xFF if shift < 64 else 0)
    return to + size


@outlined
def _find(fields: Any, first: int, count: int, number: int, guess: int) -> Any:
    """The field with a number in a message type, or -1; ``guess`` and the one after it are tried first."""
    for index in range(guess, min(guess + 2, count)):
        if fields[(first + index) * FIELD] == number:
            return int64(first + index)
    low, high = int64(0), int64(count)
    while low < high:
        middle = (low + high) >> 1
        if fields[(first + middle) * FIELD] < number:
            low = middle + 1
        else:
            high = middle
    if low < count and fields[(first + low) * FIELD] == number:
        return int64(first + low)
    return -1


@inlined
def _write_enum(enums: Any, enum: int, number: int, target: Any, to: int) -> int:
    """Write the name of an enum's number; -1 if it has none."""
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
    if to + size >= len(target) - _SPARE:
        return -1
    copy_bytes(target, to, texts, start, size)
    after: int = to + size
    return after


@outlined
def _write_scalar(
    enums: Any, kind: int, inner: int, buffer: Any, position: int, end: int, target: Any, to: int
) -> tuple[int, int]:
    """Write the value at a position; the positions after it here and there. -1 for what is left."""
    if to >= len(target) - _SPARE:
        return -1, to
    if kind <= _ENUM:
        value, position = _varint(buffer, position, end)
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
                return -1, to  # a library may change the bits of what is no number
            store_word(target, to, np.uint64(value))
            return position + 4, to + 4
        return position + 4, write_long(target, to, value if kind == _FIXED32 else _signed_32(value))
    size, position = _varint(buffer, position, end)
    if position < 0 or size < 0 or size > end - position or to + size >= len(target) - _SPARE:
        return -1, to
    if kind == _STRING and not is_utf8(buffer, position, position + size):
        return -1, to
    to = write_long(target, to, size)
    copy_bytes(target, to, buffer, position, size)
    return position + size, to + size


@inlined
def _wire_type(kind: int) -> int:
    if kind <= _ENUM:
        return _VARINT
    if kind <= _DOUBLE:
        return _EIGHT
    return _FOUR if kind <= _FLOAT else _SPAN


@outlined
def _write_timestamp(buffer: Any, position: int, end: int, target: Any, to: int) -> tuple[int, int]:
    """Write the microseconds of a Timestamp between two positions."""
    seconds = nanos = before = int64(0)
    while position < end:
        field = load_byte(buffer, position)
        value, position = _varint(buffer, position + 1, end)
        if position < 0 or field <= before or (field != 8 and field != 16):
            return -1, to
        before = field
        if field == 8:
            seconds = value
        else:
            nanos = _signed_32(value)
    if seconds <= _FIRST_SECOND + 4 or seconds >= _END_SECOND - 4 or to >= len(target) - _SPARE:
        return -1, to
    return position, write_long(target, to, seconds * 1_000_000 + nanos // 1_000)


@outlined
def _write_wrapped(
    enums: Any, kind: int, buffer: Any, position: int, end: int, target: Any, to: int
) -> tuple[int, int]:
    """Write the one value of a wrapper between two positions; an empty one holds a zero or an empty text."""
    if to >= len(target) - _SPARE:
        return -1, to
    if position == end:
        store_word(target, to, np.uint64(0))
        if kind == _UINT64:
            return position, _write_unsigned(target, to, 0)
        return position, to + (8 if kind == _DOUBLE else 4 if kind == _FLOAT else 1)
    if load_byte(buffer, position) != 8 | _wire_type(kind):
        return -1, to
    position, to = _write_scalar(enums, kind, 0, buffer, position + 1, end, target, to)
    return (position, to) if position == end else (-1, to)


@outlined
def _write_columns(layout: Any, type_: int, slots: Any, base: int, parts: Any, target: Any, to: int) -> int:
    """Write the columns of a message; the position after them, -1 if they do not fit, -2 if the message is left."""
    messages, fields, order, texts = layout
    most = len(target) - _SPARE
    first = messages[type_ * MESSAGE]
    oneofs = int64(0)
    for index in range(first, first + messages[type_ * MESSAGE + 1]):
        field = order[index]
        slot = base + (field - first) * _SLOT
        at = field * FIELD
        end = slots[slot + _END]
        if end == _UNSET:
            start, end = fields[at + 5], fields[at + 6]
            if end < 0:
                return -2
            if to + end - start >= most:
                return -1
            copy_bytes(target, to, texts, start, end - start)
            to += end - start
            continue
        start = slots[slot + _START]
        if to + end - start >= most:
            return -1
        if fields[at + 7] >= 0:  # Protobuf keeps the last member of a oneof
            if oneofs >> fields[at + 7] & 1:
                return -2
            oneofs |= 1 << fields[at + 7]
        if fields[at + 3]:
            to = write_long(target, to, slots[slot + _ITEMS])
        elif fields[at + 4]:
            store_byte(target, to, 2)
            to += 1
        copy_bytes(target, to, parts, start, end - start)
        to += end - start
        if fields[at + 3]:
            store_byte(target, to, 0)
            to += 1
    return to


@kernel
def _encode(layout: Any, enums: Any, records: Any, framing: Any, work: Any, areas: Any, result: Any) -> int:
    """Encode rows from ``records``' position on, until the output is full; the position reached."""
    messages, fields = layout[0], layout[1]
    buffer, row_starts, row_ends, rows, first_row = records
    frames, slots = work
    parts, scratch = areas
    out, out_base, starts, ends, verdicts, used = result
    most_part = len(parts) - _SPARE
    out_top = 0
    for row in range(first_row, len(rows)):
        position, end = row_starts[rows[row]], row_ends[rows[row]]
        depth, part, verdict, to = 0, 0, _LEFT, 0
        frames[_TYPE] = frames[_SLOTS] = frames[_PARTS] = frames[_GUESS] = 0
        frames[_STOP] = end
        for index in range(messages[1]):
            slots[index * _SLOT + _END] = _UNSET
        while True:
            frame = depth * _FRAME
            type_, base, stop = frames[frame + _TYPE], frames[frame + _SLOTS], frames[frame + _STOP]
            if position == stop:
                if depth == 0:
                    if out_top + 2 * _SPARE >= len(out):
                        verdict = _FULL
                        break
                    copy_bytes(out, out_top, framing, 0, 5)
                    to = _write_columns(layout, type_, slots, base, parts, out, out_top + 5)
                    if to != -2:
                        verdict = _FULL if to < 0 else _DONE
                    break
                size = _write_columns(layout, type_, slots, base, parts, scratch, 0)
                part = frames[frame + _PARTS]
                if size < 0 or part + size >= most_part:
                    break
                copy_bytes(parts, part, scratch, 0, size)
                slot = frames[frame + _PARENT]
                if slots[slot + _END] == _UNSET:
                    slots[slot + _START] = part
                part += size
                slots[slot + _END] = part
                depth -= 1
                continue
            tag, position = _varint(buffer, position, stop)
            if position < 0 or tag < 8 or tag > _LOW_32:
                break
            first, count = messages[type_ * MESSAGE], messages[type_ * MESSAGE + 1]
            field = _find(fields, first, count, tag >> 3, frames[frame + _GUESS])
            if field < 0:
                break
            at, slot, wire = field * FIELD, base + (field - first) * _SLOT, tag & 7
            frames[frame + _GUESS] = field - first
            kind, inner, is_repeated = fields[at + 1], fields[at + 2], fields[at + 3]
            if slots[slot + _END] == _UNSET:
                slots[slot + _START], slots[slot + _ITEMS] = part, 0
            elif is_repeated:
                if slots[slot + _END] != part:
                    break
            elif kind >= _MESSAGE:
                break
            else:
                slots[slot + _START] = part
            if kind < _MESSAGE and wire == _wire_type(kind):
                position, part = _write_scalar(enums, kind, inner, buffer, position, stop, parts, part)
                if position < 0:
                    break
                slots[slot + _END] = part
                slots[slot + _ITEMS] += 1
                continue
            if wire != _SPAN:
                break
            size, position = _varint(buffer, position, stop)
            if position < 0 or size < 0 or size > stop - position:
                break
            if kind < _STRING:
                if not is_repeated:
                    break
                until = position + size
                while position < until and position >= 0:
                    position, part = _write_scalar(enums, kind, inner, buffer, position, until, parts, part)
                    slots[slot + _ITEMS] += 1
                if position < 0:
                    break
                if slots[slot + _ITEMS] > 0:
                    slots[slot + _END] = part
                continue
            slots[slot + _ITEMS] += 1
            if kind == _MESSAGE:
                depth += 1
                frame = depth * _FRAME
                frames[frame + _TYPE], frames[frame + _SLOTS] = inner, base + count * _SLOT
                frames[frame + _PARTS], frames[frame + _STOP] = part, position + size
                frames[frame + _GUESS], frames[frame + _PARENT] = 0, slot
                for index in range(messages[inner * MESSAGE + 1]):
                    slots[base + (count + index) * _SLOT + _END] = _UNSET
                continue
            if kind == _TIMESTAMP:
                position, part = _write_timestamp(buffer, position, position + size, parts, part)
            elif kind == _WRAPPER:
                position, part = _write_wrapped(enums, inner, buffer, position, position + size, parts, part)
            else:
                break
            if position < 0:
                break
            slots[slot + _END] = part
        if verdict == _FULL:
            used[0] = out_top
            return row
        verdicts[row] = verdict
        if verdict == _DONE:
            starts[row], ends[row] = out_base + out_top, out_base + to
            out_top = to
    used[0] = out_top
    return len(rows)
