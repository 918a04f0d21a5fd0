"""Converts Protobuf messages to Avro records, from bytes to bytes in one pass.

The kernel encodes messages whose fields are known, have plain types, and are written the way Protobuf's own libraries
write them. It leaves a message to Google's library (adapters/protobuf/rows.py) if the message has a rare feature: an
unknown field or enum number, a map, a Struct, or a field that is split into several parts. Google's library therefore
defines the record of a message, and tests compare the two.
"""

# The interpreter is one chain of comparisons of the kind, because numba compiles plain comparisons best.
# ruff: noqa: PLR0912, PLR0915

from __future__ import annotations

from typing import Any, Final

import numpy as np

from kbq_assets.wire.chunk import PADDING, Bytes, Chunk, Longs
from kbq_assets.wire.jit import (
    copy_bytes,
    int64,
    kernel,
    outlined,
    store_byte,
)
from kbq_assets.wire.protobuf.layout import FIELD, MESSAGE, FieldKind, MessageLayout
from kbq_assets.wire.protobuf.scalars import (
    SPAN,
    SPARE,
    varint,
    wire_type,
    write_scalar,
    write_timestamp,
    write_wrapped,
)
from kbq_assets.wire.records.encoded import EncodedRecords
from kbq_assets.wire.records.scan import write_long

#: The room in bytes for the parts of one message. A larger message is left to Google's library.
_ROOM: Final = 1 << 20
_LEFT, _DONE, _FULL = 0, 1, 2

_STRING, _MESSAGE = int(FieldKind.STRING), int(FieldKind.MESSAGE)
_TIMESTAMP, _WRAPPER = int(FieldKind.TIMESTAMP), int(FieldKind.WRAPPER)

# A frame is a message that the kernel is inside of.
_TYPE, _SLOTS, _PARTS, _STOP, _GUESS, _PARENT, _FRAME = range(7)
# A slot is the value or the items of a field, as a span of the parts, and the number of items.
_START, _END, _ITEMS, _SLOT = range(4)
_UNSET = -1

_LOW_32 = 0xFFFFFFFF


class MessageEncoder:
    """Encodes messages of one type, framed with ``schema_id``. Not thread-safe, because it has its own work areas."""

    def __init__(self, layout: MessageLayout, schema_id: int) -> None:
        slots = (len(layout.fields) // FIELD + 1) * _SLOT
        self._layout = (layout.messages, layout.fields, layout.order, layout.texts)
        self._enums = (layout.enums, layout.values, layout.texts)
        self._frame = np.frombuffer(
            bytearray(b"\0" + schema_id.to_bytes(4, "big") + bytes(PADDING)), np.uint8
        )
        self._work = (np.empty((layout.levels + 1) * _FRAME, np.int64), np.empty(slots, np.int64))
        self._areas = tuple(np.empty(_ROOM + SPARE, np.uint8) for _ in range(2))

    def encode(self, chunk: Chunk, rows: Longs) -> EncodedRecords:
        """Encode the messages of ``rows`` that the kernel supports. The others are marked as left."""
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
            at += not used[0] and at < len(rows)  # the record is too large for the output: it is left
        joined = np.concatenate([*buffers, np.zeros(PADDING, np.uint8)])
        return EncodedRecords(joined, starts, ends, verdicts == _DONE)


@outlined
def _find(fields: Any, first: int, count: int, number: int, guess: int) -> Any:
    """The field with a number in a message type, or -1. Tries ``guess`` and the field after it first."""
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


@outlined
def _write_columns(layout: Any, type_: int, slots: Any, base: int, parts: Any, target: Any, to: int) -> int:
    """Write the columns of a message. Returns the position after them, -1 if they do not fit, -2 if the message is
    left."""
    messages, fields, order, texts = layout
    most = len(target) - SPARE
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
        if fields[at + 7] >= 0:  # Protobuf keeps only the last member of a oneof
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
    """Encode rows from the position in ``records`` on, until the output is full. Returns the position reached."""
    messages, fields = layout[0], layout[1]
    buffer, row_starts, row_ends, rows, first_row = records
    frames, slots = work
    parts, scratch = areas
    out, out_base, starts, ends, verdicts, used = result
    most_part = len(parts) - SPARE
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
                    if out_top + 2 * SPARE >= len(out):
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
            tag, position = varint(buffer, position, stop)
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
            if kind < _MESSAGE and wire == wire_type(kind):
                position, part = write_scalar(enums, kind, inner, buffer, position, stop, parts, part)
                if position < 0:
                    break
                slots[slot + _END] = part
                slots[slot + _ITEMS] += 1
                continue
            if wire != SPAN:
                break
            size, position = varint(buffer, position, stop)
            if position < 0 or size < 0 or size > stop - position:
                break
            if kind < _STRING:
                if not is_repeated:
                    break
                until = position + size
                while position < until and position >= 0:
                    position, part = write_scalar(enums, kind, inner, buffer, position, until, parts, part)
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
                position, part = write_timestamp(buffer, position, position + size, parts, part)
            elif kind == _WRAPPER:
                position, part = write_wrapped(enums, inner, buffer, position, position + size, parts, part)
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
