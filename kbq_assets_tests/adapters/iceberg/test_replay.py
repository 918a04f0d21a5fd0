"""A lake keeps the contract of replays, with a commit per table, the first of which decides."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from kbq_assets.adapters.iceberg import replaced_files, replay, rewrites
from kbq_assets.adapters.iceberg.commits import COMPLETE, commit_once
from kbq_assets.adapters.iceberg.replay import LakeReplayTables
from kbq_assets.adapters.iceberg.rewrite import rewrite
from kbq_assets.adapters.warehouses import open_replay_tables
from kbq_assets.core.compaction.model import RewriteTask, Rewritten
from kbq_assets.core.config.settings import parse_settings
from kbq_assets.core.errors import JobFailed, UnknownOutcome
from kbq_assets.core.loading.tables import Column, TableOptions, columns_of
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.pipelines.replay.parts import ReplaceParts
from kbq_assets.ports.replay import ReplaceJob, Replacement, ReplayTables, RowRange
from kbq_assets.ports.warehouse import Warehouse
from kbq_assets_tests.adapters.iceberg.test_compaction import Lake, hourly_lake, joined, load_hour, rows_of
from kbq_assets_tests.adapters.iceberg.test_warehouse import opened
from kbq_assets_tests.contracts.erasure import no_tasks
from kbq_assets_tests.contracts.replay import ReplayTablesContract
from kbq_assets_tests.contracts.warehouse import TABLE, schema_of
from kbq_assets_tests.fakes.faults import Crash


class TestLakeReplayTables(ReplayTablesContract):
    @pytest.fixture
    def warehouse(self, tmp_path: Path) -> Warehouse:
        return opened(tmp_path / "lake")

    @pytest.fixture
    def replays(self, tmp_path: Path) -> ReplayTables:
        found = open_replay_tables(
            parse_settings({"KBQ_WAREHOUSE": f"iceberg:{tmp_path / 'lake'}"}), no_tasks
        )
        assert isinstance(found, LakeReplayTables)
        return found


ORDERS, SALES = TABLE, TableReference("shop", "sales")
SHADOW, FORMER = "_kbq_replay_1_", "_kbq_former_1_"
ITEM = {"type": "record", "name": "item", "fields": [{"name": "sku", "type": ["null", "string"]}]}
FIELDS: list[tuple[str, Any]] = [
    ("note", ["null", "string"]),
    ("items", {"type": "array", "items": ITEM}),
    ("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
]
#: Offsets 2 to 4 of partition 0 in epoch 0.
RANGE = RowRange("t", 0, (OffsetRange(TopicPartition("t", 0), 2, 5),))


def named(prefix: str, table: TableReference) -> TableReference:
    return TableReference(table.dataset, prefix + table.table)


@dataclass
class Replayed:
    """Rows of the range went to one table, and belong to another."""

    folder: Path
    options: TableOptions = field(default_factory=TableOptions)

    def __post_init__(self) -> None:
        self.warehouse = opened(self.folder / "lake")
        self.replays = LakeReplayTables(self.warehouse.lake, no_tasks)
        more = [("late", ["null", "double"])]
        self.sales, self.orders = self._lake(SALES, FIELDS), self._lake(ORDERS, [*more, *FIELDS[::-1]])
        self.sales.load(*range(4), note="wrong", items=[{"sku": None}, {"sku": "x"}], price=b"\x01\x00")
        self.sales.load(4, 5, items=[], price=b"\xff")
        self.orders.load(7, late=1.5, items=[], price=b"\x02")
        shadow = self._lake(named(SHADOW, ORDERS), [*FIELDS, ("more", ["null", "string"])])
        shadow.load(2, 3, 4, note="right", items=[{"sku": "y"}], price=b"\x03", more="new")
        for live in (self.sales, self.orders):
            columns = columns_of(schema_of(*FIELDS, ("more", ["null", "string"])))
            self.warehouse.update_columns(live.reference, [*columns, Column("_kbq_replay", "INT64")])

    def _lake(self, table: TableReference, fields: list[Any]) -> Lake:
        folder = self.folder / table.table
        folder.mkdir()
        return Lake(folder, schema_of(*fields), self.options, table, self.warehouse)

    def job(self, attempt: int = 1) -> ReplaceJob:
        parts = (
            Replacement(ORDERS, named(SHADOW, ORDERS), named(FORMER, ORDERS), 1),
            Replacement(SALES, None, named(FORMER, SALES), 1),
        )
        return ReplaceJob(f"kbq-replay-a-1-{attempt}", RANGE, parts)

    def back(self, attempt: int = 2) -> ReplaceJob:
        parts = tuple(Replacement(table, named(FORMER, table)) for table in (ORDERS, SALES))
        return ReplaceJob(f"kbq-replay-a-1-{attempt}", RANGE, parts)

    def offsets(self) -> tuple[list[int], list[int]]:
        return self.orders.offsets(), self.sales.offsets()


@pytest.fixture
def at(tmp_path: Path) -> Replayed:
    return Replayed(tmp_path)


MOVED, AS_THEY_WERE = ([2, 3, 4, 7], [0, 1, 5]), ([7], [0, 1, 2, 3, 4, 5])


def test_values_come_by_name_and_a_rollback_brings_every_value_back(at: Replayed) -> None:
    before = rows_of(at.orders), rows_of(at.sales)
    at.replays.replace(at.job())
    assert at.offsets() == MOVED
    new = next(row for row in rows_of(at.orders) if row["_kafka_offset"] == 3)
    assert (new["note"], new["items"], new["late"], new["more"], new["_kbq_replay"]) == (
        "right", [{"sku": "y"}], None, "new", 1,
    )  # fmt: skip
    at.orders.load(8, late=2.5, items=[], price=b"\x02")
    at.replays.replace(at.back())
    assert at.offsets() == ([7, 8], AS_THEY_WERE[1])
    assert (rows_of(at.orders)[:1], rows_of(at.sales)) == before


@pytest.mark.parametrize(
    "options", [TableOptions(), TableOptions(partition_by="event_date", cluster_by=("note",))]
)
def test_each_table_changes_by_one_commit_that_keeps_the_files_without_such_rows(
    tmp_path: Path, options: TableOptions
) -> None:
    at = Replayed(tmp_path, options)
    at.sales.load(6, 7, event_date=20_000, items=[], price=b"\xff")
    before = {task.file.file_path for task in at.sales.table.scan().plan_files()}
    metadata = len(at.sales.table.metadata.metadata_log)
    at.warehouse.mark_complete(SALES, 480_000)
    at.replays.replace(at.job())
    kept = before & {task.file.file_path for task in at.sales.table.scan().plan_files()}
    assert (len(kept), at.sales.offsets()) == (1, [0, 1, 5, 6, 7])
    assert len(at.sales.table.metadata.metadata_log) == metadata + 2  # the tag's and its own
    assert at.sales.table.metadata.refs[COMPLETE].snapshot_id == at.sales.table.metadata.current_snapshot_id
    at.sales.compact()
    at.orders.compact()
    assert at.offsets() == (MOVED[0], [0, 1, 5, 6, 7])


@pytest.mark.thorough
def test_rows_of_joined_days_and_of_hours_are_replaced_at_once(tmp_path: Path) -> None:
    made = hourly_lake(tmp_path)
    joined(made)
    (tmp_path / "other").mkdir()
    replays = LakeReplayTables(made.warehouse.lake, no_tasks)
    made.warehouse.update_columns(TABLE, [Column("_kbq_replay", "INT64")])
    shadow = named(SHADOW, TABLE)
    other = Lake(tmp_path / "other", made.schema, reference=shadow, warehouse=made.warehouse)
    load_hour(other, 2, 2)
    rows = RowRange("t", 0, (OffsetRange(TopicPartition("t", 0), 1, 26),))
    former, before = named(FORMER, TABLE), rows_of(made)
    replays.replace(ReplaceJob("kbq-replay-a-1-1", rows, (Replacement(TABLE, shadow, former, 1),)))
    assert made.offsets() == [0, 2, 26]
    replays.replace(ReplaceJob("kbq-replay-a-1-2", rows, (Replacement(TABLE, former),)))
    assert rows_of(made) == before


@pytest.mark.thorough
def test_a_compaction_meanwhile_makes_it_plan_anew(at: Replayed, monkeypatch: pytest.MonkeyPatch) -> None:
    before, moved = rows_of(at.sales), list[int]()

    def rewriting(task: RewriteTask, properties: Any) -> Rewritten:
        if not moved:
            moved.append(1)
            at.sales.compact()
        return rewrite(task, properties)

    monkeypatch.setattr(rewrites, "rewrite", rewriting)
    at.replays.replace(at.job())
    assert (at.offsets(), moved) == (MOVED, [1])
    at.replays.replace(at.back())
    assert rows_of(at.sales) == before


def test_a_table_that_cannot_be_replaced_is_found_before_the_first_one_changes(at: Replayed) -> None:
    with at.sales.table.update_spec() as change:
        change.add_identity("note")
    with pytest.raises(JobFailed, match="another partition spec"):
        at.replays.replace(at.job())
    assert at.offsets() == AS_THEY_WERE
    present = {t.file.file_path for each in (at.orders, at.sales) for t in each.table.scan().plan_files()}
    found = [p for p in (at.folder / "lake/shop").rglob("data/**/*.parquet") if f"file://{p}" not in present]
    assert [p for p in found if "_kbq_" not in str(p.parent)] == []


def test_a_lost_reply_or_a_death_between_two_tables_is_continued(
    at: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = rows_of(at.sales)
    for outcome in ("lost", "dies"):
        calls = list[str]()

        def commit(call: Any, record: Any, outcome: str = outcome, calls: list[str] = calls) -> None:
            calls.append(record.sources)
            commit_once(call, record)
            if record.sources:  # a table's own, after the copies of both
                raise UnknownOutcome("no answer") if outcome == "lost" else Crash

        attempt = 1 if outcome == "lost" else 3
        with monkeypatch.context() as patch, pytest.raises((UnknownOutcome, Crash)):
            patch.setattr(replay, "commit_once", commit)
            patch.setattr(replaced_files, "commit_once", commit)
            at.replays.replace(at.job(attempt))
        assert calls == ["", "", f"replay:{ORDERS}"]
        parts = ReplaceParts(at.warehouse, at.job(attempt).parts(one_transaction=False))
        assert (parts.replaced(), parts.give_up()) == (1, False)
        at.replays.replace(at.job(attempt))
        assert (at.offsets(), parts.is_done) == (MOVED, True)
        at.replays.replace(at.back(attempt + 1))
        assert (at.offsets(), rows_of(at.sales)) == (AS_THEY_WERE, before)


def test_a_late_process_changes_nothing_after_a_rollback(
    at: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has written all files, and then sleeps through the promotion, the rollback and a new promotion's copies."""
    waiting = [at.job(1), at.back(2), at.job(3)]

    def commit(call: Any, record: Any) -> None:
        others, waiting[:] = waiting[:], []
        for each in others:
            at.replays.replace(each)
        commit_once(call, record)

    monkeypatch.setattr(replaced_files, "commit_once", commit)
    LakeReplayTables(opened(at.folder / "lake").lake, no_tasks).replace(at.job(1))
    assert at.offsets() == MOVED
    at.replays.replace(at.back(4))
    assert at.offsets() == AS_THEY_WERE


