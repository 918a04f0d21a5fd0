"""Batches of files in DuckDB: every format, and the effect of BigQuery's keys."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import pyarrow as pa
import pytest
from pyarrow import orc, parquet

from kbq_assets.adapters.duckdb import DuckDbWarehouse
from kbq_assets.adapters.filebatches.duckdb import DuckDbFileLoads
from kbq_assets.adapters.local_store import LocalObjectStore
from kbq_assets.core.errors import ConfigurationError, JobAlreadyExists
from kbq_assets.core.filebatches.table_batches import FileTarget
from kbq_assets.ports.file_loads import FileJob
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.warehouse import JobStatus
from kbq_assets_tests.fakes.memory_store import FaultyMemoryStore

ROWS: list[dict[str, Any]] = [
    {"id": 1, "name": "a", "day": date(2020, 1, 2)},
    {"id": 2, "name": None, "day": date(2020, 1, 3)},
]
SCHEMA = {"fields": [{"name": "id", "type": "INT64", "mode": "REQUIRED"}, {"name": "name", "type": "STRING"},
                     {"name": "day", "type": "DATE"}]}  # fmt: skip
AVRO = {"type": "record", "name": "r", "fields": [
    {"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
]}  # fmt: skip

#: A load of CSV files with a line of names, whose columns DuckDB finds.
CSV_FOUND: dict[str, Any] = {"sourceFormat": "CSV", "autodetect": True, "skipLeadingRows": 1}


def as_csv(rows: list[dict[str, Any]]) -> bytes:
    return "".join(f"{r['id']},{r['name'] or ''},{r['day']}\n" for r in rows).encode()


def as_json(rows: list[dict[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(row, default=str)}\n" for row in rows).encode()


def as_avro(rows: list[dict[str, Any]]) -> bytes:
    stream = io.BytesIO()
    fastavro.writer(stream, AVRO, rows)
    return stream.getvalue()


def written(write: Callable[[pa.Table, Any], None]) -> Callable[[list[dict[str, Any]]], bytes]:
    def encode(rows: list[dict[str, Any]]) -> bytes:
        stream = pa.BufferOutputStream()
        types = {"id": pa.int64(), "name": pa.string(), "day": pa.date32(), "extra": pa.int64()}
        schema = pa.schema([(name, types[name]) for name in rows[0]])
        write(pa.Table.from_pylist(rows, schema), stream)
        data: bytes = stream.getvalue().to_pybytes()
        return data

    return encode


FORMATS: Mapping[str, Callable[[list[dict[str, Any]]], bytes]] = {
    "CSV": as_csv,
    "NEWLINE_DELIMITED_JSON": as_json,
    "AVRO": as_avro,
    "PARQUET": written(parquet.write_table),
    "ORC": written(orc.write_table),
}


class Warehouse:
    """A DuckDB file, and a source of batches."""

    def __init__(self, folder: Path, source: ObjectStore) -> None:
        self.source = source
        self.jobs = DuckDbWarehouse(folder / "warehouse.duckdb")
        self.loads = DuckDbFileLoads(folder / "warehouse.duckdb", source)
        self._number = 0

    def put(self, path: str, data: bytes) -> tuple[str, int]:
        self.source.create(path, data)
        return self.source.uri(path), len(data)

    def load(self, *files: tuple[str, int], **config: Any) -> JobStatus:
        self._number += 1
        decorator = config.pop("decorator", "")
        keys = {"sourceFormat": "CSV", "writeDisposition": "WRITE_APPEND", **config}
        self.loads.check(keys, "")
        job_id = f"kbq-u-{self._number}"
        self.loads.insert(
            FileJob(job_id, "local", "local", FileTarget("d", "t", decorator), dict(files), keys)
        )
        found = self.jobs.get_job(job_id, "local", "local")
        assert found is not None and found.state == "DONE"
        assert set(found.source_uris) == {uri for uri, _ in files}
        return found

    def rows(self, sql: str = "SELECT id, name, day FROM d.t ORDER BY ALL") -> list[tuple[Any, ...]]:
        with self.jobs.connect_readonly() as connection:
            return connection.execute(sql).fetchall()


@pytest.fixture(params=["folder", "bucket"])
def any_warehouse(request: pytest.FixtureRequest, tmp_path: Path) -> Warehouse:
    in_folder = request.param == "folder"
    return Warehouse(
        tmp_path, LocalObjectStore(tmp_path / "s", durable=False) if in_folder else FaultyMemoryStore()
    )


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(tmp_path, FaultyMemoryStore())


EXPECTED = [tuple(row.values()) for row in ROWS]


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_each_format_makes_and_fills_its_table(any_warehouse: Warehouse, form: str) -> None:
    files = [any_warehouse.put(f"d/t/{n}", FORMATS[form]([row])) for n, row in enumerate(ROWS)]
    done = any_warehouse.load(*files, sourceFormat=form, schema=SCHEMA)
    assert (done.error, done.output_rows) == (None, 2)
    assert any_warehouse.rows() == EXPECTED


@pytest.mark.parametrize(
    ("form", "before", "after"),
    [
        ("AVRO", b'"record"', b'"vecord"'),
        ("AVRO", b"Obj", b"obj"),
        ("ORC", b"ORC", b""),
        ("PARQUET", b"\x15", b"\xff"),
        ("PARQUET", b"PAR1", b""),
        ("CSV", b",", b"\xff\x00"),
        ("NEWLINE_DELIMITED_JSON", b"{", b"["),
    ],
)
def test_a_damaged_file_fails_its_batch_for_good_and_leaves_no_row(
    warehouse: Warehouse, form: str, before: bytes, after: bytes
) -> None:
    good = warehouse.put("d/t/good", FORMATS[form](ROWS))
    assert warehouse.load(good, sourceFormat=form, schema=SCHEMA).error is None
    bad = warehouse.put("d/t/bad", FORMATS[form](ROWS).replace(before, after))
    error = warehouse.load(good, bad, sourceFormat=form, schema=SCHEMA).error
    assert error is not None
    assert (error.transient, bool(error.message)) == (False, True)
    assert warehouse.rows() == EXPECTED


def zstandard(data: bytes) -> bytes:
    stream = pa.BufferOutputStream()
    with pa.CompressedOutputStream(stream, "zstd") as compressed:
        compressed.write(data)
    packed: bytes = stream.getvalue().to_pybytes()
    return packed


def zipped(data: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("1.csv", data)
    return stream.getvalue()


def with_another_checksum(data: bytes) -> bytes:
    return data[:-8] + bytes([data[-8] ^ 1]) + data[-7:]


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("1.csv", gzip.compress),
        ("1", zstandard),
        ("1.csv", zipped),
        ("1.zip", zipped),
        ("1.gz", lambda data: data),
        ("1.gz", lambda data: with_another_checksum(gzip.compress(data))),
        ("1.gz", lambda data: gzip.compress(data)[:-9]),
        ("1.zst", lambda data: zstandard(data)[:-20]),
    ],
)
def test_a_file_whose_name_hides_how_it_is_compressed_or_that_is_damaged_fails_its_batch(
    warehouse: Warehouse, name: str, damage: Callable[[bytes], bytes]
) -> None:
    assert warehouse.load(warehouse.put("d/t/good.csv", as_csv(ROWS)), schema=SCHEMA).error is None
    bad = warehouse.put(f"d/t/bad/{name}", damage(b"id,name,day\n" + as_csv(ROWS) * 20))
    error = warehouse.load(bad, schema=SCHEMA, skipLeadingRows=1).error
    assert error is not None and f"d/t/bad/{name}" in error.message
    assert not error.transient
    assert warehouse.rows() == EXPECTED


@pytest.mark.parametrize("form", ["CSV", "NEWLINE_DELIMITED_JSON"])
def test_compressed_files_beside_plain_ones(any_warehouse: Warehouse, form: str) -> None:
    files = [
        any_warehouse.put("d/t/1.gz", gzip.compress(FORMATS[form](ROWS[:1]))),
        any_warehouse.put("d/t/2.zst", zstandard(FORMATS[form](ROWS[1:]))),
        any_warehouse.put("d/t/3", FORMATS[form](ROWS[:1])),
    ]
    assert any_warehouse.load(*files, sourceFormat=form, schema=SCHEMA).error is None
    assert any_warehouse.rows() == [EXPECTED[0], *EXPECTED]


@pytest.mark.parametrize("form", ["AVRO", "PARQUET"])
def test_formats_that_name_their_columns_need_no_schema(warehouse: Warehouse, form: str) -> None:
    assert warehouse.load(warehouse.put("d/t/1", FORMATS[form](ROWS)), sourceFormat=form).error is None
    assert warehouse.load(warehouse.put("d/t/2", FORMATS[form](ROWS)), sourceFormat=form).error is None
    assert warehouse.rows() == sorted(EXPECTED * 2, key=lambda row: row[0])


def test_csv_without_table_and_schema_says_what_is_missing(warehouse: Warehouse) -> None:
    error = warehouse.load(warehouse.put("d/t/1", as_csv(ROWS))).error
    assert error is not None and "schema or autodetect" in error.message and not error.transient
    header = b"id,name,day\n" + as_csv(ROWS)
    assert warehouse.load(warehouse.put("d/t/2", header), autodetect=True, skipLeadingRows=1).error is None
    assert warehouse.rows() == EXPECTED


@pytest.mark.parametrize("schema", [None, SCHEMA])
@pytest.mark.parametrize("bad", [b"x,a,2020-01-02\n", b"1,a,2020-01-02,4\n"])
def test_the_error_of_a_csv_file_names_the_file_and_no_option_of_duckdb(
    warehouse: Warehouse, schema: dict[str, Any] | None, bad: bytes
) -> None:
    header = b"id,name,day\n"
    assert warehouse.load(warehouse.put("d/t/1", header + as_csv(ROWS)), **CSV_FOUND).error is None
    config = {**CSV_FOUND, **({"schema": schema} if schema else {})}
    error = warehouse.load(warehouse.put("d/t/2", header + as_csv(ROWS) + bad), **config).error
    assert error is not None and "d/t/2" in error.message, error
    for noise in ("Possible", "read_csv", "sample_size", "strict_mode", "Candidates"):
        assert noise not in error.message
    assert error.message.count("\n") <= 5


def test_options_of_csv(warehouse: Warehouse) -> None:
    data = b"# by hand\nid|name|day\n1|'a|b'|2020-01-02\n2|NULL|NULL\n3\n"
    options = {
        "fieldDelimiter": "|",
        "quote": "'",
        "nullMarker": "NULL",
        "skipLeadingRows": 2,
        "allowJaggedRows": True,
    }
    assert warehouse.load(warehouse.put("d/t/1", data), schema=SCHEMA, **options).error is None
    assert warehouse.rows() == [(1, "a|b", date(2020, 1, 2)), (2, None, None), (3, None, None)]


def test_a_bad_row_fails_the_whole_batch(warehouse: Warehouse) -> None:
    good, bad = warehouse.put("d/t/1", as_csv(ROWS)), warehouse.put("d/t/2", b"x,a,2020-01-02\n")
    error = warehouse.load(good, bad, schema=SCHEMA).error
    assert error is not None and not error.transient
    assert warehouse.load(good, schema=SCHEMA).error is None
    assert len(warehouse.rows()) == 2


def test_a_field_that_the_table_lacks_is_no_silent_loss(warehouse: Warehouse) -> None:
    file = warehouse.put("d/t/1", b'{"id": 1, "nmae": "a"}\n')
    error = warehouse.load(file, sourceFormat="NEWLINE_DELIMITED_JSON", schema=SCHEMA).error
    assert error is not None and "nmae" in error.message
    more: dict[str, Any] = {
        "sourceFormat": "NEWLINE_DELIMITED_JSON",
        "schema": SCHEMA,
        "ignoreUnknownValues": True,
    }
    assert warehouse.load(file, **more).error is None
    warehouse.load(
        warehouse.put("d/t/2", FORMATS["PARQUET"]([{"id": 2, "extra": 1}])), sourceFormat="PARQUET"
    )
    assert warehouse.rows("SELECT id FROM d.t") == [(1,)]


def test_write_dispositions(warehouse: Warehouse) -> None:
    first, second = warehouse.put("d/t/1", as_csv(ROWS[:1])), warehouse.put("d/t/2", as_csv(ROWS[1:]))
    warehouse.load(first, schema=SCHEMA)
    refused = warehouse.load(second, writeDisposition="WRITE_EMPTY").error
    assert refused is not None and "has rows" in refused.message
    assert warehouse.load(second, writeDisposition="WRITE_TRUNCATE").error is None
    assert warehouse.rows() == EXPECTED[1:]
    never = warehouse.load(second, createDisposition="CREATE_NEVER")
    assert never.error is None


def test_a_decorator_replaces_its_partition_alone_and_takes_no_other_rows(warehouse: Warehouse) -> None:
    by_day: dict[str, Any] = {"timePartitioning": {"type": "DAY", "field": "day"}}
    warehouse.load(warehouse.put("d/t/1", as_csv(ROWS)), schema=SCHEMA, **by_day)
    new = warehouse.put("d/t/2", b"9,new,2020-01-02\n")
    replaced = warehouse.load(new, decorator="$20200102", writeDisposition="WRITE_TRUNCATE", **by_day)
    assert replaced.error is None
    assert [row[0] for row in warehouse.rows()] == [2, 9]
    other = warehouse.load(new, decorator="$20200103", **by_day).error
    assert other is not None and "not belong to the partition" in other.message
    unknown = warehouse.load(new, decorator="$20200103", writeDisposition="WRITE_TRUNCATE").error
    assert unknown is not None and "timePartitioning.field" in unknown.message
    assert warehouse.load(new, decorator="$20200102").error is None


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ({"mode": "AUTO"}, [(1, date(2020, 1, 2), 7), (2, date(2020, 1, 3), 7)]),
        (
            {"mode": "CUSTOM", "sourceUriPrefix": "gs://b/d/t/{dt:DATE}/{n:STRING}"},
            [(1, date(2020, 1, 2), "7"), (2, date(2020, 1, 3), "7")],
        ),
    ],
)
@pytest.mark.parametrize("form", ["AVRO", "CSV"])
def test_hive_directories_become_columns(
    any_warehouse: Warehouse, form: str, mode: dict[str, str], expected: list[tuple[Any, ...]]
) -> None:
    files = [
        any_warehouse.put(f"d/t/dt={day}/n=7/x", FORMATS[form]([row]))
        for day, row in zip(("2020-01-02", "2020-01-03"), ROWS, strict=True)
    ]
    schema: dict[str, Any] = {"schema": SCHEMA} if form == "CSV" else {}
    done = any_warehouse.load(*files, sourceFormat=form, hivePartitioningOptions=mode, **schema)
    assert done.error is None
    assert any_warehouse.rows("SELECT id, dt, n FROM d.t ORDER BY 1") == expected


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_directories_with_values_are_not_columns_unless_asked(any_warehouse: Warehouse, form: str) -> None:
    file = any_warehouse.put("d/t/name=b/n=7/x", FORMATS[form]([ROWS[1]]))
    assert any_warehouse.load(file, sourceFormat=form, schema=SCHEMA).error is None
    assert any_warehouse.rows("FROM d.t") == [EXPECTED[1]]


@pytest.mark.parametrize("name", ["part[1]", "part?", "p*", "[p]art1"])
@pytest.mark.parametrize("form", sorted(FORMATS))
def test_a_files_name_is_no_pattern(any_warehouse: Warehouse, form: str, name: str) -> None:
    files = [
        any_warehouse.put(f"d/t/{each}", FORMATS[form]([row]))
        for each, row in zip(("part1", name), ROWS, strict=True)
    ]
    assert any_warehouse.load(*files, sourceFormat=form, schema=SCHEMA).error is None
    assert any_warehouse.rows() == EXPECTED


def test_files_in_unlike_directories_are_refused(warehouse: Warehouse) -> None:
    files = [warehouse.put("d/t/dt=2020-01-02/x", as_csv(ROWS)), warehouse.put("d/t/y", as_csv(ROWS))]
    error = warehouse.load(*files, schema=SCHEMA, hivePartitioningOptions={}).error
    assert error is not None and "hive keys" in error.message


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"schemaUpdateOptions": ["ALLOW_FIELD_ADDITION"]}, "schemaUpdateOptions"),
        ({"maxBadRecords": 3}, "maxBadRecords"),
        ({"sourceFormat": "PARQUET", "fieldDelimiter": ";"}, "fieldDelimiter"),
        ({"encoding": "UTF-16LE"}, "UTF-16LE"),
        ({"hivePartitioningOptions": {"mode": "X"}}, "X"),
        ({"hivePartitioningOptions": {"fields": []}}, "fields"),
        ({"hivePartitioningOptions": {"mode": "CUSTOM"}}, "CUSTOM"),
    ],
)
def test_a_key_that_duckdb_does_not_honor_is_refused_by_name(
    warehouse: Warehouse, config: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigurationError, match=named):
        warehouse.loads.check({"sourceFormat": "CSV", **config}, "")


def test_a_file_that_is_gone_or_another_one_fails_its_job(warehouse: Warehouse) -> None:
    uri, size = warehouse.put("d/t/1", as_csv(ROWS))
    gone = warehouse.load((uri.replace("/1", "/2"), 3), schema=SCHEMA).error
    assert gone is not None and gone.reason == "notFound"
    other = warehouse.load((uri, size + 1), schema=SCHEMA).error
    assert other is not None and "bytes" in other.message


@pytest.mark.parametrize("form", ["AVRO", "ORC", "PARQUET"])
def test_a_damaged_file_fails_its_job_for_good(warehouse: Warehouse, form: str) -> None:
    error = warehouse.load(warehouse.put("d/t/1", b"nonsense"), sourceFormat=form, schema=SCHEMA).error
    assert error is not None and not error.transient


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_a_row_that_the_table_refuses_fails_its_job_for_good(warehouse: Warehouse, form: str) -> None:
    warehouse.load(warehouse.put("d/t/1", FORMATS[form](ROWS[:1])), sourceFormat=form, schema=SCHEMA)
    with duckdb.connect(warehouse.jobs.path) as connection:
        connection.execute("CREATE UNIQUE INDEX one ON d.t (id)")
    error = warehouse.load(warehouse.put("d/t/2", FORMATS[form](ROWS[:1])), sourceFormat=form).error
    assert error is not None and not error.transient
    assert "unique" in error.message
    assert warehouse.rows() == EXPECTED[:1]


def test_a_job_id_runs_once(warehouse: Warehouse) -> None:
    file = warehouse.put("d/t/1", as_csv(ROWS))
    warehouse.load(file, schema=SCHEMA)
    again = FileJob("kbq-u-1", "local", "local", FileTarget("d", "t"), dict([file]), {"sourceFormat": "CSV"})
    with pytest.raises(JobAlreadyExists):
        warehouse.loads.insert(again)
    assert len(warehouse.rows()) == 2


# Statements

MERGE = """
MERGE INTO {dest_dataset}.{dest_table} AS t USING temp_ext AS s ON t.id = s.id
WHEN MATCHED THEN UPDATE SET name = s.name
WHEN NOT MATCHED THEN INSERT (id, name, day) VALUES (s.id, s.name, s.day)
"""


def statement(
    warehouse: Warehouse, sql: str, *files: tuple[str, int], zero: bool = True, **config: Any
) -> JobStatus:
    warehouse.loads.check(config, sql)
    job_id = f"kbq-s-{len(sql)}-{len(files)}-{files[0][0]}"
    target = FileTarget("d", "t", "$20200102")
    job = FileJob(job_id, "local", "local", target, dict(files), config, sql, "digest", zero)
    warehouse.loads.insert(job)
    found = warehouse.jobs.get_job(job_id, "local", "local")
    assert found is not None and found.source_uris == ("(statement)",) and found.statement == "digest"
    return found


@pytest.mark.parametrize("form", ["AVRO", "CSV", "ORC", "PARQUET"])
def test_a_statement_applies_a_batch_of_each_format(warehouse: Warehouse, form: str) -> None:
    warehouse.load(warehouse.put("d/t/1", as_csv(ROWS[:1])), schema=SCHEMA)
    new = [{**ROWS[0], "name": "new"}, ROWS[1]]
    files = [warehouse.put(f"d/t/x{n}", FORMATS[form]([row])) for n, row in enumerate(new)]
    own: dict[str, Any] = {"schema": SCHEMA, "csvOptions": {"nullMarker": ""}} if form == "CSV" else {}
    own = own or ({"schema": SCHEMA} if form == "NEWLINE_DELIMITED_JSON" else {})
    done = statement(warehouse, MERGE, *files, sourceFormat=form, **own)
    assert (done.error, done.output_rows) == (None, 2)
    assert warehouse.rows() == [tuple(row.values()) for row in new]


def test_a_statement_and_its_job_take_effect_together_or_not_at_all(warehouse: Warehouse) -> None:
    warehouse.load(warehouse.put("d/t/1", as_csv(ROWS)), schema=SCHEMA)
    file = warehouse.put("d/t/2", FORMATS["PARQUET"](ROWS))
    for bad in (
        "DELETE FROM d.t; SELECT nothing FROM temp_ext",
        "DELETE FROM d.t; COMMIT",
        "DELETE FROM d.t; UPDATE d.t SET id = 1 WHERE id = 99",
    ):
        error = statement(warehouse, bad, file, sourceFormat="PARQUET").error
        assert error is not None and not error.transient
        assert warehouse.rows() == EXPECTED


def test_zero_rows_are_a_failure_unless_they_are_wanted(warehouse: Warehouse) -> None:
    warehouse.load(warehouse.put("d/t/1", as_csv(ROWS)), schema=SCHEMA)
    file = warehouse.put("d/t/2", FORMATS["PARQUET"](ROWS))
    nothing = "UPDATE {dest_dataset}.{dest_table} SET id = 1 WHERE id = 99"
    error = statement(warehouse, nothing, file, sourceFormat="PARQUET").error
    assert error is not None and "changed no row" in error.message
    fine = statement(warehouse, f"{nothing} ", file, zero=False, sourceFormat="PARQUET")
    assert (fine.error, fine.output_rows) == (None, 0)


def test_a_statement_sees_hive_columns(warehouse: Warehouse) -> None:
    warehouse.load(warehouse.put("d/t/1", as_csv(ROWS)), schema=SCHEMA)
    files = [
        warehouse.put(f"d/t/n={n}/x", FORMATS["AVRO"]([{**row, "id": 7}])) for n, row in enumerate(ROWS, 10)
    ]
    sql = "INSERT INTO {dest_dataset}.{dest_table} BY NAME SELECT n AS id, name, day FROM temp_ext"
    done = statement(warehouse, sql, *files, sourceFormat="AVRO", hivePartitioningOptions={"mode": "AUTO"})
    assert done.error is None
    assert [row[0] for row in warehouse.rows()] == [1, 2, 10, 11]


def test_a_key_of_an_external_table_that_duckdb_does_not_honor_is_refused(warehouse: Warehouse) -> None:
    with pytest.raises(ConfigurationError, match="maxBadRecords"):
        warehouse.loads.check({"sourceFormat": "CSV", "maxBadRecords": 1}, "SELECT 1")
    with pytest.raises(ConfigurationError, match="unknown"):
        warehouse.loads.check({"sourceFormat": "CSV", "csvOptions": {"unknown": 1}}, "SELECT 1")
