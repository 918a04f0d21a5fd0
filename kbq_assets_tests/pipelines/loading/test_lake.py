"""One extraction, a warehouse and a lake: each has every record once, and other programs read the lake."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from kbq_assets.adapters.iceberg import IcebergWarehouse
from kbq_assets.adapters.iceberg.connect import embedded
from kbq_assets.adapters.iceberg.tasks import write
from kbq_assets.core.compaction.model import ChosenFiles, CompactionRule
from kbq_assets.core.config.locations import LakeAddress
from kbq_assets.core.errors import Unavailable, UnknownOutcome
from kbq_assets.core.loading.completeness import TableHours
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.loading.tables import Column, TableOptions
from kbq_assets.core.protocol.names import TableReference, table_state_path
from kbq_assets.core.protocol.waits import ParkReason
from kbq_assets.extras.reconcile.counts import CountPorts
from kbq_assets.extras.reconcile.records import reconcile
from kbq_assets.local.demo.lake import clickhouse_counts
from kbq_assets.pipelines.compaction.table import CompactionReport, TableCompaction
from kbq_assets.pipelines.loading.completeness_table import publish_hours
from kbq_assets.pipelines.loading.load import LoadOptions, LoadPorts, LoadReport, load
from kbq_assets.pipelines.loading.register_warehouses import register
from kbq_assets.pipelines.loading.view import read_view
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.state_cache import StateCache
from kbq_assets.pipelines.protocol.warehouse_store import WarehouseStore
from kbq_assets.ports.compaction import Rewriter
from kbq_assets.ports.load_tasks import RunTasks, WriteTask, WrittenFiles
from kbq_assets.ports.warehouse import ErrorQuery, LoadJob
from kbq_assets_tests.fakes.faults import Crash
from kbq_assets_tests.fixtures.variables import Variables
from kbq_assets_tests.pipelines.bench import ERRORS, TP, A, B, Bench


class FaultyLake(IcebergWarehouse):
    """A lake whose calls fail once: "lost" before or after they took effect, or the process dies there."""

    faults: dict[str, str]

    def insert_job(self, job: LoadJob) -> None:
        self._call("insert_job", lambda: super(FaultyLake, self).insert_job(job))

    def create_table(self, table: TableReference, columns: Iterable[Column], options: TableOptions) -> None:
        self._call("create_table", lambda: super(FaultyLake, self).create_table(table, columns, options))

    def _call(self, operation: str, call: Callable[[], None]) -> None:
        fault = self.faults.pop(operation, "")
        if not fault.endswith("before"):
            call()
        if fault.startswith("lost"):
            raise UnknownOutcome("no answer") if operation == "insert_job" else Unavailable("no answer")
        if fault:
            raise Crash


class LakeBench(Bench):
    """A bench whose topic goes to a lake too."""

    lake: FaultyLake
    area: WarehouseStore

    def load_lake(self) -> LoadReport:
        """One run of the lake's loader."""
        ports = LoadPorts(self.area, self.lake, self.clock)
        return load(ports, LoadOptions(wait_seconds=100.0, poll_seconds=10.0))

    def load_lake_by_tasks(self, run: RunTasks) -> LoadReport:
        """One run of the lake's loader, whose jobs tasks write."""
        ports = LoadPorts(self.area, self.lake.by_tasks(run, 1), self.clock)
        return load(ports, LoadOptions(wait_seconds=100.0, poll_seconds=10.0))

    def write(self, tasks: Sequence[WriteTask]) -> list[WrittenFiles]:
        """Run tasks."""
        return [write(task, {}, self.lake._open_uri) for task in tasks]

    def everything(self) -> None:
        """Extract, then load both."""
        self.extract()
        self.load()
        self.load_lake()

    def offsets_in_lake(self, table: TableReference) -> list[int]:
        """All offsets of a table, those of double rows several times."""
        found = [self.lake.positions(table, range_) for range_ in self.lake.kafka_ranges(table)]
        return sorted(offset for each in found for offset, rows in each.items() for _ in range(rows))


