"""The DuckDB warehouse keeps the contract, and handles what only a local file has: locks, case, a disk that fails."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

import duckdb
import pytest

from kbq_assets.adapters.duckdb import DuckDbWarehouse, database, engines
from kbq_assets.core.errors import (
    ConfigurationError,
    CorruptState,
    JobAlreadyExists,
    NotFound,
    Unavailable,
    WrongOptions,
)
from kbq_assets.core.loading.tables import Column, TableOptions, columns_of, plan_table_change
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.ports.warehouse import Comparable, ErrorQuery, KafkaRange, Warehouse
from kbq_assets_tests.contracts.errors_replay import StatementErrorReplaysContract
from kbq_assets_tests.contracts.statements import StatementsContract
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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """In a folder that does not exist yet."""
    return tmp_path / "home" / "local warehouse.duckdb"


class TestDuckDbWarehouse(StatementErrorReplaysContract, StatementsContract, SharedWarehouseContract):
    @pytest.fixture
    def warehouse(self, path: Path) -> Warehouse:
        return DuckDbWarehouse(path)

    @pytest.fixture
    def opener(self, path: Path) -> Opener:
        return functools.partial(DuckDbWarehouse, path)

    def reopened(self, warehouse: Warehouse) -> Warehouse:
        assert isinstance(warehouse, DuckDbWarehouse)
        return DuckDbWarehouse(warehouse.path)


@pytest.fixture
def warehouse(path: Path) -> DuckDbWarehouse:
    """With `TABLE`."""
    found = DuckDbWarehouse(path, lock_timeout_seconds=120)
    found.create_table(TABLE, columns_of(SCHEMA), TableOptions())
    return found


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return stage_in(tmp_path)


@contextmanager
def holder(path: Path, *, read_only: bool = False) -> Iterator[int]:
    """Another process that has the file open; gives its process id."""
    code = (
        f"import duckdb, sys\nconnection = duckdb.connect({str(path)!r}, read_only={read_only})\n"
        "print('open', flush=True)\nsys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        try:
            yield process.pid
        finally:
            process.kill()


# The lock


@pytest.mark.parametrize("read_only", [False, True])
def test_a_lock_held_too_long_is_reported_with_its_holder(
    warehouse: DuckDbWarehouse, path: Path, stage: Stage, read_only: bool
) -> None:
    hasty = DuckDbWarehouse(path, lock_timeout_seconds=0.3)
    job = load_job("j1", stage("a.avro", avro_file(records([0]))))
    with holder(path, read_only=read_only) as pid, pytest.raises(Unavailable, match=f"process {pid},"):
        hasty.insert_job(job)
    assert hasty.get_job("j1", "local", "local") is None
    hasty.insert_job(job)


def test_a_lock_let_go_in_time_is_waited_for(warehouse: DuckDbWarehouse, path: Path, stage: Stage) -> None:
    with holder(path) as pid:
        started = time.monotonic()
        threading.Timer(1.0, os.kill, (pid, 9)).start()
        warehouse.insert_job(load_job("j1", stage("a.avro", avro_file(records([0])))))
        assert time.monotonic() - started > 0.5
    assert warehouse.kafka_ranges(TABLE) == {KafkaRange("t", 0, 0): 1}


def test_readers_do_not_wait_for_readers(warehouse: DuckDbWarehouse, path: Path) -> None:
    with holder(path, read_only=True):
        assert DuckDbWarehouse(path, lock_timeout_seconds=0).tables() == (TABLE,)


def test_the_file_is_free_between_calls(warehouse: DuckDbWarehouse, path: Path) -> None:
    warehouse.columns(TABLE)
    with holder(path):
        pass


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each opening of the file so far, whether it was read-only."""
    found: list[bool] = []
    attach = engines.attach

    def noting(path: Path, read_only: bool) -> engines.AttachedFile:
        found.append(read_only)
        return attach(path, read_only)

    monkeypatch.setattr(engines, "attach", noting)
    return found


