"""Checks a JSON document (RFC 8259) without building it, iteratively and with bounded depth.

Python's parser is recursive, accepts NaN, and takes ten times as long. The scanner refuses, per record, what DuckDB's
or BigQuery's parser refuses, such as lone surrogate escapes or numbers that exceed a double.
"""

# A state machine is one chain of states, and numba compiles plain comparisons best.
# ruff: noqa: PLR0912, PLR1714, SIM109

from __future__ import annotations

from typing import Any

import numpy as np

from kbq_assets.wire.jit import inlined, int64, load_byte, outlined
from kbq_assets.wire.json.tokens import code_unit, skip_space
from kbq_assets.wire.records.reasons import Reason

_BAD_JSON, _TOO_DEEP, _TOO_WIDE = int(Reason.INVALID_JSON), int(Reason.TOO_DEEP), int(Reason.OUT_OF_RANGE)

# States: what may come next.
_VALUE, _VALUE_OR_CLOSE, _KEY, _KEY_OR_CLOSE, _COMMA_OR_CLOSE, _DONE = range(6)
_OBJECT, _ARRAY = 1, 2

_QUOTE, _BACKSLASH, _COMMA, _COLON = ord('"'), ord("\\"), ord(","), ord(":")
_OPEN_OBJECT, _CLOSE_OBJECT, _OPEN_ARRAY, _CLOSE_ARRAY = ord("{"), ord("}"), ord("["), ord("]")
_ZERO, _NINE, _MINUS, _PLUS, _POINT = ord("0"), ord("9"), ord("-"), ord("+"), ord(".")
_LOWER_E, _UPPER_E, _U, _T, _F, _N = ord("e"), ord("E"), ord("u"), ord("t"), ord("f"), ord("n")

_PLAIN = np.array([byte >= 0x20 and byte not in (_QUOTE, _BACKSLASH) for byte in range(256)])
_ESCAPE = np.array([byte in b'"\\/bfnrt' for byte in range(256)])
_TRUE, _FALSE, _NULL = (np.frombuffer(bytearray(word), np.uint8) for word in (b"true", b"false", b"null"))

#: Digits before the point, and of an exponent, up to which a number is certainly in a double's range.
_SURE_DIGITS, _SURE_EXPONENT = 200, 2
#: The smallest number that exceeds all doubles after rounding: 1.79769…e308.
_END = np.frombuffer(bytearray(str(2**1024 - 2**970).encode()), np.uint8)
_END_EXPONENT = len(_END) - 1
_FAR = 10**15  # beyond every value's size


@inlined
def scan_json(buffer: Any, start: int, end: int, stack: Any) -> tuple[int, int]:
    """The reason (0: good) and its position in a text, which must be UTF-8. ``stack`` limits the depth. OUT_OF_RANGE
    means a valid document with a number that exceeds a double."""
    position = start
    depth = 0
    expected = _VALUE
    wide = -1
    while True:
        position = skip_space(buffer, position, end)
        if position >= end:
            if expected != _DONE:
                return _BAD_JSON, position
            return (0, position) if wide < 0 else (_TOO_WIDE, wide)
        byte = load_byte(buffer, position)
        if expected == _KEY or expected == _KEY_OR_CLOSE:
            if byte == _CLOSE_OBJECT and expected == _KEY_OR_CLOSE:
                depth -= 1
                position += 1
                expected = _COMMA_OR_CLOSE
            else:
                position = _string(buffer, position, end)
                position = skip_space(buffer, position, end) if position >= 0 else position
                if position < 0 or position >= end or load_byte(buffer, position) != _COLON:
                    return _BAD_JSON, end if position < 0 else position
                position += 1
                expected = _VALUE
        elif expected == _COMMA_OR_CLOSE:
            kind = stack[depth - 1]
            if byte == _COMMA:
                expected = _KEY if kind == _OBJECT else _VALUE
            elif byte == (_CLOSE_OBJECT if kind == _OBJECT else _CLOSE_ARRAY):
                depth -= 1
            else:
                return _BAD_JSON, position
            position += 1
        elif expected == _DONE:
            return _BAD_JSON, position
        elif byte == _OPEN_OBJECT or byte == _OPEN_ARRAY:
            if depth == len(stack):
                return _TOO_DEEP, position
            stack[depth] = _OBJECT if byte == _OPEN_OBJECT else _ARRAY
            depth += 1
            position += 1
            expected = _KEY_OR_CLOSE if byte == _OPEN_OBJECT else _VALUE_OR_CLOSE
        elif byte == _CLOSE_ARRAY and expected == _VALUE_OR_CLOSE:
            depth -= 1
            position += 1
            expected = _COMMA_OR_CLOSE
        else:
            after = _scalar(buffer, position, end)
            if after == -1:
                return _BAD_JSON, position
            if after < 0:
                wide = position if wide < 0 else wide
                after = -after
            position = after
            expected = _COMMA_OR_CLOSE
        if expected == _COMMA_OR_CLOSE and depth == 0:
            expected = _DONE


