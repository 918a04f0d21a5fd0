"""The kernel that reads JSON documents and writes Avro records."""

# A state machine is one chain of states, and numba compiles plain comparisons best.
# ruff: noqa: PLR0912, PLR0915, PLR1714, SIM109

from __future__ import annotations

from typing import Any, Final

import numpy as np

from kbq_assets.core.topics.json.inference import MAX_EXACT
from kbq_assets.wire.jit import copy_bytes, int64, kernel, load_byte, load_word, store_byte, store_word
from kbq_assets.wire.json.layout import FIELD, KINDS, TYPE
from kbq_assets.wire.json.object_columns import (
    ABSENT,
    CAPTURE,
    DOUBLE,
    END,
    ITEMS,
    LONG,
    NOTHING,
    OTHER,
    REST_END,
    REST_START,
    SLOT,
    SPARE,
    START,
    TEXT,
    UNSET,
    find,
    same,
    time_of,
    write_columns,
    write_rest,
)  # fmt: skip
from kbq_assets.wire.json.tokens import plain_end, read_key, read_number, skip_space, unescape
from kbq_assets.wire.records.event_time import NO_TIME
from kbq_assets.wire.records.scan import is_utf8, write_long

#: Most null keys of a document that are not columns.
MOST_UNKNOWN: Final = 16
# Verdicts: left to `RowEncoder`, done, waiting for numbers from Python, stopped because the output is full.
LEFT, DONE, ASKS, FULL = 0, 1, 2, 3
# Fields of a frame, which is an open object or list.
OF_TYPE, SLOTS, PARTS, RESTS, COUNT, GUESS, PARENT, FRAME = range(8)

_BOOL, _INT64, _FLOAT64, _STRING = KINDS["BOOL"], KINDS["INT64"], KINDS["FLOAT64"], KINDS["STRING"]
_JSON, _RECORD, _LIST = KINDS["JSON"], KINDS["RECORD"], KINDS["LIST"]
_KEY, _KEY_OR_CLOSE, _COMMA_OR_CLOSE, _VALUE = range(4)
_QUOTE, _BACKSLASH, _COMMA, _ZERO, _NINE, _MINUS, _T, _F, _N = b'"\\,09-tfn'
_OPEN_OBJECT, _CLOSE_OBJECT, _OPEN_ARRAY, _CLOSE_ARRAY = b"{}[]"
_RUE, _ALSE, _ULL = (np.uint64(int.from_bytes(word, "little")) for word in (b"true", b"alse", b"null"))
_FOUR_BYTES = np.uint64(0xFFFFFFFF)
#: Digits and powers of ten that a double represents exactly, so that a product or quotient is rounded only once.
_SURE_DIGITS, _SURE_EXPONENT, _LONGEST_LONG = 15, 22, 18
_POWERS = np.array([10.0**n for n in range(_SURE_EXPONENT + 1)])


