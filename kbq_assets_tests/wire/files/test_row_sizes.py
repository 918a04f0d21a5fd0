"""Rows that BigQuery cannot read at once: counted to the byte, by the parts that a row has."""

from __future__ import annotations

import numpy as np
import pytest

from kbq_assets.wire.chunk import Chunk, RawRecord
from kbq_assets.wire.files.row_sizes import MOST_ROW_BYTES, oversized
from kbq_assets.wire.records.staged_schema import MetadataColumns

HALF = MOST_ROW_BYTES // 2
ALL = MetadataColumns(key=True, headers=True)
NONE = MetadataColumns(key=False, headers=False)


def masked(
    *records: RawRecord, metadata: MetadataColumns = ALL, rows: tuple[int, ...] | None = None
) -> list[bool]:
    chunk = Chunk.from_messages(records, keys=True, headers=True)
    chosen = np.array(range(len(records)) if rows is None else rows, np.int64)
    found = oversized(chunk, chosen, metadata)
    return [] if found is None else found.tolist()


@pytest.mark.parametrize(("size", "expected"), [(MOST_ROW_BYTES - 1, []), (MOST_ROW_BYTES, [True])])
def test_value_key_and_headers_count_together(size: int, expected: list[bool]) -> None:
    # Headers without entries are one byte.
    assert masked(RawRecord(b"v" * HALF, 0, key=b"k" * (size - HALF))) == expected


def test_only_the_rows_that_are_asked_about_are_masked() -> None:
    large, small = RawRecord(b"v" * (MOST_ROW_BYTES + 1), 0), RawRecord(b"v", 1)
    assert masked(small, large, small) == [False, True, False]
    assert masked(small, large, small, rows=(1,)) == [True]
    assert masked(small, large, small, rows=(0, 2)) == []


@pytest.mark.parametrize(
    ("metadata", "expected"), [(ALL, [True]), (NONE, [])], ids=["all columns", "no columns"]
)
def test_a_part_that_is_no_column_does_not_count(metadata: MetadataColumns, expected: list[bool]) -> None:
    record = RawRecord(b"v" * HALF, 0, key=b"k" * HALF, headers=(("h", b"x" * HALF),))
    assert masked(record, metadata=metadata) == expected


def test_many_small_rows_are_none_too_large() -> None:
    assert masked(*(RawRecord(b"v" * 1_000_000, n) for n in range(17))) == []


def test_null_values_have_no_size() -> None:
    assert masked(RawRecord(None, 0), RawRecord(b"v" * (MOST_ROW_BYTES + 1), 1)) == [False, True]
