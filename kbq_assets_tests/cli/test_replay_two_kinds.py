"""`kbq replay` and `kbq errors replay` over the real adapters of two warehouses: two DuckDB files, or one beside an
Iceberg lake. Each is repaired by itself, and reconciliation is true of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbq_assets.core.protocol.names import TableReference
from kbq_assets.ports.warehouse import Warehouse
from kbq_assets_tests.cli.conftest import Shell, cycle
from kbq_assets_tests.cli.test_replay import ORDERS
from kbq_assets_tests.cli.test_replay_lake import LakeWorld, is_whole
from kbq_assets_tests.cli.test_replay_promotion import ALL, KEPT, MOVED, SALES
from kbq_assets_tests.cli.test_replay_warehouses import RANGE, WRONG
from kbq_assets_tests.cli.test_warehouses import BOTH
from kbq_assets_tests.fakes.platform import GOOD, SCHEMAS, TOPIC, UNKNOWN_SCHEMA

pytestmark = pytest.mark.thorough

ERRORS = TableReference("shop", "kbq_errors")
Places = list[tuple[int, int]]


class TwoKinds(LakeWorld):
    """Warehouses `main` and `lake` as the settings say; the broker and the registry are fakes."""

    def offsets_in(self, name: str, table: TableReference) -> Places:
        """Partition and offset of each row."""
        return places(self.reopened().for_warehouse(name).adapters.warehouse(), table)

    def tables(self, name: str) -> tuple[Places, Places]:
        return self.offsets_in(name, SALES), self.offsets_in(name, ORDERS)


def places(warehouse: Warehouse, table: TableReference) -> Places:
    return sorted(
        (range_.partition, offset)
        for range_ in warehouse.kafka_ranges(table)
        for offset, rows in warehouse.positions(table, range_).items()
        for _ in range(rows)
    )


@pytest.fixture(params=["duckdb", "iceberg"])
def warehouses(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    other = tmp_path / ("lake.duckdb" if request.param == "duckdb" else "lake")
    return f"main=duckdb:{tmp_path / 'main.duckdb'},lake={request.param}:{other}"


def test_a_wrong_route_is_repaired_in_both_warehouses(tmp_path: Path, warehouses: str) -> None:
    world = TwoKinds(tmp_path, warehouses, WRONG)
    run = Shell(world)
    world.produce(6)
    world.produce(3, partition=1)
    cycle(run)
    world.source_topics.write_text(BOTH)
    for number, name in enumerate(("lake", "main"), 1):
        run.done("--warehouse", name, "replay", "start", TOPIC, *RANGE)
        assert run.json("replay", "diff", str(number))["equal"] is False
        assert "3 rows replace 0" in run.done("replay", "promote", str(number), "--yes")
        assert run.json("replay", "diff", str(number))["equal"] is True
        assert world.tables(name) == (KEPT, MOVED)
        assert world.tables("main") == ((KEPT, MOVED) if number == 2 else (ALL, []))
    is_whole(run)


def test_a_promotion_of_one_warehouse_is_rolled_back_while_the_others_stays(
    tmp_path: Path, warehouses: str
) -> None:
    world = TwoKinds(tmp_path, warehouses, WRONG)
    run = Shell(world)
    world.produce(6)
    world.produce(3, partition=1)
    cycle(run)
    world.source_topics.write_text(BOTH)
    for name in ("lake", "main"):
        run.done("--warehouse", name, "replay", "start", TOPIC, *RANGE)
    for number in ("1", "2"):
        run.done("replay", "promote", number, "--yes")
    world.produce(2)
    cycle(run)
    run.done("replay", "rollback", "1", "--yes")
    run.done("replay", "accept", "2", "--yes")
    run.done("replay", "drop", "1", "--yes")
    assert world.tables("lake") == (ALL, [(0, 6), (0, 7)])
    assert world.tables("main") == (KEPT, sorted([*MOVED, (0, 6), (0, 7)]))
    for name in ("main", "lake"):
        found = world.reopened().for_warehouse(name).adapters.warehouse().tables()
        assert [table for table in found if table.table.startswith("_kbq_replay_")] == []
    is_whole(run)


def test_error_rows_come_back_in_each_warehouse(tmp_path: Path, warehouses: str) -> None:
    world = TwoKinds(tmp_path, warehouses, BOTH.strip() + " error_share=1\n")
    run = Shell(world)
    for value in (GOOD, UNKNOWN_SCHEMA, GOOD):
        world.produce(value=value)
    run("extract")
    run.done("resume", "--topic", TOPIC, "--as-errors", "--yes")
    cycle(run)
    world.registry.schemas[99] = SCHEMAS[1]
    asked = run("errors", "replay", "--yes")
    assert (asked.exit_code, "kbq --warehouse lake errors replay --yes" in asked.output) == (2, True)
    for name, waiting in (("lake", 1), ("main", 0)):
        assert "shop.orders: 1 row added" in run.done("--warehouse", name, "errors", "replay", "--yes")
        assert world.offsets_in(name, ORDERS) == [(0, 0), (0, 1), (0, 2)]
        assert len(world.offsets_in("main", ERRORS)) == waiting
    is_whole(run)
    again = run.done("--warehouse", "lake", "errors", "replay", "--yes")
    assert "no error row waits for a replay" in again


def test_older_rows_of_a_lake_that_was_added_later_come_by_a_replay(tmp_path: Path, warehouses: str) -> None:
    alone = TwoKinds(tmp_path, warehouses.partition(",")[0], f"{TOPIC} dataset=shop table=orders\n")
    alone.produce(4)
    cycle(Shell(alone))
    world = TwoKinds(tmp_path, warehouses, BOTH)
    world.kafka, run = alone.kafka, Shell(world)
    world.produce(2)
    cycle(run)
    assert world.offsets_in("lake", ORDERS) == [(0, 4), (0, 5)]
    assert run("--warehouse", "lake", "reconcile").exit_code == 1
    run.done("--warehouse", "lake", "replay", "start", TOPIC, "--yes")
    run.done("replay", "promote", "1", "--yes")
    run.done("replay", "accept", "1", "--yes")
    assert world.offsets_in("lake", ORDERS) == [(0, offset) for offset in range(6)]
    is_whole(run)