@kernel
def encode_documents(
    layout: Any, time: Any, records: Any, limits: Any, work: Any, areas: Any, asking: Any, result: Any
) -> int:
    """Encode rows from the position of ``records`` in ``todo`` on, until the output is full. Returns the position
    reached."""
    types, fields = layout[0], layout[1]
    buffer, row_starts, row_ends, rows, todo, first_row = records
    max_bytes, framing = limits
    frames, slots, captures, doubled, bits, unknown = work
    parts, rests, scratch = areas
    numbers, doubles, firsts, is_known, counted = asking
    out, out_base, starts, ends, verdicts = result
    most_part, most_out = len(parts) - SPARE, len(out) - SPARE
    out_top = 0
    for index in range(first_row, len(todo)):
        row = todo[index]
        position, end = row_starts[rows[row]], row_ends[rows[row]]
        verdicts[row] = LEFT
        asked, next_double = int64(counted[0]), firsts[row]
        if position < 0 or end - position > max_bytes or not is_utf8(buffer, position, end):
            continue
        position = skip_space(buffer, position, end)
        if position >= end or load_byte(buffer, position) != _OPEN_OBJECT:
            continue
        position += 1
        depth, part, rest, nulls = 0, 0, 0, 0
        frames[OF_TYPE] = frames[SLOTS] = frames[PARTS] = frames[RESTS] = frames[COUNT] = frames[GUESS] = 0
        for at in range(types[2]):
            slots[at * SLOT + END] = UNSET
        for at in range(len(time[0])):
            captures[at * CAPTURE] = NOTHING
        state, asks, verdict = _KEY_OR_CLOSE, False, LEFT
        while True:
            position = skip_space(buffer, position, end)
            if position >= end:
                break
            byte = load_byte(buffer, position)
            frame = depth * FRAME
            type_ = frames[frame + OF_TYPE]
            in_list = types[type_ * TYPE] == _LIST
            slot, field, value_type, capture = int64(-1), int64(-1), int64(0), int64(-1)
            if state == _COMMA_OR_CLOSE and byte == _COMMA:
                position += 1
                state = _VALUE if in_list else _KEY
                continue
            closes = byte == (_CLOSE_ARRAY if in_list else _CLOSE_OBJECT)
            if closes and (state == _COMMA_OR_CLOSE or state == _KEY_OR_CLOSE):
                position += 1
                base = frames[frame + SLOTS]
                if in_list:
                    slot = frames[frame + PARENT]
                    slots[slot + START], slots[slot + END] = frames[frame + PARTS], part
                    slots[slot + ITEMS], slots[slot + REST_END] = frames[frame + COUNT], UNSET
                    depth -= 1
                    continue
                size = write_rest(layout, type_, slots, base, rests, scratch, 0)
                if size < 0:
                    break
                if frames[frame + COUNT] == 0:  # an empty object differs from null
                    store_byte(scratch, 0, _OPEN_OBJECT)
                    store_byte(scratch, 1, _CLOSE_OBJECT)
                    size = 2
                if depth == 0:
                    if skip_space(buffer, position, end) != end:
                        break
                    to = out_top
                    if to + 5 + size + SPARE >= most_out:
                        verdict = FULL
                        break
                    copy_bytes(out, to, framing, 0, 5)
                    to = write_columns(layout, type_, slots, base, (parts, buffer), out, to + 5)
                    if to < 0 or to + size + 2 * SPARE >= most_out:
                        verdict = FULL
                        break
                    if size == 0:
                        store_byte(out, to, 0)
                        to += 1
                    else:
                        store_byte(out, to, 2)
                        to = write_long(out, to + 1, size)
                        copy_bytes(out, to, scratch, 0, size)
                        to += size
                    if time[2]:
                        micros, is_left = time_of(buffer, time, captures, doubled)
                        if is_left:
                            break
                        if micros == NO_TIME:
                            store_byte(out, to, 0)
                            to += 1
                        else:
                            store_byte(out, to, 2)
                            to = write_long(out, to + 1, micros)
                    verdict = ASKS if asks else DONE
                    break
                slot = frames[frame + PARENT]
                if slot < 0:  # an item of a list, which cannot have a rest
                    if size > 0:
                        break
                else:
                    rest = frames[frame + RESTS]
                    slots[slot + REST_END] = UNSET
                    if size > 0:
                        if rest + size >= most_part:
                            break
                        copy_bytes(rests, rest, scratch, 0, size)
                        slots[slot + REST_START], slots[slot + REST_END] = rest, rest + size
                        rest += size
                size = write_columns(layout, type_, slots, base, (parts, buffer), scratch, 0)
                part = frames[frame + PARTS]
                if size < 0 or part + size >= most_part:
                    break
                copy_bytes(parts, part, scratch, 0, size)
                if slot >= 0:
                    slots[slot + START], slots[slot + END] = part, part + size
                part += size
                depth -= 1
                state = _COMMA_OR_CLOSE
                continue
            if state == _COMMA_OR_CLOSE:
                break
            if in_list:
                value_type = types[type_ * TYPE + 5]
                frames[frame + COUNT] += 1
            else:
                if byte != _QUOTE:
                    break
                start = position + 1
                after, position = read_key(buffer, start, end)
                if after < 0:
                    break
                size = after - start
                byte = load_byte(buffer, position)
                frames[frame + COUNT] += 1
                field = find(buffer, start, size, layout, type_, frames[frame + GUESS])
                if field < 0:
                    # A new key with a null needs no column, and is dropped.
                    if nulls == MOST_UNKNOWN or end - position < 4 or depth > 0:
                        break
                    if load_word(buffer, position) & _FOUR_BYTES != _ULL:
                        break
                    is_repeated = False
                    for at in range(nulls):
                        known_size = unknown[2 * at + 1]
                        if known_size == size and same(buffer, start, buffer, unknown[2 * at], size):
                            is_repeated = True
                    if is_repeated:
                        break
                    unknown[2 * nulls], unknown[2 * nulls + 1] = start, size
                    nulls += 1
                    position += 4
                    state = _COMMA_OR_CLOSE
                    continue
                frames[frame + GUESS] = field - types[type_ * TYPE + 1] + 1
                slot = frames[frame + SLOTS] + (field - types[type_ * TYPE + 1]) * SLOT
                if slots[slot + END] != UNSET:
                    break
                slots[slot + END], slots[slot + REST_END] = ABSENT, UNSET
                value_type, capture = fields[field * FIELD + 2], fields[field * FIELD + 5]
            kind = types[value_type * TYPE]
            state = _COMMA_OR_CLOSE
            begin = position
            fits = is_text = False
            # Where the value's encoding begins. Texts from the document are encoded with their record.
            to = part
            if part + SPARE >= most_part or rest + SPARE >= most_part:
                break
            if byte == _QUOTE:
                start = position + 1
                after = plain_end(buffer, start, end)
                if after >= end:
                    break
                is_plain = load_byte(buffer, after) == _QUOTE
                if not is_plain:
                    if load_byte(buffer, after) != _BACKSLASH or part + (end - start) >= most_part:
                        break
                    # In a list the text's length comes first, so decode into a buffer, then copy.
                    if in_list:
                        if end - start >= len(scratch) - SPARE:
                            break
                        position, size = unescape(buffer, start, end, scratch, 0)
                    else:
                        position, size = unescape(buffer, start, end, parts, part)
                        size -= part
                    if position < 0:
                        break
                else:
                    position, size = after + 1, after - start
                if capture >= 0:
                    captures[capture * CAPTURE] = TEXT if is_plain else OTHER
                    captures[capture * CAPTURE + 1], captures[capture * CAPTURE + 2] = start, after
                    captures[capture * CAPTURE + 3] = begin
                if kind == _STRING:
                    fits = True
                    if in_list:
                        if part + size >= most_part:
                            break
                        part = write_long(parts, part, size)
                        if is_plain:
                            copy_bytes(parts, part, buffer, start, size)
                        else:
                            copy_bytes(parts, part, scratch, 0, size)
                        part += size
                    elif is_plain:
                        slots[slot + START], slots[slot + END] = start, after
                    else:
                        slots[slot + START], slots[slot + END] = ~part, part + size
                        part += size
                elif not is_plain:
                    break
                else:
                    is_text = kind == _JSON
            elif byte == _MINUS or _ZERO <= byte <= _NINE:
                position, number, power, digits, is_whole = read_number(buffer, position, end)
                if position < 0:
                    break
                value = -number if byte == _MINUS else number
                if capture >= 0:
                    captures[capture * CAPTURE] = LONG if is_whole and digits <= _LONGEST_LONG else OTHER
                    captures[capture * CAPTURE + 1] = value
                    captures[capture * CAPTURE + 3] = begin
                if kind == _FLOAT64:
                    if is_whole:
                        if digits > _SURE_DIGITS + 1 or number > MAX_EXACT:
                            break
                        doubled[0] = float(value)
                    elif digits <= _SURE_DIGITS and -_SURE_EXPONENT <= power <= _SURE_EXPONENT:
                        double = float(number)
                        double = double / _POWERS[-power] if power < 0 else double * _POWERS[power]
                        doubled[0] = -double if byte == _MINUS else double
                    elif is_known:
                        doubled[0] = doubles[next_double]
                        next_double += 1
                    elif asked == len(numbers):
                        break
                    else:
                        numbers[asked, 0], numbers[asked, 1], numbers[asked, 2] = row, begin, position
                        asked += 1
                        asks = True
                    if capture >= 0 and not is_whole and not asks:
                        captures[capture * CAPTURE] = DOUBLE
                        doubled[capture + 1] = doubled[0]
                    store_word(parts, part, bits[0])
                    part += 8
                    fits = True
                elif not is_whole or digits > _LONGEST_LONG:
                    break
                elif kind == _INT64:
                    part = write_long(parts, part, value)
                    fits = True
                elif byte == _MINUS and number == 0:
                    break
                else:
                    is_text = kind == _JSON
            elif byte == _N:
                if end - position < 4 or load_word(buffer, position) & _FOUR_BYTES != _ULL or in_list:
                    break
                position += 4
                continue
            elif byte == _T or byte == _F:
                is_true = byte == _T
                position += not is_true
                word = _RUE if is_true else _ALSE
                if end - position < 4 or load_word(buffer, position) & _FOUR_BYTES != word:
                    break
                position += 4
                if kind == _BOOL:
                    store_byte(parts, part, is_true)
                    part += 1
                    fits = True
                else:
                    is_text = kind == _JSON
            elif byte == _OPEN_OBJECT and kind == _RECORD:
                base = frames[frame + SLOTS] + (0 if in_list else types[type_ * TYPE + 2] * SLOT)
                depth += 1
                frame = depth * FRAME
                frames[frame + OF_TYPE], frames[frame + SLOTS] = value_type, base
                frames[frame + PARTS], frames[frame + RESTS] = part, rest
                frames[frame + COUNT] = frames[frame + GUESS] = 0
                frames[frame + PARENT] = slot
                for at in range(types[value_type * TYPE + 2]):
                    slots[base + at * SLOT + END] = UNSET
                position += 1
                state = _KEY_OR_CLOSE
                continue
            elif byte == _OPEN_ARRAY and kind == _LIST and not in_list:
                position = skip_space(buffer, position + 1, end)
                if position >= end:
                    break
                if load_byte(buffer, position) != _CLOSE_ARRAY:
                    base = frames[frame + SLOTS] + types[type_ * TYPE + 2] * SLOT
                    depth += 1
                    frame = depth * FRAME
                    frames[frame + OF_TYPE], frames[frame + SLOTS] = value_type, base
                    frames[frame + PARTS], frames[frame + RESTS] = part, rest
                    frames[frame + COUNT] = frames[frame + GUESS] = 0
                    frames[frame + PARENT] = slot
                    state = _VALUE
                    continue
                # Tables cannot store empty lists, so it goes to the side column.
                position += 1
                store_byte(rests, rest, _OPEN_ARRAY)
                store_byte(rests, rest + 1, _CLOSE_ARRAY)
                slots[slot + REST_START], slots[slot + REST_END] = rest, rest + 2
                rest += 2
                continue
            else:
                break
            if is_text:
                if part + (position - begin) >= most_part:
                    break
                part = write_long(parts, part, position - begin)
                copy_bytes(parts, part, buffer, begin, position - begin)
                part += position - begin
                fits = True
            if fits:
                if not in_list and slots[slot + END] == ABSENT:
                    slots[slot + START], slots[slot + END] = to, part
            else:
                # A simple value in a column of another type goes to the side column as written.
                if in_list or types[value_type * TYPE + 6] != 0 or rest + (position - begin) >= most_part:
                    break
                copy_bytes(rests, rest, buffer, begin, position - begin)
                slots[slot + REST_START], slots[slot + REST_END] = rest, rest + position - begin
                rest += position - begin
        if verdict == FULL:
            counted[1] = out_top
            return index
        verdicts[row] = verdict
        if verdict != LEFT:
            counted[0] = asked
        if verdict == DONE:
            starts[row], ends[row] = out_base + out_top, out_base + to
            out_top = to
    counted[1] = out_top
    return len(todo)
