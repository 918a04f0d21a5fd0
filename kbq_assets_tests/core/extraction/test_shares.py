"""Which partitions go first, and how much of each the limits allow."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.core.extraction.backlog import DANGER, Averages
from kbq_assets.core.extraction.shares import Throttled, urgency, weight, within_limits
from kbq_assets.core.extraction.throttle import ReadLimits
from kbq_assets.core.extraction.units import Unit
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.core.topics.options import ExtractionOptions
from kbq_assets.core.topics.topic_settings import TopicSettings


def unit(
    topic: str = "t",
    partition: int = 0,
    positions: int = 100,
    *,
    headroom: float = 1.0,
    **options: Any,
) -> Unit:
    extraction = ExtractionOptions(**options)
    range_ = OffsetRange(TopicPartition(topic, partition), 7, 7 + positions)
    return Unit(range_, 1, TopicSettings(extraction=extraction), headroom=headroom)


def cut(units: list[Unit], records: int = 0, size: int = 0, bytes_each: float = 10.0) -> list[int]:
    """The positions of each unit that the limits leave."""
    averages = {each.range.topic_partition: Averages(1.0, bytes_each) for each in units}
    kept, throttled = within_limits(units, averages, ReadLimits(records, size))
    left = {each.topic_partition: each.positions for each in throttled}
    found = {each.range.topic_partition: each.range for each in kept}
    for each in units:
        tp = each.range.topic_partition
        read = found[tp].positions if tp in found else 0
        assert read + left.get(tp, 0) == each.range.positions
        assert tp not in found or found[tp].from_offset == each.range.from_offset
    return [
        found[u.range.topic_partition].positions if u.range.topic_partition in found else 0 for u in units
    ]


@pytest.mark.parametrize(
    ("headroom", "priority", "turns"), [(1.0, 1, 1), (DANGER, 2, 2), (DANGER - 0.001, 2, 8), (0.0, 1, 4)]
)
def test_a_partition_in_danger_has_four_turns_for_one(headroom: float, priority: int, turns: int) -> None:
    assert weight(unit(headroom=headroom, priority=priority)) == turns


def test_the_nearest_to_loss_goes_first_and_then_the_longest() -> None:
    calm = [unit(positions=5), unit(positions=50, headroom=0.3)]
    danger = [unit(positions=9, headroom=0.02), unit(positions=2, headroom=0.01)]
    assert sorted([*calm, *danger], key=urgency) == [danger[1], danger[0], calm[1], calm[0]]


TWO = [unit(), unit(partition=1)]


@pytest.mark.parametrize(
    ("units", "limits", "found"),
    [
        ([], {"records": 1}, []),
        (TWO, {}, [100, 100]),
        (TWO, {"records": 200}, [100, 100]),
        (TWO, {"records": 100}, [50, 50]),
        (TWO, {"records": 101}, [51, 50]),
        (TWO, {"records": 1}, [1, 0]),
        (TWO, {"size": 1000}, [50, 50]),
        (TWO, {"size": 5}, [1, 0]),
        ([unit(max_bytes=20 << 20), unit("u")], {"bytes_each": float(30 << 20)}, [1, 100]),
        ([unit(positions=1), unit("u")], {"size": 20 << 20, "bytes_each": float(30 << 20)}, [1, 0]),
        (TWO, {"size": 1000, "bytes_each": 0.1}, [100, 100]),
        (TWO, {"size": 100, "bytes_each": 1.5}, [25, 25]),
        ([unit(positions=10), unit(partition=1)], {"records": 100}, [10, 90]),
        ([unit(priority=3), unit("u", priority=1)], {"records": 80}, [60, 20]),
        ([unit(headroom=0.0), unit(partition=1)], {"records": 100}, [80, 20]),
        ([unit(max_records=30), unit("u")], {}, [30, 100]),
        ([unit(max_records=30), unit(partition=1, max_records=30)], {}, [15, 15]),
        ([unit(max_bytes=20 << 20), unit("u")], {"bytes_each": float(1 << 20)}, [20, 100]),
    ],
    ids=[
        "nothing",
        "no limit",
        "enough",
        "half",
        "the first gets the rest",
        "one position",
        "bytes",
        "less than a position lets one through",
        "less than a position of one topic",
        "less than a position, and several topics",
        "a position has at least a byte",
        "bytes are rounded up",
        "an unused share goes to the other",
        "priority",
        "danger",
        "a limit of one topic",
        "partitions share their topic's limit",
        "bytes of one topic",
    ],
)
def test_limits_are_shared_by_weight(units: list[Unit], limits: dict[str, Any], found: list[int]) -> None:
    assert cut(units, **limits) == found


def test_a_cut_unit_keeps_all_but_its_end() -> None:
    whole = dataclasses.replace(unit(), leader_epoch=7, alone=True)
    tp = whole.range.topic_partition
    kept, throttled = within_limits([whole], {tp: Averages()}, ReadLimits(30))
    assert kept == [dataclasses.replace(whole, range=OffsetRange(tp, 7, 37))]
    assert throttled == [Throttled(tp, 70)]


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 500), st.integers(1, 9), st.integers(0, 100)), max_size=6),
    st.integers(0, 600),
)
def test_no_limit_is_exceeded_and_none_is_left_unused(
    wanted: list[tuple[int, int, int]], records: int
) -> None:
    units = [
        unit(f"t{n}", positions=positions, priority=priority, max_records=most)
        for n, (positions, priority, most) in enumerate(wanted)
    ]
    found = cut(units, records)
    each = [min(positions, most or positions) for positions, _, most in wanted]
    assert all(read <= most for read, most in zip(found, each, strict=True))
    assert sum(found) == min(sum(each), records or sum(each))
