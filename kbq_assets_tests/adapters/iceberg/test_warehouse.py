"""The Iceberg warehouse keeps the contract, and handles what only a lake has."""

from __future__ import annotations

import functools
import tempfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

import pytest
from pyiceberg.table import Table

from kbq_assets.adapters.iceberg import IcebergWarehouse, commits, load_jobs
from kbq_assets.adapters.iceberg import parquet_files as writer_module
from kbq_assets.adapters.iceberg.commits import commit_job, turn_retries_off
from kbq_assets.adapters.iceberg.job_records import REMEMBERED, JobRecord
from kbq_assets.adapters.iceberg.parquet_files import TARGET_BYTES
from kbq_assets.adapters.iceberg.schema import RETRIES
from kbq_assets.adapters.iceberg.writer import ParquetWriter
from kbq_assets.adapters.local_store import LocalObjectStore
from kbq_assets.core.errors import ConfigurationError, JobAlreadyExists, Unavailable
from kbq_assets.core.loading.tables import Column, TableOptions, columns_of
from kbq_assets.core.loading.verification import DAMAGED
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import StagedFileName, TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.warehouse import JobStatus, KafkaRange, LoadJob, Warehouse
from kbq_assets.wire.arrow import staged
from kbq_assets.wire.arrow.errors import LoadError
from kbq_assets.wire.arrow.staged import OpenUri, open_file_uri
from kbq_assets_tests.contracts.errors_replay import SteppedErrorReplaysContract
from kbq_assets_tests.contracts.warehouse import (
    SCHEMA,
    TABLE,
    Opener,
    SharedWarehouseContract,
    Stage,
    avro_file,
    load_job,
    record,
    records,
    schema_of,
    stage_in,
)


def opened(folder: Path, open_uri: OpenUri = open_file_uri) -> IcebergWarehouse:
    """A lake in a folder, with the embedded catalog."""
    folder.mkdir(parents=True, exist_ok=True)
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db?timeout=60",
        "warehouse": f"file://{folder}",
    }
    return IcebergWarehouse("kbq", properties, open_uri=open_uri)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "the lake"


class TestIcebergWarehouse(SteppedErrorReplaysContract, SharedWarehouseContract):
    @pytest.fixture
    def area(self, tmp_path: Path) -> ObjectStore:
        return LocalObjectStore(tmp_path / "area")

    @pytest.fixture
    def warehouse(self, folder: Path) -> Warehouse:
        return opened(folder)

    @pytest.fixture
    def opener(self, folder: Path) -> Opener:
        return functools.partial(opened, folder)

    @pytest.fixture(autouse=True)
    def _folder(self, folder: Path) -> None:
        self.folder = folder

    def reopened(self, warehouse: Warehouse) -> Warehouse:
        return opened(self.folder)

    @pytest.mark.slow
    def test_of_four_processes_with_one_id_one_wins(
        self, warehouse: Warehouse, table: TableReference, stage: Stage, opener: Opener
    ) -> None:
        super().test_of_four_processes_with_one_id_one_wins(warehouse, table, stage, opener)


@pytest.fixture
def lake(folder: Path) -> IcebergWarehouse:
    """With `TABLE`."""
    found = opened(folder)
    found.create_table(TABLE, columns_of(SCHEMA), TableOptions())
    return found


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return stage_in(tmp_path)


def stored(lake: IcebergWarehouse) -> Table:
    found = lake.lake.table(TABLE)
    assert found is not None
    return found


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.parquet"))


def numbered(number: int, uri: str) -> LoadJob:
    return load_job(f"kbq-1a2b-{number}", uri)


# A job is one snapshot


def test_a_job_is_one_snapshot_that_names_it(lake: IcebergWarehouse, stage: Stage) -> None:
    for number in (1, 2):
        lake.insert_job(numbered(number, stage(f"{number}.avro", avro_file(records([number])))))
    first, second = stored(lake).snapshots()
    assert first.summary is not None
    assert first.summary["kbq.job-id"] == "kbq-1a2b-1"
    assert second.parent_snapshot_id == first.snapshot_id


