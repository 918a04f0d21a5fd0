"""A hash per row of Arrow columns. Its sum tells whether two sets of rows are equal in any order. It detects rows that
a rewrite lost, duplicated or changed, but is not safe against forgery.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kbq_assets.core.compaction.model import RowsDigest
from kbq_assets.wire.jit import kernel

#: Odd constants of splitmix64 and FNV.
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_PRIME: Final = np.uint64(0x100000001B3)
_NULL: Final = np.uint64(0x2545F4914F6CDD1D)
Hashes = npt.NDArray[np.uint64]


def digest(batch: pa.RecordBatch) -> RowsDigest:
    """The digest of a batch's rows. Raises TypeError for a column that has no hash, such as a map."""
    return RowsDigest(batch.num_rows, int(row_hashes(batch).sum(dtype=np.uint64)))


def row_hashes(batch: pa.RecordBatch) -> Hashes:
    """A hash for each row."""
    return _combined(list(batch.columns), batch.num_rows)


def _combined(columns: list[pa.Array], rows: int) -> Hashes:
    found = np.full(rows, _GOLDEN, np.uint64)
    for column in columns:
        found = _mixed(found * _PRIME + _values(column))
    return found


def _values(array: pa.Array) -> Hashes:
    kind = array.type
    if pa.types.is_null(kind):
        return np.full(len(array), _NULL, np.uint64)
    if pa.types.is_struct(kind):
        found = _combined([array.field(i) for i in range(kind.num_fields)], len(array))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        found = _folded(_starts(pc.fill_null(pc.list_value_length(array), 0)), _values(array.flatten()))
    elif _is_text(kind):
        lengths = pc.fill_null(pc.binary_length(array), 0)
        found = _folded(_starts(lengths), _bytes(array, int(pc.sum(lengths).as_py() or 0)))
    else:
        found = _fixed(array)
    if array.null_count:
        found = np.where(array.is_valid().to_numpy(zero_copy_only=False), found, _NULL)
    return found


def _is_text(kind: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(test(kind) for test in tests)


def _starts(lengths: pa.Array) -> npt.NDArray[np.int64]:
    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths.to_numpy(zero_copy_only=False), out=starts[1:])
    return starts


def _bytes(array: pa.Array, size: int) -> npt.NDArray[np.uint8]:
    """The concatenated bytes of all values that are not null."""
    if not size:
        return np.zeros(0, np.uint8)
    dense = array.drop_null()
    large = pa.types.is_large_string(dense.type) or pa.types.is_large_binary(dense.type)
    offsets = np.frombuffer(dense.buffers()[1], np.int64 if large else np.int32)
    first = int(offsets[dense.offset])
    return np.frombuffer(dense.buffers()[2], np.uint8)[first : first + size]


def _fixed(array: pa.Array) -> Hashes:
    """Hashes of fixed-width values, from their bits."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.uint8())
    try:
        width = array.type.bit_width // 8
    except ValueError:
        raise TypeError(f"rows of the type {array.type} have no hash") from None
    raw: Any = np.frombuffer(array.buffers()[1], np.uint8)[array.offset * width :][: len(array) * width]
    if width <= 8:
        return _mixed(raw.view(f"u{width}").astype(np.uint64) + _GOLDEN)
    return _folded(np.arange(len(array) + 1, dtype=np.int64) * width, raw)


def _mixed(values: Hashes) -> Hashes:
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_2
    return values ^ (values >> np.uint64(31))


def _folded(starts: npt.NDArray[np.int64], values: Any) -> Hashes:
    """A hash of the values between each start and the next, in order."""
    out = np.zeros(len(starts) - 1, np.uint64)
    _fold(starts, np.ascontiguousarray(values), out)
    return _mixed(out)


@kernel
def _fold(starts: npt.NDArray[np.int64], values: Any, out: Hashes) -> None:
    for row in range(len(out)):
        found = np.uint64(starts[row + 1] - starts[row]) + _GOLDEN
        for place in range(starts[row], starts[row + 1]):
            found = (found ^ np.uint64(values[place])) * _PRIME
            found ^= found >> np.uint64(29)
        out[row] = found
