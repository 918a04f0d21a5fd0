"""The kernels that find the edits for JSON documents, and that write the edited documents."""

# A state machine is one chain of states, and numba compiles plain comparisons best.
# ruff: noqa: PLR0912, PLR0915, PLR1714, SIM109

from __future__ import annotations

from typing import Any, Final

import numpy as np

from kbq_assets.wire.jit import copy_bytes, inlined, int64, kernel, load_byte, load_word, outlined, store_byte
from kbq_assets.wire.json.layout import FIELD, TYPE
from kbq_assets.wire.json.object_columns import SPARE, find, same
from kbq_assets.wire.json.tokens import plain_end, read_key, read_number, skip_space, unescape
from kbq_assets.wire.records.scan import is_utf8

#: Effects on a value. WALKED has known fields. DECIDED has fields with decisions, so it may only be an object or a list
#: of objects. A document with a LEAVING value is left to `JsonRedactor`.
WALKED, DECIDED, COPIED, DROPPED, NULLED, HASHED, SHORTENED, LEAVING = range(8)
#: Policies for unknown fields.
STOP, KEEP, DROP = range(3)
#: Numbers per edit: start and end of a span, its replacement (the context of a pseudonym, from 0 on, or one of the next
#: line), and whether the replacement needs quotes.
EDIT: Final = 4
NOTHING, NULL = -1, -2
#: Most keys of open removed objects. They are compared because duplicates are left to `JsonRedactor`.
MOST_NAMES: Final = 64
# Fields of a frame, which is an open object or list.
PLACE, IS_LIST, COMMA, KEPT, SERIAL, GUESS, NAMES, BEGIN, INSTEAD, FRAME = range(10)

# Values instead of a place: everything in it is copied, or nothing.
_ALL, _NONE = -1, -2
_KEY, _KEY_OR_CLOSE, _COMMA_OR_CLOSE, _VALUE = range(4)
_QUOTE, _BACKSLASH, _COMMA, _ZERO, _NINE, _MINUS, _T, _F, _N, _POINT = b'"\\,09-tfn.'
_OPEN_OBJECT, _CLOSE_OBJECT, _OPEN_ARRAY, _CLOSE_ARRAY = b"{}[]"
_RUE, _ALSE, _ULL = (np.uint64(int.from_bytes(word, "little")) for word in (b"true", b"alse", b"null"))
_FOUR_BYTES = np.uint64(0xFFFFFFFF)
#: Limits of numbers that Python certainly parses, as whole numbers and as fractions.
_MOST_DIGITS, _MOST_POWER = 18, 22


@inlined
def _note(edits: Any, top: int, start: int, end: int, instead: int, needs_quotes: int) -> int:
    if top < len(edits):
        edits[top, 0], edits[top, 1], edits[top, 2], edits[top, 3] = start, end, instead, needs_quotes
    return top + 1


@outlined
def _has_point(buffer: Any, start: int, end: int) -> bool:
    while start < end and load_byte(buffer, start) != _POINT:
        start += 1
    return start < end


@outlined
def _after_characters(buffer: Any, start: int, end: int, count: int) -> int:
    """The position after ``count`` characters of UTF-8, at most ``end``."""
    while start < end and count > 0:
        start += 1
        while start < end and load_byte(buffer, start) & 0xC0 == 0x80:
            start += 1
        count -= 1
    return start


@outlined
def _is_new(buffer: Any, start: int, size: int, names: Any, first: int, top: int) -> bool:
    """Whether no name from ``first`` on equals this one."""
    for at in range(first, top):
        if names[2 * at + 1] == size and same(buffer, start, buffer, names[2 * at], size):
            return False
    return True


