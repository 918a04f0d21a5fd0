"""Processes that return after they were considered dead, and several that start at once: still exactly once."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping

import pytest

from kbq_assets.adapters.duckdb import DuckDbWarehouse
from kbq_assets.core.errors import Unavailable
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.pipelines.operate import commands as operate
from kbq_assets_tests.crashes import child
from kbq_assets_tests.crashes.forks import Event, Forks
from kbq_assets_tests.crashes.probes import Point, chosen, every_nth
from kbq_assets_tests.crashes.scenes import Scenes, log, order
from kbq_assets_tests.integration.world import World
from kbq_assets_tests.sizes import EVERY_NTH_POINT, STARTS_AT_ONCE

pytestmark = pytest.mark.kafka


#: What a zombie is about to do when it falls asleep.
_DANGEROUS = (
    *("store.create commits", "store.swap commits", "store.create_empty", "writer staging.close"),
    *("store.swap commits/_topics.json", "store.swap tables", "store.create tables", "store.delete_many"),
    *("warehouse.insert_job", "warehouse.create_table", "warehouse.update_columns"),
    *("store.create backlog", "store.delete backlog"),
)


def _sleeping_places(passed: Mapping[str, int], run: str) -> list[Point]:
    """Before a write, where a decision is made and not yet carried out; for a janitor also between listing and reading.

    None is inside DuckDB: others wait for those.
    """
    if run == "clean":
        return chosen(passed)
    dangerous = {f"{call}, before" for call in _DANGEROUS} | {
        "store.create_empty, next",
        "store.delete_many, next",
    }
    return [Point(kind, nth) for kind in sorted(dangerous & set(passed)) for nth in {1, passed[kind]}]


def _stopped(forks: Forks, world: World, run: str, point: Point) -> int:
    """A run that sleeps at a point."""
    pid = forks.fork(order(world, run, point, signal.SIGSTOP))
    assert forks.wait(pid, "stopped", "ended") == Event(pid, "stopped"), log(world, run)
    return pid


def _wake(forks: Forks, world: World, run: str, pid: int) -> None:
    """Let a run that sleeps end: it does its work, or says why not, and never breaks."""
    os.kill(pid, signal.SIGCONT)
    ended = forks.wait(pid, "ended")
    assert ended.code in (child.DONE, child.SAID_WHY), log(world, run)


@pytest.mark.parametrize(
    ("run", "of"),
    [
        ("extract", "fresh"),
        ("extract", "grown"),
        ("load", "extracted"),
        ("load", "staged"),
        ("clean", "littered"),
        ("extract", "parked"),
        ("load", "backlog"),
    ],
)
def test_a_zombie_comes_back_when_others_have_done_its_work(
    scenes: Scenes, forks: Forks, run: str, of: str
) -> None:
    points = _sleeping_places(scenes.points(run, of), run)
    assert len(points) >= 2
    failures: dict[str, str] = {}
    for point in every_nth(points, EVERY_NTH_POINT, f"sleep {run} {of}"):
        world = scenes.copy(of)
        pid = _stopped(forks, world, run, point)
        try:
            scenes.check(world)
            _wake(forks, world, run, pid)
            scenes.check(world)
            scenes.remove(world)
        except AssertionError as error:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            failures[str(point)] = str(error)
    assert not failures, "\n".join(f"{point}: {message}" for point, message in failures.items())


@pytest.mark.parametrize("kind", ["writer staging.close, before", "store.swap commits, before"])
def test_an_extraction_that_sleeps_through_a_reset_publishes_nothing(
    scenes: Scenes, forks: Forks, kind: str
) -> None:
    world = scenes.copy("grown")
    count = scenes.points("extract", "grown")[kind]
    pid = _stopped(forks, world, "extract", Point(kind, count))
    scenes.check(world)
    [topic] = {tp.topic for tp in world.producers.log}
    operate.propose_reset(world.parts.deployment.store, world.parts.deployment.offsets, topic).apply()
    _wake(forks, world, "extract", pid)
    scenes.check(world)
    assert {row[0] for row in world.query("SELECT DISTINCT _kbq_epoch FROM shop.Pear")} == {1, 2}


#: Before its commit a transaction holds others up; the other two places are thorough.
@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("duckdb INSERT, after", marks=pytest.mark.thorough),
        "duckdb COMMIT, before",
        pytest.param("duckdb COMMIT, after", marks=pytest.mark.thorough),
    ],
)
def test_a_loader_that_sleeps_inside_a_transaction_holds_others_up_and_doubles_nothing(
    scenes: Scenes, forks: Forks, statement: str
) -> None:
    world = scenes.copy("extracted")
    count = scenes.points("load", "extracted")[statement]
    pid = _stopped(forks, world, "load", Point(statement, count))
    hasty = DuckDbWarehouse(world.folder / "warehouse.duckdb", lock_timeout_seconds=0.2)
    with pytest.raises(Unavailable, match=f"process {pid},"):
        hasty.columns(TableReference("shop", "Apple"))
    _wake(forks, world, "load", pid)
    scenes.check(world)


@pytest.mark.parametrize(
    ("runs", "of"),
    [
        (("extract", "extract"), "fresh"),
        (("extract", "extract"), "grown"),
        (("load", "load"), "extracted"),
        (("load", "load", "extract", "clean"), "staged"),
        (("extract", "load", "clean", "extract", "load", "clean"), "littered"),
    ],
)
def test_runs_that_start_at_once_share_the_work(
    scenes: Scenes, forks: Forks, runs: tuple[str, ...], of: str
) -> None:
    for _ in range(STARTS_AT_ONCE):
        world = scenes.copy(of)
        pids = [forks.fork(order(world, run)) for run in runs]
        for pid, run in zip(pids, runs, strict=True):
            assert forks.wait(pid, "ended").code in (child.DONE, child.SAID_WHY), log(world, run)
        scenes.check(world)
