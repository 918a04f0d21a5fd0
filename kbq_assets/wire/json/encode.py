"""JSON documents as Avro records by an inferred schema, from bytes to bytes in one pass.

The kernel takes documents whose keys are columns and whose values are plain. It leaves a document to `RowEncoder`, in
Python objects, if something in it is rare: an escape in a key, a repeated or new key, an object or a list in a column
of another type, a number of many digits. So `RowEncoder` defines what a document's record is; tests compare the two.
"""

# A state machine is one chain of states, and numba is best at plain comparisons.
# ruff: noqa: PLR0912, PLR0915, PLR1714, SIM109

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kbq_assets.core.topics.json.inference import MAX_EXACT
from kbq_assets.core.topics.json.numbers import Number, parse_fraction
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
    trailing_zeros,
)
from kbq_assets.wire.json.layout import FACTORS, FIELD, KINDS, TYPE, Layout
from kbq_assets.wire.records.encoded import EncodedRecords
from kbq_assets.wire.records.event_time import NO_TIME, micros_of_double, micros_of_number, micros_of_text
from kbq_assets.wire.records.scan import is_utf8, write_long

#: Bytes for the parts of one document; a larger one is left to Python objects.
_ROOM: Final = 1 << 20
#: Numbers a document that only Python can judge, in the mean; and most null keys of one that are no columns.
_MOST_NUMBERS, _MOST_UNKNOWN = 4, 16
#: Spare bytes at the end of every area: a length, and the word that a store may reach beyond.
_SPARE: Final = 32

# Verdicts.
LEFT, DONE, ASKS, _FULL = 0, 1, 2, 3

_BOOL, _INT64, _FLOAT64, _STRING = KINDS["BOOL"], KINDS["INT64"], KINDS["FLOAT64"], KINDS["STRING"]
_JSON, _RECORD, _LIST = KINDS["JSON"], KINDS["RECORD"], KINDS["LIST"]

# A frame: an object or a list that is open.
_TYPE, _SLOTS, _PARTS, _RESTS, _COUNT, _GUESS, _PARENT, _FRAME = range(8)
# A slot: a field's value, as a span of the document (texts) or of the parts; a list's items; its rest.
_START, _END, _ITEMS, _REST_START, _REST_END, _SLOT = range(6)
_UNSET, _ABSENT = -1, -2
# A captured value: its kind, span or value, and its place in the document.
_NOTHING, _TEXT, _LONG, _DOUBLE, _OTHER = range(5)
_CAPTURE: Final = 4

_KEY, _KEY_OR_CLOSE, _COMMA_OR_CLOSE, _VALUE = range(4)
_QUOTE, _BACKSLASH, _COMMA, _COLON = ord('"'), ord("\\"), ord(","), ord(":")
_OPEN_OBJECT, _CLOSE_OBJECT, _OPEN_ARRAY, _CLOSE_ARRAY = ord("{"), ord("}"), ord("["), ord("]")
_ZERO, _NINE, _MINUS, _PLUS, _POINT = ord("0"), ord("9"), ord("-"), ord("+"), ord(".")
_LOWER_E, _UPPER_E, _U, _T, _F, _N = ord("e"), ord("E"), ord("u"), ord("t"), ord("f"), ord("n")
_RUE, _ALSE, _ULL = (np.uint64(int.from_bytes(word, "little")) for word in (b"true", b"alse", b"null"))
_FOUR_BYTES = np.uint64(0xFFFFFFFF)

_SPACE = np.array([byte in b" \t\r\n" for byte in range(256)])
_HEX = np.array([int(chr(b), 16) if chr(b) in "0123456789abcdefABCDEF" else -1 for b in range(256)], np.int64)
_ESCAPED = np.array(
    [dict(zip(b'"\\/bfnrt', b'"\\/\b\f\n\r\t', strict=True)).get(byte, -1) for byte in range(256)], np.int64
)
_ONES, _HIGHS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
_QUOTES, _BACKSLASHES = np.uint64(0x2222222222222222), np.uint64(0x5C5C5C5C5C5C5C5C)
_SPACES, _NO_BITS = np.uint64(0x2020202020202020), np.uint64(0)
_K0, _K1, _K2 = (np.uint64(factor) for factor in FACTORS)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)

