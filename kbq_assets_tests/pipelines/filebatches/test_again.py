"""Settled batches are applied again from a given one on: once each, in the order of their paths (PROTOCOL F8)."""

from __future__ import annotations

import contextlib

import pytest

from kbq_assets.core.errors import NotFound, Refused
from kbq_assets.ports.warehouse import JobError
from kbq_assets_tests.fakes.faults import Crash, Outcome
from kbq_assets_tests.fakes.script import Script
from kbq_assets_tests.pipelines.filebatches.world import FilesWorld

PATHS = [f"shop/orders/{number}" for number in range(5)]


def applied(**settings: object) -> FilesWorld:
    world = FilesWorld(order_per_table=True, **settings)
    for path in PATHS:
        world.batch(path)
    world.run()
    return world


def again(world: FilesWorld, first: str) -> list[str]:
    batches = world.batches()
    found = batches.settled_from("shop/orders", first)
    batches.again("shop/orders", found, "a new transform", "me")
    return list(found)


def test_batches_from_one_on_are_applied_again_in_their_order_and_new_ones_follow() -> None:
    world = applied()
    assert again(world, PATHS[2]) == PATHS[2:]
    world.batch("shop/orders/9")
    world.batch("shop/orders/0a")  # sorts before them, and is new
    world.run()
    assert world.loaded[5:] == ["shop/orders/0a", *PATHS[2:], "shop/orders/9"]
    assert world.waiting() == {}
    world.run()
    assert len(world.loaded) == 10
    [decision] = world.batches().decisions("shop/orders")
    assert (decision.action, decision.batch, decision.reason, decision.by) == (
        "again", PATHS[2], "a new transform", "me",
    )  # fmt: skip


@pytest.mark.parametrize("settings", [{"on_reupload": "refuse"}, {"on_late": "park"}])
def test_no_rule_sets_a_batch_aside_that_is_applied_again(settings: dict[str, str]) -> None:
    world = applied(**settings)
    again(world, "shop/orders/")
    world.run()
    assert world.loaded[5:] == PATHS


def test_a_batch_that_fails_stops_those_after_it_and_a_retry_goes_on() -> None:
    world = applied()
    world.warehouse.bad["orders/3"] = JobError("invalid", "bad row", transient=False)
    again(world, PATHS[2])
    world.run()
    assert world.waiting() == {PATHS[3]: "failed", PATHS[4]: "waits"}
    world.warehouse.bad.clear()
    world.batches().retry("shop/orders", PATHS[3], "", "me")
    world.run()
    assert world.loaded[5:] == PATHS[2:]


@pytest.mark.parametrize("outcome", [Outcome.CRASH_BEFORE, Outcome.CRASH_AFTER, Outcome.LOST_REPLY])
@pytest.mark.parametrize("operation", ["insert", "swap"])
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_a_run_that_dies_applies_each_once_more(operation: str, outcome: Outcome, nth: int) -> None:
    world = applied()
    again(world, PATHS[2])
    for faulty in (world.store, world.warehouse):
        faulty.faults = Script(operation, outcome=outcome, nth=nth)
    with contextlib.suppress(Crash):
        world.batches("runner").run()
    for faulty in (world.store, world.warehouse):
        faulty.faults = lambda call: Outcome.OK
    world.run()
    world.run()
    assert world.loaded[5:] == PATHS[2:]


def test_batches_that_the_source_lost_are_left_out_and_none_at_all_is_refused() -> None:
    world = applied()
    world.source.delete(f"{PATHS[3]}/_SUCCESS")
    assert again(world, PATHS[2]) == [PATHS[2], PATHS[4]]
    with pytest.raises(NotFound, match="no settled batch from shop/orders/7 on"):
        world.batches().settled_from("shop/orders", "shop/orders/7")
    with pytest.raises(NotFound):
        world.batches().settled_from("shop/nothing", "")


def test_a_choice_that_leaves_out_an_ordered_batch_is_refused_and_any_other_is_taken() -> None:
    world = FilesWorld()
    world.put("shop/orders/inc/_config/ORDERME", "")
    paths = [f"shop/orders/{kind}/{number}" for kind in ("hist", "inc") for number in range(3)]
    for path in paths:
        world.batch(path)
    world.run()

    def chosen(*wanted: int) -> list[str]:
        names = {paths[number] for number in wanted}
        return list(world.batches().settled_among("shop/orders", lambda path: path in names))

    assert chosen(0, 2) == [paths[0], paths[2]]
    assert chosen(1, 4, 5) == [paths[1], paths[4], paths[5]]
    for wanted in ((3,), (4,), (3, 5)):
        with pytest.raises(Refused, match=r"is not chosen"):
            chosen(*wanted)
    with pytest.raises(NotFound):
        chosen()


def test_a_batch_whose_job_runs_is_not_applied_again() -> None:
    world = applied()
    again(world, PATHS[4])
    world.warehouse.faults = Script("insert", outcome=Outcome.CRASH_BEFORE)
    with contextlib.suppress(Crash):
        world.batches("runner").run()
    world.warehouse.faults = lambda call: Outcome.OK
    with pytest.raises(Refused, match="is applying shop/orders/4"):
        again(world, PATHS[2])