@pytest.fixture
def bench(tmp_path: Path) -> LakeBench:
    bench = LakeBench()
    register(["lake"], lambda: bench.store, lambda: bench.store)
    destination = replace(bench.settings.destination, warehouses=("", "lake"))
    bench.settings = replace(bench.settings, destination=destination)

    def open_staged(uri: str) -> BinaryIO:
        return io.BytesIO(bench.store.get(bench.store.path_of(uri)).data)

    bench.lake = FaultyLake(*embedded(LakeAddress(tmp_path / "lake"), tmp_path), open_uri=open_staged)
    bench.lake.faults = {}
    bench.area = WarehouseStore(bench.store, "lake")
    return bench


def reconciled_in_the_lake(bench: LakeBench) -> Any:
    ports = bench.reconcile_ports()
    counts = CountPorts(bench.area, bench.kafka, bench.lake)
    return reconcile(replace(ports, store=bench.area, warehouse=bench.lake, count=counts))


def test_one_extraction_fills_both_and_both_reconcile(bench: LakeBench) -> None:
    bench.produce(1, 3, 1)
    bench.kafka.produce(TP, b"not in Confluent's framing")
    bench.everything()
    bench.produce(2, 3)  # a new column
    bench.everything()
    assert bench.offsets_in_lake(A) == bench.offsets(A) == [0, 2, 4]
    assert bench.offsets_in_lake(B) == bench.offsets(B) == [1, 5]
    assert [row.offset for row in bench.lake.error_rows(ERRORS, ErrorQuery())] == [3]
    assert bench.paths("staging/") == []  # both have them
    assert bench.reconcile().accounted
    assert reconciled_in_the_lake(bench).accounted


def test_jobs_by_tasks_load_the_same_rows_once(bench: LakeBench) -> None:
    bench.produce(1, 3, 1)
    bench.kafka.produce(TP, b"not in Confluent's framing")
    bench.extract()
    bench.load()

    def killed(tasks: Sequence[WriteTask]) -> list[WrittenFiles]:
        bench.write(tasks)
        raise Crash

    with contextlib.suppress(Crash):
        bench.load_lake_by_tasks(killed)
    assert bench.offsets_in_lake(A) == []
    bench.load_lake_by_tasks(bench.write)
    assert bench.offsets_in_lake(A) == [0, 2]
    assert bench.offsets_in_lake(B) == [1]
    assert reconciled_in_the_lake(bench).accounted


def test_a_file_that_a_task_finds_damaged_parks_its_table_alone(bench: LakeBench) -> None:
    bench.produce(1, 3)
    bench.extract()
    [damaged] = [path for path in bench.paths("staging/") if f".{A}." in path]
    stored = bench.store.objects[damaged]
    bench.store.objects[damaged] = replace(stored, data=stored.data[:-1] + bytes([stored.data[-1] ^ 1]))
    report = bench.load_lake_by_tasks(bench.write)
    assert {table.table: table.state for table in report.tables} == {A: "parked", B: "idle"}
    assert (bench.offsets_in_lake(A), bench.offsets_in_lake(B)) == ([], [1])


def test_a_compacted_lake_reconciles_and_loads_on(bench: LakeBench) -> None:
    for _ in range(3):
        bench.produce(1, 1)
        bench.everything()
    compaction, days = bench.lake.compaction, ChosenFiles(range(30_000))

    def compacted() -> CompactionReport:
        return TableCompaction(compaction, A, bench.clock.now_ms, _no_spark, days).run()

    report = compacted()
    assert (report.message, report.files_before > report.files_after, report.commits) == ("", True, 1)
    bench.produce(1)
    bench.everything()
    assert bench.offsets_in_lake(A) == bench.offsets(A) == list(range(7))
    assert reconciled_in_the_lake(bench).accounted


