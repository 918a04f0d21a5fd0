"""A lake keeps the contract of erasures, also with its files, snapshots and other programs' commits."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kbq_assets.adapters.iceberg import job_records
from kbq_assets.adapters.iceberg import rewrites as module
from kbq_assets.adapters.iceberg.commits import COMPLETE
from kbq_assets.adapters.iceberg.housekeeping import MAX_AGE, delete_orphans
from kbq_assets.adapters.iceberg.job_records import REMEMBERED_ERASURES, JobRecord
from kbq_assets.adapters.iceberg.rewrite import rewrite
from kbq_assets.core.compaction.model import DAY_MS, RewriteTask, Rewritten
from kbq_assets.core.erasure.offset_sets import RowPlaces
from kbq_assets.core.errors import JobFailed, Unavailable
from kbq_assets.core.loading.tables import TableOptions
from kbq_assets.ports.erasure import ErasedRows, ErasureJob, ErasureTables
from kbq_assets.ports.warehouse import Warehouse
from kbq_assets.wire.arrow.container import read_blocks, read_header
from kbq_assets.wire.arrow.row_hash import row_hashes
from kbq_assets_tests.adapters.iceberg.test_compaction import (
    DAY_AFTER,
    Lake,
    hourly_lake,
    joined,
    load_hour,
)
from kbq_assets_tests.adapters.iceberg.test_housekeeping import LATER
from kbq_assets_tests.adapters.iceberg.test_warehouse import opened
from kbq_assets_tests.contracts.compaction import view_of
from kbq_assets_tests.contracts.erasure import ErasureTablesContract, no_tasks
from kbq_assets_tests.contracts.warehouse import TABLE

#: Offsets 1 and 4 of partition 0 in epoch 0.
ROWS = RowPlaces("t", ((0, 0, (1, 2, 4, 5)),))
JOB = ErasureJob("kbq-erase-a-b-7-1", ROWS, (TABLE,))


class TestLakeErasureTables(ErasureTablesContract):
    @pytest.fixture
    def warehouse(self, tmp_path: Path) -> Warehouse:
        return opened(tmp_path / "lake")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Three files: 0 to 2, 3, and 4 to 6."""
    made = Lake(tmp_path)
    for offsets in ((0, 1, 2), (3,), (4, 5, 6)):
        made.load(*offsets)
    return made


def erasures_of(lake: Lake) -> ErasureTables:
    found = lake.warehouse.erasures
    assert found is not None
    return found


def files(lake: Lake) -> dict[str, int]:
    """Rows by data file of the present snapshot."""
    return {t.file.file_path: t.file.record_count for t in lake.table.scan().plan_files()}


def hashes(lake: Lake) -> dict[int, int]:
    """A hash of each row, by offset."""
    batches = lake.table.scan().to_arrow().combine_chunks().to_batches()
    return {
        o: int(h) for b in batches for o, h in zip(b["_kafka_offset"].to_pylist(), row_hashes(b), strict=True)
    }


def test_only_files_with_erased_rows_are_replaced_and_all_other_rows_are_the_same(lake: Lake) -> None:
    before, rows = files(lake), hashes(lake)
    erasures_of(lake).erase(JOB, no_tasks)
    assert lake.offsets() == [0, 2, 3, 5, 6]
    assert hashes(lake) == {offset: value for offset, value in rows.items() if offset not in (1, 4)}
    kept = [path for path in before if path in files(lake)]
    assert [before[path] for path in kept] == [1]
    assert sorted(files(lake).values()) == [1, 2, 2]
    lake.load(7)
    lake.compact()
    assert lake.offsets() == [0, 2, 3, 5, 6, 7]


def test_rows_of_joined_days_and_of_hours_go_in_one_commit(tmp_path: Path) -> None:
    made = hourly_lake(tmp_path)
    joined(made)
    before = len(made.table.metadata.metadata_log)
    rows = RowPlaces("t", ((0, 0, (1, 2, 25, 26)),))
    erasures_of(made).erase(ErasureJob("kbq-erase-a-b-7-1", rows, (TABLE,)), no_tasks)
    assert made.offsets() == [0, 2, 3, 24, 26]
    assert [file.rows for file in view_of(made).files if file.coarse] == [3]
    assert len(made.table.metadata.metadata_log) == before + 2  # both at once, then the empty snapshot
    load_hour(made, 30, 30)
    assert joined(made, DAY_AFTER + DAY_MS).files_after == 2
    assert made.offsets() == [0, 2, 3, 24, 26, 30]