def test_an_id_below_the_recorded_one_never_runs(lake: IcebergWarehouse, stage: Stage, folder: Path) -> None:
    uri = stage("a.avro", avro_file(records([0])))
    lake.insert_job(numbered(7, uri))
    with pytest.raises(JobAlreadyExists):
        lake.insert_job(numbered(6, uri))
    assert lake.get_job("kbq-1a2b-6", "local", "local", TABLE) == JobStatus("kbq-1a2b-6", "DONE", ())
    assert len(files_in(folder)) == 1


@pytest.mark.parametrize("late", ["before a burn", "before its own twin"])
def test_a_zombie_that_wrote_its_files_commits_nothing(
    lake: IcebergWarehouse, stage: Stage, folder: Path, late: str
) -> None:
    """It checked the id, then slept; its commit finds another snapshot, and the number recorded."""
    uri = stage("a.avro", avro_file(records([0, 1])))

    def sleeping(source: str) -> BinaryIO:
        other = opened(folder)
        if late == "before a burn":
            other.burn_job("kbq-1a2b-1", "local", "local", TABLE)
        else:
            other.insert_job(numbered(1, uri))
        return open_file_uri(source)

    zombie = opened(folder, open_uri=sleeping)
    with pytest.raises(JobAlreadyExists):
        zombie.insert_job(numbered(1, uri))
    rows = 0 if late == "before a burn" else 2
    assert sum(lake.kafka_ranges(TABLE).values()) == rows
    assert len(files_in(folder)) == rows // 2  # the zombie's own are gone


def test_a_job_that_another_writer_outran_commits_after_it(
    lake: IcebergWarehouse, stage: Stage, folder: Path
) -> None:
    uri = stage("a.avro", avro_file(records([0, 1])))

    def outrun(source: str) -> BinaryIO:
        opened(folder).insert_job(load_job("kbq-9f9f-1", stage("b.avro", avro_file(records([5])))))
        return open_file_uri(source)

    opened(folder, open_uri=outrun).insert_job(numbered(1, uri))
    assert lake.positions(TABLE, KafkaRange("t", 0, 0)) == {0: 1, 1: 1, 5: 1}


def test_retries_that_someone_turned_on_are_turned_off_before_a_commit(
    lake: IcebergWarehouse, stage: Stage
) -> None:
    with stored(lake).transaction() as change:
        change.set_properties({RETRIES: "4"})
    lake.insert_job(numbered(1, stage("a.avro", avro_file(records([0])))))
    assert stored(lake).properties[RETRIES] == "0"


@pytest.mark.parametrize("at", [load_jobs, commits], ids=["before it reads", "after it was outrun"])
def test_turning_retries_off_brings_no_ended_job_back(
    lake: IcebergWarehouse, stage: Stage, folder: Path, monkeypatch: pytest.MonkeyPatch, at: ModuleType
) -> None:
    """The separate commit reads the table again, including what others committed meanwhile."""

    def turn_on(source: str) -> BinaryIO:
        with stored(lake).transaction() as change:
            change.set_properties({RETRIES: "4"})
            with change.update_snapshot().fast_append():
                pass
        return open_file_uri(source)

    def turn_off(table: Table) -> None:
        monkeypatch.undo()
        opened(folder).burn_job("kbq-1a2b-1", "local", "local", TABLE)
        turn_retries_off(table)

    uri = stage("a.avro", avro_file(records([0, 1])))
    turn_on(uri).close()
    monkeypatch.setattr(at, "turn_retries_off", turn_off)
    with pytest.raises(JobAlreadyExists):
        opened(folder, open_uri=turn_on).insert_job(numbered(1, uri))
    assert lake.kafka_ranges(TABLE) == {}
    assert stored(lake).properties[RETRIES] == "0"


