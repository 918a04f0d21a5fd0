"""Schema ids of records, from the Confluent prefix of their values."""

from __future__ import annotations

from typing import Any

import numpy as np

from kbq_assets.wire.chunk import Chunk, Longs
from kbq_assets.wire.jit import kernel, load_byte

NULL, BAD_MAGIC, SHORT = -2, -1, -3
"""Results of :func:`split_prefix` for values without a schema id."""

PREFIX = 5
"""Bytes of the Confluent prefix: magic byte 0 and a big-endian schema id."""


def split_prefix(chunk: Chunk) -> Longs:
    """The schema id of each record, or ``NULL``, ``BAD_MAGIC``, ``SHORT``."""
    ids = np.empty(len(chunk), np.int64)
    _split_prefix(chunk.buffer, chunk.starts, chunk.ends, ids)
    return ids


@kernel
def _split_prefix(buffer: Any, starts: Any, ends: Any, ids: Any) -> None:
    for i in range(len(starts)):
        start = starts[i]
        if start < 0:
            ids[i] = NULL
        elif ends[i] > start and load_byte(buffer, start) != 0:
            ids[i] = BAD_MAGIC
        elif ends[i] - start < PREFIX:
            ids[i] = SHORT
        else:
            ids[i] = (
                (load_byte(buffer, start + 1) << 24)
                | (load_byte(buffer, start + 2) << 16)
                | (load_byte(buffer, start + 3) << 8)
                | load_byte(buffer, start + 4)
            )
