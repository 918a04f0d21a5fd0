"""The smallest kernels: variable-length integers, UTF-8 and decimals, read from a buffer.

They read inside ``[position, end)``, except that whole words may reach into the buffer's padding. Errors are returned
as negative positions: minus a :class:`~kbq_assets.wire.records.reasons.Reason`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kbq_assets.wire.jit import (
    copy_bytes,
    inlined,
    int64,
    load_byte,
    load_word,
    outlined,
    store_byte,
    store_word,
    trailing_zeros,
)
from kbq_assets.wire.records.reasons import Reason

_SHORT = 64
"""The size up to which copying words is faster than a call of memcpy."""

TRUNCATED = int(Reason.TRUNCATED)
INT_OVERFLOW = int(Reason.INT_OVERFLOW)

_HIGH_BITS = np.uint64(0x8080808080808080)
_ZERO = np.uint64(0)
_ONES = np.uint64(0xFFFFFFFFFFFFFFFF)
_LOW_BITS = np.uint64(0x7F7F7F7F7F7F7F7F)
_M0 = np.uint64(0x007F007F007F007F)
_M1 = np.uint64(0x7F007F007F007F00)
_M2 = np.uint64(0x00003FFF00003FFF)
_M3 = np.uint64(0x3FFF00003FFF0000)
_M4 = np.uint64(0x000000000FFFFFFF)
_M5 = np.uint64(0x0FFFFFFF00000000)


def _utf8_transitions() -> NDArray[np.uint64]:
    """A table-driven automaton whose states are shifts (Per Vognsen's construction): one load and one shift
    per byte.

    Entry ``byte`` has, at the bits of each state, the next state. Overlong forms, surrogates and code points above
    U+10FFFF lead to the error state (Unicode standard, table 3-7).
    """
    accept, error, one, two, three, after_e0, after_ed, after_f0, after_f4 = range(0, 54, 6)
    ways = {
        accept: [
            (0x00, 0x7F, accept),
            (0xC2, 0xDF, one),
            (0xE0, 0xE0, after_e0),
            (0xE1, 0xEC, two),
            (0xED, 0xED, after_ed),
            (0xEE, 0xEF, two),
            (0xF0, 0xF0, after_f0),
            (0xF1, 0xF3, three),
            (0xF4, 0xF4, after_f4),
        ],
        one: [(0x80, 0xBF, accept)],
        two: [(0x80, 0xBF, one)],
        three: [(0x80, 0xBF, two)],
        after_e0: [(0xA0, 0xBF, one)],
        after_ed: [(0x80, 0x9F, one)],
        after_f0: [(0x90, 0xBF, two)],
        after_f4: [(0x80, 0x8F, two)],
    }
    table = [0] * 256
    for state in range(0, 54, 6):
        for byte in range(256):
            target = next((to for low, high, to in ways.get(state, []) if low <= byte <= high), error)
            table[byte] |= target << state
    return np.array(table, np.uint64)


_UTF8 = _utf8_transitions()
_STATE = np.uint64(63)


@inlined
def read_long(buffer: Any, position: int, end: int) -> tuple[int, int]:
    """A zigzag long and the position after it; at most ten bytes, no bit beyond 64."""
    if position >= end:
        return 0, -TRUNCATED
    byte = load_byte(buffer, position)
    if byte < 0x80:  # nearly all lengths and indexes
        return (byte >> 1) ^ -(byte & 1), position + 1
    return read_wide_long(buffer, position, end)


@inlined
def read_wide_long(buffer: Any, position: int, end: int) -> tuple[int, int]:
    """As :func:`read_long`, but reads eight bytes at once. Best for numbers of several bytes."""
    word = load_word(buffer, position)
    last = ~word & _HIGH_BITS
    if last == _ZERO:
        return _read_long(buffer, position, end)
    size = (trailing_zeros(last) + 1) >> 3
    if size > end - position:
        return 0, -TRUNCATED
    raw = word & _LOW_BITS & (_ONES >> np.uint64(64 - 8 * size))
    raw = (raw & _M0) | ((raw & _M1) >> np.uint64(1))
    raw = (raw & _M2) | ((raw & _M3) >> np.uint64(2))
    raw = (raw & _M4) | ((raw & _M5) >> np.uint64(4))
    value = int64(raw)
    return (value >> 1) ^ -(value & 1), position + size


@outlined
def _read_long(buffer: Any, position: int, end: int) -> tuple[int, int]:
    raw = shift = 0
    while True:
        if position >= end:
            return 0, -TRUNCATED
        byte = load_byte(buffer, position)
        position += 1
        raw |= (byte & 0x7F) << shift
        if shift == 63 and byte > 1:
            return 0, -INT_OVERFLOW
        if byte < 0x80:
            return ((raw >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(raw & 1), position
        shift += 7


@inlined
def write_long(block: Any, position: int, value: int) -> int:
    """Encode a long in zigzag; returns the position after it."""
    rest = (value << 1) ^ (value >> 63)
    while rest & ~0x7F != 0:
        store_byte(block, position, (rest & 0x7F) | 0x80)
        rest = (rest >> 7) & 0x01FFFFFFFFFFFFFF
        position += 1
    store_byte(block, position, rest)
    return position + 1


@inlined
def write_span(block: Any, position: int, buffer: Any, start: int, end: int) -> int:
    """Copy bytes; returns the position after them. Reads and writes up to seven more bytes as padding."""
    size = end - start
    if size <= _SHORT:  # faster than a call
        for index in range(0, size, 8):
            store_word(block, position + index, load_word(buffer, start + index))
    else:
        copy_bytes(block, position, buffer, start, size)
    return position + size


@inlined
def read_int(buffer: Any, position: int, end: int) -> tuple[int, int]:
    """A zigzag int and the position after it; at most five bytes, no bit beyond 32."""
    value, after = read_long(buffer, position, end)
    if after < 0:
        return 0, after
    if after - position > 5 or value < -0x80000000 or value > 0x7FFFFFFF:
        return 0, -INT_OVERFLOW
    return value, after


@outlined
def wide_index(buffer: Any, position: int, end: int) -> tuple[int, int]:
    """:func:`read_int`, off the common path."""
    return read_int(buffer, position, end)


@inlined
def skip_long(buffer: Any, position: int, end: int) -> int:
    """The position after a valid long, or minus a reason."""
    last = ~load_word(buffer, position) & _HIGH_BITS
    if last == _ZERO:
        return _read_long(buffer, position, end)[1]
    position += (trailing_zeros(last) + 1) >> 3
    return position if position <= end else -TRUNCATED


@inlined
def skip_int(buffer: Any, position: int, end: int) -> int:
    """The position after a valid int, or minus a reason."""
    word = load_word(buffer, position)
    last = ~word & _HIGH_BITS
    size = (trailing_zeros(last) + 1) >> 3 if last != _ZERO else 9
    if size > 4:
        return wide_index(buffer, position, end)[1]
    position += size
    return position if position <= end else -TRUNCATED


@inlined
def is_utf8(buffer: Any, position: int, end: int) -> bool:
    """Whether ``[position, end)`` is strictly valid UTF-8; ASCII goes eight bytes at a time."""
    while position < end:
        bits = load_word(buffer, position) & _HIGH_BITS
        if end - position < 8:  # ignore the bytes beyond the end
            bits <<= np.uint64(8 * (8 - (end - position)))
        if bits != _ZERO:
            return _is_utf8_from(buffer, position, end)
        position += 8
    return True


@outlined
def _is_utf8_from(buffer: Any, position: int, end: int) -> bool:
    state: Any = _ZERO
    for index in range(position, end):
        state = _UTF8[load_byte(buffer, index)] >> (state & _STATE)
    accepted: bool = (state & _STATE) == _ZERO
    return accepted


@inlined
def bound_size(bounds: Any, bound: int) -> int:
    """The bytes of a decimal's bound. A number with fewer bytes fits, since the first byte of a bound is not zero."""
    size: int = (int64(bounds[bound]) << 8) | int64(bounds[bound + 1])
    return size


@outlined
def decimal_fits(buffer: Any, start: int, end: int, bounds: Any, bound: int) -> bool:
    """Whether a big-endian two's complement number has no more digits than its type's precision.

    Negative numbers are compared by their complement, ``-v - 1``, so the second bound is one less than the first.
    """
    if start == end:
        return False
    size = bound_size(bounds, bound)
    flip = 0xFF if load_byte(buffer, start) >= 0x80 else 0
    limit = bound + 2 + (size if flip else 0)
    for index in range(start, end - size):
        if load_byte(buffer, index) != flip:
            return False
    first = max(start, end - size)
    for index in range(limit, limit + size - (end - first)):
        if bounds[index] != 0:
            return True
    for index in range(first, end):
        byte = load_byte(buffer, index) ^ flip
        most = int64(bounds[limit + size - (end - index)])
        if byte != most:
            return bool(byte < most)
    return True
