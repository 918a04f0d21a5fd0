"""A range is replaced, rolled back and restored in a real DuckDB file, by the pipelines alone."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from kbq_assets.adapters.duckdb import DuckDbWarehouse
from kbq_assets.adapters.duckdb.replay import DuckDbReplayTables
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.replay.positions import Position
from kbq_assets.definitions import Parts
from kbq_assets_tests.fakes.platform import SOURCES, TOPIC, FakePlatform

ORDERS, SALES = (TableReference("shop", name) for name in ("orders", "sales"))
Rows = list[tuple[object, ...]]


class DuckDbPlatform(FakePlatform):
    """The fakes over a DuckDB file. Four rows went to `sales`, and the source list says `orders` now."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "w.duckdb"
        super().__init__(folder, sources=SOURCES.replace("table=orders", "table=sales"), partitions=1)
        self.produce(4)
        self.cycle()

    def opened(self) -> Parts:
        """Parts over the file."""
        path_of, store = self.store.path_of, self.store
        return self.reopened(
            warehouse=lambda: DuckDbWarehouse(self.path, open_uri=lambda uri: store.open_read(path_of(uri))),
            replay_tables=lambda: DuckDbReplayTables(self.path),
        )

    def cycle(self) -> None:
        """Extract and load."""
        self.opened().extractor.extract()
        assert [t.message for t in self.opened().loader.load().tables if t.message] == []

    def rows(self, table: TableReference, columns: str = "_kafka_offset") -> Rows:
        """Rows in the order of their offsets."""
        with DuckDbWarehouse(self.path).connect_readonly() as connection:
            query = f"SELECT {columns} FROM {table.dataset}.{table.table} ORDER BY _kafka_offset"
            return connection.execute(query).fetchall()

    def is_whole(self) -> bool:
        """Whether every record is accounted for, with its values."""
        return self.opened().reconciler.reconcile(values="all").findings == ()

    def read(self, first: int, until: int) -> int:
        """A replay of these offsets, its number."""
        replays = self.opened().replays
        planned, proposal = replays.propose(TOPIC, Position(offset=first), Position(offset=until))
        proposal.apply()
        assert replays.read(planned.number).is_done
        return planned.number


@pytest.fixture
def world(tmp_path: Path) -> DuckDbPlatform:
    return DuckDbPlatform(tmp_path)


@pytest.mark.slow
def test_a_wrong_route_is_repaired_and_rolled_back(world: DuckDbPlatform) -> None:
    world.source_topics.write_text(SOURCES)
    number = world.read(1, 3)
    replays = world.opened().replays
    found = replays.diff(number)
    assert (found.is_equal, [d.offset for d in found.rows[SALES]]) == (False, [1, 2])
    replays.propose_promotion(number).apply()
    assert (world.rows(SALES), world.rows(ORDERS, "_kafka_offset, _kbq_replay, x")) == (
        [(0,), (3,)],
        [(1, number, 1), (2, number, 1)],
    )
    assert world.is_whole()
    world.produce(1)
    world.cycle()
    replays.propose_rollback(number).apply()
    assert (world.rows(SALES, "_kafka_offset, _kbq_replay"), world.rows(ORDERS)) == (
        [(0, None), (1, None), (2, None), (3, None)],
        [(4,)],
    )
    assert world.is_whole()
    replays.propose_promotion(number).apply()
    replays.propose_accept(number).apply()
    assert world.is_whole()
    tables = [t for t in DuckDbWarehouse(world.path).tables() if t.table.startswith("_kbq")]
    assert tables == []


def test_a_dropped_table_gets_the_equal_rows_back(world: DuckDbPlatform) -> None:
    before = world.rows(SALES, "*")
    with duckdb.connect(str(world.path)) as connection:
        connection.execute("DROP TABLE shop.sales")
    number = world.read(0, 4)
    world.opened().replays.propose_promotion(number).apply()
    assert world.rows(SALES, "* EXCLUDE _kbq_replay") == before
    world.produce(1)
    world.cycle()
    assert world.rows(SALES) == [(0,), (1,), (2,), (3,), (4,)]
    assert world.is_whole()