def test_a_session_opens_the_file_once_and_leaves_it_free(
    warehouse: DuckDbWarehouse, path: Path, stage: Stage, opened: list[bool]
) -> None:
    with warehouse.session(), warehouse.session():
        assert warehouse.get_job("j1", "local", "local") is None
        warehouse.insert_job(load_job("j1", stage("a.avro", avro_file(records([0])))))
        assert warehouse.columns(TABLE)
    assert opened == [False]
    with holder(path, read_only=True):
        assert warehouse.kafka_ranges(TABLE) == {KafkaRange("t", 0, 0): 1}
    assert opened == [False, True]


@pytest.mark.parametrize(("seconds", "times"), [(0.0, 3), (3_600.0, 1)])
def test_parts_of_a_session_share_the_file_until_others_may_wait_for_it(
    warehouse: DuckDbWarehouse,
    opened: list[bool],
    seconds: float,
    times: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(database, "_MOST_SECONDS_OPEN", seconds)
    with warehouse.session():
        for _ in range(3):
            with warehouse.session():
                assert warehouse.get_job("j1", "local", "local") is None
                assert warehouse.columns(TABLE)
    assert opened == [False] * times


def test_after_an_error_a_session_opens_the_file_again_and_keeps_what_was_committed(
    warehouse: DuckDbWarehouse, stage: Stage, opened: list[bool]
) -> None:
    job = load_job("j1", stage("a.avro", avro_file(records([0]))))
    with warehouse.session():
        warehouse.insert_job(job)
        with pytest.raises(JobAlreadyExists):
            warehouse.insert_job(job)
        assert warehouse.kafka_ranges(TABLE) == {KafkaRange("t", 0, 0): 1}
    assert opened == [False, False]


def test_a_session_without_a_call_or_a_file_creates_nothing(path: Path) -> None:
    missing = DuckDbWarehouse(path.with_name("missing.duckdb"))
    with missing.session():
        assert missing.tables() == ()
    assert not missing.path.exists()


def test_another_thread_waits_for_the_end_of_a_session(warehouse: DuckDbWarehouse) -> None:
    found: list[object] = []
    reader = threading.Thread(target=lambda: found.append(warehouse.tables()))
    with warehouse.session():
        warehouse.columns(TABLE)
        reader.start()
        with pytest.raises(Unavailable), ThreadPoolExecutor(1) as pool:
            pool.submit(DuckDbWarehouse(warehouse.path, lock_timeout_seconds=0.05).tables).result()
        assert found == []
    reader.join()
    assert found == [(TABLE,)]


def test_threads_of_one_process_take_turns(warehouse: DuckDbWarehouse, path: Path) -> None:
    inside = threading.Event()
    seen: list[object] = []

    def write() -> None:
        inside.set()
        DuckDbWarehouse(path).burn_job("j1", "local", "local")
        seen.append("burned")

    with warehouse.connect_readonly() as connection:
        thread = threading.Thread(target=write)
        thread.start()
        inside.wait()
        time.sleep(0.2)
        seen.extend(connection.execute("SELECT count(*) FROM _kbq.kbq_jobs").fetchall())
    thread.join()
    assert seen == [(0,), "burned"]


def test_a_thread_that_holds_the_file_too_long_is_reported(warehouse: DuckDbWarehouse, path: Path) -> None:
    hasty, errors = DuckDbWarehouse(path, lock_timeout_seconds=0.1), list[Exception]()

    def read() -> None:
        try:
            hasty.tables()
        except Unavailable as error:
            errors.append(error)

    with warehouse.connect_readonly():
        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
    assert [str(os.getpid()) in str(error) for error in errors] == [True]


# The file


def test_reading_creates_nothing(path: Path) -> None:
    warehouse = DuckDbWarehouse(path)
    assert warehouse.get_job("j1", "local", "local") is None
    with pytest.raises(NotFound, match="local warehouse"), warehouse.connect_readonly():
        pass
    assert not path.parent.exists()


def test_a_file_that_is_no_database_is_reported(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"x" * 5000)
    with pytest.raises(CorruptState, match="local warehouse"):
        DuckDbWarehouse(path).tables()


def test_damaged_bytes_are_reported_for_good(warehouse: DuckDbWarehouse, path: Path, stage: Stage) -> None:
    """In the header, in the catalog, and in each block of rows."""
    warehouse.insert_job(load_job("j1", stage("a.avro", avro_file([record(n) for n in range(4_000)]))))
    data = path.read_bytes()
    found = set()
    for place in (100, *range(12_388, len(data), 262_144)):
        path.write_bytes(
            data[:place] + bytes(byte ^ 0xFF for byte in data[place : place + 64]) + data[place + 64 :]
        )
        try:
            DuckDbWarehouse(path).kafka_summary(TABLE)
        except CorruptState as error:
            found.add(error.message.partition(":")[0].removeprefix(f"the warehouse {path} "))
    assert found == {"cannot be read", "the local warehouse is damaged"}


def test_a_file_that_lost_its_end_is_reported_for_good(warehouse: DuckDbWarehouse, path: Path) -> None:
    path.write_bytes(path.read_bytes()[:12_288])
    with pytest.raises(CorruptState, match="backup"):
        warehouse.tables()


def test_a_database_made_by_hand_is_taken_as_it_is(path: Path, stage: Stage) -> None:
    path.parent.mkdir()
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE mine AS SELECT 1 AS a")
    warehouse = DuckDbWarehouse(path)
    assert warehouse.get_job("j1", "local", "local") is None
    assert warehouse.columns(TableReference("main", "mine")) == (Column("a", "INTEGER"),)
    warehouse.create_table(TABLE, columns_of(SCHEMA), TableOptions())
    warehouse.insert_job(load_job("j1", stage("a.avro", avro_file(records([0])))))
    assert warehouse.tables() == (TABLE,)


def test_a_column_added_by_hand_takes_its_default(
    warehouse: DuckDbWarehouse, path: Path, stage: Stage
) -> None:
    with duckdb.connect(str(path)) as connection:
        connection.execute('ALTER TABLE shop."orders-v1" ADD COLUMN by_hand HUGEINT DEFAULT 7')
    job = load_job("j1", stage("a.avro", avro_file(records([0]))))
    assert warehouse.probe(job) is None
    warehouse.insert_job(job)
    with warehouse.connect_readonly() as connection:
        assert connection.execute('SELECT by_hand FROM shop."orders-v1"').fetchall() == [(7,)]


def test_a_view_is_not_a_table(warehouse: DuckDbWarehouse, path: Path) -> None:
    with duckdb.connect(str(path)) as connection:
        connection.execute('CREATE VIEW shop.recent AS SELECT * FROM shop."orders-v1"')
        connection.execute('CREATE TABLE "a b" AS SELECT * FROM shop."orders-v1"')
    assert warehouse.tables() == (TABLE,)


@pytest.mark.parametrize("name", ["shop.Orders-v1", "Shop.orders-v1", "SHOP.other"])
def test_names_that_differ_in_case_only_are_refused(warehouse: DuckDbWarehouse, name: str) -> None:
    with pytest.raises(WrongOptions, match="differ only in case"):
        warehouse.create_table(TableReference.parse(name), columns_of(SCHEMA), TableOptions())
    # It waits, parked. Whoever counts and compares the other tables finds none of this name.
    table = TableReference.parse(name)
    assert not warehouse.kafka_summary(table) and not warehouse.kafka_ranges(table)
    assert warehouse.positions(table, KafkaRange("t", 0, 1)) == {}
    assert not warehouse.doubled_offsets([table, TABLE]) and not warehouse.error_rows(table, ErrorQuery())


@pytest.mark.parametrize("dataset", ["_kbq", "_KBQ", "information_schema", "pg_catalog"])
def test_a_dataset_of_the_databases_own_is_refused(warehouse: DuckDbWarehouse, dataset: str) -> None:
    with pytest.raises(ConfigurationError, match=dataset):
        warehouse.create_table(TableReference(dataset, "t"), columns_of(SCHEMA), TableOptions())


@pytest.mark.parametrize(
    "name", ["temp.select", "main.t", "system.x-1", "select.from", "memory.order", "1.2"]
)
def test_a_name_with_a_meaning_in_sql_is_a_name(warehouse: DuckDbWarehouse, stage: Stage, name: str) -> None:
    table = TableReference.parse(name)
    schema = schema_of(("select", "int"), ("Group", {"type": "array", "items": "int"}))
    warehouse.create_table(table, columns_of(schema), TableOptions())
    wider = schema_of(
        ("select", ["null", "int"]), ("Group", {"type": "array", "items": "int"}), ("order", "int")
    )
    warehouse.update_columns(table, columns_of(wider))
    uri = stage("a.avro", avro_file([record(0, select=1, Group=[2], order=3)], wider))
    warehouse.insert_job(load_job("j1", uri, table=table, schema=wider))
    assert warehouse.positions(table, KafkaRange("t", 0, 0)) == {0: 1}
    assert table in warehouse.tables()


# Jobs


def test_a_job_of_another_place_is_never_taken_for_a_missing_one(warehouse: DuckDbWarehouse) -> None:
    for project, location in (("gcp-project", "local"), ("local", "EU")):
        with pytest.raises(ConfigurationError, match="not in a local warehouse"):
            warehouse.get_job("j1", project, location)
        with pytest.raises(ConfigurationError, match="not in a local warehouse"):
            warehouse.insert_job(load_job("j1", project=project, location=location))


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), PermissionError("denied"), MemoryError()]
)
def test_what_may_pass_leaves_the_id_free(
    warehouse: DuckDbWarehouse, path: Path, stage: Stage, error: Exception
) -> None:
    def fail(uri: str) -> None:
        raise error

    job = load_job("j1", stage("a.avro", avro_file(records([0]))))
    with pytest.raises(Unavailable):
        DuckDbWarehouse(path, open_uri=fail).insert_job(job)  # type: ignore[arg-type]
    with pytest.raises(Unavailable):
        DuckDbWarehouse(path, open_uri=fail).probe(job)  # type: ignore[arg-type]
    assert warehouse.get_job("j1", "local", "local") is None
    warehouse.insert_job(job)
    assert warehouse.kafka_ranges(TABLE) == {KafkaRange("t", 0, 0): 1}


