"""One schedule: chaos first, then quiet, then the promises."""

from __future__ import annotations

import dataclasses
import functools
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final
from unittest.mock import patch

from kbq_assets.core.backup import merging
from kbq_assets.core.errors import KbqError
from kbq_assets.core.statements.rules import StatementRule
from kbq_assets.pipelines.extraction import recovery
from kbq_assets.pipelines.operate.commands import propose_reset
from kbq_assets_tests.fixtures.local_stack import REPOSITORY
from kbq_assets_tests.simulation import backups, error_replays, mishaps, ordered, replays
from kbq_assets_tests.simulation.promises import check_all
from kbq_assets_tests.simulation.world import TOPIC, Recipe, World


@dataclass(frozen=True)
class Chaos:
    """How rough a schedule is. Rates are chances per call or step; the rest are weights of what happens on its own."""

    steps: int = 150
    event_rate: float = 0.25
    fault_rate: float = 0.03
    stall_rate: float = 0.01
    job_error_rate: float = 0.1
    reset_rate: float = 0.3
    park_rate: float = 0.3
    restart_rate: float = 0.0
    restage_rate: float = 0.0
    produce: float = 3.0
    extract: float = 3.0
    load: float = 3.0
    clean: float = 0.7
    operate: float = 0.8
    run_job: float = 4.0
    deliver_late_call: float = 1.0
    spoil_a_file: float = 0.2
    reject: float = 0.3
    lose_to_retention: float = 0.1
    recreate: float = 0.03
    elect_leader: float = 0.1
    lose_placements: float = 0.0
    lose_a_file: float = 0.0
    mend_rate: float = 0.0
    decide_rate: float = 0.0
    damage_a_file: float = 0.0
    rewrite_a_schema: float = 0.0
    lose_a_table: float = 0.0
    relabel_a_table: float = 0.0
    intrude: float = 0.0
    change_load: float = 0.0
    lose_schemas: float = 0.0
    silence_backups: float = 0.0
    erase: float = 0.0
    replay: float = 0.0
    replay_errors: float = 0.0
    merge_copies: float = 0.0
    grow: float = 0.0


#: Everything at once; and tables parked, set aside and resumed all the time, with long stalls, few other faults.
ROUGH = Chaos()
PARKING = Chaos(
    steps=300, event_rate=0.3, fault_rate=0.01, stall_rate=0.05, reset_rate=0.05, park_rate=0.55, job_error_rate=0.0,
    operate=3.0, reject=0.1, clean=2.0, run_job=6.0, spoil_a_file=0.05, recreate=0.0, lose_to_retention=0.0,
)  # fmt: skip
PROFILES = (ROUGH, PARKING)
#: Old business times that Kafka has now, with bad records, tombstones and records without their time between them. No
#: partition is ever empty, nor without such a time for as long as an hour: none is judged by its log end.
REPLAYING = dataclasses.replace(ROUGH, reset_rate=0.0, recreate=0.0, lose_to_retention=0.0)
REPLAY = Recipe("rrrr35gpt", settings=Recipe().settings.with_options(
    event_date="at", tombstones="row", complete_after_seconds=3600,
    event_date_from="0001-01-01", event_date_days_ahead=3_652_059,
))  # fmt: skip
#: The same, and clocks that are far ahead.
FUTURE = dataclasses.replace(REPLAY, kinds="rrff35gpt")
#: Half of the parkings are such that a load tries the table again on its own (core/extraction/restarts.py).
RESTARTING = dataclasses.replace(PARKING, restart_rate=0.5)
#: What surrounds KBQ is damaged, mixed up or wiped, and an operator has every command that mends it.
MISHAPS = dataclasses.replace(
    PARKING, steps=250, produce=4.0, operate=4.0, mend_rate=0.5, restage_rate=0.4, reset_rate=0.0, park_rate=0.2,
    lose_a_file=0.3, spoil_a_file=1.5, damage_a_file=0.8, rewrite_a_schema=0.3, lose_a_table=0.2, relabel_a_table=0.3,
    intrude=1.5,
)  # fmt: skip
#: One in this many schedules is of this kind.
EVERY_NTH_MISHAPS = 10


