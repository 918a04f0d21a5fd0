"""A swap publishes windows that follow the position, if they come from the same log."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from kbq_assets.core.extraction.publishing import ANOTHER_WAS_FASTER, rebase
from kbq_assets.core.extraction.units import Unit, UnitOutcome
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, Stop, Window
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.core.protocol.waits import StopReason
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets_tests.strategies import staged_file, window

NOW_MS = 1_700_000_000_000
TP = TopicPartition("t", 0)
COMMIT = Commit(
    "t", 0, "cluster", "id", 3, {n: PartitionCommit(next=10, leader_epoch=4, epoch_until=10) for n in (0, 1)}
)
LOST_LOG = "read under another leader"


def outcome(first: int, until: int, *, partition: int = 0, **changes: Any) -> UnitOutcome:
    """A unit of one window with a file, read from the position's log; ``changes`` are of the unit or the outcome."""
    of_unit = {f.name for f in dataclasses.fields(Unit)} & changes.keys()
    tp = TopicPartition("t", partition)
    unit = Unit(OffsetRange(tp, first, until), 3, TopicSettings.of(), leader_epoch=4)
    unit = dataclasses.replace(unit, **{name: changes.pop(name) for name in of_unit})
    windows = (read(first, until, partition=partition),) if first < until else ()
    return dataclasses.replace(UnitOutcome(unit, windows, first_leader_epoch=4), **changes)


def read(first: int, until: int, *, partition: int = 0) -> Window:
    file = staged_file(first, until, partition=partition, epoch=3)
    return dataclasses.replace(window(first, until, file), leader_epoch=4, epoch_until=until)


@pytest.mark.parametrize(
    ("given", "position", "lost"),
    [
        pytest.param([outcome(10, 15), outcome(15, 20)], 20, {}, id="windows that follow each other"),
        pytest.param([outcome(15, 20)], 10, {TP: ANOTHER_WAS_FASTER}, id="a window beyond the position"),
        pytest.param([outcome(5, 10)], 10, {TP: ANOTHER_WAS_FASTER}, id="a window below it"),
        pytest.param([outcome(10, 15, epoch=2)], 10, {TP: ANOTHER_WAS_FASTER}, id="another epoch"),
        pytest.param(
            [outcome(11, 15), outcome(10, 15)], 10, {TP: ANOTHER_WAS_FASTER}, id="nothing after a lost one"
        ),
        pytest.param([outcome(10, 15, leader_epoch=5)], 10, {TP: LOST_LOG}, id="another leader"),
        pytest.param(
            [outcome(10, 15, ahead=True, leader_epoch=-1)], 15, {}, id="read ahead, by the same leader"
        ),
        pytest.param(
            [outcome(10, 15, ahead=True, first_leader_epoch=5)], 10, {TP: LOST_LOG}, id="ahead, by another"
        ),
        pytest.param(
            [outcome(10, 15, ahead=True, first_leader_epoch=-1)], 10, {TP: LOST_LOG}, id="ahead, unknown"
        ),
        pytest.param([outcome(10, 10, failure="timeout")], 10, {}, id="a unit that read nothing"),
    ],
)
def test_windows_count_if_they_continue_the_position(
    given: list[UnitOutcome], position: int, lost: dict[TopicPartition, str]
) -> None:
    commit, ours, found = rebase(COMMIT, given, NOW_MS)
    assert commit.partitions[0].next == position
    assert found.keys() == lost.keys()
    assert all(lost[tp] in reason for tp, reason in found.items())
    assert [each.windows[-1].until for each in ours] == [until for until in (15, 20) if until <= position]


def test_a_lost_window_of_one_partition_costs_the_others_nothing() -> None:
    commit, ours, lost = rebase(COMMIT, [outcome(12, 15), outcome(10, 15, partition=1)], NOW_MS)
    assert [commit.partitions[n].next for n in (0, 1)] == [10, 15]
    assert ([each.unit.range.topic_partition.partition for each in ours], set(lost)) == ([1], {TP})


def test_a_position_without_a_leader_epoch_takes_the_units() -> None:
    new = COMMIT.with_partition(0, PartitionCommit(next=10))
    commit, _, lost = rebase(new, [outcome(10, 15, leader_epoch=7)], NOW_MS)
    assert (commit.partitions[0].next, lost) == (15, {})


@pytest.mark.parametrize("is_sealed", [False, True])
def test_windows_of_a_swap_whose_reply_was_lost_are_ours_and_count_once(is_sealed: bool) -> None:
    """Also if a manifest has taken them since, which the partition no longer lists."""
    once, _, _ = rebase(COMMIT, [outcome(10, 15)], NOW_MS)
    sealed: frozenset[str] = frozenset()
    if is_sealed:
        sealed = frozenset(file.path for w in once.partitions[0].windows for file in w.files)
        once = once.with_partition(0, dataclasses.replace(once.partitions[0], windows=()))
    again, ours, lost = rebase(once, [outcome(10, 15)], NOW_MS, sealed=sealed)
    assert (again, len(ours), lost) == (once, 1, {})


def test_a_stop_counts_at_its_position_alone() -> None:
    stop = Stop(StopReason.FAILED, "broken", 15, 16)
    commit, _, _ = rebase(COMMIT, [outcome(10, 15, stop=stop)], NOW_MS)
    assert commit.partitions[0].stop == stop
    commit, _, _ = rebase(COMMIT, [outcome(10, 12, stop=stop)], NOW_MS)
    assert (commit.partitions[0].next, commit.partitions[0].stop) == (12, None)


def test_a_window_counts_as_published_once_with_its_age() -> None:
    opened = (NOW_MS - 2_000,)
    commit, _, _ = rebase(COMMIT, [outcome(10, 15, opened_ms=opened), outcome(30, 35)], NOW_MS)
    assert (commit.published.files, commit.published.latency.sum) == (1, 2.0)


@pytest.mark.parametrize(("version", "position"), [(0, 10), (6, 10), (7, 15), (8, 15)])
def test_what_was_read_before_an_erasure_is_read_again(version: int, position: int) -> None:
    known = dataclasses.replace(COMMIT, erasures=7)
    commit, ours, lost = rebase(known, [outcome(10, 15, erasures=version)], NOW_MS)
    assert (commit.partitions[0].next, len(ours)) == (position, int(position == 15))
    assert all("before an erasure" in reason for reason in lost.values()) and bool(lost) == (position == 10)
