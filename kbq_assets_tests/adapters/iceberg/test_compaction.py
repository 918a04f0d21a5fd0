"""Compaction of Iceberg tables: the contract, and its effect on ids, columns, sizes, orphans and other programs'
files."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.table import Table

from kbq_assets.adapters.iceberg import IcebergWarehouse
from kbq_assets.adapters.iceberg import rewrite as rewrite_module
from kbq_assets.adapters.iceberg.housekeeping import delete_orphans, keep_house
from kbq_assets.core.compaction.expiry import plan_expiry
from kbq_assets.core.compaction.model import (
    DAY_MS,
    DAYS_AFTER,
    MIN_AGE,
    MIN_FILES,
    RewriteTask,
    Rewritten,
)
from kbq_assets.core.compaction.planning import plan_compaction
from kbq_assets.core.loading.tables import TableOptions, columns_of
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.pipelines.compaction.table import CompactionReport, TableCompaction
from kbq_assets.ports.compaction import Rewriter, TableMoved, Tidied
from kbq_assets.ports.warehouse import KafkaRange
from kbq_assets.wire.arrow.row_hash import digest
from kbq_assets_tests.adapters.iceberg.test_housekeeping import LATER
from kbq_assets_tests.adapters.iceberg.test_warehouse import files_in, opened
from kbq_assets_tests.contracts.compaction import CompactionContract, all_files, rewritten, view_of
from kbq_assets_tests.contracts.warehouse import SCHEMA, TABLE, avro_file, load_job, record, schema_of
from kbq_assets_tests.sizes import FULL, SMALL_FILES

KAFKA = KafkaRange("t", 0, 0)


class Lake:
    """A lake in a folder, whose jobs are numbered."""

    def __init__(
        self,
        folder: Path,
        schema: str = SCHEMA,
        options: TableOptions | None = None,
        reference: TableReference = TABLE,
        warehouse: IcebergWarehouse | None = None,
    ) -> None:
        self.folder = folder
        self.reference = reference
        self.warehouse = warehouse or opened(folder / "lake")
        self.compaction = self.warehouse.compaction
        self.schema = schema
        self.jobs = 0
        self.warehouse.create_table(reference, columns_of(schema), options or TableOptions())

    def load(self, *offsets: int, replace: bool = False, **fields: Any) -> None:
        """One job."""
        self.jobs += 1
        path = self.folder / f"{self.jobs}.avro"
        path.write_bytes(avro_file([record(offset, **fields) for offset in offsets], self.schema))
        job = load_job(f"kbq-1a2b-{self.jobs}", path.as_uri(), table=self.reference, schema=self.schema)
        self.warehouse.insert_job(type(job)(**{**job.__dict__, "replace": replace}))

    def replace_all(self, *offsets: int) -> None:
        """A job that replaces all rows."""
        self.load(*offsets, replace=True)

    def offsets(self) -> list[int]:
        """The offsets of all rows."""
        found = self.warehouse.positions(self.reference, KAFKA)
        return sorted(offset for offset, rows in found.items() for _ in range(rows))

    def reader(self) -> list[int]:
        """The rows of the current snapshot, read on demand."""
        scan = self.table.scan(snapshot_id=view_of(self).snapshot, selected_fields=("_kafka_offset",))

        class Late(list[int]):
            def __iter__(self) -> Iterator[int]:
                return iter(scan.to_arrow()["_kafka_offset"].to_pylist())

        return Late()

    @property
    def table(self) -> Table:
        """The table as the catalog has it."""
        found = self.warehouse.lake.table(self.reference)
        assert found is not None
        return found

    def compact(self) -> None:
        """Make one file of all."""
        view = view_of(self)
        result = rewritten(self, view)
        assert not result.difference
        self.compaction.replace_files(view, [result])


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


class TestIcebergCompaction(CompactionContract):
    """The contract."""


def test_all_values_and_columns_are_the_same_afterwards(tmp_path: Path) -> None:
    """Also of rows that are older than a column, and of nested ones."""
    item = {"type": "record", "name": "item", "fields": [{"name": "sku", "type": ["null", "string"]}]}
    fields: list[tuple[str, Any]] = [
        ("id", "long"),
        ("note", ["null", "string"]),
        ("items", {"type": "array", "items": item}),
        ("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
    ]
    lake = Lake(tmp_path, schema_of(*fields), TableOptions(cluster_by=("note",)))
    for offset, note in enumerate(["b", None, "a"]):
        items = [{"sku": None}, {"sku": "x"}][: offset % 3]
        lake.load(offset, note=note, items=items, price=b"\x01\x00")
    lake.schema = schema_of(*fields, ("late", ["null", "double"]))
    lake.warehouse.update_columns(TABLE, columns_of(lake.schema))
    lake.load(3, note="c", items=[], price=b"\xff", late=1.5)
    before = lake.table.scan().to_arrow().sort_by("_kafka_offset").to_pylist()
    lake.compact()
    found = lake.table.scan().to_arrow()
    assert found.sort_by("_kafka_offset").to_pylist() == before
    assert found["note"].to_pylist() == ["a", "b", "c", None]  # sorted by the clustering columns
    lake.load(4, items=[{"sku": "y"}], price=b"\0", late=None)
    lake.compact()  # a file that compaction wrote is compacted again
    assert len(files_in(tmp_path)) == 7
    assert lake.table.scan().to_arrow().sort_by("_kafka_offset").to_pylist()[:4] == before


def test_job_ids_are_found_after_compaction_and_expiry(lake: Lake) -> None:
    for offset in range(3):
        lake.load(offset)
    before = lake.warehouse.get_job("kbq-1a2b-2", "local", "local", TABLE)
    assert before is not None
    lake.compact()
    assert keep_house(lake.table, batch=1, now_ms=LATER)
    assert len(lake.table.snapshots()) == 1
    assert len(files_in(lake.folder)) == 1  # the inputs went with the last snapshot that listed them
    assert lake.warehouse.get_job("kbq-1a2b-2", "local", "local", TABLE) == before
    assert lake.offsets() == [0, 1, 2]


def test_a_snapshot_names_its_compaction(lake: Lake) -> None:
    lake.load(1)
    lake.load(2)
    lake.compact()
    snapshot = lake.table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary["kbq.compaction"] == "kbq-compact-0"
    assert json.loads(lake.table.properties["kbq.jobs.kbq-compact"])["last"] == 0


def test_files_of_a_compactor_that_died_go_when_their_id_has_ended(lake: Lake) -> None:
    lake.load(1)
    lake.load(2)
    dead = rewritten(lake, view_of(lake), "ba9876543210")
    assert delete_orphans(lake.table, LATER) == []  # it may still commit
    lake.compact()
    assert delete_orphans(lake.table, LATER) == [dead.path]
    assert lake.offsets() == [1, 2]


def test_another_programs_retries_are_turned_off_first(lake: Lake) -> None:
    """With them the library would rebase the commit (C1)."""
    lake.load(1)
    lake.load(2)
    with lake.table.transaction() as change:
        change.set_properties({"commit.retry.num-retries": "4"})
    lake.compact()
    assert lake.table.properties["commit.retry.num-retries"] == "0"
    assert lake.offsets() == [1, 2]


def test_a_file_without_field_ids_is_left_alone(lake: Lake, tmp_path: Path) -> None:
    lake.load(1)
    task = all_files(view_of(lake))
    strange = tmp_path / "strange.parquet"
    pq.write_table(pa.table({"id": [1]}), strange)
    group = type(task.group)(task.group.partition, (strange.as_uri(),), 1, 1)
    result = lake.compaction.rewrite(RewriteTask(TABLE, task.metadata, task.job_id, task.token, group))
    assert (result.path, result.gone) == ("", False)
    assert "field id" in result.failure
    assert len(files_in(lake.folder)) == 2  # what was begun is deleted


def test_a_rewrite_in_many_row_groups_is_the_same(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for offset in range(6):
        lake.load(offset, note=f"note {offset}")
    monkeypatch.setattr(rewrite_module, "FLUSH_BYTES", 1)
    view = view_of(lake)
    result = rewritten(lake, view)
    assert not result.difference
    assert pq.ParquetFile(result.path.removeprefix("file://")).num_row_groups == 6


def test_partitions_hours_and_times_are_in_the_view(tmp_path: Path) -> None:
    time_type = {"type": "long", "logicalType": "timestamp-micros"}
    lake = Lake(tmp_path, schema_of(("id", "long"), ("_event_time", time_type)))
    began = int(time.time() * 1000) - 1
    for hour in (0, 1, 0):
        lake.load(hour, _event_time=hour * 3_600_000_000 + 5)
    with lake.table.transaction() as change:
        change.set_properties({MIN_FILES: "2"})
    lake.warehouse.mark_complete(TABLE, 1)
    view = view_of(lake)
    assert sorted(file.hour or 0 for file in view.files) == [0, 0, 1]
    assert len({file.partition for file in view.files}) == 2
    assert all(file.added_ms >= began for file in view.files)
    [group] = plan_compaction(view, began).groups  # young, but its hour is complete
    assert len(group.paths) == 2


DAY = 19_000
DAY_AFTER = (DAY + 1) * DAY_MS + 1
TIMES = ("_event_time", {"type": "long", "logicalType": "timestamp-micros"})


def hourly_lake(folder: Path) -> Lake:
    """A row for each hour of a day and of the next, and a column that only the last rows have."""
    lake = Lake(folder, schema_of(("id", "long"), TIMES), TableOptions(cluster_by=("id",)))
    hours = 3
    for hour in range(hours):
        load_hour(lake, hour, hour)
        load_hour(lake, 24 + hour, 24 + hour)
    lake.schema = schema_of(("id", "long"), TIMES, ("late", ["null", "string"]))
    lake.warehouse.update_columns(TABLE, columns_of(lake.schema))
    load_hour(lake, hours, hours, late="yes")
    with lake.table.transaction() as change:
        change.set_properties({DAYS_AFTER: "1", MIN_AGE: str(-(10**13)), MIN_FILES: "2"})
    return lake


def load_hour(lake: Lake, offset: int, hour: int, **fields: Any) -> None:
    """A job with one row of an hour."""
    lake.load(
        offset, _event_time=(DAY * 24 + hour) * 3_600_000_000 + 5, event_date=DAY + hour // 24, **fields
    )


def joined(lake: Lake, now_ms: int = DAY_AFTER) -> CompactionReport:
    report = TableCompaction(lake.compaction, TABLE, lambda: now_ms, no_spark).run()
    assert (report.message, report.failures) == ("", {})
    return report


def rows_of(lake: Lake, **scan: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = lake.table.scan(**scan).to_arrow().sort_by("_kafka_offset").to_pylist()
    return rows


def test_hours_and_schema_versions_become_days_and_loading_goes_on(tmp_path: Path) -> None:
    lake = hourly_lake(tmp_path)
    before, reader, default = rows_of(lake), lake.reader(), lake.table.metadata.default_spec_id
    assert {file.older for file in view_of(lake).files} == {True, False}
    assert {hour // 24 for hour in joined(lake).hours} == {DAY}
    [day] = [file for file in view_of(lake).files if file.coarse]
    assert (day.rows, day.day, day.hour, day.older) == (4, DAY, DAY * 24 + 23, False)
    assert "/data/event_date=2022-01-08/kbq-compact-" in day.path
    assert rows_of(lake) == before
    assert sorted(reader) == lake.offsets() == [0, 1, 2, 3, 24, 25, 26]
    assert lake.table.metadata.default_spec_id == default
    hour = "_event_time >= '2022-01-08T01:00:00+00:00' AND _event_time < '2022-01-08T02:00:00+00:00'"
    assert [row["_kafka_offset"] for row in rows_of(lake, row_filter=hour)] == [1]
    load_hour(lake, 30, 2)  # late
    load_hour(lake, 31, 30)
    assert sorted(file.coarse for file in view_of(lake).files) == [False] * 5 + [True]
    assert joined(lake, DAY_AFTER + DAY_MS).files_after == 2
    assert (lake.offsets(), len(rows_of(lake))) == ([0, 1, 2, 3, 24, 25, 26, 30, 31], 9)
    assert len(lake.table.specs()) == 2


def test_rows_of_whole_days_expire_too(tmp_path: Path) -> None:
    lake = hourly_lake(tmp_path)
    joined(lake)
    plan = plan_expiry(view_of(lake), 1, (DAY + 2) * DAY_MS)
    assert plan.rows == 4
    assert lake.compaction.drop_files(view_of(lake), plan.paths)
    assert lake.offsets() == [24, 25, 26]


@pytest.mark.parametrize("unit", ["month", "day"])
def test_a_table_by_month_or_day_joins_schema_versions(tmp_path: Path, unit: str) -> None:
    lake = Lake(tmp_path, options=TableOptions(partition_unit=unit))
    for number, schema_id in enumerate((7, 8)):
        lake.load(number, _kbq_schema_id=schema_id, event_date=DAY)
    view = view_of(lake)
    assert view.has_hours
    group = replace(all_files(view).group, coarse=True)
    result = lake.compaction.rewrite(replace(all_files(view), group=group))
    assert not result.difference
    lake.compaction.replace_files(view, [result])
    assert [(file.coarse, file.rows) for file in view_of(lake).files] == [(True, 2)]
    assert f"/data/event_{unit.replace('day', 'date')}=2022-01" in result.path
    assert lake.offsets() == [0, 1]


def test_a_table_that_moved_takes_no_days(tmp_path: Path) -> None:
    """Also after the commit that adds their partitioning."""
    lake = hourly_lake(tmp_path)
    view = view_of(lake)
    group = plan_compaction(view, DAY_AFTER).groups[0]
    task = RewriteTask(TABLE, view.metadata, "kbq-compact-0", "0123456789ab", group)
    result = lake.compaction.rewrite(task)
    load_hour(lake, 40, 4)
    with pytest.raises(TableMoved):
        lake.compaction.replace_files(view, [result])
    assert (len(lake.offsets()), len(lake.table.specs())) == (8, 2)
    joined(lake)
    assert lake.offsets() == [0, 1, 2, 3, 24, 25, 26, 40]


def test_rows_of_dropped_days_go_with_their_snapshots(lake: Lake) -> None:
    for day in (19_000, 19_001):
        lake.load(day, event_date=day)
    view = view_of(lake)
    assert [file.day for file in view.files] == [19_000, 19_001]
    assert lake.compaction.drop_files(view, [view.files[0].path])
    assert lake.offsets() == [19_001]
    assert keep_house(lake.table, batch=1, now_ms=LATER)
    assert len(files_in(lake.folder)) == 1
    assert lake.compaction.tidy(TABLE) == Tidied()


def many_files(lake: Lake, count: int) -> None:
    """Files of three rows each, as from that many jobs, but in a single commit."""
    lake.load(0, 1, 2)
    [first] = [task.file.file_path for task in lake.table.scan().plan_files()]
    rows, table = pq.read_table(first.removeprefix("file://"), partitioning=None), lake.table
    with table.transaction() as own, own.update_snapshot().fast_append() as snapshot:
        for number in range(1, count):
            offsets = pa.array(range(number * 3, number * 3 + 3))
            for name, values in (
                ("_kafka_offset", offsets),
                ("id", offsets),
                ("event_date", pa.array([19_000 + number % 4] * 3).cast(pa.int32()).cast(pa.date32())),
            ):
                place = rows.schema.get_field_index(name)
                rows = rows.set_column(place, rows.schema.field(name), values)
            path = f"{first.removesuffix('.parquet')}{number}.parquet"
            pq.write_table(rows, path.removeprefix("file://"))
            snapshot.append_data_file(parquet_file_to_data_file(table.io, table.metadata, path))


@pytest.mark.thorough
@pytest.mark.parametrize("count", [pytest.param(SMALL_FILES, marks=[pytest.mark.slow] if FULL else [])])
def test_thousands_of_small_files_become_few_while_loading_and_reading_go_on(lake: Lake, count: int) -> None:
    many_files(lake, count)
    reader = lake.reader()
    before = digest(lake.table.scan().to_arrow().combine_chunks().to_batches()[0])
    real = lake.compaction.rewrite

    def loading(task: RewriteTask) -> Rewritten:
        lake.load(count * 3 + lake.jobs)
        return real(task)

    lake.compaction.rewrite = loading  # type: ignore[method-assign]
    later = int(time.time() * 1000) + 7_200_000
    report = TableCompaction(lake.compaction, TABLE, lambda: later, no_spark).run()
    assert (report.message, report.failures, report.files_before) == ("", {}, count)
    assert report.files_after <= 20
    loaded = lake.jobs - 1
    assert loaded >= 4
    assert lake.offsets() == [
        *range(count * 3),
        *range(count * 3 + 1, count * 3 + 1 + loaded),
    ]
    old = lake.table.scan(row_filter=f"_kafka_offset < {count * 3}").to_arrow()
    assert digest(old.combine_chunks().to_batches()[0]) == before
    assert sorted(reader) == list(range(count * 3))


def no_spark() -> AbstractContextManager[Rewriter]:
    raise AssertionError("a small plan starts no Spark")