#: Many extractions and clean-ups at once, loads seldom: heads name and drop manifests all the time.
SEALING = dataclasses.replace(
    ROUGH, steps=250, extract=5.0, load=1.0, clean=3.0, operate=0.3, stall_rate=0.05, reset_rate=0.05
)


#: Ordered tables with gates, whose batches fail, are skipped, held and released by operators all the time.
ORDERING = dataclasses.replace(
    ROUGH, steps=700, load=5.0, operate=9.0, decide_rate=0.9, park_rate=0.05, reset_rate=0.03, job_error_rate=0.15,
    run_job=6.0, spoil_a_file=0.2, recreate=0.0,
)  # fmt: skip
ORDERED = Recipe("112212gpt", settings=Recipe().settings.with_options(order="offset", gate="person"))
#: Tables whose hours follow each other, while partitions are read at different paces.
BY_HOUR = dataclasses.replace(REPLAYING, steps=300, load=6.0, decide_rate=0.3, park_rate=0.05)
HOURLY = dataclasses.replace(REPLAY, settings=REPLAY.settings.with_options(order="hour"))
#: Two warehouses with loaders of their own, and a topic whose option changes all the time.
TWO_WAREHOUSES = Recipe(warehouses=(("", "lake"), ("", "lake"), (), ("lake",)), patience=0)


#: Tables that statements change. In the fake warehouse a statement appends its batch: one that runs twice shows.
STATEMENTS = Recipe(settings=Recipe().settings.with_options(load="upsert", key="x"))
#: Their topic is on the list only in some loads.
UNLISTED = dataclasses.replace(STATEMENTS, unlisted=True)
#: Many loads, whose jobs fail often.
APPLYING = dataclasses.replace(
    ROUGH, steps=700, event_rate=0.15, load=6.0, run_job=9.0, fault_rate=0.02, job_error_rate=0.3,
    reset_rate=0.05, spoil_a_file=0.05, reject=0.1, recreate=0.0,
)  # fmt: skip


