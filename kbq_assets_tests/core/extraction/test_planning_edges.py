"""Plans with retried stops, positions at the log's ends, and partitions that may wait."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from kbq_assets.core.extraction.planning import (
    Addition,
    Creation,
    ExtractionPlan,
    RecordedGap,
    TopicSnapshot,
    plan_extraction,
)
from kbq_assets.core.extraction.restarts import FIRST_PAUSE_MS
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, Stop
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.offsets import BrokerOffsets, OffsetRange, TopicDescription, TopicPartition
from kbq_assets.core.protocol.topic_registry import TopicEntry
from kbq_assets.core.protocol.waits import StopReason
from kbq_assets.core.protocol.watermarks import LogEnd, Watermark
from kbq_assets.core.topics.topic_settings import TopicSettings

T0 = TopicPartition("t", 0)
READ = Counts(positions=10, records=10, bytes=1000, rows={"d.t": 10})
NOW = 10_000_000


def state(**changes: Any) -> PartitionCommit:
    return dataclasses.replace(PartitionCommit(10, leader_epoch=4, epoch_until=10, totals=READ), **changes)


def planned(
    found: PartitionCommit,
    earliest: int = 0,
    latest: int = 50,
    *,
    leader_epoch: int = 9,
    now_ms: int = 0,
    ripe: tuple[TopicPartition, ...] = (),
    **options: Any,
) -> ExtractionPlan:
    """The plan of a topic of one partition."""
    commit = Commit("t", 0, "c", "id", 3, {0: found})
    snapshot = TopicSnapshot(
        TopicSettings.of(**options), TopicDescription("t", "id", 1), TopicEntry((0,)), {0: commit}
    )
    broker = {T0: BrokerOffsets(earliest, latest, leader_epoch)}
    return plan_extraction([snapshot], broker, "c", ripe=ripe, now_ms=now_ms)


def read_by(plan: ExtractionPlan) -> tuple[int, int] | str:
    """The positions of the only unit, or the reason of the stop."""
    if plan.stops:
        assert not plan.units
        return plan.stops[0].reason
    [unit] = plan.units
    return unit.range.from_offset, unit.range.until_offset


def stop(reason: str = StopReason.UNKNOWN_SCHEMA, until: int = 30, **changes: Any) -> Stop:
    return dataclasses.replace(Stop(reason, "no", 10, until, last_ms=NOW - FIRST_PAUSE_MS), **changes)


@pytest.mark.parametrize(
    ("found", "now_ms", "options", "read"),
    [
        (stop(), NOW, {}, (10, 30)),
        (stop(), NOW - 1, {}, "unknown_schema"),
        (stop(), 0, {}, "unknown_schema"),
        (stop(), NOW, {"restart": "manual"}, "unknown_schema"),
        (stop(StopReason.BAD_RECORD), NOW, {}, "bad_record"),
        (stop(tries=1), NOW, {}, "unknown_schema"),
        (stop(tries=1), NOW + FIRST_PAUSE_MS, {}, (10, 30)),
        (stop(until=90), NOW, {}, (10, 50)),
        (stop(until=10), NOW, {}, (10, 50)),
    ],
    ids=[
        "due",
        "not due yet",
        "the time is unknown",
        "the topic wants no tries",
        "a bad record stays bad",
        "the pause doubles",
        "after the second pause",
        "the range ends beyond the log",
        "the stopped range is read",
    ],
)
def test_a_stop_is_tried_again_for_its_own_range_alone(
    found: Stop, now_ms: int, options: dict[str, Any], read: tuple[int, int] | str
) -> None:
    assert read_by(planned(state(stop=found), now_ms=now_ms, **options)) == read


@pytest.mark.parametrize(
    ("earliest", "latest", "read"),
    [
        (0, 50, "log_changed"),
        (10, 50, "log_changed"),
        (0, 10, "log_changed"),
        (11, 50, "retention_loss"),
        (0, 9, "truncated"),
    ],
)
def test_a_changed_log_that_no_longer_has_the_position_is_decided_anew(
    earliest: int, latest: int, read: str
) -> None:
    found = stop(StopReason.LOG_CHANGED, last_ms=NOW)
    assert read_by(planned(state(stop=found), earliest, latest)) == read


@pytest.mark.parametrize(
    ("earliest", "latest", "read"),
    [(10, 50, (10, 50)), (11, 50, "retention_loss"), (0, 9, "truncated"), (10, 11, (10, 11))],
    ids=["the first position", "one position too late", "one position too far", "one record"],
)
def test_a_position_at_the_logs_ends_is_read(earliest: int, latest: int, read: tuple[int, int] | str) -> None:
    assert read_by(planned(state(), earliest, latest)) == read


@pytest.mark.parametrize(
    ("earliest", "latest", "gap", "read"),
    [(20, 50, True, (20, 50)), (11, 50, True, (11, 50)), (50, 50, True, None), (10, 50, False, (10, 50))],
    ids=["a gap", "one position", "everything is gone", "nothing is gone"],
)
def test_a_recorded_gap_ends_where_the_log_begins_and_reading_goes_on_there(
    earliest: int, latest: int, gap: bool, read: tuple[int, int] | None
) -> None:
    plan = planned(state(), earliest, latest, on_retention_loss="record")
    reason = "retention (on_retention_loss=record)"
    assert plan.gaps == ((RecordedGap(T0, 3, earliest, reason, 9),) if gap else ())
    if read is None:
        assert (plan.units, plan.idle) == ((), 1)
        return
    assert read_by(plan) == read
    [unit] = plan.units
    assert (unit.leader_epoch, unit.epoch_until) == ((9, earliest) if gap else (4, 10))


@pytest.mark.parametrize(
    ("found", "leader_epoch", "epoch_until"),
    [
        (state(), 4, 10),
        (state(leader_epoch=-1, epoch_until=0), 9, 10),
        (state(leader_epoch=0), 0, 10),
        (state(epoch_until=6), 4, 6),
    ],
    ids=["as committed", "nobody knew it", "the first epoch", "gaps before the position"],
)
def test_a_unit_has_the_epoch_of_the_commit_or_the_brokers(
    found: PartitionCommit, leader_epoch: int, epoch_until: int
) -> None:
    [unit] = planned(found).units
    assert (unit.leader_epoch, unit.epoch_until) == (leader_epoch, epoch_until)


@pytest.mark.parametrize(("deaths", "alone"), [(0, False), (1, True), (2, True)])
def test_a_range_whose_task_died_has_a_task_of_its_own(deaths: int, alone: bool) -> None:
    [unit] = planned(state(deaths=deaths, accept_errors_until=33)).units
    assert (unit.alone, unit.accept_errors_until) == (alone, 33)


WAITS = {"min_records": 100, "max_wait_seconds": 60}


@pytest.mark.parametrize(
    ("found", "earliest", "more", "waits"),
    [
        (state(), 0, {}, True),
        (state(), 0, {"latest": 109}, True),
        (state(), 0, {"latest": 110}, False),
        (state(), 0, {"ripe": (T0,)}, False),
        (state(), 9, {}, False),
        (state(stop=stop()), 0, {"now_ms": NOW}, False),
    ],
    ids=["too little", "almost enough", "enough", "ripe", "in danger", "a try"],
)
def test_a_partition_with_too_little_waits_unless_it_must_not(
    found: PartitionCommit, earliest: int, more: dict[str, Any], waits: bool
) -> None:
    plan = planned(found, earliest, **{**WAITS, **more})
    assert (len(plan.waiting), len(plan.units)) == ((1, 0) if waits else (0, 1))
    assert [(each.topic_partition, each.first) for each in plan.waiting] == ([(T0, 10)] if waits else [])


def test_log_ends_are_noted_for_topics_with_complete_hours_alone() -> None:
    for found, latest in ((state(), 50), (state(watermark=Watermark(end_ms=7)), 10)):
        ends = planned(found, latest=latest, complete_after_seconds=900).log_ends
        assert ends == {T0: LogEnd(10, latest, found.watermark.end_ms)}
    assert planned(state(), complete_after_seconds=0).log_ends == {}
    assert planned(state(stop=stop(StopReason.BAD_RECORD)), complete_after_seconds=900).log_ends == {}


def test_the_ends_of_a_plan_are_those_of_the_broker_whatever_the_limits() -> None:
    plan = planned(state(), max_records=15)
    assert (read_by(plan), plan.positions, plan.ends) == ((10, 25), 15, {T0: 50})


def new_topic(*shards: int, partitions: int = 66, **options: Any) -> ExtractionPlan:
    """The plan of a topic with commits of these shards, and without those of the others."""
    commits = {n: Commit("t", n, "c", "id", 3, {64 * n: state()}) for n in shards}
    snapshot = TopicSnapshot(
        TopicSettings.of(**options), TopicDescription("t", "id", partitions), TopicEntry(shards), commits
    )
    broker = {TopicPartition("t", n): BrokerOffsets(5, 30, n) for n in range(partitions)}
    return plan_extraction([snapshot], broker, "c")


def test_a_shard_that_a_growing_topic_reaches_is_created_and_others_grow() -> None:
    plan = new_topic(0, complete_after_seconds=900)
    assert plan.additions == tuple(Addition(TopicPartition("t", n), 3, 5, n) for n in range(1, 64))
    assert plan.creations == (Creation("t", 1, "c", "id", {64: 5, 65: 5}, {64: 64, 65: 65}),)
    created = plan.creations[0].commit()
    assert created.partitions[65] == PartitionCommit(5, 5, 0, 65, 5)
    assert plan.log_ends[TopicPartition("t", 65)] == LogEnd(5, 30)
    epochs = {unit.range.topic_partition.partition: unit.epoch for unit in plan.units}
    assert (epochs[0], epochs[1], epochs[64]) == (3, 3, 1)


def test_a_new_partition_of_a_known_topic_starts_at_its_beginning_whatever_the_policy() -> None:
    plan = new_topic(0, partitions=2, start="latest")
    assert plan.additions == (Addition(TopicPartition("t", 1), 3, 5, 1),)
    assert OffsetRange(TopicPartition("t", 1), 5, 30) in [unit.range for unit in plan.units]
    latest = new_topic(partitions=2, start="latest")
    assert (latest.creations[0].starts, latest.idle) == ({0: 30, 1: 30}, 2)


LONG = "t" * 60


@pytest.mark.parametrize(
    ("topic", "options", "stops"),
    [
        (LONG, {"table": "x"}, False),
        (LONG, {"table": "x" * 190}, True),
        (LONG, {"table": "x", "error_dataset": "e" * 190}, True),
        (LONG, {"table": "x" * 190, "route": "record_name"}, False),
        (LONG, {"table": "x", "error_dataset": "e" * 190, "route": "record_name"}, True),
        ("a b", {"table": "x"}, True),
    ],
    ids=[
        "short enough",
        "a long table",
        "a long error table",
        "a table that records choose",
        "a long error table of such a topic",
        "no name of a topic",
    ],
)
def test_a_topic_whose_files_can_have_no_names_stops_before_anything_is_committed(
    topic: str, options: dict[str, Any], stops: bool
) -> None:
    snapshot = TopicSnapshot(TopicSettings.of(**options), TopicDescription(topic, "id", 1))
    plan = plan_extraction([snapshot], {TopicPartition(topic, 0): BrokerOffsets(0, 9)}, "c")
    assert [each.reason for each in plan.stops] == ([StopReason.UNFIT_NAME] if stops else [])
    assert (len(plan.creations), len(plan.units)) == ((0, 0) if stops else (1, 1))
    assert all(each.commands[0] for each in plan.stops)


@pytest.mark.parametrize(
    ("cluster", "topic_id", "words"),
    [
        ("other", "id", "t was read from cluster c, this is cluster other"),
        ("c", "new", "t was recreated: topic id id became new"),
        ("other", "new", "t was read from cluster c, this is cluster other"),
        ("", "id", ""),
        ("c", "", ""),
    ],
    ids=["another cluster", "another id", "both", "an unknown cluster", "an unknown id"],
)
def test_another_topic_stops_with_the_positions_that_nobody_can_read(
    cluster: str, topic_id: str, words: str
) -> None:
    commit = Commit("t", 0, "c", "id", 3, {1: state(next=7), 0: state()})
    snapshot = TopicSnapshot(
        TopicSettings(), TopicDescription("t", topic_id, 2), TopicEntry((0,)), {0: commit}
    )
    broker = {TopicPartition("t", n): BrokerOffsets(0, 50) for n in range(2)}
    plan = plan_extraction([snapshot], broker, cluster)
    found = [(each.topic_partition.partition, each.message) for each in plan.stops]
    expected = f"{words}; unread positions are gone: [0] from 10, [1] from 7"
    assert found == ([(-1, expected)] if words else [])
    assert bool(plan.units) == (not words)
