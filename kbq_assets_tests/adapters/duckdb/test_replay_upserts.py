"""The texts that replace a range of an upsert table, run by DuckDB: each key shows what it would if the range had been
loaded as the replay says, and a rollback undoes that, whatever else is loaded meanwhile."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

import duckdb
import pytest

from kbq_assets.adapters.duckdb.types import definition
from kbq_assets.core.loading.tables import Column
from kbq_assets.core.replay import keyed
from kbq_assets.core.replay.keyed import KeyedRange, with_all
from kbq_assets.core.replay.model import REPLAY_COLUMN, Bounds, Replay
from kbq_assets.core.statements.dialects import DUCKDB
from kbq_assets.core.statements.rules import MARK, StatementRule
from kbq_assets.core.statements.upsert import POSITION, Upsert, deleted_columns
from kbq_assets_tests.adapters.duckdb.test_upsert import KEY, RULE, Record, Table, batches_of
from kbq_assets_tests.sizes import KEYED_HISTORIES

#: Positions of a partition; each key has its own partition.
_END: Final = 12
RULES: Final = {
    "remove": RULE,
    "mark": StatementRule("upsert", ("_kafka_key",), deletes=MARK),
}


class ReplayedTable(Table):
    """A table that waits for the replacement of a range, with the tables of the replay."""

    def __init__(self, rule: StatementRule, replay: Replay) -> None:
        super().__init__(rule)
        self.columns = (*self.columns, Column(REPLAY_COLUMN, "INT64"))
        run = self.connection.execute
        for name in ("t", "b"):
            run(f"ALTER TABLE {name} ADD COLUMN {REPLAY_COLUMN} BIGINT")
        for name, columns in (("s", self.columns), ("f", self.columns), ("fd", deleted_columns(KEY))):
            run(f"CREATE TABLE {name} ({', '.join(map(definition, columns))})")
        upsert = Upsert(DUCKDB, rule, "t", "d", self.columns)
        self.range = KeyedRange(replay, upsert, "s", "f", "fd", tombstones=True)

    def run(self, sql: str) -> None:
        self.connection.execute(f"BEGIN; {sql}; COMMIT")

    def count(self, sql: str) -> int:
        [(found,)] = self.connection.execute(sql).fetchall()
        return int(found)

    @property
    def loose(self) -> list[int]:
        """Offsets of rows without a key."""
        found = self.connection.execute("SELECT _kafka_offset FROM t WHERE _kafka_key IS NULL").fetchall()
        return sorted(offset for (offset,) in found)

    @property
    def shown(self) -> dict[bytes, str]:
        where = f"_kafka_key IS NOT NULL{' AND NOT _kbq_deleted' if self.rule.deletes == MARK else ''}"
        rows = self.connection.execute(f"SELECT _kafka_key, value FROM t WHERE {where}").fetchall()
        assert len(dict(rows)) == len(rows)
        return dict(rows)

    def everything(self) -> list[Any]:
        """All rows and remembered deletions."""
        queries = (f"SELECT * EXCLUDE {REPLAY_COLUMN} FROM t", "SELECT * FROM d")
        return [sorted(self.connection.execute(query).fetchall(), key=repr) for query in queries]


class History:
    """Records of two partitions and two epochs. The table has those that ``had``, and in the range should have those
    that ``gets``. Some that come after the range are loaded later."""

    def __init__(self, seed: int, rule: StatementRule) -> None:
        self.chance, self.rule = random.Random(seed), rule
        self.records = [self._record(p, offset) for p in (0, 1) for offset in range(_END)]
        self.is_whole = self.chance.random() < 0.5
        self.bounds = {p: self._bounds() for p in (0, 1)}
        self.epoch = 0 if self.is_whole else 1
        self.had = {r for r in self.records if self.chance.random() < 0.7}
        self.gets = {r for r in self.records if self.chance.random() < 0.7}
        late = [r for r in self.records if self.is_later(r) and self.chance.random() < 0.4]
        self.late = self.had & {*late}

    def _record(self, partition: int, offset: int) -> Record:
        chance = self.chance
        key = None if chance.random() < 0.1 else b"%d-%d" % (partition, chance.randrange(4))
        value = None if chance.random() < 0.25 and key else f"v{offset}"
        return Record(key, value, offset, partition, epoch=int(offset > 3))

    def _bounds(self) -> Bounds:
        first = 0 if self.is_whole else self.chance.randrange(4, _END - 1)
        return Bounds(first, 4 if self.is_whole else self.chance.randint(first + 1, _END))

    def is_replayed(self, record: Record) -> bool:
        """Whether a record is of the range. A whole one is all of the first epoch."""
        bounds = self.bounds[record.partition]
        return record.epoch == self.epoch and bounds.first <= record.offset < bounds.until

    def is_later(self, record: Record) -> bool:
        """Whether a record comes after the range: all before it are loaded (R11)."""
        return (record.epoch, record.offset) >= (self.epoch, self.bounds[record.partition].until)

    @property
    def former(self) -> list[Record]:
        """What the table has, without what comes late."""
        return [r for r in self.records if r in self.had - self.late]

    @property
    def replayed(self) -> list[Record]:
        """The replay's records."""
        return [r for r in self.records if r in self.gets and self.is_replayed(r)]

    def promoted(self, records: list[Record]) -> list[Record]:
        """Records of the table with those of the replay in place of the range's."""
        return [*(r for r in records if not self.is_replayed(r)), *self.replayed]

    def newest(self, records: list[Record]) -> dict[bytes, Record]:
        return {r.key: r for r in sorted(records, key=lambda r: (r.epoch, r.offset)) if r.key is not None}

    def last(self, records: list[Record]) -> tuple[dict[bytes, str], list[int]]:
        """What the table shows of these records."""
        shown = {key: r.value for key, r in self.newest(records).items() if r.value is not None}
        return shown, sorted(r.offset for r in records if r.key is None)

    @property
    def unknown(self) -> int:
        """Keys that show a record of the range, and have none in the replay."""
        later, shown = self.newest(self.replayed), self.newest(self.former)
        return sum(key not in later for key, r in shown.items() if self.is_replayed(r))