@kernel
def find_edits(layout: Any, others: int, records: Any, limits: Any, work: Any, result: Any) -> int:
    """Find the edits of rows from the position of ``records`` on, until there is no room for more. Returns the position
    reached."""
    types, fields = layout[0], layout[1]
    buffer, row_starts, row_ends, rows, first_row = records
    max_bytes, max_depth = limits
    frames, seen, names, scratch, counted = work
    edits, firsts, lasts, lost = result
    top, serial = int64(0), int64(counted[0])
    for index in range(first_row, len(rows)):
        position, end = row_starts[rows[index]], row_ends[rows[index]]
        firsts[index] = lasts[index] = -1
        begin = top
        if position < 0 or end - position > max_bytes or not is_utf8(buffer, position, end):
            continue
        position = skip_space(buffer, position, end)
        if position >= end or load_byte(buffer, position) != _OPEN_OBJECT:
            continue
        position += 1
        depth, used, gone, is_whole_document = 0, 0, 0, False
        serial += 1
        frames[PLACE] = frames[IS_LIST] = frames[KEPT] = frames[GUESS] = frames[NAMES] = 0
        frames[SERIAL], frames[BEGIN] = serial, -1
        state = _KEY_OR_CLOSE
        while True:
            position = skip_space(buffer, position, end)
            if position >= end:
                break
            byte = load_byte(buffer, position)
            frame = depth * FRAME
            place, in_list = frames[frame + PLACE], frames[frame + IS_LIST]
            if state == _COMMA_OR_CLOSE and byte == _COMMA:
                if place >= 0 and not in_list:
                    if frames[frame + KEPT]:
                        frames[frame + COMMA] = position
                    else:  # everything before it is removed
                        top = _note(edits, top, position, position + 1, NOTHING, 0)
                position += 1
                state = _VALUE if in_list else _KEY
                continue
            closes = byte == (_CLOSE_ARRAY if in_list else _CLOSE_OBJECT)
            if closes and (state == _COMMA_OR_CLOSE or state == _KEY_OR_CLOSE):
                position += 1
                if depth == 0:
                    is_whole_document = skip_space(buffer, position, end) == end
                    break
                used = frames[frame + NAMES]
                if frames[frame + BEGIN] >= 0:
                    top = _note(edits, top, frames[frame + BEGIN], position, frames[frame + INSTEAD], 0)
                depth -= 1
                state = _COMMA_OR_CLOSE
                continue
            if state == _COMMA_OR_CLOSE:
                break
            inner, cut = int64(_ALL), int64(-1)
            if in_list:
                inner = place
            else:
                if byte != _QUOTE:
                    break
                key = position
                start = position + 1
                after, position = read_key(buffer, start, end)
                if after < 0:
                    break
                byte = load_byte(buffer, position)
                is_named = place == _NONE
                if is_named:
                    inner = int64(_NONE)
                elif place >= 0:
                    field = find(buffer, start, after - start, layout, place, frames[frame + GUESS])
                    is_dropped = False
                    if field >= 0:
                        if seen[field] == frames[frame + SERIAL]:
                            break
                        seen[field] = frames[frame + SERIAL]
                        frames[frame + GUESS] = field - types[place * TYPE + 1] + 1
                        inner = fields[field * FIELD + 2]
                        is_dropped = types[inner * TYPE] == DROPPED
                    elif others == STOP or _has_point(buffer, start, after):
                        break
                    elif others == DROP:
                        is_named = is_dropped = True
                        inner = int64(_NONE)
                        gone += 1
                    if is_dropped:
                        cut = frames[frame + COMMA] if frames[frame + KEPT] else key
                    else:
                        frames[frame + KEPT] = 1
                if is_named:
                    if used == MOST_NAMES:
                        break
                    if not _is_new(buffer, start, after - start, names, frames[frame + NAMES], used):
                        break
                    names[2 * used], names[2 * used + 1] = start, after - start
                    used += 1
            effect = types[inner * TYPE] if inner >= 0 else COPIED
            instead = int64(NOTHING)
            if effect == NULLED:
                cut, instead = position, int64(NULL)
            if effect == DROPPED or effect == NULLED:
                inner, effect = int64(_NONE), int64(COPIED)
            elif effect == COPIED and inner >= 0:
                inner = int64(_ALL)
            state = _COMMA_OR_CLOSE
            begun = position
            if byte == _QUOTE:
                start = position + 1
                after = plain_end(buffer, start, end)
                if after >= end or effect == DECIDED or effect == LEAVING:
                    break
                if load_byte(buffer, after) == _QUOTE:
                    position = after + 1
                else:
                    if load_byte(buffer, after) != _BACKSLASH or effect == HASHED or effect == SHORTENED:
                        break
                    if end - start >= len(scratch) - SPARE:
                        break
                    position, _ = unescape(buffer, start, end, scratch, 0)
                    if position < 0:
                        break
                if effect == HASHED:
                    top = _note(edits, top, start, after, types[inner * TYPE + 5], 0)
                elif effect == SHORTENED:
                    reached = _after_characters(buffer, start, after, types[inner * TYPE + 5])
                    if reached < after:
                        top = _note(edits, top, reached, after, NOTHING, 0)
            elif byte == _MINUS or _ZERO <= byte <= _NINE:
                position, number, power, digits, is_whole = read_number(buffer, position, end)
                if position < 0:
                    break
                is_sure = digits <= _MOST_DIGITS and -_MOST_POWER <= power <= _MOST_POWER
                if inner == _NONE and not is_sure:
                    break
                if effect == DECIDED or effect == LEAVING or effect == SHORTENED:
                    break
                if effect == HASHED:
                    if not is_sure or not is_whole or (byte == _MINUS and number == 0):
                        break
                    top = _note(edits, top, begun, position, types[inner * TYPE + 5], 1)
            elif byte == _N:
                if end - position < 4 or load_word(buffer, position) & _FOUR_BYTES != _ULL:
                    break
                position += 4
            elif byte == _T or byte == _F:
                word = _RUE if byte == _T else _ALSE
                position += byte == _F
                if end - position < 4 or load_word(buffer, position) & _FOUR_BYTES != word:
                    break
                position += 4
                if effect == DECIDED or effect == LEAVING or effect == SHORTENED:
                    break
                if effect == HASHED:
                    top = _note(edits, top, begun, position, types[inner * TYPE + 5], 1)
            elif byte == _OPEN_OBJECT or byte == _OPEN_ARRAY:
                is_list = byte == _OPEN_ARRAY
                if depth + 2 >= max_depth or effect == LEAVING:
                    break
                if not is_list and (effect == HASHED or effect == SHORTENED):
                    break
                depth += 1
                serial += 1
                frame = depth * FRAME
                frames[frame + PLACE], frames[frame + IS_LIST] = inner, is_list
                frames[frame + KEPT] = frames[frame + GUESS] = 0
                frames[frame + NAMES], frames[frame + SERIAL] = used, serial
                frames[frame + BEGIN], frames[frame + INSTEAD] = cut, instead
                position += 1
                state = _KEY_OR_CLOSE
                if is_list:
                    position = skip_space(buffer, position, end)
                    if position < end and load_byte(buffer, position) != _CLOSE_ARRAY:
                        state = _VALUE
                continue
            else:
                break
            if cut >= 0:
                top = _note(edits, top, cut, position, instead, 0)
        if not is_whole_document:
            top = begin
        elif top <= len(edits):
            firsts[index], lasts[index], lost[index] = begin, top, gone
        elif begin > 0:
            counted[0], counted[1] = serial, begin
            return index
        else:  # a document with more edits than there is room for
            top = begin
    counted[0], counted[1] = serial, top
    return len(rows)


