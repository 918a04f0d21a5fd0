"""Promotion and rollback in the second of two warehouses, with a crash or another process before any of their writes:
what holds of one warehouse holds of it, and the first keeps its rows and counts (PROTOCOL R13)."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from kbq_assets.core.replay.positions import Position
from kbq_assets.definitions import Parts
from kbq_assets_tests.cli.test_erase_warehouses import TwoFakes
from kbq_assets_tests.cli.test_warehouses import BOTH
from kbq_assets_tests.fakes.faults import Call, Outcome
from kbq_assets_tests.fakes.platform import TOPIC, FakePlatform
from kbq_assets_tests.fakes.replay import FakeReplayTables
from kbq_assets_tests.fakes.warehouse import FakeWarehouse
from kbq_assets_tests.pipelines.replay.test_schedules import EVENTS, ORDERS, RANGE, SALES, World, act, run

WRONG = BOTH.replace("table=orders", "table=sales")


class InTheLake(World):
    """The same world, whose rows are repaired in the second warehouse, while the first has its own replay, 2."""

    right = BOTH

    def __init__(self, folder: Path, *, one_transaction: bool = True) -> None:
        super().__init__(folder, one_transaction=one_transaction)
        ends = Position(offsets={0: 1, 1: 0}), Position(offsets={0: 3, 1: 1})
        self.main().replays.propose(TOPIC, *ends)[1].apply()
        assert self.main().replays.read(2).is_done
        self.promoted_in_main = False

    def opened(self, folder: Path) -> FakePlatform:
        return TwoFakes(folder, WRONG)

    @property
    def warehouse(self) -> FakeWarehouse:
        assert isinstance(self.platform, TwoFakes) and self.platform.lake is not None
        return self.platform.lake

    def main(self) -> Parts:
        return self.platform.reopened().for_warehouse("main")

    def parts(self, faults: Callable[[Call], Outcome] | None = None) -> Parts:
        world, lake = self.platform, self.warehouse
        if faults is None:
            return world.reopened().for_warehouse("lake")
        world.store.faults = lake.faults = faults
        store, view = world.store.view("promoter"), lake.view("promoter")
        parts = world.reopened(store=lambda: store).for_warehouse("lake")
        parts.adapters.warehouse = lambda: view  # type: ignore[method-assign]
        parts.adapters.replay_tables = lambda: FakeReplayTables(lake, view)  # type: ignore[method-assign]
        return parts

    def cycle(self) -> None:
        """Two more records, extracted and loaded into both."""
        super().cycle()
        self.main().loader.load()

    def promote_in_main(self) -> None:
        """The first warehouse promotes its own replay of the range, whatever the second one does."""
        if not self.promoted_in_main:
            self.main().replays.propose_promotion(2).apply()
            self.promoted_in_main = True

    def check(self, *, counts: bool = True) -> None:
        """As of one warehouse; and the first has its rows, as its own replay says, and counts them."""
        super().check(counts=counts)
        rows = {table: self.platform.warehouse.rows(table) for table in (SALES, ORDERS)}
        places = {table: {(row.partition, row.offset) for row in found} for table, found in rows.items()}
        assert places[ORDERS if self.promoted_in_main else SALES] >= RANGE
        if counts:
            assert self.main().reconciler.counts().findings == ()
            assert self.main().reconciler.reconcile().findings == ()


class Beside:
    """Before the nth write of the second warehouse's operator, the first promotes its own replay."""

    def __init__(self, world: InTheLake, number: int) -> None:
        self.world, self.number, self.writes = world, number, 0

    def __call__(self, call: Call) -> Outcome:
        self.writes += call.writes
        if call.writes and self.writes == self.number:
            faults = self.world.platform.store.faults, self.world.warehouse.faults
            self.world.promote_in_main()
            self.world.platform.store.faults, self.world.warehouse.faults = faults
        return Outcome.OK


@pytest.mark.slow
@pytest.mark.parametrize("one_transaction", [True, False])
@pytest.mark.parametrize("event", EVENTS)
def test_a_promotion_in_the_second_warehouse_survives_an_event_before_each_of_its_writes(
    tmp_path: Path, event: str, one_transaction: bool
) -> None:
    number = 1
    while True:
        folder = tmp_path / str(number)
        folder.mkdir()
        world = InTheLake(folder, one_transaction=one_transaction)
        writes = run(world, "promote", {number: event})
        world.promote_in_main()
        assert world.finish() in ("promoted", "read", "rolled_back")
        if writes < number:
            break
        number += 1
    assert number > 10


@pytest.mark.parametrize("seed", range(3))
def test_random_schedules_of_promotions_in_the_second_warehouse(tmp_path: Path, seed: int) -> None:
    chance, world = random.Random(seed), InTheLake(tmp_path, one_transaction=seed % 2 == 0)
    for turn in range(3):
        events = {chance.randrange(1, 16): chance.choice(EVENTS) for _ in range(2)}
        run(world, chance.choice(["promote", "rollback"]), events)
        if turn == 1:
            world.promote_in_main()
        world.finish()


@pytest.mark.parametrize("number", [1, 3, 5, 7, 9])
def test_both_warehouses_promote_at_once_and_commits_count_both(tmp_path: Path, number: int) -> None:
    world = InTheLake(tmp_path)
    act(world, world.parts(Beside(world, number)), "promote")
    world.platform.store.faults = world.warehouse.faults = None
    assert world.promoted_in_main
    assert world.finish() == "promoted"
    assert set(world.rows(ORDERS)) >= RANGE