def test_rows_keep_the_order_of_the_files(warehouse: DuckDbWarehouse, stage: Stage) -> None:
    uris = [stage(f"{i}.avro", avro_file(records(range(i * 30_000, (i + 1) * 30_000)))) for i in range(3)]
    warehouse.insert_job(load_job("j1", *uris))
    with warehouse.connect_readonly() as connection:
        offsets = connection.execute('SELECT _kafka_offset FROM shop."orders-v1"').fetchall()
    assert offsets == [(offset,) for offset in range(90_000)]


def test_files_of_several_schemas_of_one_table_load_in_one_job(
    warehouse: DuckDbWarehouse, stage: Stage
) -> None:
    narrow = schema_of(("id", "int"))
    uris = [
        stage("a.avro", avro_file(records([0]))),
        stage("b.avro", avro_file(records([1]), narrow)),
        stage("c.avro", avro_file(records([2]))),
    ]
    warehouse.insert_job(load_job("j1", *uris))
    assert warehouse.positions(TABLE, KafkaRange("t", 0, 0)) == {0: 1, 1: 1, 2: 1}


def test_jobs_can_be_queried(warehouse: DuckDbWarehouse, stage: Stage) -> None:
    uri = stage("a.avro", avro_file(records([0])))
    warehouse.insert_job(load_job("j1", uri))
    with warehouse.connect_readonly() as connection:
        rows = connection.execute(
            "SELECT job_id, state, \"table\", source_uris, output_rows, labels ->> 'kbq',"
            " created_at > now() - INTERVAL 1 HOUR FROM _kbq.kbq_jobs"
        ).fetchall()
    assert rows == [("j1", "DONE", "shop.orders-v1", [uri], 1, "test", True)]


