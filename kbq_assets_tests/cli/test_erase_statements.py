"""`kbq erase` for tables with statements: rows, remembered deleted keys, and scratch tables."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import duckdb
import pytest

from kbq_assets.adapters.duckdb import DuckDbWarehouse
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.statements.rules import SQL, StatementRule
from kbq_assets.definitions import Parts
from kbq_assets.pipelines.protocol import state
from kbq_assets_tests.cli.conftest import Shell, cycle
from kbq_assets_tests.cli.test_erase import named
from kbq_assets_tests.fakes.platform import SOURCES, TOPIC, FakePlatform

ANNA = "anna-3f1c"


class OverDuckDb(FakePlatform):
    """The fakes over a DuckDB file."""

    def __init__(self, folder: Path, load: str) -> None:
        self.path = folder / "w.duckdb"
        text = SOURCES.strip().replace("table=orders", f"table=orders keys=true tombstones=row {load}")
        super().__init__(folder, sources=text + "\n", partitions=1)

    def reopened(self, **ports: Any) -> Parts:
        path_of, store = self.store.path_of, self.store
        ports.setdefault(
            "warehouse",
            lambda: DuckDbWarehouse(self.path, open_uri=lambda uri: store.open_read(path_of(uri))),
        )
        return super().reopened(**ports)

    def change(self, key: str, name: str | None) -> None:
        value = None if name is None else named(name)
        self.kafka.produce(TopicPartition(TOPIC, 0), value, key=key.encode())

    def sql(self, query: str) -> list[Any]:
        with DuckDbWarehouse(self.path).connect_readonly() as connection:
            return connection.execute(query).fetchall()

    def everything(self) -> str:
        """All rows of all tables, also of KBQ's own."""
        tables = self.sql("SELECT schema_name || '.' || table_name FROM duckdb_tables() WHERE NOT temporary")
        return str([self.sql(f"SELECT * FROM {table}") for (table,) in tables])


SLOW = pytest.mark.slow
LOADS = (
    "load=upsert key=_kafka_key",
    pytest.param("load=upsert key=_kafka_key deletes=mark", marks=SLOW),
    pytest.param("load=scd2 key=_kafka_key", marks=SLOW),
    pytest.param("load=delete_insert key=_kafka_key version=_kafka_offset", marks=SLOW),
    pytest.param("load=insert_new key=_kafka_key,_kafka_offset", marks=SLOW),
    pytest.param("load=snapshot version=_kafka_partition", marks=SLOW),
)


def opened(tmp_path: Path, load: str) -> tuple[OverDuckDb, Shell]:
    if load.startswith(("load=delete_insert", "load=insert_new", "load=snapshot")):
        load += " "
    world = OverDuckDb(tmp_path, load)
    if not load.startswith(("load=upsert", "load=scd2")):
        world.source_topics.write_text(world.source_topics.read_text().replace("tombstones=row ", ""))
    return world, Shell(world)


@pytest.mark.parametrize("load", LOADS)
def test_a_person_is_gone_and_every_other_row_is_the_same(tmp_path: Path, load: str) -> None:
    world, run = opened(tmp_path, load)
    for name in ("bert", ANNA, "bert", ANNA, "carla"):
        world.change(name, name)
    cycle(run)
    if "upsert" in load:
        world.change("gone", "gone")
        world.change("gone", None)
        cycle(run)
    # One more of each, staged and not applied.
    for name in ("bert", ANNA):
        world.change(name, name)
    run.done("extract")
    others = f"SELECT * FROM shop.orders WHERE _kafka_key::VARCHAR <> '{ANNA}' ORDER BY _kafka_offset"
    before = world.sql(others)
    assert before and ANNA in world.everything()
    run.done("erase", "start", TOPIC, "--key", ANNA, "--yes")
    assert ANNA not in world.everything()
    assert world.sql(others) == before
    run.done("load")
    assert ANNA not in world.everything() and "bert" in world.everything()
    run.done("erase", "verify", "1")
    run.done("check")
    # Nothing brings the person back, and a later record of the same key is a customer's again.
    run.done("reset", "--topic", TOPIC, "--at", "earliest", "--yes")
    world.change(ANNA, ANNA)
    cycle(run)
    assert len(world.sql(f"SELECT 1 FROM shop.orders WHERE _kafka_key::VARCHAR = '{ANNA}'")) == 1


