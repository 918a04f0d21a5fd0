"""`_backlog/`, `_bqlock` and `_BACKFILL`, as users of Google's tool know them."""

from __future__ import annotations

import json

import pytest

from kbq_assets.ports.warehouse import JobError
from kbq_assets_tests.fakes.faults import Call, Outcome
from kbq_assets_tests.pipelines.filebatches.world import FilesWorld

BAD = JobError("invalid", "bad row", transient=False)
LOCK, BACKFILL = "shop/orders/_bqlock", "shop/orders/_BACKFILL"


@pytest.fixture
def world() -> FilesWorld:
    """A table whose second of three batches has failed."""
    world = FilesWorld(order_per_table=True, views=True)
    for number in range(1, 4):
        world.batch(f"shop/orders/{number}")
    world.warehouse.bad["orders/2"] = BAD
    world.run()
    return world


def backlog(world: FilesWorld) -> list[str]:
    return sorted(path for path in world.source.objects if "/_backlog/" in path)


def test_what_waits_has_a_pointer_and_the_lock_names_the_batch_that_failed(world: FilesWorld) -> None:
    assert backlog(world) == ["shop/orders/_backlog/2/_SUCCESS", "shop/orders/_backlog/3/_SUCCESS"]
    lock = json.loads(world.source.get(LOCK).data)
    assert lock["batch"] == "shop/orders/2" and "bad row" in lock["error"]
    assert lock["job_id"] in world.warehouse.jobs


@pytest.mark.parametrize(("keeps_pointer", "loaded"), [(True, ["1", "2", "3"]), (False, ["1", "3"])])
def test_deleting_the_lock_and_posting_backfill_retries_or_skips(
    world: FilesWorld, keeps_pointer: bool, loaded: list[str]
) -> None:
    world.warehouse.bad.clear()
    if not keeps_pointer:
        world.source.delete("shop/orders/_backlog/2/_SUCCESS")
    world.source.delete(LOCK)
    world.run()
    assert world.loaded == ["shop/orders/1"]  # the lock decides nothing
    assert world.waiting()["shop/orders/2"] == "failed" and LOCK not in world.source.objects
    world.put(BACKFILL, "")
    world.run()
    world.run()
    assert world.loaded == [f"shop/orders/{name}" for name in loaded]
    assert (backlog(world), world.waiting()) == ([], {}) and LOCK not in world.source.objects
    [entry] = world.batches().decisions("shop/orders")
    assert (entry.action, entry.by) == ("retry" if keeps_pointer else "skip", "_BACKFILL")


def test_a_backfill_while_the_lock_stays_decides_nothing(world: FilesWorld) -> None:
    world.put(BACKFILL, "")
    world.run()
    assert world.waiting()["shop/orders/2"] == "failed"


def test_an_old_backfill_decides_nothing() -> None:
    world = FilesWorld(order_per_table=True, views=True)
    world.put(BACKFILL, "")
    world.batch("shop/orders/1")
    world.warehouse.bad["orders/1"] = BAD
    world.run()
    world.source.delete(LOCK)
    world.run()
    assert world.waiting() == {"shop/orders/1": "failed"}


def test_a_pointer_that_kbq_never_wrote_cannot_have_been_deleted() -> None:
    world = FilesWorld(order_per_table=True)
    world.batch("shop/orders/1")
    world.warehouse.bad["orders/1"] = BAD
    world.run()
    assert backlog(world) == [] and LOCK not in world.source.objects
    world.put(BACKFILL, "")
    world.settings = FilesWorld(order_per_table=True, views=True).settings
    world.run()
    assert world.waiting() == {"shop/orders/1": "failed"}


@pytest.mark.parametrize("views", [True, False])
def test_somebody_elses_lock_is_waited_for_and_left_alone(views: bool) -> None:
    world = FilesWorld(views=views)
    world.put("shop/orders/inc/_config/ORDERME", "")
    world.put(LOCK, "maintenance until noon")
    world.batch("shop/orders/inc/1")
    world.batch("shop/orders/hist/1")
    world.run()
    assert world.loaded == ["shop/orders/hist/1"]
    assert world.waiting() == {"shop/orders/inc/1": "waits"}
    assert world.source.get(LOCK).data == b"maintenance until noon"
    world.source.delete(LOCK)
    world.run()
    assert world.loaded[1:] == ["shop/orders/inc/1"]


def test_an_empty_lock_is_none() -> None:
    world = FilesWorld(order_per_table=True)
    world.put(LOCK, "")
    world.batch("shop/orders/1")
    world.run()
    assert world.loaded == ["shop/orders/1"]


def test_a_job_in_flight_holds_the_lock() -> None:
    world = FilesWorld(order_per_table=True, views=True)
    world.warehouse.held = True
    world.batch("shop/orders/1")
    world.run()
    [job_id] = world.warehouse.jobs
    assert json.loads(world.source.get(LOCK).data)["job_id"] == job_id
    world.warehouse.finish(job_id)
    world.run()
    assert LOCK not in world.source.objects and backlog(world) == []


def test_views_that_cannot_be_written_stop_no_load(world: FilesWorld) -> None:
    world.warehouse.bad.clear()
    world.batches().retry("shop/orders", "shop/orders/2", "", "me")

    def read_only(call: Call) -> Outcome:
        return Outcome.UNAVAILABLE if call.writes else Outcome.OK

    world.source.faults = read_only
    [table] = world.batches("runner").run().tables
    assert world.loaded == [f"shop/orders/{number}" for number in range(1, 4)]
    assert "not up to date" in table.note
