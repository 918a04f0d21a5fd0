"""The kernel that appends a decoded key to each record's body, so that the key becomes a column."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kbq_assets.wire.chunk import PADDING, Chunk, Spans
from kbq_assets.wire.jit import copy_bytes, kernel, store_byte

NO_MARK = 255
"""There is no byte between a value and its key."""


def joined(chunk: Chunk, heads: Spans, values: Spans, marks: NDArray[np.uint8], keys: Spans) -> Chunk:
    """The chunk with new values: for each record a head, a value, a mark and a key. A record without a head becomes
    null."""
    sizes = sum(
        (each.ends - each.starts for each in (heads, values, keys)), (marks != NO_MARK).astype(np.int64)
    )
    null = heads.starts < 0
    sizes[null] = 0
    ends = np.cumsum(sizes, dtype=np.int64)
    starts = ends - sizes
    buffer = np.empty(int(sizes.sum()) + PADDING, np.uint8)
    _join(
        (buffer, starts),
        (heads.buffer, heads.starts, heads.ends),
        (values.buffer, values.starts, values.ends),
        marks,
        (keys.buffer, keys.starts, keys.ends),
    )
    starts[null] = ends[null] = -1
    return dataclasses.replace(chunk, buffer=buffer, starts=starts, ends=ends)


@kernel
def _join(target: Any, heads: Any, values: Any, marks: Any, keys: Any) -> None:
    buffer, starts = target
    head_buffer, head_starts, head_ends = heads
    value_buffer, value_starts, value_ends = values
    key_buffer, key_starts, key_ends = keys
    for i in range(len(starts)):
        if head_starts[i] < 0:
            continue
        position = starts[i]
        size = head_ends[i] - head_starts[i]
        copy_bytes(buffer, position, head_buffer, head_starts[i], size)
        position += size
        size = value_ends[i] - value_starts[i]
        copy_bytes(buffer, position, value_buffer, value_starts[i], size)
        position += size
        if marks[i] != 255:
            store_byte(buffer, position, marks[i])
            position += 1
        copy_bytes(buffer, position, key_buffer, key_starts[i], key_ends[i] - key_starts[i])