#: Tables whose topic asks for other loads all the time.
SWITCHED = dataclasses.replace(STATEMENTS, rules=(StatementRule(), STATEMENTS.settings.statement.rule))
SWITCHING = dataclasses.replace(APPLYING, change_load=1.0, decide_rate=0.0)
#: Jobs that read merged files, and fail often, for files that no job accepts too.
MERGING = Recipe(warehouses=TWO_WAREHOUSES.warehouses, patience=0, merge_files=2)
FAILING = dataclasses.replace(
    ROUGH, load=4.0, run_job=6.0, clean=3.0, job_error_rate=0.2, spoil_a_file=0.5, operate=3.0, reject=0.2
)
#: A backup beside the tables, which stop, are reset and fall behind retention by themselves, as the backup does.
BACKING_UP = dataclasses.replace(
    ROUGH, steps=250, extract=4.0, lose_schemas=0.5, silence_backups=0.2, lose_to_retention=0.3, park_rate=0.1,
    operate=2.0,
)  # fmt: skip
BACKED_UP = Recipe(settings=Recipe().settings.with_options(backup="true"))
#: Anna is erased again and again. The topic stays: its erasures would wait for a broker that has the former log.
ERASING = dataclasses.replace(
    BACKING_UP, steps=500, erase=4.0, recreate=0.0, lose_to_retention=0.1, spoil_a_file=0.05, reject=0.1, load=4.0,
    run_job=6.0, reset_rate=0.1, stall_rate=0.04, operate=0.8,
)  # fmt: skip
ERASED = dataclasses.replace(BACKED_UP, kinds="11223gptaab")
#: The same beside jobs that read merged files.
ERASED_MERGED = dataclasses.replace(ERASED, merge_files=2)
#: Backups of many small files, which two at once merge all the time.
COMPACTING = dataclasses.replace(
    BACKING_UP, steps=500, merge_copies=6.0, clean=6.0, produce=5.0, silence_backups=0.05, fault_rate=0.01,
    stall_rate=0.05,
)  # fmt: skip
COMPACTED = dataclasses.replace(BACKED_UP, backup_files=2, window_records=1)
#: The same beside erasures.
ERASING_COMPACTED = dataclasses.replace(
    ERASING, merge_copies=8.0, clean=6.0, produce=5.0, erase=2.0, silence_backups=0.05, fault_rate=0.01,
    stall_rate=0.05,
)  # fmt: skip
ERASED_COMPACTED = dataclasses.replace(COMPACTED, kinds=ERASED.kinds)
#: Operators replay ranges, two at once, of a topic whose log stays.
PROMOTING = dataclasses.replace(
    ROUGH, steps=3000, event_rate=0.15, fault_rate=0.003, stall_rate=0.003, replay=4.0, produce=0.4, extract=0.5,
    load=0.6, run_job=8.0, clean=0.1, operate=0.2, reset_rate=0.03, park_rate=0.1, spoil_a_file=0.02, reject=0.02,
    recreate=0.0, lose_to_retention=0.01, elect_leader=0.02, deliver_late_call=0.5,
)  # fmt: skip
REPLAYED = Recipe(replays=True)
#: The same of a lake: no transaction changes two tables.
REPLAYED_LAKE = dataclasses.replace(REPLAYED, one_transaction=False)
#: The same of tables that a statement keeps: promotions wait for their batches, and never run beside one.
REPLAYED_UPSERTS = dataclasses.replace(REPLAYED, settings=STATEMENTS.settings)
#: The same for two warehouses, each with its own loaders and repaired by its own replays.
REPLAYED_TWO = dataclasses.replace(TWO_WAREHOUSES, replays=True)
PROMOTING_TWO = dataclasses.replace(PROMOTING, replay=9.0, run_job=12.0)
#: Two operators at once replay error rows of a lake, each into another dataset.
MENDING = dataclasses.replace(
    ROUGH, steps=1500, event_rate=0.15, fault_rate=0.012, stall_rate=0.02, replay_errors=9.0, produce=3.0, extract=3.0,
    load=3.0, run_job=6.0, operate=1.0, reset_rate=0.05, recreate=0.0, spoil_a_file=0.05,
)  # fmt: skip
MENDED = Recipe("112pppgt", replays_errors=True, one_transaction=False)
#: The same of ordered tables, which operators let the rows into.
LET_IN = dataclasses.replace(MENDED, settings=MENDED.settings.with_options(order="offset"))
#: The same beside erasures.
ERASING_MENDED = dataclasses.replace(ERASING, replay_errors=5.0)
ERASED_MENDED = dataclasses.replace(ERASED, kinds="11ppgbbab", replays_errors=True, one_transaction=False)
#: A topic that is recreated and reset all the time, and grows. What runs and operators measured is of a former log.
RECREATING = dataclasses.replace(
    ROUGH, steps=500, recreate=0.6, grow=1.0, lose_to_retention=1.5, operate=3.0, reset_rate=0.5, park_rate=0.05,
    stall_rate=0.08, fault_rate=0.01, extract=4.0, load=2.0, spoil_a_file=0.02, reject=0.05,
)  # fmt: skip
RECREATED = Recipe(grows=True, settings=Recipe().settings.with_options(on_retention_loss="record"))
#: The same with a backup, which is reset by itself and keeps its files.
RECREATED_BACKED_UP = dataclasses.replace(RECREATED, settings=RECREATED.settings.with_options(backup="true"))


