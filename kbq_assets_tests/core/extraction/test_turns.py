"""Every position is read once, cores are kept busy, and everything is released in order."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbq_assets.core.extraction.turns import SliceLimits, Turns
from kbq_assets.core.extraction.units import Unit, UnitOutcome
from kbq_assets.core.protocol.commits import Stop, Window
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.core.topics.topic_settings import TopicSettings

LIMITS = SliceLimits(positions=10, least=4, ahead=2, packed_positions=3, packed_units=4)


def unit(partition: int, positions: int, *, topic: str = "t", headroom: float = 1.0, **options: Any) -> Unit:
    settings = TopicSettings.of(**options)
    return Unit(
        OffsetRange(TopicPartition(topic, partition), 0, positions), 1, settings, 7, headroom=headroom
    )


def outcome(slice_: Unit, positions: int | None = None, **changes: Any) -> UnitOutcome:
    """A slice read to its end, or so far."""
    first, until = slice_.range.from_offset, slice_.range.until_offset
    end = until if positions is None else first + positions
    window = Window(first, end, Counts(positions=end - first, gaps=end - first), leader_epoch=9)
    done = UnitOutcome(slice_, (window,) if end > first else (), first_leader_epoch=9)
    return dataclasses.replace(done, **changes)


def bounds(slices: Iterable[Unit]) -> list[tuple[int, int, int]]:
    return [(s.range.topic_partition.partition, s.range.from_offset, s.range.until_offset) for s in slices]


def covered(outcomes: Iterable[UnitOutcome]) -> list[tuple[int, int]]:
    return [(o.unit.range.from_offset, o.position) for o in outcomes]


def test_long_partitions_take_turns() -> None:
    turns = Turns([unit(0, 20), unit(1, 20)], LIMITS)
    read = []
    while task := turns.next_task(1):
        read += bounds(task)
        for slice_ in task:
            turns.take(outcome(slice_))
    assert read == [(0, 0, 10), (1, 0, 10), (0, 10, 20), (1, 10, 20)]


def test_a_topic_of_high_priority_gets_more_turns_and_nobody_starves() -> None:
    turns = Turns([unit(0, 200, priority="1"), unit(1, 200, priority="3")], LIMITS)
    read = []
    for _ in range(8):
        [slice_] = turns.next_task(1)
        read.append(slice_.range.topic_partition.partition)
        turns.take(outcome(slice_))
    assert (read.count(0), read.count(1)) == (2, 6)


def test_who_is_nearest_to_losing_records_is_first_and_gets_more_turns() -> None:
    turns = Turns([unit(0, 200), unit(1, 100, headroom=0.05), unit(2, 100, headroom=0.0)], LIMITS)
    read = []
    for _ in range(9):
        [slice_] = turns.next_task(1)
        read.append(slice_.range.topic_partition.partition)
        turns.take(outcome(slice_))
    assert read[:3] == [2, 1, 0]
    assert [read.count(p) for p in range(3)] == [1, 4, 4]


@pytest.mark.parametrize(("slots", "largest", "most_tasks"), [(2, 64, 50), (16, 16, 160), (100, 8, 175)])
def test_tasks_are_larger_where_slots_are_few_for_many_small_ranges(
    slots: int, largest: int, most_tasks: int
) -> None:
    limits = SliceLimits(packed_units=8, packed_positions=100)
    turns, sizes = Turns([unit(p, 10) for p in range(1_400)], limits), []
    running: list[tuple[Unit, ...]] = []
    while True:
        while len(running) < slots and (task := turns.next_task(slots - len(running))):
            running.append(task)
            sizes.append(len(task))
        if not running:
            break
        for slice_ in running.pop(0):
            turns.take(outcome(slice_))
    assert (sum(sizes), max(sizes)) == (1_400, largest)
    assert len(sizes) <= most_tasks
    assert max(sizes[-slots:]) <= 8, "no slot waits for a large task at the end"


def test_small_ranges_share_a_task() -> None:
    turns = Turns([unit(0, 50), *(unit(p, 1) for p in range(1, 6))], LIMITS)
    assert [len(turns.next_task(1)) for _ in range(3)] == [1, 3, 2]


def test_idle_cores_read_one_partition_side_by_side_in_even_parts() -> None:
    turns = Turns([unit(0, 16)], LIMITS)
    tasks = [turns.next_task(idle) for idle in (2, 1)]
    assert [bounds(task) for task in tasks] == [[(0, 0, 8)], [(0, 8, 16)]]
    assert [(s.ahead, s.leader_epoch) for task in tasks for s in task] == [(False, 7), (True, -1)]


@pytest.mark.parametrize(("positions", "idle", "parts"), [(7, 4, 1), (8, 4, 2), (100, 8, 3), (9, 1, 1)])
def test_a_partition_is_split_only_where_it_pays_and_so_far_ahead(
    positions: int, idle: int, parts: int
) -> None:
    turns = Turns([unit(0, positions)], LIMITS)
    tasks = [task for left in range(idle, 0, -1) if (task := turns.next_task(left))]
    assert len(tasks) == parts


def test_what_is_read_ahead_is_kept_until_all_below_it_is_released() -> None:
    turns = Turns([unit(0, 24)], LIMITS)
    [a], [b], [c] = (turns.next_task(idle) for idle in (3, 2, 1))
    assert turns.take(outcome(c)) == []
    assert turns.take(outcome(b)) == []
    assert covered(turns.take(outcome(a))) == [(0, 8), (8, 16), (16, 24)]
    assert (turns.in_flight, turns.unfinished, turns.next_task(3)) == (0, 0, ())


@pytest.mark.parametrize(
    "ending", [{"failure": "no answer"}, {"stop": Stop("bad_record", "", 4, 5)}, {"superseded": True}]
)
@pytest.mark.parametrize("early", [True, False])
def test_what_follows_a_slice_that_ended_is_given_up(ending: dict[str, Any], early: bool) -> None:
    turns = Turns([unit(0, 60)], LIMITS)
    [a], [b], [c] = (turns.next_task(idle) for idle in (3, 2, 1))
    released = [turns.take(outcome(c))] if early else []
    released += [turns.take(outcome(a)), turns.take(outcome(b, 4, **ending))]
    released += [] if early else [turns.take(outcome(c))]
    assert [covered(r) for r in released if r] == [[(0, 10)], [(10, 14)]]
    assert (turns.in_flight, turns.unfinished, turns.next_task(3)) == (0, 0, ())


def test_a_slice_that_closed_early_is_read_on_from_there_and_what_follows_it_anew() -> None:
    turns = Turns([unit(0, 20)], LIMITS)
    [a], [b] = (turns.next_task(idle) for idle in (2, 1))
    turns.take(outcome(a, 3))
    [again] = turns.next_task(1)
    assert (bounds([again]), again.ahead, again.leader_epoch) == ([(0, 3, 13)], False, 9)
    assert turns.take(outcome(b)) == []
    assert covered(turns.take(outcome(again))) == [(3, 13)]


def test_no_task_starts_for_a_topic_whose_seconds_are_used_up() -> None:
    turns = Turns([unit(0, 50, topic="dear", max_seconds=10), unit(1, 5)], LIMITS)
    [first] = turns.next_task(1)
    turns.take(outcome(first, seconds=10.0))
    assert bounds(turns.next_task(1)) == [(1, 0, 5)]
    assert (turns.next_task(1), turns.unfinished) == ((), 1)


def test_a_slice_gets_what_is_left_of_the_runs_time_and_its_topics() -> None:
    turns = Turns([unit(0, 50, topic="dear", max_seconds=10), unit(1, 5)], LIMITS)
    [first] = turns.next_task(1, 7.0)
    assert first.seconds == 7.0
    turns.take(outcome(first, seconds=4.0))
    assert sorted(slice_.seconds for _ in range(2) for slice_ in turns.next_task(1, 8.0)) == [6.0, 8.0]


def test_tasks_at_the_same_time_stay_within_their_topics_seconds_together() -> None:
    turns = Turns([unit(p, 100, topic="dear", max_seconds=60) for p in range(8)], LIMITS)
    tasks = [turns.next_task(idle, 600.0) for idle in range(8, 0, -1)]
    assert [slice_.seconds for task in tasks for slice_ in task] == [7.5] * 8


def test_one_partition_gets_all_seconds_of_its_topic_and_none_is_read_ahead() -> None:
    turns = Turns([unit(0, 100, topic="dear", max_seconds=60)], LIMITS)
    tasks = [turns.next_task(idle, 600.0) for idle in range(8, 0, -1)]
    assert [[(slice_.seconds, slice_.range.positions) for slice_ in task] for task in tasks[:2]] == [
        [(60.0, 10)],
        [],
    ]


def test_seconds_that_a_slice_did_not_need_go_to_the_others() -> None:
    turns = Turns([unit(p, 100, topic="dear", max_seconds=60) for p in range(2)], LIMITS)
    [a], [b] = turns.next_task(2), turns.next_task(1)
    assert (a.seconds, b.seconds) == (30.0, 30.0)
    turns.take(outcome(a, seconds=6.0))
    [again] = turns.next_task(1)
    assert (again.range.topic_partition, again.seconds) == (a.range.topic_partition, 24.0)


def test_units_that_share_a_task_share_their_topics_seconds_too() -> None:
    turns = Turns([unit(p, 1, topic="dear", max_seconds=2) for p in range(3)], LIMITS)
    first = turns.next_task(1, 600.0)
    assert [slice_.seconds for slice_ in first] == [1.0, 1.0]  # none gets less than is worth a slice
    assert (turns.next_task(1), turns.unfinished) == ((), 1)
    turns.take(outcome(first[0], seconds=0.25))
    assert turns.next_task(1) == ()  # not enough yet
    turns.take(outcome(first[1], seconds=0.25))
    assert [(slice_.range.topic_partition.partition, slice_.seconds) for slice_ in turns.next_task(1)] == [
        (2, 1.5)
    ]


def test_a_topic_without_seconds_holds_nobody_up_behind_it() -> None:
    dear = [unit(p, 2, topic="dear", max_seconds=1) for p in range(3)]
    turns = Turns([*dear, unit(7, 1)], LIMITS)
    first = turns.next_task(1)
    assert bounds(first) == [(0, 0, 2), (7, 0, 1)]
    for slice_ in first:
        turns.take(outcome(slice_, seconds=5.0))  # longer than its time
    assert (turns.next_task(1), turns.unfinished) == ((), 2)


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=6),
    st.integers(1, 4),
    st.integers(1, 30),
    st.integers(0, 2**32),
)
def test_slices_that_keep_to_their_seconds_keep_to_their_topics(
    sizes: list[int], slots: int, most: int, seed: int
) -> None:
    chance = random.Random(seed)
    turns = Turns([unit(p, size, topic="dear", max_seconds=most) for p, size in enumerate(sizes)], LIMITS)
    open_: list[tuple[Unit, ...]] = []
    used = 0.0
    while True:
        while len(open_) < slots and (task := turns.next_task(slots - len(open_), 20.0)):
            open_.append(task)
        reserved = sum(slice_.seconds for task in open_ for slice_ in task)
        assert used + reserved <= most + 1e-6
        if not open_:
            break
        for slice_ in open_.pop(chance.randrange(len(open_))):
            is_late = chance.random() < 0.3
            seconds = slice_.seconds if is_late else slice_.seconds * chance.random() * 0.2
            used += seconds
            turns.take(
                outcome(slice_, max(1, slice_.range.positions // 2) if is_late else None, seconds=seconds)
            )
    # Nothing is left while there are seconds for it.
    assert turns.unfinished == 0 or most - used < LIMITS.least_seconds + 1e-6


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=6),
    st.integers(1, 4),
    st.integers(0, 2**32),
    st.floats(0, 0.3),
)
def test_whatever_ends_when_each_partition_is_released_without_gap_in_order(
    sizes: list[int], slots: int, seed: int, trouble: float
) -> None:
    chance = random.Random(seed)
    turns = Turns([unit(p, size) for p, size in enumerate(sizes)], LIMITS)
    open_: list[tuple[Unit, ...]] = []
    next_ = dict.fromkeys(range(len(sizes)), 0)
    failed: set[int] = set()
    while True:
        while len(open_) < slots and (task := turns.next_task(slots - len(open_))):
            open_.append(task)
        assert turns.in_flight == sum(map(len, open_))
        if not open_:
            break
        for slice_ in open_.pop(chance.randrange(len(open_))):
            broken = chance.random() < trouble
            read = chance.randint(0, slice_.range.positions) if broken else None
            for released in turns.take(outcome(slice_, read, failure="no" if broken else "")):
                partition = released.unit.range.topic_partition.partition
                assert released.unit.range.from_offset == next_[partition]
                assert partition not in failed
                next_[partition] = released.position
                failed |= {partition} if released.failure else set()
    assert [p for p, size in enumerate(sizes) if next_[p] < size and p not in failed] == []
