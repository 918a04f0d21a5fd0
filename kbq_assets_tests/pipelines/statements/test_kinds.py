"""Each kind of statement, from Kafka to DuckDB: the table equals what Python computes, whatever dies."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.pipelines.operate.commands import StartAt, propose_reset, propose_resume_table
from kbq_assets.wire.chunk import encode_bytes, encode_long
from kbq_assets_tests.pipelines.bench import TOPIC, A
from kbq_assets_tests.pipelines.statements.kinds import KINDS, UPSERT, Check, Record, random_records
from kbq_assets_tests.pipelines.warehouse_bench import DuckDbBench
from kbq_assets_tests.sizes import EVERY_NTH_STATEMENT_POINT

DAY_MS = 86_400_000
_LONG = ["null", "long"]
_FIELDS: list[dict[str, Any]] = [
    {"name": "id", "type": _LONG},
    {"name": "v", "type": _LONG},
    {"name": "n", "type": "long"},
]


def _body(record: Record) -> bytes:
    return struct.pack(">bI", 0, 1) + _optional(record.id) + _optional(record.v) + encode_long(record.n)


def _optional(value: int | None) -> bytes:
    return b"\x00" if value is None else b"\x02" + encode_long(value)


class KindBench(DuckDbBench):
    """With what was produced."""

    def __init__(self, path: Path, options: dict[str, Any]) -> None:
        super().__init__(path, {"dataset": "d", "table": "A", **options})
        self.registry.schemas = {1: json.dumps({"type": "record", "name": "A", "fields": _FIELDS})}
        self.records: list[Record] = []

    def put(self, id: int | None, v: int | None = None, day: int = 0) -> None:
        record = Record(len(self.records), id, v, day)
        self.records.append(record)
        partition = 0 if id is None else id % 2
        self.kafka.produce(TopicPartition(TOPIC, partition), _body(record), timestamp=day * DAY_MS)

    def put_some(self, seed: int, count: int) -> None:
        """Random records: few keys and versions, so that they meet; some lack one."""
        for record in random_records(random.Random(seed), count):
            self.put(record.id, record.v, record.day)

    def found(self) -> list[int]:
        """What identifies the records in the table."""
        return sorted(n for (n,) in self.rows("SELECT n FROM d.A"))


KILLED = {**KINDS, "upsert": UPSERT}


@pytest.mark.parametrize(
    ("options", "check"),
    [
        pytest.param(*case, id=name, marks=[] if name in ("upsert", "replace") else [pytest.mark.thorough])
        for name, case in KILLED.items()
    ],
)
def test_a_load_that_dies_anywhere_applies_each_batch_once(
    tmp_path: Path, options: dict[str, Any], check: Check
) -> None:
    counted = _prepared(tmp_path / "counted", options)
    points, failed = counted.load_until(0), []
    check(counted.records, counted.found())
    assert points > 60
    kind = [each for each, _ in KILLED.values()].index(options)
    first = kind * min(EVERY_NTH_STATEMENT_POINT, points) // len(KILLED)
    for point in range(1 + first, points + 1, EVERY_NTH_STATEMENT_POINT):
        bench = _prepared(tmp_path / str(point), options)
        bench.load_until(point)
        bench.load_all()
        try:
            check(bench.records, bench.found())
            assert bench.table().in_flight is None
        except AssertionError as error:
            failed.append(f"{point} of {points}: {error}")
    assert not failed, "\n".join(failed)


def _prepared(folder: Path, options: dict[str, Any]) -> KindBench:
    """Two batches, one of which is applied."""
    folder.mkdir()
    bench = KindBench(folder, options)
    bench.put_some(7, 6)
    bench.cycle()
    bench.put_some(8, 6)
    bench.extract()
    return bench


def test_a_version_that_the_table_lacks_parks_its_table_alone_and_a_correction_goes_on(
    tmp_path: Path,
) -> None:
    bench = KindBench(tmp_path, KINDS["delete_insert"][0])
    bench.put(1, 1)
    [report] = bench.cycle(version="nothing").tables
    assert (report.state, "no column nothing, but its version names it" in report.message) == ("parked", True)
    propose_resume_table(bench.store, A).apply()
    bench.cycle()
    assert bench.found() == [0]


def test_sql_that_the_warehouse_would_read_differently_is_not_run_and_a_correction_goes_on(
    tmp_path: Path,
) -> None:
    bench = KindBench(tmp_path, KINDS["sql"][0])
    bench.put(1)
    [report] = bench.cycle(sql=KINDS["sql"][0]["sql"] + r"; SELECT 'it\'; DROP TABLE d.A; --'").tables
    assert (report.state, "a statement begins with DROP" in report.message) == ("parked", True)
    bench.put(2)
    propose_resume_table(bench.store, A).apply()
    bench.cycle(order="offset")
    assert bench.found() == [0, 1]


@pytest.mark.parametrize(
    ("kind", "field", "shown"), [("upsert", "id", [(2,)]), ("delete_insert", "v", [(1,), (2,)])]
)
def test_a_key_or_version_of_another_type_parks_its_table_and_another_table_takes_the_records(
    tmp_path: Path, kind: str, field: str, shown: list[tuple[int]]
) -> None:
    """In variant columns, rows of one key would be doubled, and newer versions ignored."""
    bench = KindBench(tmp_path, {**KILLED[kind][0], "on_incompatible": "variant_column"})
    fields = [{**each, "type": ["null", "string"]} if each["name"] == field else each for each in _FIELDS]
    bench.registry.schemas[2] = json.dumps({"type": "record", "name": "A", "fields": fields})
    bench.put(1, 1)
    bench.cycle()
    values = {"id": _optional(1), "v": _optional(2)} | {field: b"\x02" + encode_bytes(b"7")}
    for n in (b"\x02", b"\x04"):
        value = struct.pack(">bI", 0, 2) + values["id"] + values["v"] + n
        bench.kafka.produce(TopicPartition(TOPIC, 1), value, timestamp=0)
    [report] = bench.cycle().tables
    assert (report.state, f"{field}__string instead of {field}" in report.message) == ("parked", True)
    propose_reset(bench.store, bench.kafka, TOPIC, 1, StartAt("offset", 1), give_up_pending=True).apply()
    bench.cycle(table="B")
    assert (bench.found(), sorted(bench.rows("SELECT n FROM d.B"))) == ([0], shown)
    propose_resume_table(bench.store, A).apply()
    bench.load_all()
    assert bench.table().parked is None


@pytest.mark.parametrize(
    ("options", "named"),
    [({"version": "v"}, "v has the type INT64"), ({"key": "id", "load": "scd2"}, "a column valid_to")],
)
def test_a_history_that_cannot_be_written_parks_its_table_alone(
    tmp_path: Path, options: dict[str, Any], named: str
) -> None:
    bench = KindBench(tmp_path, {**KINDS["scd2"][0], **options})
    if "version" not in options:
        field = {"name": "valid_to", "type": _LONG, "default": None}
        schema = {"type": "record", "name": "A", "fields": [*_FIELDS[:2], field]}
        bench.registry.schemas = {1: json.dumps(schema)}
        bench.kafka.produce(TopicPartition(TOPIC, 0), struct.pack(">bI", 0, 1) + b"\x00\x00\x00")
    else:
        bench.put(1, 1)
    [report] = bench.cycle().tables
    assert (report.state, named in report.message) == ("parked", True)


def test_a_statement_that_fails_parks_its_table_and_a_resume_applies_its_batch(tmp_path: Path) -> None:
    bench = KindBench(tmp_path, KINDS["delete_insert"][0])
    bench.put(1, 1)
    bench.cycle()
    with bench.duckdb._writing() as connection:
        connection.execute("ALTER TABLE d.A RENAME TO B")
        connection.execute("CREATE VIEW d.A AS FROM d.B")
    bench.put(1, 2)
    bench.cycle()
    parked = bench.table().parked
    assert parked is not None
    with bench.duckdb._writing() as connection:
        connection.execute("DROP VIEW d.A")
        connection.execute("ALTER TABLE d.B RENAME TO A")
    propose_resume_table(bench.store, A).apply()
    bench.load_all()
    assert bench.found() == [1]


def test_a_tombstone_closes_the_row_of_its_key_and_a_later_record_begins_another(tmp_path: Path) -> None:
    bench = KindBench(tmp_path, {"load": "scd2", "key": "_kafka_key", "keys": True, "tombstones": "row"})

    def put(key: bytes, n: int | None, day: int) -> None:
        body = None if n is None else _body(Record(n, 1, None, day))
        bench.kafka.produce(TopicPartition(TOPIC, 0), body, key=key, timestamp=day * DAY_MS)

    put(b"a", 1, 1)
    put(b"b", 2, 1)
    bench.cycle(tombstones="skip")
    put(b"a", None, 5)
    bench.cycle()
    put(b"a", 3, 3)
    put(b"a", 4, 7)
    bench.cycle()
    sql = "SELECT n, day(valid_from) - 1, day(valid_to) - 1, COALESCE(_kbq_deleted, FALSE) FROM d.A ORDER BY 2, 1"
    assert bench.rows(sql) == [
        (1, 1, 3, False), (2, 1, None, False), (3, 3, 5, False), (None, 5, 5, True), (4, 7, None, False),
    ]  # fmt: skip
    current = "valid_from <= '1970-01-07' AND (valid_to > '1970-01-07' OR valid_to IS NULL)"
    assert bench.rows(f"SELECT n FROM d.A WHERE {current} ORDER BY 1") == [(2,)]
