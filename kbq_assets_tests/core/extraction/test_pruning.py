"""Windows, done files and orphans are removed once nobody needs them, and never before."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from kbq_assets.core.extraction.pruning import (
    files_to_announce,
    plan_pruning,
    plan_sweep,
    superseded_done_files,
)
from kbq_assets.core.loading.batches import LoadBatch, SchemaKey
from kbq_assets.core.loading.file_warehouses import WarehouseStates
from kbq_assets.core.loading.table_state import TableState, begin_job, park, record_success
from kbq_assets.core.protocol import commits
from kbq_assets.core.protocol.commits import Commit, PartitionCommit
from kbq_assets.core.protocol.done_files import DoneFileName, done_path
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.protocol.waits import ParkReason
from kbq_assets_tests.strategies import staged_file, window

COMMIT = Commit("t", 0, "cluster", "id", 3, {0: PartitionCommit(next=10, leader_epoch=4)})
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
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


def _first(states: Mapping[TableReference, TableState]) -> WarehouseStates:
    return WarehouseStates({"": states})


def test_a_window_is_pruned_only_when_all_its_tables_are_loaded() -> None:
    kept = plan_pruning(PENDING, _first({A: _loaded(FILE_A)})).commit
    assert [w.first for w in kept.partitions[0].windows] == [10, 15]
    pruned = plan_pruning(PENDING, _first({A: _loaded(FILE_A), B: _loaded(FILE_B)})).commit
    assert [w.first for w in pruned.partitions[0].windows] == [15]


def test_a_parked_tables_files_move_to_its_backlog_and_hold_nothing_up() -> None:
    states = {A: park(TableState("u"), ParkReason.LOAD_FAILED, "x"), B: _loaded(FILE_B)}
    plan = plan_pruning(PENDING, _first(states))
    assert list(plan.chunks) == ["backlog/d.a/3-t.0.10.json", "backlog/d.a/3-t.0.15.json"]  # in offset order
    assert [chunk.files for chunk in plan.chunks.values()] == [(FILE_A,), (NEXT_A,)]
    assert plan.commit.partitions[0].windows == ()


def test_done_files_are_expected_of_pending_files_and_of_the_last_window() -> None:
    files = list(files_to_announce(PENDING, _first({A: _loaded(FILE_A, NEXT_A)})))
    names = [done_path(file.path, file.until) for file in files]
    assert names == [file.done.format() for file in files]
    assert names == ["done/t.0.d.b.1.14.14.done", "done/t.0.d.a.1.15.19.done"]


def _sweep(path_of: object, commit: Commit = PENDING, in_use: frozenset[str] = frozenset()) -> bool:
    return bool(plan_sweep([getattr(path_of, "path", str(path_of))], [commit], in_use))


def test_orphans_of_this_epoch_below_the_position_and_of_older_epochs_are_swept() -> None:
    assert _sweep(staged_file(12, 15, epoch=3, attempt="lost"))
    assert _sweep(staged_file(99, 120, epoch=2, attempt="old"))
    assert _sweep(staged_file(0, 5, epoch=2, partition=1))  # a reset dropped the partition


def test_what_may_still_be_published_or_is_listed_is_never_swept() -> None:
    assert not _sweep(staged_file(20, 25, epoch=3, attempt="writing"))
    assert not _sweep(staged_file(12, 15, epoch=4, attempt="newer"))
    assert not _sweep(FILE_A, in_use=frozenset({FILE_A.path}))
    assert not _sweep("staging/notes.txt")
    assert not _sweep(staged_file(0, 5, topic="unknown"))
    assert not _sweep(staged_file(0, 5, partition=70))
    assert not _sweep(staged_file(0, 5, epoch=3, partition=1))


def test_the_highest_done_file_of_a_partition_is_never_superseded() -> None:
    names = [DoneFileName(tp, A, 1, first, first + 4) for tp in (T0, T1) for first in (0, 5, 10)]
    assert superseded_done_files(names, frozenset({names[1]})) == [names[0], names[3], names[4]]


BOTH = [
    dataclasses.replace(staged_file(n, n + 1, table="d.a", epoch=3), warehouses=("", "lake"))
    for n in (10, 11)
]
OF_BOTH = commits.publish(COMMIT, 0, 3, [window(f.window, f.until, f) for f in BOTH])
PARKED = park(TableState("u"), ParkReason.LOAD_FAILED, "x")


def _both(first: TableState, lake: TableState | None, *removed: str) -> WarehouseStates:
    return WarehouseStates({"": {A: first}, "lake": {A: lake} if lake else {}}, frozenset(removed))


def test_a_window_stays_until_each_of_its_warehouses_has_it() -> None:
    for states in (_both(_loaded(*BOTH), None), _both(_loaded(*BOTH), _loaded(BOTH[0]))):
        kept = plan_pruning(OF_BOTH, states)
        assert kept.commit.partitions[0].windows[-1].files == (BOTH[1],)
        assert not kept.chunks
    assert plan_pruning(OF_BOTH, _both(_loaded(*BOTH), _loaded(*BOTH))).commit.partitions[0].windows == ()


def test_a_warehouse_that_is_down_gets_a_backlog_of_its_own() -> None:
    plan = plan_pruning(OF_BOTH, _both(_loaded(*BOTH), None), patience=1)
    assert list(plan.chunks) == ["backlog/lake/d.a/3-t.0.10.json"]
    assert [window.first for window in plan.commit.partitions[0].windows] == [11]
    assert (
        plan_pruning(OF_BOTH, _both(TableState("u"), None), patience=1).commit == OF_BOTH
    )  # no table is ahead


def test_files_of_a_chunk_move_together_since_it_is_written_once() -> None:
    """One table, one window, two schemas: the first warehouse has the file of schema 1 and not yet that of schema 2."""
    first, second = (
        dataclasses.replace(
            staged_file(10, 11, table="d.a", epoch=3, schema_id=number), warehouses=("", "lake")
        )
        for number in (1, 2)
    )
    commit = commits.publish(COMMIT, 0, 3, [window(10, 12, first, second)])
    waiting = plan_pruning(commit, _both(_loaded(first), None), patience=0)
    assert (waiting.chunks, waiting.commit) == ({}, commit)
    moved = plan_pruning(commit, _both(_loaded(first, second), None), patience=0)
    assert [chunk.files for chunk in moved.chunks.values()] == [(first, second)]


def test_a_table_parked_in_one_warehouse_waits_in_the_commit_for_the_other() -> None:
    assert plan_pruning(OF_BOTH, _both(PARKED, None)).commit == OF_BOTH
    plan = plan_pruning(OF_BOTH, _both(PARKED, _loaded(*BOTH)))
    assert list(plan.chunks) == ["backlog/d.a/3-t.0.10.json", "backlog/d.a/3-t.0.11.json"]
    assert plan.commit.partitions[0].windows == ()


def test_a_removed_warehouse_keeps_nothing_and_an_unknown_one_everything() -> None:
    assert plan_pruning(OF_BOTH, _both(_loaded(*BOTH), None, "lake")).commit.partitions[0].windows == ()
    assert plan_pruning(OF_BOTH, WarehouseStates({"": {A: _loaded(*BOTH)}})).commit == OF_BOTH


def test_a_commit_counts_what_each_warehouse_was_given() -> None:
    lake_only = dataclasses.replace(staged_file(12, 14, table="d.a", epoch=3), warehouses=("lake",))
    partition = commits.publish(OF_BOTH, 0, 3, [window(12, 14, lake_only)]).partitions[0]
    assert (
        partition.totals.staged,
        partition.totals_for("").staged,
        partition.totals_for("lake").staged,
    ) == (4, 2, 4)
    assert PENDING.partitions[0].totals_for("lake").staged == 0