def _no_spark() -> AbstractContextManager[Rewriter]:
    raise AssertionError("a small plan starts no Spark")


def test_a_lost_row_of_the_lake_is_not_accounted(bench: LakeBench) -> None:
    bench.produce(1, 1)
    bench.everything()
    stored = bench.lake.lake.table(A)
    assert stored is not None
    [file] = [task.file for task in stored.scan().plan_files()]
    with stored.transaction() as other, other.update_snapshot().overwrite() as snapshot:
        snapshot.delete_data_file(file)
    assert not reconciled_in_the_lake(bench).accounted
    assert bench.reconcile().accounted


@pytest.mark.parametrize("fault", ["lost before", "lost after", "crash before", "crash after"])
@pytest.mark.parametrize("operation", ["insert_job", "create_table"])
def test_a_call_that_fails_loses_and_doubles_nothing(bench: LakeBench, operation: str, fault: str) -> None:
    bench.produce(1, 3, 1)
    bench.extract()
    bench.lake.faults = {operation: fault}
    with contextlib.suppress(Crash):
        bench.load_lake()
    assert not bench.lake.faults
    bench.load_lake()
    assert bench.offsets_in_lake(A) == [0, 2]
    assert bench.offsets_in_lake(B) == [1]


@pytest.mark.parametrize("fault", ["crash before", "crash after"])
def test_a_table_that_is_dropped_under_its_job_is_gone(bench: LakeBench, fault: str) -> None:
    bench.produce(1)
    bench.everything()
    bench.produce(1)
    bench.extract()
    bench.lake.faults = {"insert_job": fault}
    with contextlib.suppress(Crash):
        bench.load_lake()
    bench.lake.lake.catalog.drop_table((A.dataset, A.table))
    bench.load_lake()
    parked = state.read(bench.area, TableState, table_state_path(A)).value.parked
    assert parked is not None
    assert parked.reason == ParkReason.TABLE_GONE


def test_complete_hours_are_tagged_in_the_lake(bench: LakeBench) -> None:
    bench.produce(1)
    bench.everything()
    current = state.read(bench.area, TableState, table_state_path(A))
    state.swap(bench.area, current, replace(current.value, hours=TableHours(until=9)))
    publish_hours(LoadPorts(bench.area, bench.lake, bench.clock), read_view(StateCache(bench.area)))
    table = bench.lake.lake.table(A)
    assert table is not None
    assert table.properties["kbq.complete-until"] == "1970-01-01T09:00:00Z"
    assert "complete_until" in table.metadata.refs


# Readers that are not KBQ's


@pytest.fixture
def filled(bench: LakeBench) -> Iterator[LakeBench]:
    for schema_ids in ((1, 1, 3), (2, 1), (2,)):
        bench.produce(*schema_ids)
        bench.everything()
    yield bench


@pytest.fixture
def planned_by_pyiceberg(variables: Variables) -> None:
    """Polars asks pyiceberg for a table's files, and reads them on its own."""
    variables["POLARS_ICEBERG_PLANNER"] = "pyiceberg"


def folder_of(bench: LakeBench, table: TableReference) -> str:
    stored = bench.lake.lake.table(table)
    assert stored is not None
    return stored.location().removeprefix("file://")


# Importing ClickHouse and Polars takes seconds, which each of pytest's workers would pay to collect this file.


def test_clickhouse_reads_the_rows(filled: LakeBench) -> None:
    import chdb

    query = (
        f"SELECT _kafka_offset, x, y, _kbq_schema_id FROM icebergLocal('{folder_of(filled, A)}') ORDER BY 1"
    )
    with contextlib.chdir("/"):  # ClickHouse only reads files below its folder
        found = chdb.query(query, "CSV")  # type: ignore[no-untyped-call]
    rows = [line.split(",") for line in str(found).splitlines()]
    assert rows == [
        ["0", "1", r"\N", "1"],
        ["1", "1", r"\N", "1"],
        ["3", "1", r"\N", "2"],
        ["4", "1", r"\N", "1"],
        ["5", "1", r"\N", "2"],
    ]


