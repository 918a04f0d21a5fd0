"""A database runs the texts of statements. The table is the same for any order and size of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.core.loading.tables import Column
from kbq_assets.core.statements.dialects import DUCKDB
from kbq_assets.core.statements.rules import (
    DELETE_INSERT,
    DELETED,
    INSERT_NEW,
    MARK,
    SCD2,
    SNAPSHOT,
    SQL,
    TIMESTAMP,
    UPSERT,
    VALID_FROM,
    VALID_TO,
    StatementRule,
)
from kbq_assets.core.statements.table_statements import SCRATCH
from kbq_assets.core.statements.targets import Target
from kbq_assets.core.statements.texts import text_of
from kbq_assets.core.statements.upsert import TWO_PARTITIONS, Upsert, effective_sql, upsert_sql

OWN = (
    Column("_kbq_epoch", "INT64"),
    Column("_kafka_topic", "STRING"),
    Column("_kafka_partition", "INT64"),
    Column("_kafka_offset", "INT64"),
    Column("_kafka_timestamp", "TIMESTAMP"),
    Column("event_date", "DATE"),
)
PLAIN = (*OWN, Column("id", "INT64"), Column("v", "INT64"), Column("val", "STRING"))
TIMED = (*PLAIN, Column(VALID_FROM, "TIMESTAMP"), Column(VALID_TO, "TIMESTAMP"))
TYPES = {"INT64": "BIGINT", "STRING": "VARCHAR", "BOOL": "BOOLEAN"}
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC).replace(tzinfo=None)
DAY = date(2026, 1, 31)
FEW = settings(max_examples=5, deadline=None)
#: One thread: the tables are tiny, and a second thread costs more than it saves.
DATABASE = duckdb.connect(config={"threads": 1})


@dataclass(frozen=True)
class Row:
    """A staged record. ``at`` are minutes after noon of its Kafka time, ``day`` is its event date."""

    offset: int
    id: int | None = 1
    v: int | None = 0
    at: int = 0
    day: int = 0
    partition: int = 0
    epoch: int = 1
    topic: str = "t"

    def values(self) -> tuple[Any, ...]:
        moment, day = NOON + timedelta(minutes=self.at), DAY + timedelta(days=self.day)
        place = (self.epoch, self.topic, self.partition, self.offset)
        return (*place, moment, day, self.id, self.v, f"{self.partition}:{self.offset}")


class Table:
    """A table of a database in memory, and the batches that were applied to it."""

    def __init__(self, columns: Sequence[Column] = PLAIN) -> None:
        self.columns = columns
        self.database = DATABASE
        listed = ", ".join(f'"{c.name}" {TYPES.get(c.type, c.type)}' for c in columns)
        for name in ("target", "batch"):
            self.database.execute(f"CREATE OR REPLACE TABLE {name} ({listed})")
        self.database.execute(
            "CREATE OR REPLACE TABLE deleted (key_0 BIGINT, kbq_topic VARCHAR, kbq_partition BIGINT, kbq_epoch BIGINT,"
            " kbq_offset BIGINT, kbq_timestamp TIMESTAMP)"
        )

    def fill(self, name: str, rows: Iterable[Row]) -> None:
        self.database.execute(f"DELETE FROM {name}")
        values = [row.values() for row in rows]
        if values:
            holes = ", ".join(["?"] * len(values[0]) + ["NULL"] * (len(self.columns) - len(values[0])))
            listed = ", ".join([f"({holes})"] * len(values))
            self.database.execute(
                f"INSERT INTO {name} VALUES {listed}", [each for row in values for each in row]
            )

    def run(self, text: str) -> None:
        self.database.execute(text.replace(SCRATCH, "batch"))

    def found(self, what: str = "val", where: str = "TRUE") -> list[Any]:
        rows = self.database.execute(f"SELECT {what} FROM target WHERE {where} ORDER BY ALL").fetchall()
        return [row[0] if len(row) == 1 else row for row in rows]


def target(kind: str, columns: Sequence[Column] = PLAIN, **more: Any) -> Target:
    options = {name: more.pop(name) for name in ("key", "version", "within_days", "sql") if name in more}
    return Target(DUCKDB, StatementRule(kind, **options), "target", tuple(columns), **more)


def upsert(columns: Sequence[Column] = PLAIN, **more: Any) -> Upsert:
    options = {name: more.pop(name) for name in ("deletes", "tie") if name in more}
    rule = StatementRule(UPSERT, ("id",), **options)
    return Upsert(DUCKDB, rule, "target", "deleted", tuple(columns), **more)


def applied(made: Target, batches: Iterable[Sequence[Row]], columns: Sequence[Column] = PLAIN) -> Table:
    table = Table(columns)
    for batch in batches:
        table.fill("batch", batch)
        table.run(text_of(made))
    return table


def newest_versions(rows: Sequence[Row], group: Callable[[Row], Any]) -> list[str]:
    """The rows of the highest version of each group; rows of no group are all there."""

    def order(row: Row) -> int:
        return -1 if row.v is None else row.v

    tops: dict[Any, int] = {}
    for row in rows:
        if group(row) is not None:
            tops[group(row)] = max(order(row), tops.get(group(row), -1))
    kept = (row for row in rows if group(row) is None or order(row) == tops[group(row)])
    return sorted(row.values()[-1] for row in kept)


@pytest.mark.parametrize(
    ("rows", "shown"),
    [
        ([], []),
        ([Row(0, v=1), Row(1, v=2)], ["0:1"]),
        ([Row(0, v=2), Row(1, v=2), Row(2, v=1)], ["0:0", "0:1"]),
        ([Row(0, v=None), Row(1, v=0)], ["0:1"]),
        ([Row(0, v=None), Row(1, v=None)], ["0:0", "0:1"]),
        ([Row(0, id=1, v=1), Row(1, id=2, v=5)], ["0:0", "0:1"]),
        ([Row(0, id=None, v=1), Row(1, id=None, v=2)], ["0:0", "0:1"]),
    ],
)
def test_rows_of_the_newest_version_of_a_key_stay(rows: list[Row], shown: list[str]) -> None:
    made = target(DELETE_INSERT, key=("id",), version="v")
    assert applied(made, [rows]).found() == shown
    assert applied(made, [[row] for row in rows]).found() == shown
    assert applied(made, [[row] for row in reversed(rows)]).found() == shown


@pytest.mark.parametrize(
    ("rows", "shown"),
    [
        ([Row(0, id=1, v=1), Row(1, id=2, v=2), Row(2, id=1, v=2)], ["0:1", "0:2"]),
        ([Row(0, v=None), Row(1, v=None)], ["0:0", "0:1"]),
        ([Row(0, v=None), Row(1, v=3)], ["0:1"]),
    ],
)
def test_a_snapshot_is_the_newest_version_of_the_whole_table(rows: list[Row], shown: list[str]) -> None:
    made = target(SNAPSHOT, version="v")
    for batches in ([rows], [[row] for row in rows], [[row] for row in reversed(rows)]):
        assert applied(made, batches).found() == shown


def test_a_table_that_was_appended_to_loses_its_old_versions_with_the_first_batch() -> None:
    made = target(DELETE_INSERT, key=("id",), version="v", converts=True)
    table = Table()
    table.fill("target", [Row(0, v=1), Row(1, v=2), Row(2, id=2, v=1), Row(3, id=None, v=0)])
    table.fill("batch", [Row(4, id=2, v=0)])
    table.run(text_of(made))
    assert table.found() == ["0:1", "0:2", "0:3"]


def test_a_record_is_inserted_if_its_key_is_new() -> None:
    made = target(INSERT_NEW, key=("id",))
    table = applied(
        made, [[Row(1), Row(0), Row(2, id=2)], [Row(3), Row(4, id=None)], [Row(5, id=None), Row(6, id=3)]]
    )
    assert table.found() == ["0:0", "0:2", "0:4", "0:5", "0:6"]


@pytest.mark.parametrize(
    ("batches", "shown"),
    [
        ([[Row(0, day=0)], [Row(1, day=3)]], ["0:0"]),
        ([[Row(0, day=0)], [Row(1, day=4)]], ["0:0", "0:1"]),
        ([[Row(0, day=0)], [Row(1, day=-3)]], ["0:0"]),
        ([[Row(0, day=0), Row(1, day=3), Row(2, day=4)]], ["0:0"]),
        ([[Row(0, day=0), Row(1, day=4)]], ["0:0", "0:1"]),
        ([[Row(1, day=0), Row(0, day=2)]], ["0:0"]),
    ],
)
@pytest.mark.parametrize("days", [None, ("2026-01-01", "2026-03-01")])
def test_a_key_is_known_for_some_days(batches: Any, shown: list[str], days: tuple[str, str] | None) -> None:
    assert applied(target(INSERT_NEW, key=("id",), within_days=3, days=days), batches).found() == shown


@pytest.mark.parametrize(
    "rows", [[Row(0, at=1), Row(1, at=5), Row(2, at=3), Row(3, id=2, at=2), Row(4, id=None, at=9)]]
)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_every_record_is_valid_until_the_next_one_of_its_key(rows: list[Row], size: int) -> None:
    batches = [rows[at : at + size] for at in range(0, len(rows), size)]
    found = applied(target(SCD2, TIMED, key=("id",)), batches, TIMED).found(f"val, {VALID_FROM}, {VALID_TO}")
    minutes = [tuple((each - NOON).seconds // 60 if each else None for each in times) for _, *times in found]
    assert minutes == [(1, 3), (5, None), (3, 5), (2, None), (9, None)]


def test_records_of_one_time_are_valid_for_no_time_but_the_last() -> None:
    table = applied(target(SCD2, TIMED, key=("id",)), [[Row(1), Row(0)], [Row(2)]], TIMED)
    assert table.found("val", f"{VALID_TO} = {VALID_FROM}") == ["0:0", "0:1"]
    assert table.found("val", f"{VALID_TO} IS NULL") == ["0:2"]


def test_a_deletion_ends_the_row_before_it_and_what_comes_late() -> None:
    columns = (*TIMED, Column(DELETED, "BOOL"))
    made = target(SCD2, columns, key=("id",))
    table = Table(columns)
    for rows, tombstones in (([Row(0, at=1)], False), ([Row(2, at=5)], True), ([Row(1, at=3)], False)):
        table.fill("batch", rows)
        table.run(text_of(replace(made, tombstones=tombstones)))
    found = table.found(f"val, {DELETED}, date_diff('minute', {VALID_FROM}, {VALID_TO})")
    assert found == [("0:0", False, 2), ("0:1", False, 2), ("0:2", True, 0)]


def test_an_appended_table_becomes_a_history() -> None:
    table = Table(TIMED)
    table.fill("target", [Row(0, at=1), Row(1, at=4)])
    table.fill("batch", [Row(2, id=2, at=9)])
    table.run(text_of(target(SCD2, TIMED, key=("id",), converts=True)))
    assert table.found("val", f"{VALID_TO} IS NULL") == ["0:1", "0:2"]
    assert table.found(f"date_diff('minute', {VALID_FROM}, {VALID_TO})", "val = '0:0'") == [3]


def test_sql_of_a_user_s_own_has_the_names_of_its_tables() -> None:
    sql = "INSERT INTO {{ table }} ({{columns}}) SELECT * FROM {{ batch }} WHERE v > 0"
    assert applied(target(SQL, sql=sql), [[Row(0, v=0), Row(1, v=1)]]).found() == ["0:1"]


def upserted(
    made: Upsert, batches: Iterable[tuple[Sequence[Row], bool]], columns: Sequence[Column] = PLAIN
) -> Table:
    """The table after batches, each with whether it is of tombstones."""
    table = Table(columns)
    for rows, tombstones in batches:
        table.fill("batch", rows)
        table.run(upsert_sql(replace(made, tombstones=tombstones)))
    return table


@pytest.mark.parametrize(
    ("batches", "shown"),
    [
        pytest.param([([Row(0), Row(1)], False)], ["0:1"], id="newest of a batch"),
        pytest.param([([Row(1)], False), ([Row(0)], False)], ["0:1"], id="an older record comes late"),
        pytest.param([([Row(9)], False), ([Row(0, epoch=2)], False)], ["0:0"], id="a new epoch"),
        pytest.param([([Row(0), Row(1, id=2)], False)], ["0:0", "0:1"], id="keys"),
        pytest.param([([Row(0, id=None)], False), ([Row(1, id=None)], False)], ["0:0", "0:1"], id="no key"),
        pytest.param([([Row(0)], False), ([Row(1)], True)], [], id="a deletion"),
        pytest.param([([Row(1)], True), ([Row(0)], False)], [], id="an older record after a deletion"),
        pytest.param([([Row(1)], True), ([Row(2)], False)], ["0:2"], id="a newer record after a deletion"),
        pytest.param([([Row(2)], False), ([Row(1)], True)], ["0:2"], id="an older deletion"),
        pytest.param([([Row(3)], True), ([Row(1)], True), ([Row(2)], False)], [], id="the newest deletion counts"),
        pytest.param([([Row(0, id=None)], True)], [], id="a deletion without a key"),
        pytest.param([([Row(0)], False), ([Row(0)], False)], ["0:0"], id="the same again"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("one_partition", [True, False])
def test_the_newest_record_of_a_key_is_shown(batches: Any, shown: list[str], one_partition: bool) -> None:
    assert upserted(upsert(one_partition=one_partition), batches).found() == shown


def test_deletions_mark_their_row_if_the_rule_says_so() -> None:
    columns = (*PLAIN, Column(DELETED, "BOOL"))
    made = upsert(columns, deletes=MARK)
    table = upserted(made, [([Row(0)], False), ([Row(2)], True), ([Row(1)], False)], columns)
    assert table.found(f"val, _kafka_offset, {DELETED}") == [("0:0", 2, True)]
    table = upserted(made, [([Row(2)], True), ([Row(1)], False), ([Row(3)], False)], columns)
    assert table.found(f"val, {DELETED}") == [("0:3", False)]


@pytest.mark.parametrize(
    "batches",
    [
        pytest.param([[Row(0), Row(1, partition=1)]], id="in one batch"),
        pytest.param([[Row(0)], [Row(1, partition=1)]], id="in two batches"),
        pytest.param([[Row(0)], [Row(1, topic="u")]], id="in two topics"),
        pytest.param([[Row(0)], [Row(1, partition=64, epoch=2)]], id="of two commits"),
    ],
)
def test_a_key_in_two_partitions_fails_unless_times_decide(batches: list[list[Row]]) -> None:
    each = [(batch, False) for batch in batches]
    with pytest.raises(duckdb.Error, match=TWO_PARTITIONS):
        upserted(upsert(), each)
    assert len(upserted(upsert(tie=TIMESTAMP), each).found()) == 1


def test_partitions_of_two_epochs_of_one_commit_compare_by_epoch() -> None:
    table = upserted(upsert(), [([Row(9, partition=1)], False), ([Row(0, partition=2, epoch=2)], False)])
    assert table.found() == ["2:0"]


def test_the_highest_time_wins_where_times_decide() -> None:
    late, early = Row(0, at=5, partition=1), Row(9, at=3)
    for batches in (
        [([late], False), ([early], False)],
        [([early], False), ([late], False)],
        [([early, late], False)],
    ):
        assert upserted(upsert(tie=TIMESTAMP), batches).found() == ["1:0"]


def test_an_appended_table_shows_the_newest_records_with_the_first_batch() -> None:
    table = Table()
    table.fill("target", [Row(0), Row(3), Row(1, id=2), Row(2, id=None)])
    table.fill("batch", [Row(4, id=2)])
    table.run(upsert_sql(upsert(converts=True)))
    assert table.found() == ["0:2", "0:3", "0:4"]


def test_records_that_took_effect_are_counted() -> None:
    made = upsert()
    table = upserted(made, [([Row(5)], False), ([Row(7, id=2)], True)])
    table.fill("batch", [Row(5), Row(4), Row(7, id=2), Row(9, id=3)])
    effective = table.database.execute(effective_sql(made).replace(SCRATCH, "batch")).fetchone()
    assert effective == (2,)


def batches_of(draw: st.DrawFn, rows: Sequence[Row]) -> list[list[Row]]:
    """The rows in any order, cut into any batches."""
    mixed = draw(st.permutations(rows))
    cuts = sorted(draw(st.lists(st.integers(0, len(mixed)), max_size=3)))
    bounds = zip([0, *cuts], [*cuts, len(mixed)], strict=True)
    return [list(mixed[a:b]) for a, b in bounds]


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Row], list[list[Row]]]:
    """Records of one partition, and batches of them."""
    ids, versions = st.sampled_from([1, 2, None]), st.sampled_from([0, 1, None])
    drawn = draw(st.lists(st.tuples(ids, versions, st.integers(0, 5)), min_size=1, max_size=7))
    rows = [Row(offset, key, v, at) for offset, (key, v, at) in enumerate(drawn)]
    return rows, batches_of(draw, rows)


def ends(rows: Sequence[Row]) -> Iterator[tuple[str, int | None]]:
    """Until when each record is its key's last."""
    for row in rows:
        place = (row.at, row.offset)
        later = [each.at for each in rows if each.id == row.id and (each.at, each.offset) > place]
        yield row.values()[-1], min(later, default=None) if row.id is not None else None


