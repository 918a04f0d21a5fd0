"""A writer of Snappy's raw format that is faster than the library.

It searches for repetitions of at least eight bytes, not four, and first tries every third position. It takes a third to
half of the library's time for records, and files are 9 % larger (files of prose 50 %).

https://github.com/google/snappy/blob/main/format_description.txt
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kbq_assets.wire.chunk import Bytes
from kbq_assets.wire.jit import (
    copy_bytes,
    inlined,
    int64,
    kernel,
    load_word,
    store_byte,
    store_word,
    trailing_zeros,
)

_FRAGMENT = 65_536
"""The search for repetitions covers this many bytes, so that distances fit into two bytes."""

_LARGE = 512 * 1024
"""Larger output buffers are not kept."""

_SLOTS = 16_384
_HASH = np.uint64(0x9E3779B185EBCA87)
_HASH_SHIFT = np.uint64(50)
_ZERO = np.uint64(0)

_FIRST_STEP = 96
"""In 32nds of a byte. Grows by one with every position without a repetition, as in the library, which begins at 32."""

_MARGIN = 16
"""No repetition begins in the last bytes of a fragment, so that whole words can be read without passing its end."""


class Snappy:
    """A compressor with its own memory. Use one per file, in one thread at a time."""

    def __init__(self) -> None:
        self._table = np.zeros(_SLOTS, np.uint16)
        self._room: Bytes = np.empty(0, np.uint8)

    def __call__(self, data: Any, tail: bytes = b"") -> memoryview:
        """The compressed bytes and ``tail``, valid until the next call."""
        source = data if isinstance(data, np.ndarray) else np.frombuffer(bytearray(data), np.uint8)
        room = self._room_for(64 + len(source) + len(source) // 6 + len(tail))
        used = _compress(source, room, self._table)
        packed = room.data[: used + len(tail)]
        packed[used:] = tail
        return packed

    def _room_for(self, most: int) -> Bytes:
        """A buffer for a block. Buffers of huge blocks are not kept."""
        if most > _LARGE:
            return np.empty(most, np.uint8)
        if len(self._room) < most:
            self._room = np.empty(most, np.uint8)
        return self._room


@kernel
def _compress(source: Any, out: Any, table: Any) -> int:
    size = len(source)
    used, rest = 0, size
    while rest >= 0x80:
        store_byte(out, used, (rest & 0x7F) | 0x80)
        rest >>= 7
        used += 1
    store_byte(out, used, rest)
    used += 1
    for base in range(0, size, _FRAGMENT):
        used = _fragment(source, base, min(base + _FRAGMENT, size), out, used, table)
    return used


@inlined
def _fragment(source: Any, base: int, end: int, out: Any, used: int, table: Any) -> int:
    table[:] = 0
    done, position, step = base, base + 1, _FIRST_STEP
    while position < end - _MARGIN:
        word = load_word(source, position)
        slot = _slot(word)
        earlier = base + int64(table[slot])
        table[slot] = position - base
        if earlier >= position or load_word(source, earlier) != word:
            position += step >> 5
            step += 1
            continue
        if position > done:
            used = _put_short_literal(out, used, source, done, position)
        done = _end_of_match(source, earlier, position, end)
        used = _put_copy(out, used, position - earlier, done - position)
        position, step = done, _FIRST_STEP
    return _put_literal(out, used, source, done, end) if done < end else used


@inlined
def _slot(word: Any) -> int:
    slot: int = int64((word * _HASH) >> _HASH_SHIFT)
    return slot


@inlined
def _end_of_match(source: Any, earlier: int, position: int, end: int) -> int:
    """The end of the bytes from ``position`` on that repeat those from ``earlier`` on. The first eight are known to
    match."""
    distance = position - earlier
    position += 8
    while position < end - 8:
        different = load_word(source, position) ^ load_word(source, position - distance)
        if different != _ZERO:
            return position + (trailing_zeros(different) >> 3)
        position += 8
    return position


@inlined
def _put_short_literal(out: Any, used: int, source: Any, start: int, end: int) -> int:
    """Write a literal that has ``_MARGIN`` bytes after it in the source. Most are short, so copy two words."""
    size = end - start
    if size > 16:
        return _put_literal(out, used, source, start, end)
    store_byte(out, used, (size - 1) << 2)
    store_word(out, used + 1, load_word(source, start))
    store_word(out, used + 9, load_word(source, start + 8))
    return used + 1 + size


@inlined
def _put_literal(out: Any, used: int, source: Any, start: int, end: int) -> int:
    last = end - start - 1
    if last < 60:
        store_byte(out, used, last << 2)
        used += 1
    elif last < 256:
        store_byte(out, used, 60 << 2)
        store_byte(out, used + 1, last)
        used += 2
    else:
        store_byte(out, used, 61 << 2)
        store_byte(out, used + 1, last & 0xFF)
        store_byte(out, used + 2, last >> 8)
        used += 3
    copy_bytes(out, used, source, start, end - start)
    return used + end - start


@inlined
def _put_copy(out: Any, used: int, distance: int, size: int) -> int:
    """Write copies of at most 64 and at least 4 bytes."""
    while size >= 68:
        used = _put_long_copy(out, used, distance, 64)
        size -= 64
    if size > 64:
        used = _put_long_copy(out, used, distance, 60)
        size -= 60
    if size >= 12 or distance >= 2048:
        return _put_long_copy(out, used, distance, size)
    store_byte(out, used, 1 | ((size - 4) << 2) | ((distance >> 8) << 5))
    store_byte(out, used + 1, distance & 0xFF)
    return used + 2


@inlined
def _put_long_copy(out: Any, used: int, distance: int, size: int) -> int:
    store_byte(out, used, ((size - 1) << 2) | 2)
    store_byte(out, used + 1, distance & 0xFF)
    store_byte(out, used + 2, distance >> 8)
    return used + 3