@inlined
def _scalar(buffer: Any, position: int, end: int) -> int:
    """The position after a string, number or literal, or -1 if invalid; negative after a number that exceeds a
    double."""
    byte = load_byte(buffer, position)
    if byte == _QUOTE:
        return _string(buffer, position, end)
    if byte == _MINUS or _ZERO <= byte <= _NINE:
        return _number(buffer, position, end)
    if byte == _T:
        return _literal(buffer, position, end, _TRUE)
    if byte == _F:
        return _literal(buffer, position, end, _FALSE)
    if byte == _N:
        return _literal(buffer, position, end, _NULL)
    return -1


@inlined
def _literal(buffer: Any, position: int, end: int, word: Any) -> int:
    if end - position < len(word):
        return -1
    for index in range(len(word)):
        if load_byte(buffer, position + index) != int64(word[index]):
            return -1
    return position + len(word)


@inlined
def _string(buffer: Any, position: int, end: int) -> int:
    """The position after a string, or -1 if it is invalid. ``position`` must be at its opening quote."""
    if load_byte(buffer, position) != _QUOTE:
        return -1
    position += 1
    while position < end:
        byte = load_byte(buffer, position)
        if _PLAIN[byte]:
            position += 1
        elif byte == _QUOTE:
            return position + 1
        elif byte == _BACKSLASH:
            position = _escape(buffer, position, end)
            if position < 0:
                return -1
        else:  # a control character
            return -1
    return -1


@inlined
def _escape(buffer: Any, position: int, end: int) -> int:
    """The position after an escape, or -1 if it is invalid. Surrogates must be pairs."""
    if end - position < 2:
        return -1
    byte = load_byte(buffer, position + 1)
    if byte != _U:
        return position + 2 if _ESCAPE[byte] else -1
    code = code_unit(buffer, position, end)
    if code < 0xD800 or code > 0xDFFF:
        return position + 6 if code >= 0 else -1
    low = code_unit(buffer, position + 6, end)
    return position + 12 if code <= 0xDBFF and 0xDC00 <= low <= 0xDFFF else -1


@inlined
def _number(buffer: Any, position: int, end: int) -> int:
    """The position after a number, or -1 if it is invalid; negative if it exceeds a double (then it has more than one
    byte)."""
    if load_byte(buffer, position) == _MINUS:
        position += 1
    start = position
    whole = _digits(buffer, position, end)
    if whole == position or (whole - position > 1 and load_byte(buffer, position) == _ZERO):
        return -1
    position = whole
    if position < end and load_byte(buffer, position) == _POINT:
        fraction = _digits(buffer, position + 1, end)
        if fraction == position + 1:
            return -1
        position = fraction
    if position < end and (
        load_byte(buffer, position) == _LOWER_E or load_byte(buffer, position) == _UPPER_E
    ):
        position += 1
        if position < end and (load_byte(buffer, position) == _PLUS or load_byte(buffer, position) == _MINUS):
            position += 1
        exponent = _digits(buffer, position, end)
        if exponent == position:
            return -1
        if exponent - position > _SURE_EXPONENT and not _is_held(buffer, start, exponent):
            return -exponent
        position = exponent
    if whole - start > _SURE_DIGITS and not _is_held(buffer, start, position):
        return -position
    return position


@outlined
def _is_held(buffer: Any, position: int, end: int) -> bool:
    """Whether a number without its sign fits a double: whether it is less than the first number that is too large."""
    exponent = -1  # of the first nonzero digit
    digits = 0  # from that digit on
    order = 0  # comparison of these digits with those of the first number that is too large
    step = 1
    while position < end:
        byte = load_byte(buffer, position)
        position += 1
        if byte == _LOWER_E or byte == _UPPER_E:
            exponent += _exponent(buffer, position, end)
            break
        if byte == _POINT:
            step = 0
        elif digits == 0 and byte == _ZERO:
            exponent += step - 1
        else:
            exponent += step
            if order == 0 and digits < len(_END):
                order = byte - int64(_END[digits])
            digits += 1
    if digits == 0 or exponent != _END_EXPONENT:
        return digits == 0 or exponent < _END_EXPONENT
    return order < 0 or (order == 0 and digits < len(_END))


@inlined
def _exponent(buffer: Any, position: int, end: int) -> int:
    """The value of an exponent."""
    sign = load_byte(buffer, position)
    position += sign == _MINUS or sign == _PLUS
    value = 0
    while position < end:
        value = min(_FAR, value * 10 + load_byte(buffer, position) - _ZERO)
        position += 1
    return -value if sign == _MINUS else value


@inlined
def _digits(buffer: Any, position: int, end: int) -> int:
    while position < end and _ZERO <= load_byte(buffer, position) <= _NINE:
        position += 1
    return position