def test_a_file_of_erased_rows_alone_leaves_no_file(lake: Lake) -> None:
    erasures_of(lake).erase(
        ErasureJob("kbq-erase-a-b-7-1", RowPlaces("t", ((0, 0, (3, 4)),)), (TABLE,)), no_tasks
    )
    assert sorted(files(lake).values()) == [3, 3]
    present = {path.removeprefix("file://") for path in files(lake)}
    new = [p for p in Path(lake.folder).rglob("kbq-erase-*.parquet") if str(p) not in present]
    assert new == []


def test_a_person_is_gone_from_every_byte_once_snapshots_expired(tmp_path: Path) -> None:
    """In data files and in the bounds of manifests: short values are there in full."""
    lake, canary = Lake(tmp_path), "canary-77"
    lake.load(0, note="bert")
    lake.load(1, 2, note=canary)
    lake.warehouse.mark_complete(TABLE, 480_000)
    table = lake.table
    with table.transaction() as transaction:
        transaction.set_properties({MAX_AGE: "0"})
    assert hits(lake.folder / "lake", canary)
    [kept] = [line for line in erasures_of(lake).keeps([TABLE]) if "snapshots" in line]
    assert "kbq expire" in kept
    erasures_of(lake).erase(
        ErasureJob("kbq-erase-a-b-7-1", RowPlaces("t", ((0, 0, (1, 3)),)), (TABLE,)), no_tasks
    )
    assert lake.compaction.tidy(TABLE).snapshots > 0
    assert hits(lake.folder / "lake", canary) == []
    assert lake.table.metadata.refs[COMPLETE].snapshot_id == lake.table.metadata.current_snapshot_id
    assert lake.offsets() == [0]


def hits(folder: Path, text: str) -> list[str]:
    """Files of a folder whose bytes have a text: Parquet as decoded by its columns, Avro as decoded by its blocks."""
    found = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix not in (".db", ".duckdb")):
        shown = path.read_bytes()
        if path.suffix == ".parquet":
            shown += repr(pq.read_table(path).to_pylist()).encode() + str(pq.read_metadata(path)).encode()
        elif path.suffix == ".avro":
            with path.open("rb") as stream:
                shown += b"".join(block.data for block in read_blocks(stream, read_header(stream)))
        if text.encode() in shown:
            found.append(str(path.relative_to(folder)))
    return found


def test_tags_and_branches_that_keep_rows_are_named(lake: Lake) -> None:
    table = lake.table
    snapshot = table.current_snapshot()
    assert snapshot is not None
    table.manage_snapshots().create_tag(snapshot.snapshot_id, "audit").commit()
    table.manage_snapshots().create_tag(snapshot.snapshot_id, "month", max_ref_age_ms=86_400_000).commit()
    lines = "\n".join(erasures_of(lake).keeps([TABLE]))
    assert (
        "tag audit, until you drop it" in lines
        and "tag month, until 20" in lines
        and "files of failed jobs" in lines
    )


def test_another_writers_commit_makes_it_plan_anew_and_loses_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[int] = []

    def rewriting(task: RewriteTask, properties: Any) -> Rewritten:
        if not moved:
            moved.append(1)
            lake.compact()
        return rewrite(task, properties)

    monkeypatch.setattr(module, "rewrite", rewriting)
    erasures_of(lake).erase(JOB, no_tasks)
    assert lake.offsets() == [0, 2, 3, 5, 6] and moved == [1]