@pytest.mark.usefixtures("planned_by_pyiceberg")
def test_others_read_files_of_hours_and_of_whole_days(filled: LakeBench) -> None:
    import chdb
    import polars as pl

    policy = CompactionRule(min_files=2, days_after_ms=1, min_age_ms=-(10**13))
    compaction = TableCompaction(filled.lake.compaction, A, lambda: 10**12, _no_spark, rule=lambda: policy)
    assert compaction.run().files_after == 1
    filled.produce(1, 2)
    filled.everything()
    view = filled.lake.compaction.view(A)
    assert view is not None
    assert {file.coarse for file in view.files} == {True, False}
    where = "_kafka_timestamp < '1970-02-01' AND event_date = '1970-01-01'"
    query = f"SELECT _kafka_offset FROM icebergLocal('{folder_of(filled, A)}') WHERE {where} ORDER BY 1"
    with contextlib.chdir("/"):
        found = chdb.query(query, "CSV")  # type: ignore[no-untyped-call]
    assert str(found).split() == ["0", "1", "3", "4", "5", "6", "7"]
    stored = filled.lake.lake.table(A)
    assert stored is not None
    frame = pl.scan_iceberg(stored.metadata_location, reader_override="native")
    wanted = frame.filter(pl.col("_kbq_schema_id") == 2).sort("_kafka_offset").collect()
    assert wanted["_kafka_offset"].to_list() == [3, 5, 7]


@pytest.mark.usefixtures("planned_by_pyiceberg")
def test_the_documents_lines_read_the_rows_by_the_table_s_name(filled: LakeBench) -> None:
    import polars as pl
    from pyiceberg.catalog.sql import SqlCatalog

    folder = Path(folder_of(filled, A)).parent.parent
    text = (Path(__file__).parents[3] / "docs" / "iceberg.md").read_text(encoding="utf-8")
    [lines] = re.findall(r"```python\n(from pyiceberg.*?)```", text, re.DOTALL)
    found: dict[str, Any] = {"polars": pl}
    *before, by_duckdb = lines.replace("/data/lake", str(folder)).replace("shop.orders", str(A)).splitlines()
    exec("\n".join(before), found)
    assert isinstance(found["catalog"], SqlCatalog)
    stored = filled.lake.lake.table(A)
    assert stored is not None and found["orders"].metadata_location == stored.metadata_location
    [counted] = eval(by_duckdb.replace("2026-01-31", "1970-01-01"), found).fetchall()
    assert counted == (5,)


def test_the_demo_counts_rows_by_clickhouse(filled: LakeBench) -> None:
    folder = Path(folder_of(filled, A)).parent.parent
    assert clickhouse_counts(folder, {B: 0, A: 0}) == {B: (1, 1), A: (5, 5)}


@pytest.mark.usefixtures("planned_by_pyiceberg")
def test_polars_reads_the_rows(filled: LakeBench) -> None:
    import polars as pl

    stored = filled.lake.lake.table(A)
    assert stored is not None
    frame = pl.scan_iceberg(stored.metadata_location, reader_override="native")
    wanted = frame.filter(pl.col("_kafka_timestamp").dt.year() == 1970).sort("_kafka_offset").collect()
    assert wanted["_kafka_offset"].to_list() == [0, 1, 3, 4, 5]
    assert wanted["x"].to_list() == [1] * 5
    assert wanted["_kbq_schema_id"].to_list() == [1, 1, 2, 1, 2]


def test_paths_name_schema_version_day_and_hour(filled: LakeBench) -> None:
    files = Path(folder_of(filled, A)).rglob("*.parquet")
    assert {str(path.parent.relative_to(folder_of(filled, A))) for path in files} == {
        f"data/schema_version={number}/event_date=1970-01-01/event_hour=00" for number in (1, 2)
    }
