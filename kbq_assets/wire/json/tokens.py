"""Tokens of JSON text: strings, their escapes, and numbers."""

# A state machine is one chain of states, and numba compiles plain comparisons best.
# ruff: noqa: PLR1714, SIM109

from __future__ import annotations

from typing import Any

import numpy as np

from kbq_assets.wire.jit import (
    copy_bytes,
    inlined,
    load_byte,
    load_word,
    outlined,
    store_byte,
    trailing_zeros,
)

_QUOTE, _BACKSLASH, _COLON, _U = ord('"'), ord("\\"), ord(":"), ord("u")
_ZERO, _NINE, _MINUS, _PLUS, _POINT = ord("0"), ord("9"), ord("-"), ord("+"), ord(".")
_LOWER_E, _UPPER_E = ord("e"), ord("E")

_SPACE = np.array([byte in b" \t\r\n" for byte in range(256)])
_HEX = np.array([int(chr(b), 16) if chr(b) in "0123456789abcdefABCDEF" else -1 for b in range(256)], np.int64)
_ESCAPED = np.array(
    [dict(zip(b'"\\/bfnrt', b'"\\/\b\f\n\r\t', strict=True)).get(byte, -1) for byte in range(256)], np.int64
)
_ONES, _HIGHS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
_QUOTES, _BACKSLASHES = np.uint64(0x2222222222222222), np.uint64(0x5C5C5C5C5C5C5C5C)
_SPACES, _NO_BITS = np.uint64(0x2020202020202020), np.uint64(0)
_MOST_EXPONENT = 9_999


@inlined
def skip_space(buffer: Any, position: int, end: int) -> int:
    """The position of the next byte that is not a space, or ``end``."""
    while position < end and _SPACE[load_byte(buffer, position)]:
        position += 1
    return position


@outlined
def plain_end(buffer: Any, position: int, end: int) -> int:
    """The position of the first quote, backslash or control character; at or beyond ``end`` if there is none."""
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
def code_unit(buffer: Any, position: int, end: int) -> int:
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


@inlined
def read_key(buffer: Any, position: int, end: int) -> tuple[int, int]:
    """The end of a key whose first byte is at ``position``, and the position of its value; both -1 if the key has an
    escape or no value follows."""
    after = plain_end(buffer, position, end)
    if after >= end or load_byte(buffer, after) != _QUOTE:
        return -1, -1
    position = skip_space(buffer, after + 1, end)
    if position >= end or load_byte(buffer, position) != _COLON:
        return -1, -1
    position = skip_space(buffer, position + 1, end)
    return (after, position) if position < end else (-1, -1)


@outlined
def unescape(buffer: Any, position: int, end: int, target: Any, to: int) -> tuple[int, int]:
    """Decode a string from its first byte on. Returns the position after its quote (-1 if it is not a string) and after
    its text, which is never longer than the string."""
    while position < end:
        plain = min(plain_end(buffer, position, end), end)
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
        code = code_unit(buffer, position, end)
        position += 6
        if 0xD800 <= code <= 0xDFFF:
            low = code_unit(buffer, position, end)
            if code > 0xDBFF or low < 0xDC00 or low > 0xDFFF:
                return -1, to
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
            position += 6
        if code < 0:
            return -1, to
        to = _store_utf8(target, to, code)
    return (position + 1, to) if position < end else (-1, to)


@outlined
def read_number(buffer: Any, position: int, end: int) -> tuple[int, int, int, int, bool]:
    """The position after a number or -1, its digits as a whole number without sign, the power of ten, the number of
    digits, and whether it is written as a whole number. The whole number is wrong if it exceeds 64 bits."""
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