def test_a_readonly_connection_cannot_write(warehouse: DuckDbWarehouse) -> None:
    with warehouse.connect_readonly() as connection, pytest.raises(duckdb.Error):
        connection.execute('DELETE FROM shop."orders-v1"')


def test_a_uri_of_another_store_is_refused(warehouse: DuckDbWarehouse) -> None:
    with pytest.raises(ConfigurationError, match="gs://bucket"):
        warehouse.insert_job(load_job("j1", "gs://bucket/a.avro"))


# Decimals


def _priced(precision: int, scale: int) -> str:
    price = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    line = {"type": "record", "name": "line", "fields": [{"name": "tax", "type": price}]}
    return schema_of(("price", price), ("lines", {"type": "array", "items": line}))


def _types(warehouse: DuckDbWarehouse) -> list[tuple[str]]:
    with duckdb.connect(str(warehouse.path), read_only=True) as connection:
        return connection.execute(
            "SELECT data_type FROM duckdb_columns() WHERE table_name = 'prices' AND column_name IN ('price', 'lines')"
            " ORDER BY column_name DESC"
        ).fetchall()


def _load_prices(
    warehouse: DuckDbWarehouse, stage: Stage, job: str, offset: int, digits: tuple[int, int]
) -> None:
    table, schema = TableReference("shop", "prices"), _priced(*digits)
    found = warehouse.find_table(table)
    change = plan_table_change(schema, found.columns if found else None)
    if found is None:
        warehouse.create_table(table, change.columns, TableOptions())
    elif change:
        warehouse.update_columns(table, change.columns)
    rows = [record(offset, price=Decimal("86.61"), lines=[{"tax": Decimal("1.5")}])]
    warehouse.insert_job(
        load_job(job, stage(f"{job}.avro", avro_file(rows, schema)), table=table, schema=schema)
    )
    assert warehouse.positions(table, KafkaRange("t", 0, 0)) == {at: 1 for at in range(offset + 1)}


