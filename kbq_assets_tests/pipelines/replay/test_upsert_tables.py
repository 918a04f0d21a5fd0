"""Ranges of upsert tables are replaced and restored in a real DuckDB file. A model says what each key must show."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kbq_assets.adapters.duckdb import DuckDbWarehouse
from kbq_assets.adapters.duckdb.replay import DuckDbReplayTables
from kbq_assets.core.errors import JobFailed, Refused
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.replay.positions import Position
from kbq_assets.definitions import Parts
from kbq_assets.wire.chunk import encode_long
from kbq_assets_tests.fakes.platform import TOPIC, FakePlatform

pytestmark = pytest.mark.thorough

LOAD = "load=upsert key=_kafka_key keys=true"
#: A topic's rules: its table, and whether records without a value delete.
RULES = ("table=orders tombstones=row", "table=refunds tombstones=row", "table=orders tombstones=skip")
NAMES = ("orders", "refunds")


class Produced(NamedTuple):
    """A record, and the rule by which it was extracted."""

    partition: int
    offset: int
    key: bytes
    x: int | None
    rule: str

    @property
    def table(self) -> str:
        """Where the rule puts it; "" if it skips the record."""
        if self.x is None and "tombstones=skip" in self.rule:
            return ""
        return self.rule.split()[0].removeprefix("table=")


class Shop(FakePlatform):
    """A platform over a DuckDB file, with every record that was produced."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        super().__init__(folder, sources="")
        self.path = folder / "w.duckdb"
        self.records: list[Produced] = []

    def opened(self) -> Parts:
        """Parts over the file."""
        path_of, store = self.store.path_of, self.store
        return self.reopened(
            warehouse=lambda: DuckDbWarehouse(self.path, open_uri=lambda uri: store.open_read(path_of(uri))),
            replay_tables=lambda: DuckDbReplayTables(self.path),
        )

    def follow(self, rule: str) -> None:
        """Extract with this rule from now on."""
        self.rule = rule
        self.source_topics.write_text(f"{TOPIC} dataset=shop {LOAD} {rule}\n")

    def change(self, key: bytes, x: int | None, *, partition: int = -1) -> None:
        """Produce a record. Each key has a fixed partition, unless one is given."""
        where = key[-1] % 2 if partition < 0 else partition
        body = None if x is None else struct.pack(">bI", 0, 1) + encode_long(x)
        offset = self.kafka.produce(TopicPartition(TOPIC, where), body, key=key, timestamp=1000)
        self.records.append(Produced(where, offset, key, x, self.rule))

    def cycle(self) -> None:
        """Extract and load."""
        self.opened().extractor.extract()
        assert [t.message for t in self.opened().loader.load().tables if t.message] == []

    def read(self, first: dict[int, int], until: dict[int, int]) -> int:
        """A replay of these offsets, its number."""
        replays = self.opened().replays
        planned, proposal = replays.propose(TOPIC, Position(offsets=first), Position(offsets=until))
        proposal.apply()
        assert replays.read(planned.number).is_done
        return planned.number

    def promote(self, number: int) -> None:
        self.opened().replays.propose_promotion(number).apply()

    def roll_back(self, number: int) -> None:
        self.opened().replays.propose_rollback(number).apply()

    def all(self, *tables: str) -> dict[str, list[Any]]:
        """Every row and every remembered deletion, whole."""
        own = "COLUMNS(lambda name: name <> '_kbq_replay')"
        with DuckDbWarehouse(self.path).connect_readonly() as connection:
            return {
                name: sorted(connection.execute(f"SELECT {own} FROM shop.{name}").fetchall(), key=repr)
                for table in tables or NAMES
                for name in (table, f"_kbq_deleted_{table}")
            }

    def shown(self) -> dict[str, dict[bytes, int]]:
        """The value of each key, by table."""
        found: dict[str, dict[bytes, int]] = {}
        with DuckDbWarehouse(self.path).connect_readonly() as connection:
            for name in NAMES:
                rows = connection.execute(f"SELECT _kafka_key, x FROM shop.{name}").fetchall()
                found[name] = dict(rows)
                assert len(rows) == len({key for key, _ in rows}), rows
        return found


def newest(records: list[Produced]) -> dict[str, dict[bytes, Produced]]:
    """The newest record of each key, by table. Keys have one partition each."""
    found: dict[str, dict[bytes, Produced]] = {name: {} for name in NAMES}
    for each in records:
        if each.table:
            found[each.table][each.key] = each
    return found


def expected(records: list[Produced]) -> dict[str, dict[bytes, int]]:
    return {
        table: {key: each.x for key, each in by_key.items() if each.x is not None}
        for table, by_key in newest(records).items()
    }


@dataclass
class Story:
    """A random history of rules, a range of it, and the rule by which that is read again."""

    shop: Shop
    chance: random.Random
    first: dict[int, int] = field(default_factory=dict)
    until: dict[int, int] = field(default_factory=dict)

    def live(self, rule: str, count: int = 8) -> None:
        """Records under a rule."""
        self.shop.follow(rule)
        for _ in range(count):
            key = b"k%d" % self.chance.randrange(6)
            deleted = self.chance.random() < 0.3
            self.shop.change(key, None if deleted else self.chance.randrange(1000))
        self.shop.cycle()

    def tell(self) -> None:
        """Rows in both tables, then any rules; choose a range."""
        for rule in (*RULES[:2], *self.chance.choices(RULES, k=2)):
            self.live(rule)
        ends = {p: max(r.offset for r in self.shop.records if r.partition == p) + 1 for p in (0, 1)}
        is_whole = self.chance.random() < 0.5
        for partition, end in ends.items():
            first = 0 if is_whole else self.chance.randrange(end)
            self.first[partition], self.until[partition] = first, self.chance.randint(first + 1, end)
        self.today = self.chance.choice(RULES)
        self.shop.follow(self.today)

    def is_replayed(self, each: Produced) -> bool:
        return self.first[each.partition] <= each.offset < self.until[each.partition]

    def after(self) -> list[Produced]:
        """All records, as if those of the range had been extracted by today's rule."""
        return [
            each._replace(rule=self.today) if self.is_replayed(each) else each for each in self.shop.records
        ]

    @property
    def unknown(self) -> int:
        """Keys that show a record of the range in a table, and get none by today's rule."""
        now, later = newest(self.shop.records), newest([r for r in self.after() if self.is_replayed(r)])
        return sum(
            self.is_replayed(each) and key not in later[table]
            for table in NAMES
            for key, each in now[table].items()
        )


