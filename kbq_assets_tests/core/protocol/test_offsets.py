"""Ranges of offsets are half-open, ordered, and never negative."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbq_assets.core.protocol.offsets import BrokerOffsets, OffsetRange, TopicPartition

TP = TopicPartition("shop.orders", 3)
MOST = 2**63 - 1


@pytest.mark.parametrize(
    ("first", "until", "positions"),
    [(0, 0, 0), (5, 5, 0), (0, 1, 1), (10, 15, 5), (0, MOST, MOST), (MOST, MOST, 0)],
)
def test_a_range_counts_the_positions_before_its_end(first: int, until: int, positions: int) -> None:
    found = OffsetRange(TP, first, until)
    assert found.positions == positions
    assert bool(found) is (positions > 0)


@pytest.mark.parametrize(("first", "until"), [(-1, 0), (-1, -1), (1, 0), (MOST, 0)])
def test_what_ends_before_it_begins_or_begins_below_zero_is_no_range(first: int, until: int) -> None:
    with pytest.raises(ValueError, match="not a range of offsets"):
        OffsetRange(TP, first, until)


def test_ranges_are_written_as_mathematicians_write_half_open_ones() -> None:
    assert str(OffsetRange(TP, 10, 15)) == "shop.orders[3] [10, 15)"


def test_ranges_sort_by_topic_then_partition_then_offset() -> None:
    wanted = [
        OffsetRange(TopicPartition("a", 2), 9, 10),
        OffsetRange(TopicPartition("a", 10), 0, 1),
        OffsetRange(TopicPartition("b", 0), 2, 3),
        OffsetRange(TopicPartition("b", 0), 2, 4),
        OffsetRange(TopicPartition("b", 0), 10, 11),
    ]
    assert sorted(reversed(wanted)) == wanted


def test_ranges_are_values() -> None:
    one, same = OffsetRange(TP, 1, 2), OffsetRange(TopicPartition("shop.orders", 3), 1, 2)
    assert len({one, same, pickle.loads(pickle.dumps(one))}) == 1


def test_a_broker_may_report_no_leader_epoch() -> None:
    assert BrokerOffsets(0, 5).leader_epoch == -1


@given(st.lists(st.integers(0, MOST), min_size=3, max_size=3).map(sorted))
def test_the_parts_of_a_range_have_its_positions(bounds: list[int]) -> None:
    first, middle, until = bounds
    whole = OffsetRange(TP, first, until)
    assert (
        OffsetRange(TP, first, middle).positions + OffsetRange(TP, middle, until).positions == whole.positions
    )
