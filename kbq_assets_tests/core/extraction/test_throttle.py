"""Limits are never exceeded, nothing within them is held back, and scarce capacity is shared by weight."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbq_assets.core.extraction.throttle import Demand, ReadLimits, allot

limits = st.builds(ReadLimits, records=st.integers(0, 300), bytes=st.integers(0, 3000))
demands = st.lists(
    st.builds(Demand, st.sampled_from("abc"), st.integers(0, 200), st.integers(1, 40), st.integers(1, 8)),
    max_size=12,
)
topics = st.fixed_dictionaries({"a": limits, "b": limits})


def _room(
    demands: Sequence[Demand], given_: Sequence[int], index: int, by: dict[str, ReadLimits], run: ReadLimits
) -> int:
    """How many more positions a demand could have, all limits kept."""
    topic = demands[index].topic
    room = [demands[index].positions - given_[index]]
    for limit, members in (
        (by.get(topic, ReadLimits()), [i for i, d in enumerate(demands) if d.topic == topic]),
        (run, list(range(len(demands)))),
    ):
        if limit.records:
            room.append(limit.records - sum(given_[i] for i in members))
        if limit.bytes:
            used = sum(given_[i] * demands[i].bytes for i in members)
            room.append((limit.bytes - used) // demands[index].bytes)
    return min(room)


@given(demands, topics, limits)
def test_no_limit_is_exceeded_and_what_is_left_fits_nobody(
    wanted: list[Demand], by_topic: dict[str, ReadLimits], run: ReadLimits
) -> None:
    given_ = allot(wanted, by_topic, run)
    rooms = [_room(wanted, given_, i, by_topic, run) for i in range(len(wanted))]
    assert rooms == [0] * len(wanted)


@given(demands, st.integers(1, 500))
def test_who_gets_less_than_another_wants_no_more_or_has_less_weight(
    wanted: list[Demand], records: int
) -> None:
    given_ = allot(wanted, {}, ReadLimits(records=records))
    for demand, positions in zip(wanted, given_, strict=True):
        if positions < demand.positions:
            levels = [g / d.weight for d, g in zip(wanted, given_, strict=True)]
            # A remainder of one position apart.
            assert max(levels) - positions / demand.weight <= 1 + 1 / demand.weight


@pytest.mark.parametrize(
    ("wanted", "by_topic", "run", "expected"),
    [
        pytest.param(
            [100, 10, 100], {}, ReadLimits(records=90), [40, 10, 40], id="small demands are met, others share"
        ),
        pytest.param([5, 5], {}, ReadLimits(), [5, 5], id="no limit"),
        pytest.param(
            [100, 100, 100], {"a": ReadLimits(records=20)}, ReadLimits(records=150), [10, 10, 100], id="topic"
        ),
    ],
)
def test_limits_are_shared(
    wanted: list[int], by_topic: dict[str, ReadLimits], run: ReadLimits, expected: list[int]
) -> None:
    demands_ = [Demand("aab"[i], positions) for i, positions in enumerate(wanted)]
    assert allot(demands_, by_topic, run) == expected


def test_a_priority_is_a_share() -> None:
    wanted = [Demand("a", 1000, weight=8), Demand("b", 1000, weight=1)]
    assert allot(wanted, {}, ReadLimits(records=90)) == [80, 10]


def test_bytes_count_by_the_size_of_records() -> None:
    wanted = [Demand("a", 1000, bytes=100), Demand("b", 1000, bytes=1)]
    assert allot(wanted, {}, ReadLimits(bytes=1010)) == [10, 10]


def test_many_partitions_under_many_limits_are_shared_in_no_time() -> None:
    wanted = [Demand(f"t{i % 700}", 1000 + i, bytes=100 + i % 50, weight=1 + i % 8) for i in range(11_200)]
    by_topic = {f"t{n}": ReadLimits(records=5000 + n, bytes=1_000_000) for n in range(700)}
    given_ = allot(wanted, by_topic, ReadLimits(records=2_000_000, bytes=10**9))
    by: dict[str, int] = defaultdict(int)
    for demand, positions in zip(wanted, given_, strict=True):
        by[demand.topic] += positions
    assert sum(given_) == 2_000_000
    assert all(used <= by_topic[topic].records for topic, used in by.items())
