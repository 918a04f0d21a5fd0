"""Random schedules of two runners over a faulty store and warehouse: every batch becomes visible once, ordered ones in
order. Mutants of the rules must be noticed.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections import Counter
from typing import Any

import pytest

from kbq_assets.core.errors import ConfigurationError, StateError
from kbq_assets.core.filebatches import planning, table_batches
from kbq_assets.core.filebatches.planning import BatchState
from kbq_assets.core.filebatches.table_batches import BatchInFlight, FileTableState
from kbq_assets.pipelines.filebatches import prefix_run, view
from kbq_assets.pipelines.filebatches.prefix_run import PrefixRun
from kbq_assets.pipelines.filebatches.states import FileStates
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.ports.warehouse import JobError
from kbq_assets_tests.pipelines.filebatches.world import FilesWorld
from kbq_assets_tests.simulation.scheduler import Scheduler

SCHEDULES = 40
#: The most seeds until a mutant is noticed.
MUTANT_SCHEDULES = 120
BUSY, BAD = JobError("backendError", "busy", transient=True), JobError("invalid", "bad", transient=False)


class Schedule:
    """One seed: batches arrive in the order of their paths while runners come, crash and stall."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.scheduler = Scheduler(self.random, fault_rate=0.06, stall_rate=0.05)
        self.world = FilesWorld()
        self.world.warehouse.calls_left = 1000  # four times what any of 400 seeds needs
        self.world.put("shop/orders/inc/_config/ORDERME", "")
        for part in (self.world.source, self.world.store, self.world.warehouse):
            part.faults = self.scheduler.decide
        self.uploaded: list[str] = []

    def run(self) -> None:
        """Arrivals and runners, then calm, until nothing is left to do."""
        rng, world = self.random, self.world
        for number in range(rng.randint(4, 7)):
            self.arrive(f"shop/orders/{rng.choice(('inc', 'hist'))}/{number:02}")
            for _ in range(rng.randint(0, 2)):
                self.scheduler.start("runner", lambda name: world.batches(name).run())
            world.warehouse.held = rng.random() < 0.3
            world.warehouse.bad = {"/": rng.choice((BUSY, BAD))} if rng.random() < 0.15 else {}
            world.warehouse.refused = rng.random() < 0.1
            for _ in range(rng.randint(5, 60)):
                self.step()
        self.calm()

    def arrive(self, path: str) -> None:
        """Upload a batch."""
        self.world.batch(path, "a", "b")
        self.uploaded.append(path)

    def step(self) -> None:
        """One call of one process, or something of the world."""
        world, roll = self.world, self.random.random()
        if roll < 0.03 and world.warehouse.late:
            world.warehouse.deliver_late()
        elif roll < 0.06 and world.warehouse.pending:
            world.warehouse.finish(self.random.choice(sorted(world.warehouse.pending)))
        elif roll < 0.09 and world.store.late:
            world.store.deliver_late(self.random.randrange(len(world.store.late)))
        elif roll < 0.12:
            world.store.time_ms += table_batches.FIRST_PAUSE_MS
        self.scheduler.step()

    def calm(self) -> None:
        """No faults any more: what is late lands, and runs finish the rest."""
        world = self.world
        world.warehouse.held, world.warehouse.refused, world.warehouse.bad = False, False, {}
        self.scheduler.fault_rate = 0.0
        for _ in range(5000):
            if not self.scheduler.step():
                break
        for part in (world.source, world.store, world.warehouse):
            part.faults = None
        for _ in range(12):
            world.warehouse.deliver_late()
            while world.store.late:
                world.store.deliver_late()
            for job_id in sorted(world.warehouse.pending):
                world.warehouse.finish(job_id)
            world.store.time_ms += 64 * table_batches.FIRST_PAUSE_MS
            world.run()
            self.retry_failed()

    def retry_failed(self) -> None:
        """An operator retries what failed five times."""
        batches = self.world.batches()
        for table in batches.status().tables:
            for each in table.batches:
                if each.state is BatchState.FAILED:
                    batches.retry(table.prefix, each.path, "", "me")

    def complaints(self) -> list[str]:
        """What is wrong now."""
        loaded = Counter(self.world.loaded)
        found = [f"{path} is visible {loaded[path]} times" for path in self.uploaded if loaded[path] != 1]
        ordered = [path for path in self.world.loaded if "/inc/" in path]
        if ordered != sorted(ordered):
            found.append(f"out of order: {ordered}")
        rows = sum(len(visible.contents) for visible in self.world.warehouse.visible)
        state = self.world.batches().states.read("shop/orders").value
        if state.rows != rows or state.in_flight or state.failed:
            found.append(f"the state counts {state.rows} rows, and not {rows}")
        return found


