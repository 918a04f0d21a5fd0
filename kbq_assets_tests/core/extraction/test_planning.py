"""An extraction starts where the commit says, and stops where only an operator can decide."""

from __future__ import annotations

import dataclasses

import pytest

from kbq_assets.core.extraction.planning import ExtractionPlan, TopicSnapshot, plan_extraction
from kbq_assets.core.extraction.pruning import (
    expected_done_files,
    plan_pruning,
    plan_sweep,
    superseded_done_files,
)
from kbq_assets.core.extraction.units import WindowLimits
from kbq_assets.core.loading.batches import LoadBatch, SchemaKey
from kbq_assets.core.loading.table_state import TableState, begin_job, park, record_success
from kbq_assets.core.protocol import commits
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, Stop
from kbq_assets.core.protocol.names import DoneFileName, TableReference
from kbq_assets.core.protocol.offsets import BrokerOffsets, OffsetRange, TopicDescription, TopicPartition
from kbq_assets.core.protocol.topic_registry import TopicEntry
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets_tests.strategies import staged_file, window

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
    announced = dataclasses.replace(NEW, entry=TopicEntry(creating=(0,)), has_done_files=True)
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
    broken = dataclasses.replace(NEW, description=TopicDescription("u", "", 1), problem="unreadable")
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


# Pruning, backlogs, done files, orphans

A, B = TableReference("d", "a"), TableReference("d", "b")
FILE_A, FILE_B = (
    staged_file(10, 14, table="d.a", epoch=3),
    staged_file(14, 15, table="d.b", epoch=3, window=10),
)
NEXT_A = staged_file(15, 20, table="d.a", epoch=3)
PENDING = commits.publish(COMMIT, 0, 3, [window(10, 15, FILE_A, FILE_B), window(15, 20, NEXT_A)])


def _loaded(*files: object) -> TableState:
    batch = LoadBatch(A, SchemaKey(1, "f1"), files)  # type: ignore[arg-type]
    return record_success(begin_job(TableState("u"), batch.files, "p", "l"), batch.rows)


def test_a_window_is_pruned_only_when_all_its_tables_are_loaded() -> None:
    kept = plan_pruning(PENDING, {A: _loaded(FILE_A)}).commit
    assert [w.first for w in kept.partitions[0].windows] == [10, 15]
    pruned = plan_pruning(PENDING, {A: _loaded(FILE_A), B: _loaded(FILE_B)}).commit
    assert [w.first for w in pruned.partitions[0].windows] == [15]


def test_a_parked_tables_files_move_to_its_backlog_and_hold_nothing_up() -> None:
    states = {A: park(TableState("u"), "load_failed", "x"), B: _loaded(FILE_B)}
    plan = plan_pruning(PENDING, states)
    assert list(plan.chunks) == ["backlog/d.a/3-t.0.10.json", "backlog/d.a/3-t.0.15.json"]  # in offset order
    assert [chunk.files for chunk in plan.chunks.values()] == [(FILE_A,), (NEXT_A,)]
    assert plan.commit.partitions[0].windows == ()


def test_done_files_are_expected_of_pending_files_and_of_the_last_window() -> None:
    names = [name.format() for name in expected_done_files(PENDING, {A: _loaded(FILE_A, NEXT_A)})]
    assert names == ["done/t.0.d.b.1.14.14.done", "done/t.0.d.a.1.15.19.done"]


def _sweep(path_of: object, commit: Commit = PENDING, in_use: frozenset[str] = frozenset()) -> bool:
    return bool(plan_sweep([getattr(path_of, "path", str(path_of))], [commit], in_use))


def test_orphans_of_this_epoch_below_the_position_and_of_older_epochs_are_swept() -> None:
    assert _sweep(staged_file(12, 15, epoch=3, attempt="lost"))
    assert _sweep(staged_file(99, 120, epoch=2, attempt="old"))


def test_what_may_still_be_published_or_is_listed_is_never_swept() -> None:
    assert not _sweep(staged_file(20, 25, epoch=3, attempt="writing"))
    assert not _sweep(staged_file(12, 15, epoch=4, attempt="newer"))
    assert not _sweep(FILE_A, in_use=frozenset({FILE_A.path}))
    assert not _sweep("staging/notes.txt")
    assert not _sweep(staged_file(0, 5, topic="unknown"))
    assert not _sweep(staged_file(0, 5, partition=70))


def test_the_highest_done_file_of_a_partition_is_never_superseded() -> None:
    names = [DoneFileName(tp, A, 1, first, first + 4) for tp in (T0, T1) for first in (0, 5, 10)]
    assert superseded_done_files(names, frozenset({names[1]})) == [names[0], names[3], names[4]]
