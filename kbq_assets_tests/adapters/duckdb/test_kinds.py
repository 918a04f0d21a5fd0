"""DuckDB runs the text of each kind of statement. The table equals what Python computes from the records, in any
batches."""

from __future__ import annotations

import io
import random
from collections.abc import Collection
from pathlib import Path
from typing import Any

import duckdb
import pytest

from kbq_assets.adapters.duckdb import DuckDbWarehouse
from kbq_assets.adapters.duckdb.types import definition
from kbq_assets.core.errors import JobFailed
from kbq_assets.core.loading.tables import Column, TableOptions
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.statements.dialects import DUCKDB
from kbq_assets.core.statements.rules import DELETED, SCD2, VALID_FROM, VALID_TO, StatementRule
from kbq_assets.core.statements.table_statements import SCRATCH
from kbq_assets.core.statements.targets import Target
from kbq_assets.core.statements.texts import text_of
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets_tests.pipelines.statements.kinds import KINDS, Check, Record, history_of, random_records
from kbq_assets_tests.sizes import thinned

COLUMNS = (
    Column("n", "INT64"),
    Column("id", "INT64"),
    Column("v", "INT64"),
    Column("event_date", "DATE"),
    Column("_kafka_topic", "STRING"),
    Column("_kafka_partition", "INT64"),
    Column("_kafka_offset", "INT64"),
    Column("_kafka_timestamp", "TIMESTAMP"),
    Column("_kbq_epoch", "INT64"),
)


class Table:
    """A table with its scratch table, in memory."""

    def __init__(self, options: dict[str, Any], *, deletions: bool = False) -> None:
        self.rule: StatementRule = TopicSettings.of(dataset="d", **options).statement.rule
        times = (
            [Column(VALID_FROM, "TIMESTAMP"), Column(VALID_TO, "TIMESTAMP")] if self.rule.kind == SCD2 else []
        )
        marks = [Column("_kafka_key", "INT64"), Column(DELETED, "BOOL")] if deletions else []
        self.columns = (*COLUMNS, *times, *marks)
        self.connection = duckdb.connect()
        for name in ("t", "b"):
            self.connection.execute(f"CREATE TABLE {name} ({', '.join(map(definition, self.columns))})")

    def insert(self, name: str, records: list[Record], dead: Collection[int] = ()) -> None:
        """Insert the rows of records; for ``dead`` ones, only the key."""
        for record in records:
            day = f"2026-01-{record.day + 1:02}"
            own = (
                None if record.n in dead else record.n,
                record.id,
                None if record.n in dead else record.v,
                day,
                "t",
                (record.id or 0) % 2,
                record.n,
                f"{day} 00:00:00+00",
                1,
            )
            self.connection.execute(
                f"INSERT INTO {name} ({', '.join(c.name for c in COLUMNS)}) VALUES ({', '.join('?' * len(own))})",
                own,
            )

        if len(self.columns) > len(COLUMNS) + 2:  # a tombstone has no field, and the key of its record
            self.connection.execute(
                f"UPDATE {name} SET _kafka_key = id, id = CASE WHEN n IS NULL THEN NULL ELSE id END"
                " WHERE _kafka_key IS NULL"
            )

    def apply(self, records: list[Record], *, converts: bool = False, dead: Collection[int] = ()) -> None:
        """One batch; all of its records are ``dead``, or none."""
        days = [record.day for record in records]
        within = self.rule.within_days
        bounds = [f"2026-01-{max(day, 0) + 1:02}" for day in (min(days) - within, max(days) + within)]
        tombstones = records[0].n in dead
        target = Target(DUCKDB, self.rule, "t", self.columns, converts, (bounds[0], bounds[1]), tombstones)
        self.connection.execute("TRUNCATE b")
        self.insert("b", records, dead)
        self.connection.execute(text_of(target).replace(SCRATCH, "b"))

    def found(self) -> list[int]:
        return [n for (n,) in self.connection.execute("SELECT n FROM t ORDER BY n").fetchall()]


each_kind = pytest.mark.parametrize(("options", "check"), KINDS.values(), ids=KINDS)


@each_kind
@pytest.mark.parametrize("seed", thinned(range(4)))
def test_batches_of_any_size_in_any_order_show_what_python_computes(
    options: dict[str, Any], check: Check, seed: int
) -> None:
    chance, table = random.Random(seed), Table(options)
    records = random_records(chance, 40)
    mixed = records.copy()
    chance.shuffle(mixed)
    while mixed:
        size = chance.randint(1, 12)
        batch, mixed = mixed[:size], mixed[size:]
        table.apply(batch)
    check(records, table.found())


@pytest.mark.parametrize("name", ["delete_insert", "snapshot"])
def test_an_appended_table_shows_its_newest_versions_from_the_first_statement_on(name: str) -> None:
    options, check = KINDS[name]
    table, records = Table(options), random_records(random.Random(4), 20)
    table.insert("t", records[:12])
    table.apply(records[12:], converts=True)
    check(records, table.found())