def run(folder: Path, seed: int) -> str:
    """Promote a range and roll it back, twice, while records come; how it ended."""
    story = Story(Shop(folder), random.Random(seed))
    shop = story.shop
    story.tell()
    before = shop.all()
    number = shop.read(story.first, story.until)
    assert shop.shown() == expected(shop.records)
    if story.unknown and any(story.first.values()):
        with pytest.raises(Refused, match="the range has the newest record of"):
            shop.promote(number)
        assert shop.all() == before
        shop.cycle()  # no table waits
        return "refused"
    shop.promote(number)
    assert shop.shown() == expected(story.after())
    if seed % 2:
        shop.roll_back(number)
        assert shop.all() == before
        shop.promote(number)
    story.live(story.today)
    assert shop.shown() == expected(story.after())
    shop.roll_back(number)
    assert shop.shown() == expected(shop.records)
    story.live(story.today, 4)
    shop.promote(number)
    shop.opened().replays.propose_accept(number).apply()
    story.live(story.today, 4)
    assert shop.shown() == expected(story.after())
    assert shop.opened().reconciler.counts().findings == ()
    return "whole" if story.unknown else "promoted"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_ranges_of_random_histories_show_what_todays_rules_would_have(tmp_path: Path, seed: int) -> None:
    run(tmp_path, seed)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """For an hour records without a value were skipped, so `k0` was not deleted."""
    made = Shop(tmp_path)
    made.follow(RULES[2])
    for key, x in ((b"k0", 1), (b"k2", 2), (b"k0", None), (b"k4", 3)):
        made.change(key, x)
    made.cycle()
    made.follow(RULES[0])
    return made


def orders(shop: Shop) -> dict[bytes, int]:
    with DuckDbWarehouse(shop.path).connect_readonly() as connection:
        return dict(connection.execute("SELECT _kafka_key, x FROM shop.orders").fetchall())


def test_a_deletion_that_was_skipped_takes_effect_and_is_taken_back(shop: Shop) -> None:
    before = shop.all("orders")
    number = shop.read({0: 1}, {0: 3})
    shop.promote(number)
    assert orders(shop) == {b"k2": 2, b"k4": 3}
    shop.change(b"k4", 5)
    shop.cycle()
    shop.roll_back(number)
    assert orders(shop) == {b"k0": 1, b"k2": 2, b"k4": 5}
    assert shop.all("orders") != before  # k4 is newer than the range
    shop.promote(number)
    shop.opened().replays.propose_accept(number).apply()
    assert orders(shop) == {b"k2": 2, b"k4": 5}
    assert shop.opened().reconciler.reconcile().findings == ()


def test_what_a_key_had_before_the_range_is_never_guessed(shop: Shop) -> None:
    """Today's rule puts the records into another table, so the range has none of their keys."""
    shop.follow(RULES[1])
    shop.change(b"k6", 6)
    shop.cycle()
    number = shop.read({0: 1}, {0: 4})
    before = orders(shop)
    with pytest.raises(Refused, match="the range has the newest record of 2 keys") as refused:
        shop.promote(number)
    assert "--from earliest" in refused.value.next_step
    assert orders(shop) == before
    shop.promote(shop.read({0: 0}, {0: 4}))
    assert shop.shown() == {"orders": {}, "refunds": {b"k2": 2, b"k4": 3, b"k6": 6}}


def test_a_range_that_lost_a_keys_newest_record_is_refused(shop: Shop) -> None:
    shop.change(b"k0", 4)
    shop.cycle()
    shop.kafka.compact(TopicPartition(TOPIC, 0), 3)
    with pytest.raises(Refused, match="newest record"):
        shop.promote(shop.read({0: 0}, {0: 5}))
    assert orders(shop) == {b"k0": 4, b"k2": 2, b"k4": 3}


def test_a_table_that_no_batch_has_loaded_gets_its_first_one_before(shop: Shop) -> None:
    shop.follow(RULES[1])
    number = shop.read({0: 0}, {0: 4})
    with pytest.raises(Refused, match="refunds: its next batch will be the first one"):
        shop.promote(number)
    shop.change(b"k6", 6)
    shop.cycle()
    shop.promote(number)
    assert shop.shown() == {"orders": {}, "refunds": {b"k2": 2, b"k4": 3, b"k6": 6}}


def test_a_key_in_two_partitions_fails_a_promotion_that_changes_nothing(shop: Shop) -> None:
    shop.follow(RULES[1])
    shop.change(b"k6", 6)
    shop.cycle()
    shop.follow(RULES[0])
    shop.change(b"k2", 7, partition=1)
    shop.follow("table=nowhere tombstones=row")
    shop.cycle()
    shop.follow(RULES[0])
    number = shop.read({0: 0, 1: 0}, {0: 4, 1: 1})
    before = orders(shop)
    with pytest.raises(JobFailed, match="a key is in two partitions"):
        shop.promote(number)
    assert orders(shop) == before
    shop.cycle()