@FEW
@given(histories())
def test_versions_do_not_depend_on_batches(history: tuple[list[Row], list[list[Row]]]) -> None:
    rows, batches = history
    per_key = applied(target(DELETE_INSERT, key=("id",), version="v"), batches)
    assert per_key.found() == newest_versions(rows, lambda row: row.id)
    whole = applied(target(SNAPSHOT, version="v"), batches)
    assert whole.found() == newest_versions(rows, lambda row: 0)


@FEW
@given(histories())
def test_a_history_does_not_depend_on_batches(history: tuple[list[Row], list[list[Row]]]) -> None:
    rows, batches = history
    found = applied(target(SCD2, TIMED, key=("id",)), batches, TIMED).found(f"val, {VALID_TO}")
    assert [(val, None if end is None else (end - NOON).seconds // 60) for val, end in found] == sorted(
        ends(rows)
    )


@FEW
@given(histories())
def test_no_two_rows_of_new_records_share_a_key(history: tuple[list[Row], list[list[Row]]]) -> None:
    rows, batches = history
    found = applied(target(INSERT_NEW, key=("id",)), batches).found("id")
    keys = [key for key in found if key is not None]
    assert sorted(keys) == sorted({row.id for row in rows if row.id is not None})
    assert found.count(None) == sum(row.id is None for row in rows)


@FEW
@given(histories(), st.data())
def test_an_upsert_does_not_depend_on_batches(
    history: tuple[list[Row], list[list[Row]]], data: st.DataObject
) -> None:
    rows, batches = history
    deletions = data.draw(st.sets(st.sampled_from(range(len(rows)))))
    split = [
        ([r for r in b if (r.offset in deletions) is is_dead], is_dead)
        for b in batches
        for is_dead in (False, True)
    ]
    newest = {row.id: row.offset for row in rows if row.id is not None}
    shown = [offset for offset in newest.values() if offset not in deletions]
    shown += [row.offset for row in rows if row.id is None and row.offset not in deletions]
    assert upserted(upsert(), split).found("_kafka_offset") == sorted(shown)
