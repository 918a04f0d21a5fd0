"""Schedules of one race each: who meets is chosen, and everything else is drawn."""

from __future__ import annotations

import functools
from collections.abc import Callable

from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.pipelines.operate.commands import propose_accept_gap, propose_reset
from kbq_assets_tests.fakes.statements import Failure
from kbq_assets_tests.simulation import statements
from kbq_assets_tests.simulation.schedule import ERASED, RECREATED, ROUGH, STATEMENTS, checked
from kbq_assets_tests.simulation.world import PERMANENT, TOPIC, World


def run_two_loaders(seed: int) -> World:
    """Two loaders start at once on freshly staged files; jobs run at any time, and calls fail. Then the promises."""
    return checked(World(seed), f"run_two_loaders({seed})", _race_loaders)


def _race_loaders(world: World) -> None:
    scheduler, random = world.scheduler, world.random
    for _ in range(random.randint(1, 3)):
        world.produce()
        scheduler.start("extractor", world.extract)
        scheduler.run_to_end()
    scheduler.fault_rate, scheduler.stall_rate = ROUGH.fault_rate, ROUGH.stall_rate
    world.job_error_rate = ROUGH.job_error_rate
    for _ in range(2):
        scheduler.start("loader", world.load)
    while scheduler.step():
        if random.random() < 0.2:
            world.run_job()
        if random.random() < 0.05:
            world.deliver_late_call()


def run_late_skip(seed: int) -> World:
    """Statements fail, and their ledgers hear late that an operator skips them: while the next load runs, or never."""
    return checked(World(seed, STATEMENTS), f"run_late_skip({seed})", _skip_late)


def _skip_late(world: World) -> None:
    scheduler, failing = world.scheduler, world.warehouse.statements.errors

    def run(kind: str, body: Callable[[str], object], *, lands: float = 0.0) -> None:
        scheduler.start(kind, body)
        while scheduler.step():
            world.run_job()
            if world.random.random() < lands:
                world.deliver_late_call()

    world.produce()
    run("extractor", world.extract)
    world.warehouse.statements.errors = lambda job: (PERMANENT, Failure.BEFORE)
    run("loader", world.load)
    world.warehouse.statements.errors, world.decide_rate = failing, 1.0
    run("operator", functools.partial(statements.skip_late, world))
    statements.resume(world)
    run("loader", world.load)
    world.produce()
    run("extractor", world.extract)
    statements.resume(world)
    run("loader", world.load, lands=0.1)


def run_late_publication(seed: int) -> World:
    """An extraction reads Anna's records while they are erased, and goes on at any step of the erasure, or after it."""
    return checked(World(seed, ERASED), f"run_late_publication({seed})", _publish_late)


def _publish_late(world: World) -> None:
    scheduler, random = world.scheduler, world.random
    for kind in "1a":
        world.produce_one(random.randrange(world.partitions), kind)
    world.run_alone("extractor", world.extract)
    for kind in "12ab":
        world.produce_one(random.randrange(world.partitions), kind)
    scheduler.start("extractor", world.extract)
    [extractor] = scheduler.processes
    for _ in range(random.randint(10, 60)):
        scheduler.step()
    extractor.stalled = random.randrange(800)
    scheduler.start("eraser", world.erase)
    is_reading = extractor in scheduler.processes
    while scheduler.processes:
        scheduler.step()
        world.run_job()
        world.met["late"] += is_reading and scheduler.processes == [extractor]


def run_late_changes(seed: int) -> World:
    """A run and an operator measure gaps and the start of a new partition. Then the topic is recreated and reset, and
    they go on while another run reads the new log."""
    return checked(World(seed, RECREATED), f"run_late_changes({seed})", _change_late)


def _change_late(world: World) -> None:
    scheduler, random = world.scheduler, world.random

    def run(kind: str, body: Callable[[str], object]) -> None:
        scheduler.start(kind, body)
        own = scheduler.processes[-1]
        while own in scheduler.processes:
            scheduler.step()

    def measure(kind: str, body: Callable[[str], object]) -> None:
        """Run until the broker reports its offsets, or a little longer, and sleep."""
        scheduler.start(kind, body)
        own = scheduler.processes[-1]
        while own.waiting is None or own.waiting.operation != "offsets":
            scheduler.step()
        for _ in range(random.randint(1, 4)):
            scheduler.step()
        own.stalled = 10_000

    def reset(name: str) -> None:
        propose_reset(world.store.view(name), world.kafka.view(name), TOPIC, give_up_pending=True).apply()

    def accept(name: str) -> None:
        propose_accept_gap(world.store.view(name), world.kafka.view(name), TopicPartition(TOPIC, 0)).apply()

    world.kafka.recreate_topic(TOPIC, 1)
    if random.random() < 0.3:
        world.produce()
    run("extractor", world.extract)
    world.grow()
    for partition in range(world.partitions):
        for kind in "1123":
            world.produce_one(partition, kind)
        log = world.kafka.log(TopicPartition(TOPIC, partition))
        world.kafka.delete_before(TopicPartition(TOPIC, partition), log.end - random.randint(0, 2))
    measure("operator", accept)
    measure("extractor", world.extract)
    late = list(scheduler.processes)
    world.recreate()
    run("operator", reset)
    world.grow()
    world.produce()
    scheduler.start("extractor", world.extract)
    for process in late:
        process.stalled = random.randrange(40)
    world.met["late"] += len(late)
    scheduler.run_to_end()
