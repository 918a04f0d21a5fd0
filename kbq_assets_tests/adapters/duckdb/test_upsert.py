"""The text of an upsert, run by DuckDB, shows the newest record of each key, whatever the order of its batches."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import duckdb
import pytest

from kbq_assets.adapters.duckdb.types import definition
from kbq_assets.core.loading.tables import Column
from kbq_assets.core.statements.dialects import DUCKDB
from kbq_assets.core.statements.rules import DELETED, MARK, TIMESTAMP, StatementRule
from kbq_assets.core.statements.table_statements import SCRATCH
from kbq_assets.core.statements.upsert import TWO_PARTITIONS, Upsert, deleted_columns, upsert_sql
from kbq_assets_tests.sizes import thinned

COLUMNS = (
    Column("id", "INT64"),
    Column("value", "STRING"),
    Column("tags", "STRING", "REPEATED"),
    Column("_kafka_topic", "STRING"),
    Column("_kafka_partition", "INT64"),
    Column("_kafka_offset", "INT64"),
    Column("_kafka_timestamp", "TIMESTAMP"),
    Column("_kafka_key", "BYTES"),
    Column("_kbq_epoch", "INT64"),
)
KEY = (Column("_kafka_key", "BYTES"),)
RULE = StatementRule("upsert", ("_kafka_key",))


@dataclass(frozen=True)
class Record:
    """A record; without a value it is a tombstone."""

    key: bytes | None
    value: str | None
    offset: int
    partition: int = 0
    epoch: int = 0
    time: int = 0
    topic: str = "t"

    @property
    def row(self) -> tuple[object, ...]:
        time = f"2026-01-01 00:{self.time // 60:02}:{self.time % 60:02}+00"
        own = (self.topic, self.partition, self.offset, time, self.key, self.epoch)
        return (None if self.value is None else self.offset, self.value, [], *own)


class Table:
    """A table with its scratch table and its deleted keys, in memory."""

    def __init__(self, rule: StatementRule = RULE) -> None:
        self.rule = rule
        marks = (Column(DELETED, "BOOL"),) if rule.deletes == MARK else ()
        self.columns = (*COLUMNS, *marks)
        self.connection = duckdb.connect()
        for name, columns in (("t", self.columns), ("b", self.columns), ("d", deleted_columns(KEY))):
            self.connection.execute(f"CREATE TABLE {name} ({', '.join(map(definition, columns))})")

    def insert(self, name: str, records: list[Record]) -> None:
        listed = ", ".join(f'"{column.name}"' for column in COLUMNS)
        values = ", ".join("?" for _ in COLUMNS)
        for record in records:
            self.connection.execute(f"INSERT INTO {name} ({listed}) VALUES ({values})", record.row)

    def apply(self, records: list[Record], *, converts: bool = False) -> None:
        """One batch: of tombstones, or of records with values (E8)."""
        tombstones = {record.value is None for record in records} == {True}
        upsert = Upsert(DUCKDB, self.rule, "t", "d", self.columns, tombstones=tombstones, converts=converts)
        self.connection.execute("BEGIN; TRUNCATE b")
        try:
            self.insert("b", records)
            self.connection.execute(upsert_sql(upsert).replace(SCRATCH, "b"))
        except duckdb.Error:
            self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")

    @property
    def values(self) -> dict[bytes | None, str | None]:
        shown = f"WHERE NOT {DELETED}" if self.rule.deletes == MARK else ""
        rows = self.connection.execute(f"SELECT _kafka_key, value FROM t {shown}").fetchall()
        assert len(dict(rows)) == len(rows)
        return dict(rows)


def last_state(records: list[Record]) -> dict[bytes | None, str | None]:
    """What the topic says last of each key."""
    newest: dict[bytes | None, Record] = {}
    for record in sorted(records, key=lambda r: (r.epoch, r.offset)):
        newest[record.key] = record
    return {key: record.value for key, record in newest.items() if record.value is not None}


def batches_of(records: list[Record], chance: random.Random) -> list[list[Record]]:
    """The records in batches of any order, with ranges that are read again; tombstones apart."""
    again = [r for r in records if chance.random() < 0.3]
    mixed = [*records, *again]
    chance.shuffle(mixed)
    found: list[list[Record]] = []
    while mixed:
        size = chance.randint(1, 6)
        part, mixed = list(dict.fromkeys(mixed[:size])), mixed[size:]
        kinds = ([r for r in part if r.value is None], [r for r in part if r.value is not None])
        found.extend(kind for kind in kinds if kind)
    return found


CHANGES = (*COLUMNS, Column("__op", "STRING"), Column("__deleted", "BOOL"), Column(DELETED, "BOOL"))


@pytest.mark.parametrize("deletes", ["remove", MARK])
@pytest.mark.parametrize("waits", [True, False], ids=["of the table", "of the same batch"])
def test_a_truncation_removes_older_rows_of_its_own_topic_and_partition_alone(
    waits: bool, deletes: str
) -> None:
    connection, rule = duckdb.connect(), replace(RULE, deletes=deletes)
    for name, columns in (("t", CHANGES), ("b", CHANGES), ("d", deleted_columns(KEY))):
        connection.execute(f"CREATE TABLE {name} ({', '.join(map(definition, columns))})")
    upsert = Upsert(DUCKDB, rule, "t", "d", CHANGES, flag="__deleted", changes=True)

    def insert(records: list[Record], op: str) -> None:
        for record in records:
            values = ", ".join("?" for _ in CHANGES)
            connection.execute(f"INSERT INTO b VALUES ({values})", (*record.row, op, False, None))

    def apply() -> None:
        connection.execute(upsert_sql(upsert).replace(SCRATCH, "b"))
        connection.execute("TRUNCATE b")

    before = [
        Record(b"gone", "v", 3),
        Record(b"shard", "v", 4, topic="u"),
        Record(b"later", "v", 5, partition=1),
    ]
    insert([*before, Record(b"old", "v", 9, epoch=0)], "c")
    if waits:
        apply()
    insert([Record(None, None, 2, epoch=1)], "t")
    insert([Record(b"new", "v", 3, epoch=1)], "c")
    apply()
    shown = connection.execute(f"SELECT _kafka_key FROM t WHERE NOT COALESCE({DELETED}, FALSE)").fetchall()
    assert {key for (key,) in shown} == {b"shard", b"later", b"new"}


@pytest.mark.parametrize("deletes", ["remove", MARK])
@pytest.mark.parametrize("seed", thinned(range(5)))
def test_batches_in_any_order_and_twice_show_the_last_record_of_each_key(seed: int, deletes: str) -> None:
    chance = random.Random(seed)
    records = [
        Record(
            b"%d" % chance.randrange(5),
            None if chance.random() < 0.3 else f"v{offset}",
            offset if epoch == 1 else offset // 2,
            epoch=epoch,
        )
        for epoch in (1, 2)
        for offset in range(12)
    ]
    records = list({(r.epoch, r.offset): r for r in records}.values())
    table = Table(replace(RULE, deletes=deletes))
    for batch in batches_of(records, chance):
        table.apply(batch)
    assert table.values == last_state(records)


def test_an_older_record_does_not_bring_a_deleted_key_back() -> None:
    table = Table()
    table.apply([Record(b"k", None, 5)])
    table.apply([Record(b"k", "old", 3)])
    assert table.values == {}
    table.apply([Record(b"k", "new", 6)])
    assert table.values == {b"k": "new"}


def test_a_marked_row_keeps_its_values() -> None:
    table = Table(replace(RULE, deletes=MARK))
    table.apply([Record(b"k", "last", 3)])
    table.apply([Record(b"k", None, 5)])
    rows = table.connection.execute(f"SELECT value, {DELETED}, _kafka_offset FROM t").fetchall()
    assert rows == [("last", True, 5)]
    table.apply([Record(b"k", "again", 6)])
    assert table.connection.execute(f"SELECT value, {DELETED} FROM t").fetchall() == [("again", False)]


@pytest.mark.parametrize("deletes", ["remove", MARK])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([Record(b"k", "a", 1)], [Record(b"k", "b", 1, partition=1)]),
        ([], [Record(b"k", "a", 1), Record(b"k", "b", 1, partition=1)]),
        ([Record(b"k", "a", 1, topic="other")], [Record(b"k", "b", 2)]),
        ([Record(b"k", "a", 1, partition=70)], [Record(b"k", "b", 2, epoch=3)]),
        ([Record(b"k", None, 1)], [Record(b"k", "b", 2, partition=1)]),
    ],
    ids=["table", "batch", "topics", "shards", "deleted"],
)
def test_a_key_in_two_partitions_fails_the_statement_and_changes_nothing(
    first: list[Record], second: list[Record], deletes: str
) -> None:
    table = Table(replace(RULE, deletes=deletes))
    if first:
        table.apply(first)
    before = table.connection.execute("FROM t").fetchall()
    with pytest.raises(duckdb.Error, match=TWO_PARTITIONS):
        table.apply(second)
    assert table.connection.execute("FROM t").fetchall() == before


def test_a_key_that_moves_with_an_epoch_of_its_commit_is_no_conflict() -> None:
    table = Table()
    table.apply([Record(b"k", "a", 9, partition=3, epoch=1)])
    table.apply([Record(b"k", "b", 1, partition=5, epoch=2)])
    assert table.values == {b"k": "b"}


@pytest.mark.parametrize("seed", range(3))
def test_with_timestamps_as_tie_the_newest_time_wins_in_any_order(seed: int) -> None:
    chance = random.Random(seed)
    records = [
        Record(
            b"%d" % chance.randrange(3),
            None if chance.random() < 0.2 else f"v{number}",
            number,
            partition=number % 3,
            time=chance.randrange(1000),
        )
        for number in range(20)
    ]
    table = Table(replace(RULE, tie=TIMESTAMP))
    for batch in batches_of(records, chance):
        table.apply(batch)
    newest = sorted(records, key=lambda r: (r.time, r.epoch, r.topic, r.partition, r.offset))
    last = {r.key: r for r in newest}
    assert table.values == {k: r.value for k, r in last.items() if r.value is not None}


def test_rows_without_a_key_are_appended_and_tombstones_without_one_change_nothing() -> None:
    table = Table()
    table.apply([Record(None, "a", 1), Record(b"k", "b", 2)])
    table.apply([Record(None, "c", 3)])
    table.apply([Record(None, None, 4)])
    rows = table.connection.execute("SELECT value FROM t ORDER BY _kafka_offset").fetchall()
    assert rows == [("a",), ("b",), ("c",)]


@pytest.mark.parametrize("deletes", ["remove", MARK])
def test_an_appended_table_becomes_one_of_last_states(deletes: str) -> None:
    table = Table(replace(RULE, deletes=deletes))
    table.insert(
        "t",
        [
            Record(b"a", "1", 1),
            Record(b"a", "2", 2),
            Record(b"b", "3", 3),
            Record(b"b", None, 4),
            Record(None, "5", 5),
            Record(b"c", "6", 6),
        ],
    )
    table.apply([Record(b"c", "7", 7)], converts=True)
    assert table.values == {b"a": "2", None: "5", b"c": "7"}
    table.apply([Record(b"b", "old", 2)])
    assert table.values == {b"a": "2", None: "5", b"c": "7"}


def test_a_row_that_somebody_wrote_by_hand_gives_way() -> None:
    table = Table()
    table.connection.execute("INSERT INTO t (_kafka_key, value) VALUES ('k'::BLOB, 'by hand')")
    table.apply([Record(b"k", "a", 1)])
    assert table.values == {b"k": "a"}


def test_a_key_may_be_fields_of_records() -> None:
    connection = duckdb.connect()
    columns = (
        Column("_key", "STRUCT", fields=(Column("id", "INT64"), Column("region", "STRING"))),
        *COLUMNS[1:],
    )
    rule = StatementRule("upsert", ("_key.id", "_key.region"))
    for name, of in (("t", columns), ("b", columns), ("d", deleted_columns(columns[0].fields))):
        connection.execute(f"CREATE TABLE {name} ({', '.join(map(definition, of))})")
    sql = upsert_sql(Upsert(DUCKDB, rule, "t", "d", columns, one_partition=True)).replace(SCRATCH, "b")
    for offset, region in enumerate(["eu", "us", "eu"]):
        connection.execute("TRUNCATE b")
        connection.execute(
            "INSERT INTO b (_key, value, _kafka_topic, _kafka_partition, _kafka_offset, _kbq_epoch)"
            " VALUES ({'id': 1, 'region': ?}, ?, 't', 0, ?, 1)",
            [region, f"v{offset}", offset],
        )
        connection.execute(sql)
    rows = connection.execute("SELECT _key.region, value FROM t ORDER BY 1").fetchall()
    assert rows == [("eu", "v2"), ("us", "v1")]
