"""Replays of JSON topics with inferred columns, in a real DuckDB file: the live topic goes on with the columns that a
promotion brings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kbq_assets.adapters.duckdb import DuckDbWarehouse
from kbq_assets.adapters.duckdb.replay import DuckDbReplayTables
from kbq_assets.core.errors import Refused
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.replay.positions import Position
from kbq_assets.definitions import Parts
from kbq_assets_tests.fakes.platform import TOPIC, FakePlatform

JSON = f"{TOPIC} dataset=shop table=orders format=json_columns"


class Documents(FakePlatform):
    """A platform over a DuckDB file, and a topic of documents. Field `x` is dropped, until somebody decides to keep
    it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, sources=f"{JSON} pii=x:drop pii_others=keep\n")
        self.path = folder / "w.duckdb"

    def opened(self) -> Parts:
        """Parts over the file."""
        path_of, store = self.store.path_of, self.store
        return self.reopened(
            warehouse=lambda: DuckDbWarehouse(self.path, open_uri=lambda uri: store.open_read(path_of(uri))),
            replay_tables=lambda: DuckDbReplayTables(self.path),
        )

    def add(self, **document: object) -> None:
        """Produce a document."""
        self.kafka.produce(TopicPartition(TOPIC, 0), json.dumps(document).encode(), timestamp=1000)

    def extract(self) -> None:
        report = self.opened().extractor.extract()
        assert (report.stops, report.failures) == ((), {})

    def load(self) -> None:
        assert [t.message for t in self.opened().loader.load().tables if t.message] == []

    def keep_x(self) -> None:
        self.source_topics.write_text(f"{JSON}\n")

    def replay(self) -> int:
        """Replay the first two documents, with today's options."""
        replays = self.opened().replays
        planned, proposal = replays.propose(TOPIC, Position(offsets={0: 0}), Position(offsets={0: 2}))
        proposal.apply()
        assert replays.read(planned.number).is_done
        return planned.number

    def promote(self, number: int) -> None:
        self.opened().replays.propose_promotion(number).apply()

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        query = "SELECT _kafka_offset, n, x, _kbq_rest FROM shop.orders ORDER BY ALL"
        with DuckDbWarehouse(self.path).connect_readonly() as connection:
            return connection.execute(query).fetchall()


@pytest.fixture
def world(tmp_path: Path) -> Documents:
    """Two documents, loaded without `x`, which is kept from now on."""
    made = Documents(tmp_path)
    made.add(n=1, x=10)
    made.add(n=2, x=20)
    made.extract()
    made.load()
    made.keep_x()
    return made


def test_a_value_of_another_type_than_the_promoted_column_stops_no_table(world: Documents) -> None:
    world.promote(world.replay())
    world.add(n=3, x="thirty")
    world.add(n=4, x=40)
    world.extract()
    world.load()
    rest = '{"x":"thirty"}'
    assert world.rows == [(0, 1, 10, None), (1, 2, 20, None), (2, 3, None, rest), (3, 4, 40, None)]


def test_columns_that_the_live_topic_has_got_meanwhile_stay(world: Documents) -> None:
    number = world.replay()
    world.add(n=3, y=True, x=30)
    world.extract()  # the live topic infers the same column by itself
    world.promote(number)
    world.add(n=4, y="no", x="forty")
    world.extract()
    world.load()
    rest = '{"y":"no","x":"forty"}'
    assert [row[1:] for row in world.rows][2:] == [(3, 30, None), (4, None, rest)]


def test_a_promotion_that_contradicts_a_live_column_is_refused_before_it_changes_anything(
    world: Documents,
) -> None:
    number = world.replay()
    world.add(n=3, x="thirty")
    world.extract()  # staged, not loaded: no table has the column yet
    before = world.objects()
    with pytest.raises(Refused, match="field x is STRING, and INT64 in the replay"):
        world.promote(number)
    assert world.objects() == before
    world.load()
    assert [row[2] for row in world.rows] == [None, None, "thirty"]
