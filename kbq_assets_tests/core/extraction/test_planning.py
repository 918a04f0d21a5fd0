"""An extraction starts at the commit's position, and stops if only an operator can decide."""

from __future__ import annotations

import dataclasses

import pytest

from kbq_assets.core.errors import CorruptState
from kbq_assets.core.extraction.planning import ExtractionPlan, TopicSnapshot, plan_extraction
from kbq_assets.core.extraction.units import WindowLimits
from kbq_assets.core.protocol import commits
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, Stop, Window
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.offsets import BrokerOffsets, OffsetRange, TopicDescription, TopicPartition
from kbq_assets.core.protocol.topic_registry import TopicEntry
from kbq_assets.core.topics.topic_settings import TopicSettings

COMMIT = Commit("t", 0, "cluster", "id", 3, {0: PartitionCommit(next=10, leader_epoch=4)})
KNOWN = TopicSnapshot(TopicSettings(), TopicDescription("t", "id", 1), TopicEntry((0,)), {0: COMMIT})
NEW = TopicSnapshot(TopicSettings(), TopicDescription("t", "id", 2))
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def _plan(snapshot: TopicSnapshot, *offsets: tuple[int, int], cluster: str = "cluster") -> ExtractionPlan:
    broker = {TopicPartition("t", p): BrokerOffsets(*o) for p, o in enumerate(offsets)}
    return plan_extraction([snapshot], broker, cluster)


def _ranges(plan: ExtractionPlan) -> list[OffsetRange]:
    return [unit.range for unit in plan.units]


def _stops(plan: ExtractionPlan) -> list[str]:
    assert not plan.units
    return [stop.reason for stop in plan.stops]


def test_a_known_partition_continues_at_its_next_position() -> None:
    [unit] = _plan(KNOWN, (0, 25)).units
    assert (unit.range, unit.epoch, unit.leader_epoch) == (OffsetRange(T0, 10, 25), 3, 4)


@pytest.mark.parametrize("snapshot", [KNOWN, NEW])
def test_windows_end_as_the_environment_says_unless_the_topic_does(snapshot: TopicSnapshot) -> None:
    own = dataclasses.replace(snapshot, settings=TopicSettings.of(window_seconds=60, window_bytes=7))
    for topic, expected in ((snapshot, WindowLimits(1, 2, 3, 4)), (own, WindowLimits(7, 2, 60, 4))):
        broker = {T0: BrokerOffsets(0, 25), T1: BrokerOffsets(0, 25)}
        plan = plan_extraction([topic], broker, "cluster", WindowLimits(1, 2, 3, 4))
        assert {unit.limits for unit in plan.units} == {expected}


def test_gaps_from_the_start_on_are_read_again_under_the_epoch_of_the_start() -> None:
    """A leader that was elected before the first record has no position in the commit's epoch."""
    state = PartitionCommit(next=1, leader_epoch=0, totals=Counts(positions=1, gaps=1))
    first = COMMIT.with_partition(0, state)
    second = commits.publish(first, 0, 3, [Window(1, 2, Counts(positions=1, gaps=1))])
    for commit in (first, second):
        [unit] = _plan(dataclasses.replace(KNOWN, commits={0: commit}), (0, 4)).units
        assert (unit.range.from_offset, unit.read_range.from_offset) == (commit.partitions[0].next, 0)


@pytest.mark.parametrize(("earliest", "begins", "epoch"), [(4, 4, 0), (6, 6, 0), (7, 7, -1)])
def test_a_position_behind_gaps_has_no_epoch_once_retention_deleted_them(
    earliest: int, begins: int, epoch: int
) -> None:
    state = PartitionCommit(
        next=7, leader_epoch=0, epoch_until=4, totals=Counts(positions=7, records=4, gaps=3)
    )
    commit = COMMIT.with_partition(0, state)
    [unit] = _plan(dataclasses.replace(KNOWN, commits={0: commit}), (earliest, 9)).units
    assert (unit.read_range.from_offset, unit.read_epoch) == (begins, epoch)
    assert unit.leader_epoch == 0  # by which its windows are published


def test_an_idle_partition_is_no_unit() -> None:
    plan = _plan(KNOWN, (0, 10))
    assert (plan.units, plan.stops, plan.idle) == ((), (), 1)


@pytest.mark.parametrize(("start", "first"), [("earliest", 5), ("latest", 30)])
def test_a_new_topic_starts_by_its_policy(start: str, first: int) -> None:
    plan = _plan(dataclasses.replace(NEW, settings=TopicSettings.of(start=start)), (5, 30), (5, 30))
    [creation] = plan.creations
    assert creation.starts == {0: first, 1: first}
    assert creation.commit().partitions[1] == PartitionCommit(next=first, start=first)


