"""From Kafka to DuckDB: an upsert table shows the last record of each key."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from kbq_assets.core.errors import Unavailable
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.extras.reconcile.records import reconcile
from kbq_assets.pipelines.operate.commands import propose_reset, propose_resume_table
from kbq_assets.wire.chunk import encode_bytes, encode_long
from kbq_assets_tests.fakes.registry import FakeRegistry
from kbq_assets_tests.pipelines.bench import TOPIC, A
from kbq_assets_tests.pipelines.warehouse_bench import DuckDbBench

VALUES = "SELECT _kafka_key, x FROM d.A"
#: A record without fields.
EMPTY = struct.pack(">bI", 0, 1)
OPTIONS: dict[str, Any] = {
    "dataset": "d",
    "table": "A",
    "load": "upsert",
    "key": "_kafka_key",
    "keys": True,
    "tombstones": "row",
}


class UpsertBench(DuckDbBench):
    """With the records that were produced, by key."""

    def __init__(self, path: Path, **changes: Any) -> None:
        super().__init__(path, {**OPTIONS, **changes})
        self.last: dict[bytes, int | None] = {}

    def change(self, key: bytes, x: int | None, *, schema: int = 1, partition: int = 0) -> None:
        """Append a record, or a tombstone."""
        body = None
        if x is not None:
            body = struct.pack(">bI", 0, schema) + encode_long(x) + (b"\x00" if schema == 2 else b"")
        self.kafka.produce(TopicPartition(TOPIC, partition), body, key=key, timestamp=1000)
        self.last[key] = x

    def expected(self) -> dict[bytes, int]:
        return {key: x for key, x in self.last.items() if x is not None}


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_interleaved_schemas_tombstones_and_ranges_read_again_show_the_last_state(
    tmp_path: Path, seed: int
) -> None:
    chance, bench = random.Random(seed), UpsertBench(tmp_path)
    for _ in range(3):
        for number in range(12):
            key = b"k%d" % chance.randrange(6)
            x = None if chance.random() < 0.25 else number
            bench.change(key, x, schema=chance.choice([1, 2]), partition=key[-1] % 2)
        bench.cycle()
        assert dict(bench.rows(VALUES)) == bench.expected()
    assert len(bench.rows(VALUES)) == len(bench.expected())
    assert bench.duckdb.statements is not None
    assert bench.duckdb.statements.scratch_tables("d") == ()
    assert bench.duckdb.tables() == (A,)


@pytest.mark.parametrize("tombstones", ["skip", "row"])
def test_a_record_without_fields_is_no_tombstone(tmp_path: Path, tombstones: str) -> None:
    bench = UpsertBench(tmp_path, tombstones=tombstones)
    bench.registry = FakeRegistry({1: json.dumps({"type": "record", "name": "Cancelled", "fields": []})})
    for key, value in ((b"kept", EMPTY), (b"gone", EMPTY), (b"gone", None), (None, EMPTY)):
        bench.kafka.produce(TopicPartition(TOPIC, 0), value, key=key, timestamp=1000)
    bench.cycle()
    gone = [] if tombstones == "row" else [(b"gone",)]
    assert bench.rows("SELECT _kafka_key FROM d.A ORDER BY 1") == [*gone, (b"kept",), (None,)]
    bench.warehouse = bench.duckdb  # type: ignore[assignment]
    assert reconcile(bench.reconcile_ports()).verdict == "yes"


def test_a_column_in_snake_case_may_be_the_key_under_the_table_s_name_for_it(tmp_path: Path) -> None:
    """A tombstone has no `order_id`, so tombstones are skipped."""
    bench = UpsertBench(tmp_path, key="order_id", column_names="snake_case", tombstones="skip")
    fields = [{"name": "orderId", "type": "long"}, {"name": "newState", "type": "string"}]
    bench.registry = FakeRegistry({1: json.dumps({"type": "record", "name": "A", "fields": fields})})
    for order, state in ((1, "new"), (2, "new"), (1, "paid"), (2, "sent")):
        body = struct.pack(">bI", 0, 1) + encode_long(order) + encode_bytes(state.encode())
        bench.kafka.produce(TopicPartition(TOPIC, 0), body, key=b"k", timestamp=1000)
        if order == 2:
            bench.cycle()
    assert sorted(bench.rows("SELECT order_id, new_state FROM d.A")) == [(1, "paid"), (2, "sent")]


def test_an_appended_table_shows_last_states_from_the_next_batch_on(tmp_path: Path) -> None:
    bench = UpsertBench(tmp_path)
    for x in (1, 2, None):
        bench.change(b"gone", x)
        bench.change(b"kept", x or 3)
    bench.cycle(load="append", key="")
    assert len(bench.rows(VALUES)) == 6
    bench.cycle()  # the change is recorded
    bench.change(b"new", 4)
    bench.cycle()
    assert sorted(bench.rows(VALUES)) == [(b"kept", 3), (b"new", 4)]


@pytest.mark.parametrize("deletes", ["remove", "mark"])
def test_rows_that_were_appended_after_an_upsert_are_converted_when_upserts_go_on(
    tmp_path: Path, deletes: str
) -> None:
    """Otherwise a key would keep two rows for ever, and deleted rows would come back."""
    bench = UpsertBench(tmp_path, deletes=deletes)
    for key, x in ((b"new", 1), (b"gone", 2), (b"gone", None), (b"kept", 3)):
        bench.change(key, x)
    bench.cycle()
    appended = {"load": "append", "key": "", "deletes": "remove"}
    bench.cycle(**appended)
    bench.change(b"new", 4)
    bench.change(b"new", 5)
    bench.change(b"kept", None)
    bench.cycle(**appended)
    bench.cycle()
    assert len(bench.rows(f"{VALUES} WHERE _kafka_key = 'new'")) == 3
    bench.change(b"other", 6)
    bench.cycle()
    where = " WHERE NOT _kbq_deleted" if deletes == "mark" else ""
    assert sorted(bench.rows(VALUES + where)) == [(b"new", 5), (b"other", 6)]
    if deletes == "mark":
        assert sorted(bench.rows("SELECT _kafka_key FROM d.A WHERE _kbq_deleted")) == [(b"gone",), (b"kept",)]


def test_deleted_rows_may_stay_marked(tmp_path: Path) -> None:
    bench = UpsertBench(tmp_path, deletes="mark")
    bench.change(b"a", 1)
    bench.change(b"b", 2)
    bench.cycle()
    bench.change(b"a", None)
    bench.cycle()
    rows = bench.rows("SELECT _kafka_key, x, _kbq_deleted FROM d.A ORDER BY 1")
    assert rows == [(b"a", 1, True), (b"b", 2, False)]


def test_a_key_in_two_partitions_parks_the_table_and_timestamps_resume_it(tmp_path: Path) -> None:
    bench = UpsertBench(tmp_path)
    bench.change(b"a", 1)
    bench.cycle()
    bench.change(b"a", 2, partition=1)
    bench.cycle()
    parked = bench.table().parked
    assert parked is not None
    assert parked.reason == "statement_failed"
    assert "a key is in two partitions: 1:0 and 0:0" in parked.error
    assert bench.rows(VALUES) == [(b"a", 1)]
    propose_resume_table(bench.store, A).apply()
    bench.cycle(tie="timestamp")
    assert bench.rows(VALUES) == [(b"a", 2)]


def test_a_key_that_the_table_lacks_parks_its_table_alone_and_a_correction_goes_on(tmp_path: Path) -> None:
    bench = UpsertBench(tmp_path, tombstones="skip")
    bench.change(b"a", 1)
    [report] = bench.cycle(key="nothing").tables
    assert (report.state, "has no column nothing" in report.message) == ("parked", True)
    propose_resume_table(bench.store, A).apply()
    bench.cycle(key="x")
    assert bench.rows(VALUES) == [(b"a", 1)]


def test_a_key_whose_inferred_type_is_wrong_is_inferred_again_for_another_table(tmp_path: Path) -> None:
    bench = UpsertBench(
        tmp_path, format="json_columns", key="id", keys=False, tombstones="skip", error_share=1
    )
    values = iter((b'{"id":0.5}', b'{"id":1}', b'{"id":2}', b'{"id":1}'))
    bench.kafka.produce(TopicPartition(TOPIC, 0), next(values), key=None, timestamp=1000)
    [report] = bench.cycle().tables
    assert (report.state, "id has the type FLOAT64" in report.message) == ("parked", True)
    for value in values:
        bench.kafka.produce(TopicPartition(TOPIC, 0), value, key=None, timestamp=1000)
    bench.store.delete(f"shapes/{TOPIC}.json")
    propose_reset(bench.store, bench.kafka, TOPIC, give_up_pending=True).apply()
    bench.cycle(table="B")
    assert sorted(bench.rows("SELECT id FROM d.B")) == [(1,), (2,)]


@pytest.mark.parametrize(("first", "then"), [("remove", "mark"), ("mark", "remove")])
def test_an_effect_of_deletions_that_changes_parks_the_table_until_it_is_reverted(
    tmp_path: Path, first: str, then: str
) -> None:
    """Otherwise an older record brought a removed key back, or marked rows stayed as if they were not deleted."""
    bench = UpsertBench(tmp_path, deletes=first)
    bench.change(b"gone", 1)
    bench.change(b"gone", None)
    bench.cycle()
    bench.change(b"new", 2)
    [report] = bench.cycle(deletes=then).tables
    assert (report.state, f"deletes={first}, but" in report.message) == ("parked", True)
    propose_resume_table(bench.store, A).apply()
    bench.cycle(deletes=first)
    assert (b"new", 2) in bench.rows(VALUES)


def test_a_write_that_fails_leaves_the_batch_to_the_next_load(tmp_path: Path) -> None:
    bench = UpsertBench(tmp_path)
    bench.change(b"a", 1)
    statements = bench.duckdb.statements
    assert statements is not None

    class Full(type(statements)):  # type: ignore[misc]
        def insert(self, job: object) -> None:
            raise Unavailable("the disk is full", next_step="make room")

    statements.__class__ = Full
    bench.cycle()
    assert bench.rows(VALUES) == []
    statements.__class__ = Full.__mro__[1]
    bench.load_all()
    assert bench.rows(VALUES) == [(b"a", 1)]