def complaints_of(seed: int) -> list[str]:
    schedule = Schedule(seed)
    schedule.run()
    return schedule.complaints()


@pytest.mark.parametrize("first", range(0, SCHEDULES, 20))
def test_every_batch_becomes_visible_once_and_ordered_ones_in_order(first: int) -> None:
    found = {seed: wrong for seed in range(first, first + 20) if (wrong := complaints_of(seed))}
    assert found == {}


def test_schedules_meet_what_they_are_for() -> None:
    met: Counter[str] = Counter()
    for seed in range(6):
        schedule = Schedule(seed)
        schedule.run()
        met["crash"] += sum("Crash" in line for line in schedule.scheduler.trace)
        met["lost swap"] += sum("PreconditionFailed" in line for line in schedule.scheduler.trace)
        met["burned"] += sum(not job.source_uris for job in schedule.world.warehouse.jobs.values())
        met["retry"] += len(schedule.world.warehouse.jobs) > len(schedule.uploaded)
    assert met["crash"] and met["retry"]


# Mutants

_swap = FileStates.swap
_others = itertools.count()


def submit_first(self: PrefixRun, running: BatchInFlight) -> None:
    """F3: the job is submitted under an id that no state has."""
    self._ports.loads.insert(self._job(dataclasses.replace(running, job_id=f"another-{next(_others)}")))


def swap_anything(self: FileStates, old: Versioned[FileTableState], value: FileTableState) -> Any:
    """F3: the fence is gone, the last writer wins."""
    now = self._store.get(old.path)
    return _swap(self, dataclasses.replace(old, generation=now.generation), value)


def forget_jobs(state: FileTableState, running: BatchInFlight, error: str = "") -> FileTableState:
    """F4: the id is given up without being burned."""
    return table_batches.give_up(state, running, 0)


def forget_applied(state: FileTableState, applied: object, *rest: Any) -> Any:
    """F2: a batch is pending as long as a listing shows it."""
    return planning.plan_batches(state, {}, *rest)


def complete_the_oldest(state: FileTableState, running: BatchInFlight) -> FileTableState:
    """F5: whichever job ended, the first one in flight counts as done (as in Google's tool)."""
    return dataclasses.replace(state, in_flight=state.in_flight[1:])


#: Each breaks one rule: where, what is put there.
MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "F3: submitted under another id than entered": (PrefixRun, "_submit", submit_first),
    "F3: swapped without a precondition": (FileStates, "swap", swap_anything),
    "F3: an id is reused": (prefix_run, "job_id_of", lambda uuid, number, name="": f"kbq-{uuid}"),
    "F5: completion removes the oldest": (table_batches, "_without", complete_the_oldest),
    "F6: ordered batches do not wait": (planning, "_ASIDE", frozenset(BatchState)),
    "F2: applied batches are forgotten": (view, "plan_batches", forget_applied),
    "F4: a refused job is not burned": (table_batches, "burn", forget_jobs),
    "F5: a failed job counts as applied": (
        table_batches,
        "fail",
        lambda state, running, error, now_ms, transient=False: table_batches.settle(
            state, running, 0, now_ms, validates=False
        ),
    ),
}


@pytest.mark.parametrize("mutant", sorted(MUTANTS))
def test_a_broken_rule_is_noticed(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MUTANTS[mutant])

    def is_noticed(seed: int) -> bool:
        try:
            return bool(complaints_of(seed))
        except (AssertionError, ConfigurationError, StateError):
            return True

    assert any(map(is_noticed, range(MUTANT_SCHEDULES))), mutant