def test_a_new_partition_of_a_known_topic_starts_at_its_earliest_offset() -> None:
    grown = dataclasses.replace(
        KNOWN, description=TopicDescription("t", "id", 2), settings=TopicSettings.of(start="latest")
    )
    plan = _plan(grown, (0, 10), (7, 9))
    assert [(a.topic_partition, a.start) for a in plan.additions] == [(T1, 7)]
    assert [(u.range, u.epoch) for u in plan.units] == [(OffsetRange(T1, 7, 9), 3)]


def test_a_topic_with_more_than_64_partitions_has_two_commits() -> None:
    wide = TopicSnapshot(TopicSettings(), TopicDescription("t", "id", 70))
    plan = _plan(wide, *[(0, 1)] * 70)
    assert [(c.shard, len(c.starts)) for c in plan.creations] == [(0, 64), (1, 6)]


def test_units_are_planned_longest_first() -> None:
    assert _ranges(_plan(NEW, (0, 3), (0, 30))) == [OffsetRange(T1, 0, 30), OffsetRange(T0, 0, 3)]


def test_positions_lost_to_retention_stop_the_partition_with_both_commands() -> None:
    plan = _plan(KNOWN, (15, 25))
    assert _stops(plan) == ["retention_loss"]
    assert "[10, 15)" in plan.stops[0].message
    assert plan.stops[0].commands == (
        "kbq accept-gap --topic t --partition 0",
        "kbq reset --topic t --partition 0",
    )


def test_retention_loss_is_recorded_where_the_policy_says_so() -> None:
    lenient = dataclasses.replace(KNOWN, settings=TopicSettings.of(on_retention_loss="record"))
    plan = _plan(lenient, (15, 25))
    assert [(g.topic_partition, g.until) for g in plan.gaps] == [(T0, 15)]
    assert [(u.range, u.leader_epoch) for u in plan.units] == [(OffsetRange(T0, 15, 25), -1)]


def test_a_position_beyond_the_end_stops_the_partition() -> None:
    assert _stops(_plan(KNOWN, (0, 9))) == ["truncated"]


def test_another_topic_id_stops_the_topic() -> None:
    recreated = dataclasses.replace(KNOWN, description=TopicDescription("t", "other", 1))
    assert _stops(_plan(recreated, (0, 25))) == ["recreated"]


@pytest.mark.parametrize("unknown", ["", "AAAAAAAAAAAAAAAAAAAAAA"])
def test_an_unknown_topic_id_is_no_other_topic(unknown: str) -> None:
    described = dataclasses.replace(KNOWN, description=TopicDescription("t", unknown, 1))
    assert len(_plan(described, (0, 25)).units) == 1


def test_another_cluster_stops_the_topic() -> None:
    assert _stops(_plan(KNOWN, (0, 25), cluster="elsewhere")) == ["recreated"]


def test_a_registered_commit_that_is_missing_stops_the_topic() -> None:
    assert _stops(_plan(dataclasses.replace(KNOWN, commits={}), (0, 25))) == ["commit_missing"]


def test_a_commit_announced_but_never_created_is_created() -> None:
    announced = dataclasses.replace(NEW, entry=TopicEntry(creating=(0,)))
    assert len(_plan(announced, (0, 5), (0, 5)).creations) == 1


def test_done_files_without_a_commit_ask_for_a_bootstrap() -> None:
    plan = _plan(dataclasses.replace(NEW, has_done_files=True), (0, 5), (0, 5))
    assert _stops(plan) == ["not_bootstrapped"]
    assert plan.stops[0].commands == ("kbq bootstrap --topic t --from-done-files",)


def test_a_stopped_partition_waits_for_a_resume() -> None:
    stopped = commits.stop(COMMIT, 0, Stop("unknown_schema", "id 7", 10, 20))
    plan = _plan(dataclasses.replace(KNOWN, commits={0: stopped}), (0, 25))
    assert _stops(plan) == ["unknown_schema"]
    assert plan.stops[0].commands[1] == "kbq resume --topic t --partition 0 --as-errors"


def test_one_topics_problem_does_not_stop_another() -> None:
    broken = dataclasses.replace(
        NEW, description=TopicDescription("u", "", 1), problem=CorruptState("unreadable")
    )
    plan = plan_extraction([broken, KNOWN], {T0: BrokerOffsets(0, 25)}, "cluster")
    assert (len(plan.units), [s.reason for s in plan.stops]) == (1, ["commit_unreadable"])


def test_a_partition_without_offsets_or_gone_stops_alone() -> None:
    shrunk = dataclasses.replace(
        KNOWN,
        commits={
            0: dataclasses.replace(COMMIT, partitions={0: COMMIT.partitions[0], 5: PartitionCommit(next=1)})
        },
    )
    plan = _plan(shrunk, (0, 25))
    assert (len(plan.units), [s.reason for s in plan.stops]) == (1, ["partition_gone"])
    assert _stops(_plan(KNOWN)) == ["no_offsets"]