#: Digits that a double surely holds, and powers of ten that it holds exactly: a product or quotient is rounded once.
_SURE_DIGITS, _SURE_EXPONENT, _LONGEST_LONG = 15, 22, 18
_POWERS = np.array([10.0**n for n in range(_SURE_EXPONENT + 1)])
_MOST_EXPONENT = 9_999


class DocumentEncoder:
    """Encodes documents by one version of an inferred schema, framed by ``schema_id``. Not for threads: it has areas of
    its own."""

    def __init__(self, layout: Layout, schema_id: int) -> None:
        slots = (len(layout.fields) // FIELD + 1) * _SLOT
        self._layout = (layout.types, layout.fields, layout.tables, layout.keys)
        self._time = (layout.captures, layout.unit, int(layout.has_time))
        self._levels = layout.levels
        doubled = np.empty(len(layout.captures) + 1)
        self._frame = np.frombuffer(
            bytearray(b"\0" + schema_id.to_bytes(4, "big") + bytes(PADDING)), np.uint8
        )
        self._work = (
            np.empty((layout.levels + 2) * _FRAME, np.int64),
            np.empty(slots, np.int64),
            np.empty(len(layout.captures) * _CAPTURE, np.int64),
            doubled,
            doubled.view(np.uint64),
            np.empty(2 * _MOST_UNKNOWN, np.int64),
        )
        self._areas = tuple(np.empty(_ROOM + _SPARE, np.uint8) for _ in range(3))

    def encode(self, chunk: Chunk, rows: Longs, max_bytes: int, max_depth: int) -> EncodedRecords:
        """The documents of ``rows`` that the kernel takes; the others are left."""
        if self._levels > max_depth:
            return EncodedRecords(np.zeros(PADDING, np.uint8), *_spans(0), np.zeros(len(rows), np.bool_))
        verdicts = np.zeros(len(rows), np.uint8)
        starts, ends = _spans(len(rows))
        numbers = np.empty((_MOST_NUMBERS * (len(rows) + 1), 3), np.int64)
        doubles, first = np.empty(0), np.zeros(len(rows), np.int64)
        buffers: list[Bytes] = []
        asked, todo = 0, np.arange(len(rows))
        for known in (0, 1):
            at = 0
            while at < len(todo):
                base = sum(map(len, buffers))
                size = int((chunk.ends[rows[todo[at:]]] - chunk.starts[rows[todo[at:]]]).sum())
                out = np.empty(2 * size + 64 * len(todo) + _ROOM, np.uint8)
                counted = np.array([asked, 0], np.int64)
                at = _encode(
                    self._layout,
                    self._time,
                    (chunk.buffer, chunk.starts, chunk.ends, rows, todo, at),
                    (max_bytes, self._frame),
                    self._work,
                    self._areas,
                    (numbers, doubles, first, known, counted),
                    (out, base, starts, ends, verdicts),
                )
                asked, used = int(counted[0]), int(counted[1])
                buffers.append(out[:used])
                at += not used and at < len(todo)  # a record larger than any bound: its verdict is LEFT
            if known or not asked:
                break
            todo, doubles = _judged(chunk, numbers[:asked], verdicts, first)
        joined = np.concatenate([*buffers, np.zeros(PADDING, np.uint8)])
        return EncodedRecords(joined, starts, ends, verdicts == DONE)


def _spans(count: int) -> tuple[Longs, Longs]:
    return np.full(count, -1, np.int64), np.full(count, -1, np.int64)


def _judged(
    chunk: Chunk, numbers: NDArray[np.int64], verdicts: NDArray[np.uint8], first: Longs
) -> tuple[Longs, NDArray[np.float64]]:
    """Rows whose numbers are all doubles, and the doubles in order; ``first`` becomes each row's first."""
    doubles = np.empty(len(numbers))
    for index, (row, start, end) in enumerate(numbers.tolist()):
        found = parse_fraction(chunk.buffer[start:end].tobytes().decode())
        if isinstance(found, Number):
            verdicts[row] = LEFT
        else:
            doubles[index] = found
        if not index or numbers[index - 1, 0] != row:
            first[row] = index
    return np.flatnonzero(verdicts == ASKS), doubles


@inlined
def _skip_space(buffer: Any, position: int, end: int) -> int:
    while position < end and _SPACE[load_byte(buffer, position)]:
        position += 1
    return position


@outlined
def _plain_end(buffer: Any, position: int, end: int) -> int:
    """The position of the first quote, backslash or control character, or beyond ``end``."""
    while position < end:
        word = load_word(buffer, position)
        quote, slash = word ^ _QUOTES, word ^ _BACKSLASHES
        found = ((quote - _ONES) & ~quote) | ((slash - _ONES) & ~slash) | ((word - _SPACES) & ~word)
        found &= _HIGHS
        if found != _NO_BITS:
            return position + (trailing_zeros(found) >> 3)
        position += 8
    return position


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
def _same(buffer: Any, start: int, other: Any, at: int, size: int) -> bool:
    """Whether two spans have the same bytes; both buffers are padded."""
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
    return fields[field * FIELD + 1] - at == size and _same(buffer, start, keys, at, size)


@outlined
def _find(buffer: Any, start: int, size: int, layout: Any, type_: int, guess: int) -> int:
    """The field of a key in a record type, or -1; ``guess`` is tried first."""
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


@inlined
def _code_unit(buffer: Any, position: int, end: int) -> int:
    """The value of ``\\\\uXXXX`` at ``position``, or -1."""
    if (
        end - position < 6
        or load_byte(buffer, position) != _BACKSLASH
        or load_byte(buffer, position + 1) != _U
    ):
        return -1
    code = 0
    for index in range(position + 2, position + 6):
        digit = _HEX[load_byte(buffer, index)]
        if digit < 0:
            return -1
        code = code * 16 + digit
    return code


@inlined
def _store_utf8(target: Any, to: int, code: int) -> int:
    if code < 0x80:
        store_byte(target, to, code)
        return to + 1
    if code < 0x800:
        store_byte(target, to, 0xC0 | code >> 6)
        store_byte(target, to + 1, 0x80 | code & 0x3F)
        return to + 2
    if code < 0x10000:
        store_byte(target, to, 0xE0 | code >> 12)
        store_byte(target, to + 1, 0x80 | code >> 6 & 0x3F)
        store_byte(target, to + 2, 0x80 | code & 0x3F)
        return to + 3
    store_byte(target, to, 0xF0 | code >> 18)
    store_byte(target, to + 1, 0x80 | code >> 12 & 0x3F)
    store_byte(target, to + 2, 0x80 | code >> 6 & 0x3F)
    store_byte(target, to + 3, 0x80 | code & 0x3F)
    return to + 4


@outlined
def _unescape(buffer: Any, position: int, end: int, target: Any, to: int) -> tuple[int, int]:
    """Decode a string from its first byte on; the positions after its quote (-1 if it is no string) and after its text,
    which is never longer than the string."""
    while position < end:
        plain = min(_plain_end(buffer, position, end), end)
        copy_bytes(target, to, buffer, position, plain - position)
        to += plain - position
        position = plain
        if position >= end or load_byte(buffer, position) == _QUOTE:
            break
        if load_byte(buffer, position) != _BACKSLASH or end - position < 2:
            return -1, to
        escape = load_byte(buffer, position + 1)
        if escape != _U:
            if _ESCAPED[escape] < 0:
                return -1, to
            store_byte(target, to, _ESCAPED[escape])
            position, to = position + 2, to + 1
            continue
        code = _code_unit(buffer, position, end)
        position += 6
        if 0xD800 <= code <= 0xDFFF:
            low = _code_unit(buffer, position, end)
            if code > 0xDBFF or low < 0xDC00 or low > 0xDFFF:
                return -1, to
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
            position += 6
        if code < 0:
            return -1, to
        to = _store_utf8(target, to, code)
    return (position + 1, to) if position < end else (-1, to)


@outlined
def _number(buffer: Any, position: int, end: int) -> tuple[int, int, int, int, bool]:
    """The position after a number or -1, its digits as a whole number without sign, the power of ten, how many digits
    it has, and whether it is written as a whole number. Of more digits than 64 bits hold, the number is wrong."""
    position += load_byte(buffer, position) == _MINUS
    start = position
    number = 0
    while position < end and _ZERO <= load_byte(buffer, position) <= _NINE:
        number = number * 10 + load_byte(buffer, position) - _ZERO
        position += 1
    digits = position - start
    if digits == 0 or (digits > 1 and load_byte(buffer, start) == _ZERO):
        return -1, 0, 0, 0, False
    power = 0
    if position < end and load_byte(buffer, position) == _POINT:
        position += 1
        start = position
        while position < end and _ZERO <= load_byte(buffer, position) <= _NINE:
            number = number * 10 + load_byte(buffer, position) - _ZERO
            position += 1
        power = start - position
        digits -= power
        if power == 0:
            return -1, 0, 0, 0, False
    is_whole = power == 0
    if position < end and (
        load_byte(buffer, position) == _LOWER_E or load_byte(buffer, position) == _UPPER_E
    ):
        is_whole = False
        position += 1
        sign = load_byte(buffer, position) if position < end else 0
        position += sign == _MINUS or sign == _PLUS
        start = position
        exponent = 0
        while position < end and _ZERO <= load_byte(buffer, position) <= _NINE:
            exponent = min(_MOST_EXPONENT, exponent * 10 + load_byte(buffer, position) - _ZERO)
            position += 1
        if position == start:
            return -1, 0, 0, 0, False
        power += -exponent if sign == _MINUS else exponent
    return position, number, power, digits, is_whole


@outlined
def _write_columns(layout: Any, type_: int, slots: Any, base: int, source: Any, target: Any, to: int) -> int:
    """Write the columns of a record; the position after them, or -1 if they do not fit."""
    types, fields, parts, buffer = layout[0], layout[1], source[0], source[1]
    most = len(target) - _SPARE
    first = types[type_ * TYPE + 1]
    for index in range(types[type_ * TYPE + 2]):
        slot = base + index * _SLOT
        end = slots[slot + _END]
        if to >= most:
            return -1
        if end < 0:
            store_byte(target, to, 0)
            to += 1
            continue
        start = slots[slot + _START]
        kind = types[fields[(first + index) * FIELD + 2] * TYPE]
        size = end - start if start >= 0 else end - ~start
        if to + size >= most:
            return -1
        if kind == _LIST:
            to = write_long(target, to, slots[slot + _ITEMS])
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
def _write_rest(layout: Any, type_: int, slots: Any, base: int, rests: Any, target: Any, to: int) -> int:
    """Write the object of what fits no column; the position after it, ``to`` if there is nothing, or -1."""
    types, fields, keys = layout[0], layout[1], layout[3]
    most = len(target) - _SPARE
    begin = to
    first = types[type_ * TYPE + 1]
    for index in range(types[type_ * TYPE + 2]):
        slot = base + index * _SLOT
        if slots[slot + _END] == _UNSET or slots[slot + _REST_END] < 0:
            continue
        start, size = slots[slot + _REST_START], slots[slot + _REST_END] - slots[slot + _REST_START]
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
def _time_of(buffer: Any, time: Any, captures: Any, doubled: Any) -> tuple[int, bool]:
    """The business time in microseconds or `NO_TIME`; and whether it is left to Python."""
    ranks, unit, _ = time
    rank, place = int64(-1), int64(-1)
    while True:
        best, best_rank, best_place = int64(-1), int64(0), int64(0)
        for index in range(len(ranks)):  # few fields are times by their names
            at = captures[index * _CAPTURE + 3]
            if captures[index * _CAPTURE] == _NOTHING or (
                ranks[index] < rank or (ranks[index] == rank and at <= place)
            ):
                continue
            if best < 0 or ranks[index] < best_rank or (ranks[index] == best_rank and at < best_place):
                best, best_rank, best_place = int64(index), int64(ranks[index]), int64(at)
        if best < 0:
            return NO_TIME, False
        rank, place = best_rank, best_place
        kind = captures[best * _CAPTURE]
        start, end = captures[best * _CAPTURE + 1], captures[best * _CAPTURE + 2]
        if kind == _OTHER:
            return NO_TIME, True
        if kind == _TEXT:
            micros = micros_of_text(buffer, start, end, unit)
        elif kind == _LONG:
            micros = micros_of_number(start, unit)
        else:
            micros = micros_of_double(doubled[best + 1], unit)
        if micros != NO_TIME:
            return micros, False


@kernel
def _encode(
    layout: Any, time: Any, records: Any, limits: Any, work: Any, areas: Any, asking: Any, result: Any
) -> int:
    """Encode rows from ``records``' position in ``todo`` on, until the output is full; the position reached."""
    types, fields = layout[0], layout[1]
    buffer, row_starts, row_ends, rows, todo, first_row = records
    max_bytes, framing = limits
    frames, slots, captures, doubled, bits, unknown = work
    parts, rests, scratch = areas
    numbers, doubles, firsts, is_known, counted = asking
    out, out_base, starts, ends, verdicts = result
    most_part, most_out = len(parts) - _SPARE, len(out) - _SPARE
    out_top = 0
    for index in range(first_row, len(todo)):
        row = todo[index]
        position, end = row_starts[rows[row]], row_ends[rows[row]]
        verdicts[row] = LEFT
        asked, next_double = int64(counted[0]), firsts[row]
        if position < 0 or end - position > max_bytes or not is_utf8(buffer, position, end):
            continue
        position = _skip_space(buffer, position, end)
        if position >= end or load_byte(buffer, position) != _OPEN_OBJECT:
            continue
        position += 1
        depth, part, rest, nulls = 0, 0, 0, 0
        frames[_TYPE] = frames[_SLOTS] = frames[_PARTS] = frames[_RESTS] = frames[_COUNT] = frames[_GUESS] = 0
        for at in range(types[2]):
            slots[at * _SLOT + _END] = _UNSET
        for at in range(len(time[0])):
            captures[at * _CAPTURE] = _NOTHING
        state, asks, verdict = _KEY_OR_CLOSE, False, LEFT
        while True:
            position = _skip_space(buffer, position, end)
            if position >= end:
                break
            byte = load_byte(buffer, position)
            frame = depth * _FRAME
            type_ = frames[frame + _TYPE]
            in_list = types[type_ * TYPE] == _LIST
            slot, field, value_type, capture = int64(-1), int64(-1), int64(0), int64(-1)
            if state == _COMMA_OR_CLOSE and byte == _COMMA:
                position += 1
                state = _VALUE if in_list else _KEY
                continue
            closes = byte == (_CLOSE_ARRAY if in_list else _CLOSE_OBJECT)
            if closes and (state == _COMMA_OR_CLOSE or state == _KEY_OR_CLOSE):
                position += 1
                base = frames[frame + _SLOTS]
                if in_list:
                    slot = frames[frame + _PARENT]
                    slots[slot + _START], slots[slot + _END] = frames[frame + _PARTS], part
                    slots[slot + _ITEMS], slots[slot + _REST_END] = frames[frame + _COUNT], _UNSET
                    depth -= 1
                    continue
                size = _write_rest(layout, type_, slots, base, rests, scratch, 0)
                if size < 0:
                    break
                if frames[frame + _COUNT] == 0:  # an empty object differs from null
                    store_byte(scratch, 0, _OPEN_OBJECT)
                    store_byte(scratch, 1, _CLOSE_OBJECT)
                    size = 2
                if depth == 0:
                    if _skip_space(buffer, position, end) != end:
                        break
                    to = out_top
                    if to + 5 + size + _SPARE >= most_out:
                        verdict = _FULL
                        break
                    copy_bytes(out, to, framing, 0, 5)
                    to = _write_columns(layout, type_, slots, base, (parts, buffer), out, to + 5)
                    if to < 0 or to + size + 2 * _SPARE >= most_out:
                        verdict = _FULL
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
                        micros, is_left = _time_of(buffer, time, captures, doubled)
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
                slot = frames[frame + _PARENT]
                if slot < 0:  # an item of a list: its rest would be nobody's
                    if size > 0:
                        break
                else:
                    rest = frames[frame + _RESTS]
                    slots[slot + _REST_END] = _UNSET
                    if size > 0:
                        if rest + size >= most_part:
                            break
                        copy_bytes(rests, rest, scratch, 0, size)
                        slots[slot + _REST_START], slots[slot + _REST_END] = rest, rest + size
                        rest += size
                size = _write_columns(layout, type_, slots, base, (parts, buffer), scratch, 0)
                part = frames[frame + _PARTS]
                if size < 0 or part + size >= most_part:
                    break
                copy_bytes(parts, part, scratch, 0, size)
                if slot >= 0:
                    slots[slot + _START], slots[slot + _END] = part, part + size
                part += size
                depth -= 1
                state = _COMMA_OR_CLOSE
                continue
            if state == _COMMA_OR_CLOSE:
                break
            if in_list:
                value_type = types[type_ * TYPE + 5]
                frames[frame + _COUNT] += 1
            else:
                if byte != _QUOTE:
                    break
                start = position + 1
                after = _plain_end(buffer, start, end)
                if after >= end or load_byte(buffer, after) != _QUOTE:
                    break
                size = after - start
                position = _skip_space(buffer, after + 1, end)
                if position >= end or load_byte(buffer, position) != _COLON:
                    break
                position = _skip_space(buffer, position + 1, end)
                if position >= end:
                    break
                byte = load_byte(buffer, position)
                frames[frame + _COUNT] += 1
                field = _find(buffer, start, size, layout, type_, frames[frame + _GUESS])
                if field < 0:
                    # A new key: a null becomes no column, and is nothing to keep.
                    if nulls == _MOST_UNKNOWN or end - position < 4 or depth > 0:
                        break
                    if load_word(buffer, position) & _FOUR_BYTES != _ULL:
                        break
                    is_repeated = False
                    for at in range(nulls):
                        known_size = unknown[2 * at + 1]
                        if known_size == size and _same(buffer, start, buffer, unknown[2 * at], size):
                            is_repeated = True
                    if is_repeated:
                        break
                    unknown[2 * nulls], unknown[2 * nulls + 1] = start, size
                    nulls += 1
                    position += 4
                    state = _COMMA_OR_CLOSE
                    continue
                frames[frame + _GUESS] = field - types[type_ * TYPE + 1] + 1
                slot = frames[frame + _SLOTS] + (field - types[type_ * TYPE + 1]) * _SLOT
                if slots[slot + _END] != _UNSET:
                    break
                slots[slot + _END], slots[slot + _REST_END] = _ABSENT, _UNSET
                value_type, capture = fields[field * FIELD + 2], fields[field * FIELD + 5]
            kind = types[value_type * TYPE]
            state = _COMMA_OR_CLOSE
            begin = position
            fits = False
            # Where the value's encoding begins; a text of the document is encoded with its record.
            to = part
            if part + _SPARE >= most_part or rest + _SPARE >= most_part:
                break
            if byte == _QUOTE:
                start = position + 1
                after = _plain_end(buffer, start, end)
                if after >= end:
                    break
                is_plain = load_byte(buffer, after) == _QUOTE
                if not is_plain:
                    if load_byte(buffer, after) != _BACKSLASH or part + (end - start) >= most_part:
                        break
                    # In a list the text's length comes first: decoded beside, then copied.
                    if in_list:
                        if end - start >= len(scratch) - _SPARE:
                            break
                        position, size = _unescape(buffer, start, end, scratch, 0)
                    else:
                        position, size = _unescape(buffer, start, end, parts, part)
                        size -= part
                    if position < 0:
                        break
                else:
                    position, size = after + 1, after - start
                if capture >= 0:
                    captures[capture * _CAPTURE] = _TEXT if is_plain else _OTHER
                    captures[capture * _CAPTURE + 1], captures[capture * _CAPTURE + 2] = start, after
                    captures[capture * _CAPTURE + 3] = begin
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
                        slots[slot + _START], slots[slot + _END] = start, after
                    else:
                        slots[slot + _START], slots[slot + _END] = ~part, part + size
                        part += size
                elif not is_plain:
                    break
                elif kind == _JSON:
                    if part + size + 2 >= most_part:
                        break
                    part = write_long(parts, part, size + 2)
                    copy_bytes(parts, part, buffer, begin, size + 2)
                    part += size + 2
                    fits = True
            elif byte == _MINUS or _ZERO <= byte <= _NINE:
                position, number, power, digits, is_whole = _number(buffer, position, end)
                if position < 0:
                    break
                value = -number if byte == _MINUS else number
                if capture >= 0:
                    captures[capture * _CAPTURE] = _LONG if is_whole and digits <= _LONGEST_LONG else _OTHER
                    captures[capture * _CAPTURE + 1] = value
                    captures[capture * _CAPTURE + 3] = begin
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
                        captures[capture * _CAPTURE] = _DOUBLE
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
                elif kind == _JSON:
                    part = write_long(parts, part, position - begin)
                    copy_bytes(parts, part, buffer, begin, position - begin)
                    part += position - begin
                    fits = True
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
                elif kind == _JSON:
                    part = write_long(parts, part, position - begin)
                    copy_bytes(parts, part, buffer, begin, position - begin)
                    part += position - begin
                    fits = True
            elif byte == _OPEN_OBJECT and kind == _RECORD:
                base = frames[frame + _SLOTS] + (0 if in_list else types[type_ * TYPE + 2] * _SLOT)
                depth += 1
                frame = depth * _FRAME
                frames[frame + _TYPE], frames[frame + _SLOTS] = value_type, base
                frames[frame + _PARTS], frames[frame + _RESTS] = part, rest
                frames[frame + _COUNT] = frames[frame + _GUESS] = 0
                frames[frame + _PARENT] = slot
                for at in range(types[value_type * TYPE + 2]):
                    slots[base + at * _SLOT + _END] = _UNSET
                position += 1
                state = _KEY_OR_CLOSE
                continue
            elif byte == _OPEN_ARRAY and kind == _LIST and not in_list:
                position = _skip_space(buffer, position + 1, end)
                if position >= end:
                    break
                if load_byte(buffer, position) != _CLOSE_ARRAY:
                    base = frames[frame + _SLOTS] + types[type_ * TYPE + 2] * _SLOT
                    depth += 1
                    frame = depth * _FRAME
                    frames[frame + _TYPE], frames[frame + _SLOTS] = value_type, base
                    frames[frame + _PARTS], frames[frame + _RESTS] = part, rest
                    frames[frame + _COUNT] = frames[frame + _GUESS] = 0
                    frames[frame + _PARENT] = slot
                    state = _VALUE
                    continue
                # No table stores an empty list: it is in the side column.
                position += 1
                store_byte(rests, rest, _OPEN_ARRAY)
                store_byte(rests, rest + 1, _CLOSE_ARRAY)
                slots[slot + _REST_START], slots[slot + _REST_END] = rest, rest + 2
                rest += 2
                continue
            else:
                break
            if fits:
                if not in_list and slots[slot + _END] == _ABSENT:
                    slots[slot + _START], slots[slot + _END] = to, part
            else:
                # A plain value in a column of another type: it is in the side column as it is written.
                if in_list or rest + (position - begin) >= most_part:
                    break
                copy_bytes(rests, rest, buffer, begin, position - begin)
                slots[slot + _REST_START], slots[slot + _REST_END] = rest, rest + position - begin
                rest += position - begin
        if verdict == _FULL:
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