def test_many_bytes_are_written_again_by_tasks(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IN_PROCESS_BYTES", 1)
    given: list[RewriteTask] = []

    def tasks(each: Sequence[RewriteTask]) -> list[Rewritten]:
        given.extend(each)
        return [rewrite(task, lake.warehouse.lake.properties) for task in each]

    erasures_of(lake).erase(JOB, lambda: nullcontext(tasks))
    assert lake.offsets() == [0, 2, 3, 5, 6]
    assert [len(task.group.paths) for task in given] == [1, 1]


@pytest.mark.parametrize("failing", ["failure", "difference"])
def test_a_file_that_cannot_be_written_again_changes_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def broken(task: RewriteTask, properties: Any) -> Rewritten:
        found = rewrite(task, properties)
        lost = {"failure": "it is damaged"} if failing == "failure" else {"erased": 0}
        return type(found)(**{**found.__dict__, **lost})

    before = files(lake)
    monkeypatch.setattr(module, "rewrite", broken)
    with pytest.raises(JobFailed, match="cannot be rewritten"):
        erasures_of(lake).erase(JOB, no_tasks)
    assert files(lake) == before
    assert not list(Path(lake.folder).rglob("kbq-erase-*.parquet"))


def test_a_table_that_always_moves_is_left_for_later(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        module, "rewrite", lambda task, properties: Rewritten(task, failure="gone", gone=True)
    )
    with pytest.raises(Unavailable, match="changed 20 times"):
        erasures_of(lake).erase(JOB, no_tasks)


def test_erasures_of_two_topics_run_in_any_order_and_each_once() -> None:
    properties: dict[str, str] = {}
    for number in (9, 7):
        job_id = f"kbq-erase-a-b-{number}-1"
        assert job_records.find(properties, job_id) is None
        properties.update(job_records.recorded(properties, JobRecord(job_id, "x", "erase:y"))[0])
    assert job_records.find(properties, "kbq-erase-a-b-9-1") == JobRecord("kbq-erase-a-b-9-1", "x", "erase:y")
    assert job_records.find(properties, "kbq-erase-a-b-8-1") is None
    for number in range(100, 100 + 2 * REMEMBERED_ERASURES):
        properties.update(job_records.recorded(properties, JobRecord(f"kbq-erase-a-b-{number}-1", "x"))[0])
    assert list(properties) == ["kbq.jobs.kbq-erase"]
    assert len(properties["kbq.jobs.kbq-erase"]) < 64 * REMEMBERED_ERASURES


def test_partitioned_tables_keep_their_partitions(tmp_path: Path) -> None:
    lake = Lake(tmp_path, options=TableOptions(partition_by="event_date"))
    lake.load(1, 2, event_date=20_000)
    lake.load(4, 5, event_date=20_001)
    erasures_of(lake).erase(JOB, no_tasks)
    days = [
        task.file.partition[i]
        for task in lake.table.scan().plan_files()
        for i in range(len(task.file.partition))
    ]
    assert lake.offsets() == [2, 5] and {20_000, 20_001} <= set(days)


def test_a_replays_rows_are_counted_apart(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.load(1, 1, 4)
    assert erasures_of(lake).count([TABLE], ROWS) == {TABLE: {(0, 0): ErasedRows(3, 3)}}
    assert erasures_of(lake).count([TABLE], RowPlaces("t", ())) == {TABLE: {}}


def test_manifests_of_a_commit_that_died_are_orphans_and_those_of_snapshots_stay(lake: Lake) -> None:
    metadata = next((lake.folder / "lake").rglob("metadata"))
    listed = sorted(metadata.glob("*.avro"))
    dead = [metadata / f"{uuid.uuid4()}-m0.avro", metadata / f"snap-123-0-{uuid.uuid4()}.avro"]
    for path in dead:
        path.write_bytes(listed[0].read_bytes())
    assert delete_orphans(lake.table, int(time.time() * 1000)) == []
    assert len(delete_orphans(lake.table, LATER)) == 2
    assert sorted(metadata.glob("*.avro")) == listed and lake.offsets() == [0, 1, 2, 3, 4, 5, 6]


def test_what_never_expires_is_kept_until_somebody_acts(lake: Lake) -> None:
    """2**63 - 1 is how Iceberg's other clients write that a tag or a snapshot stays."""
    table, forever = lake.table, 2**63 - 1
    snapshot = table.current_snapshot()
    assert snapshot is not None
    table.manage_snapshots().create_tag(snapshot.snapshot_id, "always", max_ref_age_ms=forever).commit()
    with table.transaction() as transaction:
        transaction.set_properties({MAX_AGE: str(forever)})
    lines = "\n".join(erasures_of(lake).keeps([TABLE]))
    assert "tag always, until you drop it" in lines
    assert f"its current snapshots, until you lower {MAX_AGE}, and files" in lines