def test_a_job_id_survives_the_expiry_of_its_snapshot(lake: IcebergWarehouse, stage: Stage) -> None:
    for number in (1, 2, 3):
        lake.insert_job(numbered(number, stage(f"{number}.avro", avro_file(records([number])))))
    old = [snapshot.snapshot_id for snapshot in stored(lake).snapshots()[:-1]]
    expiry = stored(lake).maintenance.expire_snapshots()
    for snapshot_id in old:
        expiry = expiry.by_id(snapshot_id)
    expiry.commit()
    assert len(stored(lake).snapshots()) == 1
    found = lake.get_job("kbq-1a2b-1", "local", "local", TABLE)
    assert found is not None
    assert found.output_rows == 1
    with pytest.raises(JobAlreadyExists):
        lake.insert_job(numbered(2, found.source_uris[0]))


def test_an_id_burned_while_its_table_was_gone_stays_burned(lake: IcebergWarehouse, stage: Stage) -> None:
    lake.lake.catalog.drop_table((TABLE.dataset, TABLE.table))
    lake.burn_job("kbq-1a2b-1", "local", "local", TABLE)
    lake.create_table(TABLE, columns_of(SCHEMA), TableOptions())
    with pytest.raises(JobAlreadyExists):
        lake.insert_job(numbered(1, stage("a.avro", avro_file(records([0])))))
    assert lake.kafka_ranges(TABLE) == {}


def test_a_job_is_found_without_its_table(lake: IcebergWarehouse, stage: Stage) -> None:
    lake.insert_job(numbered(1, stage("a.avro", avro_file(records([0])))))
    found = lake.get_job("kbq-1a2b-1", "local", "local")
    assert found == lake.get_job("kbq-1a2b-1", "local", "local", TABLE)
    assert found is not None
    assert found.created_ms > 0


def test_source_lists_of_forgotten_jobs_are_deleted(
    lake: IcebergWarehouse, stage: Stage, folder: Path
) -> None:
    uri = stage("a.avro", avro_file(records([0])))
    for number in range(1, 8):
        lake.insert_job(numbered(number, uri))
    assert len(list(folder.rglob("kbq-*.json"))) == REMEMBERED


# Partitions


def of_schema(schema_id: int, job: LoadJob) -> LoadJob:
    """The job, with the commit's entry of its file."""
    [uri] = job.source_uris
    name = StagedFileName(TopicPartition("t", 0), TABLE, schema_id, 0, 0, "abc")
    with open_file_uri(uri) as stream:
        size = len(stream.read())
    return replace(job, files={uri: StagedFile(name.format(), 0, 5, 5, size, size, "", "f")})


EVENT_TIME = ("_event_time", {"type": "long", "logicalType": "timestamp-micros"})
TIMED = schema_of(("id", "long"), EVENT_TIME)
HOUR = 3_600_000_000