@kernel
def write_edited(records: Any, edits: Any, pseudonyms: Any, result: Any) -> None:
    """Write the documents of rows ``[first, until)`` that `find_edits` did not leave, with their edits applied."""
    buffer, row_starts, row_ends, rows, first, until = records
    noted, firsts, lasts = edits
    texts, places, size = pseudonyms
    out, starts, ends, base = result
    to = int64(0)
    for index in range(first, until):
        if firsts[index] < 0:
            continue
        starts[index] = base + to
        position = row_starts[rows[index]]
        for at in range(firsts[index], lasts[index]):
            count = noted[at, 0] - position
            copy_bytes(out, to, buffer, position, count)
            to += count
            position = noted[at, 1]
            if noted[at, 2] == NULL:
                store_byte(out, to, _N)
                store_byte(out, to + 1, 0x75)
                store_byte(out, to + 2, 0x6C)
                store_byte(out, to + 3, 0x6C)
                to += 4
            elif noted[at, 2] >= 0:
                if noted[at, 3]:
                    store_byte(out, to, _QUOTE)
                    to += 1
                copy_bytes(out, to, texts, places[at], size)
                to += size
                if noted[at, 3]:
                    store_byte(out, to, _QUOTE)
                    to += 1
        count = row_ends[rows[index]] - position
        copy_bytes(out, to, buffer, position, count)
        to += count
        ends[index] = base + to