#: Kinds of schedules by name, next to the usual ones: how rough, and of what world.
KINDS: Final[Mapping[str, tuple[Chaos | None, Recipe | None]]] = {
    "two_warehouses": (None, TWO_WAREHOUSES),
    "two_warehouses_repairs": (MISHAPS, TWO_WAREHOUSES),
    "two_warehouses_manifests": (SEALING, TWO_WAREHOUSES),
    "repairs": (MISHAPS, None),
    "manifests": (SEALING, None),
    "restarts": (RESTARTING, None),
    "replay": (REPLAYING, REPLAY),
    "ordered": (ORDERING, ORDERED),
    "by_hour": (BY_HOUR, HOURLY),
    "statements": (APPLYING, STATEMENTS),
    "unlisted": (APPLYING, UNLISTED),
    "switches": (SWITCHING, SWITCHED),
    "merging": (FAILING, MERGING),
    "recreations": (RECREATING, RECREATED),
    "recreations_backup": (RECREATING, RECREATED_BACKED_UP),
    "backup": (BACKING_UP, BACKED_UP),
    "erasures": (ERASING, ERASED),
    "erasures_merging": (ERASING, ERASED_MERGED),
    "backup_merging": (COMPACTING, COMPACTED),
    "erasures_backup_merging": (ERASING_COMPACTED, ERASED_COMPACTED),
    "replays": (PROMOTING, REPLAYED),
    "replays_lake": (PROMOTING, REPLAYED_LAKE),
    "replays_upserts": (PROMOTING, REPLAYED_UPSERTS),
    "replays_two_warehouses": (PROMOTING_TWO, REPLAYED_TWO),
    "error_replays_lake": (MENDING, MENDED),
    "error_replays_ordered": (MENDING, LET_IN),
    "error_replays_lake_erasures": (ERASING_MENDED, ERASED_MENDED),
}


class ScheduleFailed(AssertionError):
    """A promise is broken; the seed reproduces it."""


def run_schedule(seed: int, chaos: Chaos | None = None, recipe: Recipe | None = None) -> World:
    """Run one schedule and check the promises. Raises ScheduleFailed with the seed and the trace."""
    kind = next((f"--kind {name} " for name, given in KINDS.items() if given == (chaos, recipe)), "")
    again = f"python -m kbq_assets_tests.simulation {kind}--seed {seed} --trace"
    usual = MISHAPS if seed % EVERY_NTH_MISHAPS == EVERY_NTH_MISHAPS - 1 else PROFILES[seed % len(PROFILES)]
    profile = chaos or usual
    return checked(World(seed, recipe), again, lambda world: _rage(world, profile))


def checked(world: World, again: str, rage: Callable[[World], None]) -> World:
    """A world after its rage and the quiet. Raises ScheduleFailed, with ``again``, if a promise is broken."""
    try:
        with (
            patch.object(recovery, "PATIENCE", world.recipe.patience),
            patch.object(merging, "LEAST_FILES", world.recipe.backup_files),
        ):
            rage(world)
            settle(world)
        check_all(world)
    except (AssertionError, KbqError) as error:
        trace = "\n".join(world.scheduler.trace)
        raise ScheduleFailed(f"{error}\n{trace}\nagain, at commit {commit()}: {again}") from error
    return world


@functools.cache
def commit() -> str:
    """The commit of this checkout: a seed is a schedule of one version only."""
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False).stdout.strip()


def simulated_hours(worlds: Iterable[World]) -> float:
    """The time that passed in worlds."""
    return sum(world.store.time_ms - world.began_ms for world in worlds) / 3_600_000


def _rage(world: World, chaos: Chaos) -> None:
    scheduler, random = world.scheduler, world.random
    scheduler.fault_rate, scheduler.stall_rate = chaos.fault_rate, chaos.stall_rate
    world.job_error_rate = chaos.job_error_rate
    world.reset_rate, world.park_rate = chaos.reset_rate, chaos.park_rate
    world.restart_rate, world.restage_rate = chaos.restart_rate, chaos.restage_rate
    world.mend_rate, world.decide_rate = chaos.mend_rate, chaos.decide_rate
    events = _events(world, chaos)
    world.produce()
    for _ in range(chaos.steps):
        if random.random() < chaos.event_rate:
            weights = [weight for weight, _ in events]
            random.choices([event for _, event in events], weights)[0]()
        scheduler.step()


