"""A sum of hashes notices every row that a rewrite lost, doubled or changed, and no change of order."""

from __future__ import annotations

import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kbq_assets.wire.arrow.row_hash import digest, row_hashes

#: Values that differ, per type.
COLUMNS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False, None]),
    (pa.int64(), [0, 1, -1, 1 << 40, None]),
    (pa.float64(), [0.0, -0.0, 1.5, float("nan"), None]),
    (pa.string(), ["", "a", "b", "ab", "ba", "a\0", None]),
    (pa.large_binary(), [b"", b"\0", b"\0\0", b"\1", None]),
    (pa.date32(), [0, 1, None]),
    (pa.timestamp("us", "UTC"), [0, 1, None]),
    (pa.decimal128(38, 9), [decimal.Decimal(0), decimal.Decimal("1e-9"), decimal.Decimal(-1), None]),
    (pa.list_(pa.int64()), [[], [0], [0, 0], [1, 2], [2, 1], [None], None]),
    (pa.struct([("a", pa.int64()), ("b", pa.string())]), [{"a": 1}, {"a": None}, {"a": 1, "b": ""}, None]),
    (pa.list_(pa.struct([("a", pa.string())])), [[], [{"a": None}], [{"a": ""}], [None], None]),
    (pa.null(), [None]),
]


@pytest.mark.parametrize(("kind", "values"), COLUMNS, ids=lambda each: str(each)[:20])
def test_each_value_has_a_hash_of_its_own(kind: pa.DataType, values: list[Any]) -> None:
    batch = pa.record_batch({"x": pa.array(values, kind)})
    assert len(np.unique(row_hashes(batch))) == len(values)


def everything(rows: int) -> pa.RecordBatch:
    """Rows with a column of each type."""
    arrays = [
        pa.array([values[(row + i) % len(values)] for row in range(rows)], kind)
        for i, (kind, values) in enumerate(COLUMNS)
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[str(i) for i in range(len(arrays))])


def test_order_and_batches_do_not_count() -> None:
    batch = everything(300)
    whole = digest(batch)
    assert whole.rows == 300
    assert digest(batch.take(pa.array(np.random.default_rng(1).permutation(300)))) == whole
    assert digest(batch.slice(0, 7)) + digest(batch.slice(7, 200)) + digest(batch.slice(207)) == whole


def test_a_lost_doubled_or_changed_row_counts() -> None:
    batch = everything(300)
    whole = digest(batch)
    assert digest(batch.slice(1)) != whole
    doubled = pa.Table.from_batches([batch.slice(0, 299), batch.slice(0, 1)]).combine_chunks().to_batches()
    assert sum(digest(each).rows for each in doubled) == whole.rows
    assert sum(digest(each).hash for each in doubled) % (1 << 64) != whole.hash
    swapped = batch.set_column(1, "1", batch.column(1).take(pa.array([1, 0, *range(2, 300)])))
    assert digest(swapped) != whole


def test_the_width_of_offsets_does_not_count() -> None:
    texts = pa.array(["a", None, "bc"])
    assert digest(pa.record_batch({"x": texts})) == digest(
        pa.record_batch({"x": texts.cast(pa.large_string())})
    )


def test_no_rows_have_a_digest() -> None:
    assert digest(everything(0)).hash == 0


def test_a_type_without_a_hash_is_refused() -> None:
    maps = pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))
    with pytest.raises(TypeError, match="no hash"):
        digest(pa.record_batch({"x": maps}))
