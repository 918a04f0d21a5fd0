"""`kbq replay` in an Iceberg lake, from the command line: a wrong route is repaired, rolled back, and who dies between
two tables continues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kbq_assets.adapters.iceberg import replaced_files
from kbq_assets.adapters.iceberg.commits import commit_once
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.definitions import Parts
from kbq_assets.pipelines.replay import replays
from kbq_assets.ports.warehouse import Warehouse
from kbq_assets_tests.cli.conftest import Shell, cycle
from kbq_assets_tests.cli.test_replay import ORDERS
from kbq_assets_tests.cli.test_replay_promotion import KEPT, MOVED, SALES, read
from kbq_assets_tests.cli.test_warehouses import TwoWarehouses
from kbq_assets_tests.fakes.faults import Crash
from kbq_assets_tests.fakes.platform import SOURCES

ALL = sorted([*KEPT, *MOVED])


class LakeWorld(TwoWarehouses):
    """A lake as the settings say; the broker and the registry are fakes."""

    def reopened(self, **ports: Any) -> Parts:
        parts = super().reopened(**ports)
        del parts.adapters.replay_tables
        return parts

    @property
    def lake(self) -> Warehouse:
        return self.reopened().adapters.warehouse()

    def offsets(self, table: TableReference) -> list[tuple[int, int]]:
        """Partition and offset of each row."""
        lake = self.lake
        return sorted(
            (range_.partition, offset)
            for range_ in lake.kafka_ranges(table)
            for offset, rows in lake.positions(table, range_).items()
            for _ in range(rows)
        )

    @property
    def rows(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        return self.offsets(SALES), self.offsets(ORDERS)


@pytest.fixture
def world(tmp_path: Path) -> LakeWorld:
    """Nine rows went to the wrong table, `sales`; the source list says `orders` now."""
    wrong = SOURCES.replace("table=orders", "table=sales")
    made = LakeWorld(tmp_path, f"iceberg:{tmp_path / 'lake'}", wrong)
    made.produce(6)
    made.produce(3, partition=1)
    return made


@pytest.fixture
def run(world: LakeWorld) -> Shell:
    shell = Shell(world)
    cycle(shell)
    world.source_topics.write_text(SOURCES)
    return shell


def is_whole(run: Shell) -> None:
    run.done("reconcile")
    run.done("reconcile", "--counts")
    run.done("check")


@pytest.mark.thorough
def test_a_wrong_route_is_repaired_rolled_back_and_accepted(world: LakeWorld, run: Shell) -> None:
    read(run)
    assert run.json("replay", "diff", "1")["equal"] is False
    followed: list[TableReference] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replays, "follow_lake", lambda live, readers, tables: followed.extend(tables))
        assert "3 rows replace 0" in run.done("replay", "promote", "1", "--yes")
    assert (world.rows, followed) == ((KEPT, MOVED), [ORDERS, SALES])
    is_whole(run)
    world.produce(2)
    cycle(run)
    run.done("replay", "rollback", "1", "--yes")
    assert world.rows == (ALL, [(0, 6), (0, 7)])
    is_whole(run)
    run.done("replay", "promote", "1", "--yes")
    assert run.json("replay", "diff", "1")["equal"] is True
    run.done("replay", "accept", "1", "--yes")
    world.produce(1)
    cycle(run)
    is_whole(run)
    assert [table for table in world.lake.tables() if "_kbq_" in table.table] == []


@pytest.mark.thorough
def test_who_dies_between_two_tables_continues(
    world: LakeWorld, run: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(run)

    def dying(commit: Any, record: Any) -> None:
        commit_once(commit, record)
        if record.sources:  # a table's own commit: the copies of both come before
            raise Crash

    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(replaced_files, "commit_once", dying)
        world.reopened().replays.propose_promotion(1).apply()
    assert world.rows == (ALL, MOVED)
    assert run.json("replay", "status", "1")["replaced"] == {str(ORDERS): True, str(SALES): False}
    shown = run.done("replay", "status", "1")
    assert "shop.orders: replaced" in shown and "shop.sales: waits; next: kbq replay continue 1" in shown
    assert run("check").exit_code == 1
    assert "promoted" in run.done("replay", "continue", "1")
    assert (world.rows, run.json("replay", "status", "1")["replaced"]) == ((KEPT, MOVED), {})
    is_whole(run)


def test_a_table_that_was_dropped_comes_back(world: LakeWorld, run: Shell) -> None:
    world.source_topics.write_text(SOURCES.replace("table=orders", "table=sales"))
    world.reopened().replays.open_tables()._lake.catalog.drop_table(("shop", "sales"))  # type: ignore[attr-defined]
    world.produce(1)
    run("extract")
    run("load")
    read(run, "--from", "earliest")
    run.done("replay", "promote", "1", "--yes")
    cycle(run)
    assert world.offsets(SALES) == sorted([*ALL, (0, 6)])
    is_whole(run)