def test_appended_rows_stay_and_make_their_keys_known() -> None:
    table = Table(KINDS["insert_new"][0])
    table.insert("t", [Record(0, 1, None, 0), Record(1, 1, None, 0)])
    table.apply([Record(2, 1, None, 0), Record(3, 2, None, 0)], converts=True)
    assert table.found() == [0, 1, 3]


@pytest.mark.parametrize(
    ("day", "inserted"), [(6, True), (7, True), (8, False), (10, False), (12, False), (13, True)]
)
def test_a_key_is_known_for_so_many_days_around_its_rows_event_date(day: int, inserted: bool) -> None:
    table = Table({"load": "insert_new", "key": "id", "within_days": 2})
    table.apply([Record(0, 1, None, 10)])
    table.apply([Record(1, 1, None, day)])
    assert (table.found() == [0, 1]) == inserted


def test_a_key_that_is_in_every_record_is_compared_once_a_day() -> None:
    table = Table({"load": "insert_new", "key": "id", "within_days": 1})
    table.connection.execute(
        "INSERT INTO b SELECT i, 1, NULL, DATE '2026-01-01' + CAST(i % 30 AS INTEGER), 't', 0, i, NULL, 1"
        " FROM range(100_000) AS r(i)"
    )
    target = Target(DUCKDB, table.rule, "t", table.columns)
    table.connection.execute(text_of(target).replace(SCRATCH, "b"))
    assert table.found() == [0]


@pytest.mark.parametrize("appended", [0, 10])
@pytest.mark.parametrize("seed", range(4))
def test_a_history_in_any_batches_has_the_times_that_python_computes(seed: int, appended: int) -> None:
    chance, table = random.Random(seed), Table(KINDS["scd2"][0])
    records = random_records(chance, 40)
    mixed = records.copy()
    chance.shuffle(mixed)
    table.insert("t", mixed[:appended])
    batches = [mixed[at : at + 7] for at in range(appended, len(mixed), 7)]
    for number, batch in enumerate(batches):
        table.apply(batch, converts=bool(appended) and number == 0)
    days = "SELECT n, day(valid_from) - 1, day(valid_to) - 1 FROM t"
    found = {n: (begin, end) for n, begin, end in table.connection.execute(days).fetchall()}
    assert found == history_of(records)


@each_kind
def test_a_dry_run_takes_a_batch_that_does_not_exist_and_changes_nothing(
    options: dict[str, Any], check: Check, tmp_path: Path
) -> None:
    warehouse, table = (
        DuckDbWarehouse(tmp_path / "w.duckdb", open_uri=lambda uri: io.BytesIO()),
        Table(options),
    )
    target = TableReference("d", "t")
    warehouse.create_table(target, table.columns, TableOptions())
    statements = warehouse.statements
    assert statements is not None
    name = statements.sql_name(target)
    text = text_of(Target(DUCKDB, table.rule, name, table.columns, True, ("2026-01-01", "2026-01-02")))
    assert statements.bytes_billed(text.replace(SCRATCH, statements.empty(table.columns)), "", "") == 0
    assert warehouse.kafka_ranges(target) == {}
    with pytest.raises(JobFailed, match="refused"):
        statements.bytes_billed(text.replace(SCRATCH, "d.gone"), "", "")


@pytest.mark.parametrize("appended", [0, 12])
@pytest.mark.parametrize("seed", range(4))
def test_a_tombstone_ends_the_row_before_it_in_whatever_batches_they_come(seed: int, appended: int) -> None:
    chance, table = (
        random.Random(seed),
        Table({"load": "scd2", "key": "_kafka_key", "keys": True}, deletions=True),
    )
    records = random_records(chance, 40)
    dead = {record.n for record in records if chance.random() < 0.3}
    mixed = records.copy()
    chance.shuffle(mixed)
    table.insert("t", mixed[:appended], dead)
    for number, at in enumerate(range(appended, len(mixed), 6)):
        batch = mixed[at : at + 6]
        for is_dead in (False, True):
            part = [record for record in batch if (record.n in dead) == is_dead]
            if part:
                converts = bool(appended) and number == 0 and (not is_dead or len(part) == len(batch))
                table.apply(part, converts=converts, dead=dead)
    shown = (
        "SELECT _kafka_offset, day(valid_from) - 1, day(valid_to) - 1, COALESCE(_kbq_deleted, FALSE) FROM t"
    )
    found = table.connection.execute(shown).fetchall()
    rows = {n: (begin, end) for n, begin, end, is_deleted in found if not is_deleted}
    wanted = history_of(records)
    assert rows == {n: wanted[n] for n in wanted if n not in dead}
    assert all(begin == end for _, begin, end, is_deleted in found if is_deleted)
    current = {record.id for record in records if record.id is not None}
    last = {key: max((r.day, r.n) for r in records if r.id == key)[1] for key in current}
    open_rows = {n for n, (_, end) in rows.items() if end is None and records[n].id is not None}
    assert open_rows == {n for n in last.values() if n not in dead}
