"""A task leaves erased records out, and counts them."""

from __future__ import annotations

import numpy as np
import pytest

from kbq_assets.core.erasure.offset_sets import offsets_of
from kbq_assets.ports.kafka import RecordBatch
from kbq_assets.wire.chunk import Chunk, RawRecord
from kbq_assets.worker.erased_records import without


def batch(*offsets: int) -> RecordBatch:
    records = [RawRecord(b"v%d" % offset, offset, key=b"k%d" % offset) for offset in offsets]
    return RecordBatch(Chunk.from_messages(records, keys=True, headers=True), max(offsets, default=0) + 5, 2)


@pytest.mark.parametrize(
    ("offsets", "erased", "parts"),
    [
        ((3, 4, 6), (), [([3, 4, 6], 11, 0)]),
        ((3, 4, 6), (5,), [([3, 4, 6], 11, 0)]),
        ((3, 4, 6), (3,), [([4, 6], 11, 1)]),
        ((3, 4, 6), (4,), [([3], 4, 0), ([6], 11, 1)]),
        ((3, 4, 6), (4, 6), [([3], 4, 0), ([], 11, 2)]),
        ((3, 4, 6), (3, 4, 5, 6), [([], 11, 3)]),
        ((), (3,), [([], 5, 0)]),
    ],
)
def test_a_batch_without_erased_records_keeps_the_rest_and_its_end(
    offsets: tuple[int, ...], erased: tuple[int, ...], parts: list[tuple[list[int], int, int]]
) -> None:
    found = list(without(batch(*offsets), offsets_of(erased)))
    assert [(part.chunk.offsets.tolist(), part.position, part.erased) for part in found] == parts
    assert {part.leader_epoch for part in found} == {2}
    for part in found:
        for row in range(len(part.chunk)):
            offset = int(part.chunk.offsets[row])
            assert (part.chunk.value(row), part.chunk.key(row)) == (b"v%d" % offset, b"k%d" % offset)


def test_every_record_is_kept_or_counted() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        offsets = sorted({int(n) for n in rng.integers(0, 40, 12)})
        erased = sorted({int(n) for n in rng.integers(0, 40, 8)})
        found = list(without(batch(*offsets), offsets_of(erased)))
        kept = [offset for part in found for offset in part.chunk.offsets.tolist()]
        assert kept == [offset for offset in offsets if offset not in erased]
        assert sum(part.erased for part in found) == len(set(offsets) & set(erased))
