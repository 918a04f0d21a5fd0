"""A replay's rows have the epoch of their records, also if a load that a reset overtook brings rows of the former one
(PROTOCOL R2)."""

from __future__ import annotations

import pytest

from kbq_assets_tests.cli.conftest import Shell, cycle
from kbq_assets_tests.cli.test_replay import ORDERS, offsets
from kbq_assets_tests.fakes.faults import Crash, Outcome
from kbq_assets_tests.fakes.platform import TOPIC, FakePlatform
from kbq_assets_tests.fakes.script import Script

RANGE = ("--from", "0:2", "--until", "0:4", "--yes")


@pytest.fixture
def world(world: FakePlatform) -> FakePlatform:
    """Two records of partition 0 are loaded, and two wait."""
    run = Shell(world)
    world.produce(2)
    cycle(run)
    world.produce(2)
    run.done("extract")
    return world


def reset(run: Shell) -> None:
    """A new epoch, which gives up what waits."""
    options = ("--partition", "1", "--at", "latest", "--give-up-pending", "--yes")
    run.done("reset", "--topic", TOPIC, *options)


def epoch(run: Shell) -> int:
    return int(run.json("replay", "status", "1")["epoch"])


def test_a_load_in_flight_says_that_its_rows_are_of_the_former_epoch(world: FakePlatform, run: Shell) -> None:
    view = world.warehouse.view("loader")
    world.warehouse.faults = Script("insert_job", outcome=Outcome.CRASH_AFTER)
    with pytest.raises(Crash):
        world.reopened(warehouse=lambda: view).loader.load()
    world.warehouse.faults = None
    reset(run)
    run.done("replay", "start", TOPIC, *RANGE)
    assert epoch(run) == 1
    run.done("load")
    run.done("replay", "promote", "1", "--yes")
    assert offsets(world, ORDERS) == [(0, offset) for offset in range(4)]


def test_a_replay_of_records_that_a_late_load_brings_is_refused(world: FakePlatform, run: Shell) -> None:
    """The loader read the files before a reset gave them up, and enters its job after the replay began."""

    def meanwhile() -> None:
        reset(run)
        run.done("replay", "start", TOPIC, *RANGE)

    view = world.store.view("loader")
    world.store.faults = Script("swap", f"tables/{ORDERS}", before=meanwhile)
    world.reopened(store=lambda: view).loader.load()
    world.store.faults = None
    assert (offsets(world, ORDERS), epoch(run)) == ([(0, offset) for offset in range(4)], 2)
    refused = run("replay", "promote", "1", "--yes")
    assert (refused.exit_code, "has rows of epoch 1" in refused.output) == (3, True), refused.output
    assert "next: kbq replay drop 1" in refused.output
    assert offsets(world, ORDERS) == [(0, offset) for offset in range(4)]
    run.done("replay", "drop", "1", "--yes")
    run.done("replay", "start", TOPIC, *RANGE)
    run.done("replay", "promote", "2", "--yes")
    assert offsets(world, ORDERS) == [(0, offset) for offset in range(4)]
    assert [(row.epoch, row.offset) for row in world.warehouse.rows(ORDERS)][-2:] == [(1, 2), (1, 3)]