def _events(world: World, chaos: Chaos) -> list[tuple[float, Callable[[], None]]]:
    def start(kind: str, body: Callable[[str], object], most: int) -> Callable[[], None]:
        def event() -> None:
            alive = sum(p.name.startswith(kind) for p in world.scheduler.processes)
            if alive < most:
                world.scheduler.start(kind, body)

        return event

    others = [
        (chaos.load, start(f"{name}-loader", partial(world.load, warehouse=name), 2)) for name in world.others
    ]
    return [
        *others,
        (chaos.produce, world.produce),
        (chaos.extract, start("extractor", world.extract, 2)),
        (chaos.load, start("loader", world.load, 2)),
        (chaos.clean, start("janitor", world.clean, 1)),
        (chaos.operate, start("operator", world.operate, 1)),
        (chaos.run_job, world.run_job),
        (chaos.deliver_late_call, world.deliver_late_call),
        (chaos.spoil_a_file, world.spoil_a_file),
        (chaos.reject, world.reject),
        (chaos.lose_to_retention, world.lose_to_retention),
        (chaos.recreate, world.recreate),
        (chaos.elect_leader, world.elect_leader),
        (chaos.erase, start("eraser", world.erase, 1)),
        (chaos.replay, start("replayer", world.replay, 2)),
        (chaos.replay_errors, start("mender", world.replay_errors, 2)),
        (chaos.merge_copies, start("merger", partial(backups.merge, world), 2)),
        (chaos.silence_backups, partial(backups.fall_silent, world)),
        (chaos.lose_schemas, partial(backups.lose_schemas, world)),
        (chaos.grow, world.grow),
        *((rate, functools.partial(event, world)) for rate, event in _mishaps(chaos)),
    ]


def _mishaps(chaos: Chaos) -> list[tuple[float, Callable[[World], None]]]:
    return [
        (chaos.lose_placements, mishaps.lose_placements),
        (chaos.lose_a_file, mishaps.lose_a_file),
        (chaos.damage_a_file, mishaps.damage_a_file),
        (chaos.rewrite_a_schema, mishaps.rewrite_a_schema),
        (chaos.lose_a_table, mishaps.lose_a_table),
        (chaos.relabel_a_table, mishaps.relabel_a_table),
        (chaos.intrude, mishaps.intrude),
        (chaos.change_load, World.change_load),
    ]


def settle(world: World) -> None:
    """No more faults: what runs ends, late calls arrive or not, and fresh runs finish the work."""
    scheduler = world.scheduler
    scheduler.fault_rate = scheduler.stall_rate = 0.0
    world.job_error_rate = 0.0
    world.rejecting = None
    world.backup.is_down = False
    if world.decide_rate:
        ordered.calm(world)
    mishaps.restore_schemas(world)
    while scheduler.step():
        if world.random.random() < 0.3:
            world.run_job()
        if world.random.random() < 0.05:
            world.deliver_late_call()
    _finish(world)
    if backups.has_backup(world):
        world.backup.behind.extend(backups.check_alone(world))
        _finish(world)
    for warehouse in world.warehouses.values():
        warehouse.log[:] = replays.live_rows(warehouse.log)
    error_replays.as_error_rows(world)


def _finish(world: World) -> None:
    """Fresh runs, until nothing is left to do."""
    for round_ in range(6):
        loads = [(f"{name}-loader", partial(world.load, warehouse=name)) for name in world.others]
        runs: list[tuple[str, Callable[[str], object]]] = [
            ("extractor", world.extract),
            ("loader", world.load),
            *loads,
            ("janitor", world.clean),
            *([("replayer", partial(replays.finish, world))] if world.recipe.replays else []),
            *([("mender", world.replay_errors)] if world.recipe.replays_errors else []),
        ]
        for kind, body in runs:
            world.run_alone(kind, body)
        # What arrives after the last rounds is theirs to sweep who come next.
        if round_ < 4 and world.random.random() < 0.5:
            world.deliver_late_call()
        world.repair()
        if _needs_reset(world):
            _reset(world)


def _needs_reset(world: World) -> bool:
    """Whether the topic was recreated, which only a reset mends."""
    return any(commit.topic_id != world.topic_id for commit in world.commits())


def _reset(world: World) -> None:
    propose_reset(world.store, world.kafka, TOPIC, give_up_pending=True).apply()
