"""One schedule: chaos first, then quiet, then the promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kbq_assets.core.errors import KbqError
from kbq_assets_tests.simulation.promises import check_all
from kbq_assets_tests.simulation.world import Recipe, World


@dataclass(frozen=True)
class Chaos:
    """How rough a schedule is. Rates are chances per call or per step."""

    steps: int = 150
    fault_rate: float = 0.03
    stall_rate: float = 0.01
    job_error_rate: float = 0.1
    resets: bool = True
    retention: bool = True


class ScheduleFailed(AssertionError):
    """A promise is broken; the seed reproduces it."""


def run_schedule(seed: int, chaos: Chaos | None = None, recipe: Recipe | None = None) -> World:
    """Run one schedule and check the promises. Raises ScheduleFailed with the seed and the trace."""
    world = World(seed, recipe)
    try:
        _rage(world, chaos or Chaos())
        _settle(world)
        check_all(world)
    except (AssertionError, KbqError) as error:
        trace = "\n".join(world.scheduler.trace)
        raise ScheduleFailed(
            f"seed {seed}: {error}\n{trace}\nagain: python -m kbq_assets_tests.simulation --seed {seed} --trace"
        ) from error
    return world


def _rage(world: World, chaos: Chaos) -> None:
    scheduler, random = world.scheduler, world.random
    scheduler.fault_rate, scheduler.stall_rate = chaos.fault_rate, chaos.stall_rate
    world.job_error_rate = chaos.job_error_rate
    events = _events(world, chaos)
    world.produce()
    for _ in range(chaos.steps):
        if random.random() < 0.25:
            weights = [weight for weight, _ in events]
            random.choices([event for _, event in events], weights)[0]()
        scheduler.step()


def _events(world: World, chaos: Chaos) -> list[tuple[float, Callable[[], None]]]:
    def start(kind: str, body: Callable[[str], object], most: int) -> Callable[[], None]:
        def event() -> None:
            alive = sum(p.name.startswith(kind) for p in world.scheduler.processes)
            if alive < most:
                world.scheduler.start(kind, lambda name: body(name) and None)

        return event

    events: list[tuple[float, Callable[[], None]]] = [
        (3.0, world.produce),
        (3.0, start("extractor", world.extract, 2)),
        (3.0, start("loader", world.load, 2)),
        (0.7, start("janitor", world.clean, 1)),
        (4.0, world.run_job),
        (1.0, world.land_late_call),
        (0.2, world.spoil_a_file),
    ]
    if chaos.resets:
        events += [(0.4, start("operator", world.operate, 1)), (0.03, world.recreate)]
    if chaos.retention:
        events.append((0.1, world.lose_to_retention))
    return events


def _settle(world: World) -> None:
    """No more faults: what runs ends, late calls arrive or not, and fresh runs finish the work."""
    scheduler = world.scheduler
    scheduler.fault_rate = scheduler.stall_rate = 0.0
    world.job_error_rate = 0.0
    while scheduler.step():
        if world.random.random() < 0.3:
            world.run_job()
        if world.random.random() < 0.05:
            world.land_late_call()
    for _ in range(6):
        for kind, body in (("extractor", world.extract), ("loader", world.load), ("janitor", world.clean)):
            scheduler.start(kind, lambda name, run=body: run(name) and None)  # type: ignore[misc]
            while scheduler.step():
                world.run_job()
        if world.random.random() < 0.5:
            world.land_late_call()
        world.repair()
        if _needs_reset(world):
            _reset(world)


def _needs_reset(world: World) -> bool:
    """Whether the topic was recreated, which only a reset mends."""
    return any(commit.topic_id != world.topic_id for commit in world.commits())


def _reset(world: World) -> None:
    from kbq_assets.pipelines.operate import propose_reset
    from kbq_assets_tests.simulation.world import TOPIC

    propose_reset(world.store, world.kafka, TOPIC, give_up_pending=True).apply()