def test_a_decimal_keeps_its_digits_and_widens_with_its_schema(path: Path, stage: Stage) -> None:
    warehouse = DuckDbWarehouse(path)
    _load_prices(warehouse, stage, "j1", 0, (12, 2))
    assert _types(warehouse) == [("DECIMAL(12,2)",), ("STRUCT(tax DECIMAL(12,2))[]",)]
    _load_prices(warehouse, stage, "j2", 1, (14, 3))
    _load_prices(warehouse, stage, "j3", 2, (12, 2))
    assert _types(warehouse) == [("DECIMAL(14,3)",), ("STRUCT(tax DECIMAL(14,3))[]",)]
    with duckdb.connect(str(path), read_only=True) as connection:
        rows = connection.execute("SELECT DISTINCT price, lines[1].tax FROM shop.prices").fetchall()
    assert rows == [(Decimal("86.61"), Decimal("1.5"))]


def test_a_table_of_an_earlier_release_keeps_its_decimals(path: Path, stage: Stage) -> None:
    warehouse = DuckDbWarehouse(path)
    _load_prices(warehouse, stage, "j1", 0, (38, 9))
    _load_prices(warehouse, stage, "j2", 1, (12, 2))
    assert _types(warehouse) == [("DECIMAL(38,9)",), ("STRUCT(tax DECIMAL(38,9))[]",)]


def test_a_row_older_than_its_list_equals_a_record_with_an_empty_one(
    warehouse: DuckDbWarehouse, stage: Stage
) -> None:
    warehouse.insert_job(load_job("j1", stage("a.avro", avro_file(records([0, 1])))))
    lists = json.loads(SCHEMA)
    lists["fields"].append({"name": "tags", "type": {"type": "array", "items": "long"}})
    grown = json.dumps(lists)
    warehouse.update_columns(TABLE, columns_of(grown))
    file = stage("b.avro", avro_file([record(0, tags=[]), record(1, tags=[7])], grown))
    job = load_job("j2", file, schema=grown)
    found = warehouse.compare(job, which=Comparable(null_lists=True))
    assert [(each.offset, each.columns) for each in found.differing] == [(1, ("tags",))]
