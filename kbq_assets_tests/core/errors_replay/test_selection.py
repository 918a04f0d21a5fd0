"""Error rows that can be replayed, in batches that fit into memory."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.core.erasure.offset_sets import RowPlaces
from kbq_assets.core.errors_replay.intents import ReplayIntent, intent_words
from kbq_assets.core.errors_replay.selection import BATCH_BYTES, BATCH_ROWS, Left, batches, why_left
from kbq_assets.core.protocol.names import TableReference
from kbq_assets_tests.strategies import staged_file


@pytest.mark.parametrize(
    ("reason", "size", "epoch", "since", "left"),
    [
        ("UNDECODABLE", 10, 3, 3, None),
        ("UNDECODABLE", 0, 3, 3, None),
        ("UNDECODABLE", 10, 4, 3, None),
        ("UNDECODABLE", 10, 2, 3, Left.READ_AGAIN),
        ("UNDECODABLE", 10, 3, None, Left.UNKNOWN),
        ("UNDECODABLE", None, 3, 3, Left.WITHHELD),
        ("NULL_VALUE", None, 3, 3, None),
        ("TOMBSTONE", None, 3, 3, None),
        ("TOMBSTONE", None, 2, 3, Left.READ_AGAIN),
        ("NULL_VALUE", None, 3, None, Left.UNKNOWN),
        ("UNDECODABLE", None, 2, 3, Left.READ_AGAIN),
    ],
    ids=[
        "a value",
        "an empty value",
        "a later epoch",
        "read again since",
        "an unknown topic",
        "withheld",
        "null when it arrived",
        "a tombstone",
        "a tombstone read again since",
        "null of an unknown topic",
        "withheld and read again since",
    ],
)
def test_a_row_stays_for_the_first_reason_that_holds(
    reason: str, size: int | None, epoch: int, since: int | None, left: Left | None
) -> None:
    assert why_left(reason=reason, size=size, epoch=epoch, since=since) == left


HALF = BATCH_BYTES // 2


@pytest.mark.parametrize(
    ("sizes", "lengths"),
    [
        ([], []),
        ([0], [1]),
        ([HALF, HALF], [2]),
        ([HALF, HALF + 1], [1, 1]),
        ([BATCH_BYTES + 1], [1]),
        ([BATCH_BYTES + 1, 0], [1, 1]),
        ([1, BATCH_BYTES + 1, 1, 1], [1, 1, 2]),
        ([0] * BATCH_ROWS, [BATCH_ROWS]),
        ([0] * (BATCH_ROWS + 1), [BATCH_ROWS, 1]),
        ([0] * (2 * BATCH_ROWS + 3), [BATCH_ROWS, BATCH_ROWS, 3]),
    ],
    ids=[
        "nothing",
        "an empty row",
        "exactly full",
        "a byte more",
        "a row too large",
        "a row too large and an empty one",
        "a row too large in between",
        "as many rows as fit",
        "a row more",
        "two batches and a rest",
    ],
)
def test_batches_are_bounded_by_rows_and_bytes(sizes: list[int], lengths: list[int]) -> None:
    found = list(batches(range(len(sizes)), sizes))
    assert [len(batch) for batch in found] == lengths


@settings(max_examples=50)
@given(st.lists(st.integers(0, BATCH_BYTES // 3 * 4), max_size=12))
def test_every_row_is_in_one_batch_in_order(sizes: list[int]) -> None:
    found = [list(batch) for batch in batches(range(len(sizes)), sizes)]
    assert [row for batch in found for row in batch] == list(range(len(sizes)))
    assert all(len(b) == 1 or sum(sizes[row] for row in b) <= BATCH_BYTES for b in found)
    # No two batches would fit into one.
    for one, other in itertools.pairwise(found):
        assert sum(sizes[row] for row in one) + sizes[other[0]] > BATCH_BYTES


INTENT = ReplayIntent(
    "kbq-errors-u-1", TableReference("d", "t"), (staged_file(4, 9, partition=3, epoch=2),), 70, (4, 6, 8, 9)
)


def test_an_intent_names_the_rows_that_it_adds_and_marks() -> None:
    assert INTENT.places == RowPlaces("t", ((3, 2, (4, 6, 8, 9)),))
    again = INTENT.under("kbq-errors-u-2")
    assert (again.job_id, again.places, again.at_ms) == ("kbq-errors-u-2", INTENT.places, 70)
    assert intent_words(INTENT) == ("a replay of error rows into d.t has not ended; next: kbq errors replay")