def check(seed: int, rule: StatementRule) -> str:
    """Tell a history; promote, roll back, promote again, with late records in between."""
    history = History(seed, rule)
    table = ReplayedTable(rule, Replay(7, "t", history.epoch, history.bounds))
    loose = [r for r in history.former if r.key is None]
    for batch in batches_of([r for r in history.former if r.key], history.chance):
        table.apply(batch)
    if loose:
        table.apply(loose)
    assert (table.shown, table.loose) == history.last(history.former)
    table.insert("s", history.replayed)
    before = table.everything()
    assert table.count(table.range.unknown_sql()) == history.unknown
    if history.unknown and not history.is_whole:
        return "refused"
    table.run(table.range.promotion_sql())
    assert (table.shown, table.loose) == history.last(history.promoted(history.former))
    if history.chance.random() < 0.5:
        table.run(table.range.rollback_sql())
        assert table.everything() == before
        table.run(table.range.promotion_sql())
    records = list(history.former)
    for number, back in enumerate((True, False)):
        late = [r for r in sorted(history.late, key=repr) if (r.offset % 2 == 0) == bool(number)]
        for values in (True, False):
            if batch := [r for r in late if (r.value is not None) == values]:
                table.apply(batch)
        records += late
        if back:
            assert (table.shown, table.loose) == history.last(history.promoted(records))
            table.run(table.range.rollback_sql())
            assert (table.shown, table.loose) == history.last(records)
    table.run(table.range.promotion_sql())
    assert (table.shown, table.loose) == history.last(history.promoted(records))
    return "promoted"


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(
    "seeds", [range(KEYED_HISTORIES), pytest.param(range(8, 150), marks=pytest.mark.slow)]
)
def test_each_key_shows_what_it_would_if_the_range_had_been_loaded_as_the_replay_says(
    name: str, seeds: range
) -> None:
    ends = [check(seed, RULES[name]) for seed in seeds]
    assert {*ends} == {"promoted", "refused"}


def _of_the_range_alone(own: KeyedRange, alias: str, key: list[str], names: Sequence[str] = POSITION) -> str:
    return f"({own._within(alias, names)})"


#: What is left out, the rule of the table, and a history that notices it.
MUTANTS: Final[dict[str, tuple[object, str, Any, str, int]]] = {
    "R11: rows of the range stay": (KeyedRange, "_removals", lambda own: (), "remove", 3),
    "R11: deletions are not remembered again": (
        KeyedRange,
        "_remembering",
        lambda own: "SELECT 1",
        "remove",
        5,
    ),
    "R11: rows that lie before the range are not kept for a rollback": (
        KeyedRange,
        "_replaceable",
        _of_the_range_alone,
        "remove",
        6,
    ),
    "R11: records without a value delete nothing": (
        keyed,
        "is_tombstone",
        lambda *found: "FALSE",
        "remove",
        2,
    ),
    "R11: a rollback forgets which rows were marked as deleted": (
        KeyedRange,
        "_is_flagged",
        False,
        "mark",
        2,
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_text_without_a_rule_is_noticed(monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    where, name, change, rule, seed = MUTANTS[mutant]
    monkeypatch.setattr(where, name, change)
    with pytest.raises((AssertionError, duckdb.Error)):
        check(seed, RULES[rule])


def test_a_shadow_gets_the_columns_that_its_records_lack_and_none_of_them_is_required() -> None:
    shadow, target = (Column("A", "INT64"),), (Column("a", "INT64"), Column("b", "DATE", "REQUIRED"))
    assert with_all(shadow, target) == (Column("b", "DATE", "NULLABLE"),)


def test_a_tombstone_that_a_replay_brought_is_one_when_an_appended_table_becomes_an_upsert_table() -> None:
    table = ReplayedTable(RULE, Replay(7, "t", 0, {0: Bounds(0, 9)}))
    table.insert("t", [Record(b"k", "v", 0), Record(b"k", None, 1)])
    table.run(f"UPDATE t SET {REPLAY_COLUMN} = 7")
    table.apply([Record(b"other", "v", 2)], converts=True)
    assert table.shown == {b"other": "v"}
