"""Records that a kernel encoded from values of other formats, joined with those encoded by Python code."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kbq_assets.wire.chunk import Bytes, Chunk, Longs


@dataclass(frozen=True, slots=True, eq=False)
class EncodedRecords:
    """Framed Avro records for some rows of a chunk, as spans of ``buffer``. ``done`` is a mask of the rows that have
    one."""

    buffer: Bytes
    starts: Longs
    ends: Longs
    done: NDArray[np.bool_]


def with_encoded(others: Chunk, encoded: EncodedRecords, rows: Longs) -> Chunk:
    """The chunk ``others`` with the encoded values in place of those of the ``rows`` that have one."""
    done, offset = rows[encoded.done], len(others.buffer)
    starts, ends = others.starts.copy(), others.ends.copy()
    starts[done], ends[done] = encoded.starts[encoded.done] + offset, encoded.ends[encoded.done] + offset
    buffer = np.concatenate([others.buffer, encoded.buffer])
    return dataclasses.replace(others, buffer=buffer, starts=starts, ends=ends)