def timed_job(lake: IcebergWarehouse, stage: Stage, *times: int, unit: str = "") -> LoadJob:
    """A job with a row at each of the given microseconds."""
    lake.create_table(TABLE, columns_of(TIMED), TableOptions(cluster_by=("id",), partition_unit=unit))
    rows = [
        {**record(offset), "_event_time": at, "event_date": at // (24 * HOUR)}
        for offset, at in enumerate(times)
    ]
    return load_job("kbq-1a2b-1", stage("a.avro", avro_file(rows, TIMED)), schema=TIMED)


def test_paths_read_schema_version_date_and_hour(folder: Path, stage: Stage) -> None:
    lake = opened(folder)
    noon = 19_783 * 24 * HOUR + 12 * HOUR  # 2024-03-01
    job = timed_job(lake, stage, noon, noon + HOUR - 1, noon + HOUR, noon - 13 * HOUR, -1)
    lake.insert_job(of_schema(17, job))
    assert [path.split("/data/")[1].rsplit("/", 1)[0] for path in files_in(folder)] == [
        "schema_version=17/event_date=1969-12-31/event_hour=23",
        "schema_version=17/event_date=2024-02-29/event_hour=23",
        "schema_version=17/event_date=2024-03-01/event_hour=12",
        "schema_version=17/event_date=2024-03-01/event_hour=13",
    ]
    assert lake.kafka_ranges(TABLE) == {KafkaRange("t", 0, 0): 5}
    scan = stored(lake).scan("_event_time >= '2024-03-01T13:00:00+00:00'")
    assert [task.file.record_count for task in scan.plan_files()] == [1]


@pytest.mark.parametrize(
    ("unit", "folders", "last_day"),
    [
        ("day", ["event_date=1969-12-31", "event_date=2024-02-29", "event_date=2024-03-01"], 19_783),
        ("month", ["event_month=1969-12", "event_month=2024-02", "event_month=2024-03"], 19_813),
    ],
)
def test_a_topic_may_ask_for_days_or_months(
    folder: Path, stage: Stage, unit: str, folders: list[str], last_day: int
) -> None:
    """A partition is complete, and old, by its last hour and day."""
    lake = opened(folder)
    noon = 19_783 * 24 * HOUR + 12 * HOUR
    job = timed_job(lake, stage, noon, noon + HOUR, noon - 13 * HOUR, -1, unit=unit)
    lake.insert_job(of_schema(17, job))
    assert [path.split("/")[-2] for path in files_in(folder)] == folders
    assert lake.kafka_ranges(TABLE) == {KafkaRange("t", 0, 0): 4}
    view = lake.compaction.view(TABLE)
    assert view is not None
    places = [(file.day, file.hour, file.rows) for file in view.files]
    assert places[-1] == (last_day, last_day * 24 + 23, 2)
    assert places[0][0] == -1
    scan = stored(lake).scan("event_date >= '2024-03-01'")
    assert [task.file.record_count for task in scan.plan_files()] == [2]


def test_rows_are_sorted_by_the_clustering_columns(folder: Path, stage: Stage) -> None:
    lake = opened(folder)
    job = timed_job(lake, stage, *range(50))
    rows = [{**record(o), "id": (o * 37) % 50, "_event_time": 0, "event_date": 0} for o in range(50)]
    lake.insert_job(replace(job, source_uris=(stage("b.avro", avro_file(rows, TIMED)),)))
    assert stored(lake).scan().to_arrow()["id"].to_pylist() == list(range(50))


def test_a_table_without_dates_has_no_partitions(folder: Path) -> None:
    lake = opened(folder)
    lake.create_table(TABLE, [Column("a", "STRING")], TableOptions(cluster_by=("a",)))
    assert stored(lake).spec().is_unpartitioned()


# Errors


def test_a_failing_catalog_is_unavailable_and_shows_no_password(folder: Path) -> None:
    folder.mkdir()
    uri = "postgresql+psycopg2://kbq:hunter2@127.0.0.1:1/kbq"
    lake = IcebergWarehouse("kbq", {"type": "sql", "uri": uri, "warehouse": f"file://{folder}"})
    with pytest.raises(Unavailable) as caught:
        lake.columns(TABLE)
    assert "hunter2" not in str(caught.value)


def test_a_job_of_another_place_is_refused(lake: IcebergWarehouse) -> None:
    with pytest.raises(ConfigurationError, match="EU"):
        lake.get_job("j1", "local", "EU", TABLE)


@pytest.mark.parametrize(
    ("flush_bytes", "target", "files"), [(1, "1000000", 1), (1, "1", 6), (1 << 20, "1", 1)]
)
def test_a_job_writes_one_file_per_partition_up_to_its_size(
    lake: IcebergWarehouse,
    stage: Stage,
    flush_bytes: int,
    target: str,
    files: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many batches its rows come in."""
    monkeypatch.setattr(staged, "_BATCH_BYTES", flush_bytes)
    with stored(lake).transaction() as change:
        change.set_properties({TARGET_BYTES: target})
    uris = tuple(stage(f"{n}.avro", avro_file(records(range(n * 10, n * 10 + 10)))) for n in range(6))
    writer = ParquetWriter(stored(lake), load_job("j-1", *uris), "token", open_file_uri, flush_bytes)
    writer.write()
    assert (len(writer.files), writer.rows) == (files, 60)
    assert sum(file.record_count for file in writer.files) == 60


@pytest.mark.parametrize("cluster_by", [(), ("note",)])
def test_more_partitions_than_open_files_are_still_one_file_each(
    folder: Path, stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster_by: tuple[str, ...]
) -> None:
    """Each batch has rows of every hour; the first has those of one, whose file is open by then."""
    monkeypatch.setattr(writer_module, "OPEN_FILES", 2)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    lake = opened(folder)
    schema = schema_of(("id", "long"), ("note", "string"), EVENT_TIME)
    lake.create_table(TABLE, columns_of(schema), TableOptions(cluster_by=cluster_by))
    uris = []
    for batch in range(4):
        hours = range(5) if batch else range(1)
        rows = [record(10 * batch + h, note=str(9 - batch), _event_time=h * HOUR) for h in hours]
        uris.append(stage(f"{batch}.avro", avro_file(rows, schema)))
    writer = ParquetWriter(stored(lake), load_job("j-1", *uris), "token", open_file_uri, held_bytes=1)
    writer.write()
    assert [file.record_count for file in writer.files] == [4, 3, 3, 3, 3]
    assert writer.rows == 16
    commit_job(stored(lake), JobRecord("j-1", "token"), writer.files)
    assert lake.positions(TABLE, KafkaRange("t", 0, 0)) == dict.fromkeys(
        [0, *(10 * batch + h for batch in (1, 2, 3) for h in range(5))], 1
    )
    assert not list((tmp_path / "temporary").iterdir())


def test_files_of_a_job_that_fails_halfway_are_deleted(
    lake: IcebergWarehouse, stage: Stage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged, "_BATCH_BYTES", 1)
    with stored(lake).transaction() as change:
        change.set_properties({TARGET_BYTES: "1"})
    good, bad = stage("a.avro", avro_file(records(range(9)))), stage("b.avro", b"not Avro")
    writer = ParquetWriter(stored(lake), load_job("j-1", good, bad), "token", open_file_uri, held_bytes=1)
    with pytest.raises(LoadError):
        writer.write()
    assert len(files_in(folder)) == 1
    writer.discard()
    assert files_in(folder) == []


def test_a_job_whose_table_was_partitioned_anew_meanwhile_writes_its_files_again(
    lake: IcebergWarehouse, stage: Stage, folder: Path
) -> None:
    def partitioning(uri: str) -> BinaryIO:
        with stored(lake).update_spec() as change:
            change.add_identity("id")
        lake.insert_job(load_job("kbq-9f9f-1", stage("b.avro", avro_file(records([5])))))
        return open_file_uri(uri)

    slow, job = opened(folder, open_uri=partitioning), numbered(1, stage("a.avro", avro_file(records([0]))))
    with pytest.raises(Unavailable, match="repartitioned"):
        slow.insert_job(job)
    assert lake.get_job("kbq-1a2b-1", "local", "local", TABLE) is None
    lake.insert_job(job)
    assert lake.positions(TABLE, KafkaRange("t", 0, 0)) == {0: 1, 5: 1}
    assert len(files_in(folder)) == 2


def test_bytes_that_are_not_the_commits_never_become_visible(
    lake: IcebergWarehouse, stage: Stage, folder: Path
) -> None:
    job = of_schema(1, numbered(1, stage("a.avro", avro_file(records(range(5))))))
    [(uri, file)] = job.files.items()
    lake.insert_job(replace(job, files={uri: replace(file, crc32c="AAAAAA==")}))
    found = lake.get_job("kbq-1a2b-1", "local", "local", TABLE)
    assert found is not None
    assert found.error is not None
    assert found.error.reason == DAMAGED
    assert lake.kafka_ranges(TABLE) == {}
    assert files_in(folder) == []


def test_damaged_metadata_is_an_error_of_its_table_alone(lake: IcebergWarehouse, folder: Path) -> None:
    other = TableReference("shop", "other")
    lake.create_table(other, columns_of(SCHEMA), TableOptions())
    for metadata in (folder / "shop" / "orders-v1").rglob("*.metadata.json"):
        metadata.write_text("{}")
    with pytest.raises(Unavailable, match=r"shop\.orders-v1"):
        lake.columns(TABLE)
    assert lake.columns(other) == columns_of(SCHEMA)