@pytest.mark.parametrize("deletes", ["", pytest.param(" deletes=mark", marks=SLOW)])
def test_a_deleted_person_is_forgotten_too(tmp_path: Path, deletes: str) -> None:
    world, run = opened(tmp_path, f"load=upsert key=_kafka_key{deletes}")
    for name, value in (("bert", "bert"), (ANNA, ANNA), (ANNA, None), ("carla", None)):
        world.change(name, value)
    cycle(run)
    assert ANNA in world.everything()  # the key, of which a deletion is remembered
    assert "shop.orders: 1 row " in run.done("erase", "plan", TOPIC, "--key", ANNA)
    run.done("erase", "start", TOPIC, "--key", ANNA, "--yes")
    assert ANNA not in world.everything() and "carla" in world.everything()
    run.done("reconcile")
    run.done("erase", "verify", "1")


def test_an_upsert_table_reconciles_after_an_erasure(tmp_path: Path) -> None:
    world, run = opened(tmp_path, "load=upsert key=_kafka_key")
    for name in ("bert", ANNA, "bert", ANNA):
        world.change(name, name)
    cycle(run)
    run.done("reconcile")
    run.done("erase", "start", TOPIC, "--key", ANNA, "--yes")
    run.done("reconcile")
    run.done("reconcile", "--counts")
    by_column = run.done("erase", "plan", TOPIC, "--where", "n=bert")
    assert "not searched: shop.orders: replaced records and deleted keys" in by_column


def test_a_scratch_table_of_a_parked_table_is_dropped(tmp_path: Path) -> None:
    world, run = opened(tmp_path, "load=upsert key=_kafka_key")
    world.change("bert", "bert")
    cycle(run)
    world.change(ANNA, ANNA)
    run.done("extract")
    uuid = json.loads(world.objects()["tables/shop.orders.json"])["uuid"]
    with duckdb.connect(str(world.path)) as connection:
        name = f"_kbq_batch_{uuid.replace('-', '_')}_1"
        connection.execute(f"CREATE TABLE shop.{name} AS SELECT '{ANNA}' AS n")
    run.done("erase", "start", TOPIC, "--key", ANNA, "--yes")
    assert ANNA not in world.everything()


@pytest.mark.thorough
def test_a_table_kept_by_your_own_sql_is_erased_by_position_and_the_rest_by_hand(
    tmp_path: Path,
) -> None:
    world, run = opened(tmp_path, "load=upsert key=_kafka_key")
    world.change(ANNA, ANNA)
    cycle(run)

    def by_sql(found: TableState) -> TableState:
        own = dataclasses.replace(found.definition.statements, rule=StatementRule(SQL))
        return dataclasses.replace(found, definition=dataclasses.replace(found.definition, statements=own))

    state.change(world.store, TableState, "tables/shop.orders.json", by_sql)
    refused = run("erase", "start", TOPIC, "--key", ANNA, "--yes")
    assert refused.exit_code == 3 and "maintained by your own SQL" in refused.output
    assert "--by-hand 'shop.orders'" in refused.output
    planned = run.done("erase", "plan", TOPIC, "--key", ANNA, "--by-hand", "shop.orders")
    assert "shop.orders: rows that your SQL made from several records" in planned
    run.done("erase", "start", TOPIC, "--key", ANNA, "--yes", "--by-hand", "shop.orders")
    assert ANNA not in world.everything()
    run.done("erase", "verify", "1")