def test_many_bytes_are_written_again_by_tasks(at: Replayed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewrites, "IN_PROCESS_BYTES", 1)
    given: list[RewriteTask] = []

    def tasks(each: Sequence[RewriteTask]) -> list[Rewritten]:
        given.extend(each)
        return [rewrite(task, at.warehouse.lake.properties) for task in each]

    LakeReplayTables(at.warehouse.lake, lambda: nullcontext(tasks)).replace(at.job())
    assert (at.offsets(), len(given)) == (MOVED, 2)


def test_a_dropped_table_leaves_no_file_and_who_died_can_drop_it_again(
    at: Replayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    at.replays.replace(at.job())
    tables = [named(SHADOW, ORDERS), named(FORMER, ORDERS), named(FORMER, SALES)]
    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(SqlCatalog, "drop_table", _die)
        at.replays.drop(tables)
    at.replays.drop(tables)
    at.replays.drop(tables)
    left = [
        path for path in (at.folder / "lake").rglob("*") if path.is_file() and "_kbq_" in str(path.parent)
    ]
    assert (left, at.offsets()) == ([], MOVED)


def _die(*_: object) -> None:
    raise Crash


def test_a_required_column_that_new_rows_lack_is_refused(at: Replayed) -> None:
    table, made = TableReference("shop", "strict"), schema_of(("id", "long"), ("must", "string"))
    folder = at.folder / "strict"
    folder.mkdir()
    Lake(folder, made, at.options, table, at.warehouse).load(3, must="x")
    at.warehouse.update_columns(table, [Column("_kbq_replay", "INT64")])
    job = ReplaceJob("kbq-replay-a-1-1", RANGE, (Replacement(table, named(SHADOW, ORDERS), None, 1),))
    with pytest.raises(JobFailed, match="is required"):
        at.replays.replace(job)
