"""Replays in the simulator: what runs, and what must hold (PROTOCOL R1 to R8, R13).

Operators start, read, promote, roll back and accept replays of random ranges while everything else goes on. Replays
with an odd number route their rows to another dataset, so a promotion moves rows between tables. Of several warehouses,
each replay is for any one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from kbq_assets.core.config.settings import Settings, parse_settings
from kbq_assets.core.errors import KbqError
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.names import FIRST_WAREHOUSE, TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.replay.brought import lacking
from kbq_assets.core.replay.model import Phase, Replay, is_shadow
from kbq_assets.core.replay.positions import EARLIEST, LATEST, Position
from kbq_assets.core.topics.error_tables import is_error_table
from kbq_assets.pipelines.catalog.source_list import SourceList
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.replay.replays import Replays
from kbq_assets.pipelines.replay.start import read_replays
from kbq_assets.ports.engine import ExtractionEngine
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.warehouse import JobError
from kbq_assets.worker.unit import WorkerPorts
from kbq_assets_tests.fakes.engine import InProcessEngine
from kbq_assets_tests.fakes.replay import FakeReplayTables, StoreBelow
from kbq_assets_tests.fakes.warehouse import Row

if TYPE_CHECKING:
    from kbq_assets_tests.simulation.world import World

#: Where replays with an odd number put rows that live loads put into `d`.
OTHER: Final = "e"
_SETTINGS: Final = parse_settings({"KBQ_HOME": "/nowhere"})
#: Of a world with two warehouses, the first of which has no stored name.
_TWO: Final = replace(_SETTINGS, warehouse_urls="main=duckdb:/nowhere/a,lake=duckdb:/nowhere/b")
#: Replays that are neither accepted nor dropped, at most.
_OPEN: Final = 3
_ENDED: Final = (Phase.ACCEPTED, Phase.DROPPED)


@dataclass(frozen=True)
class _Listed:
    """A source list that is not in a file."""

    text: str
    name: str = "source-topics.txt"

    def is_dir(self) -> bool:
        return False

    def read_text(self, **more: str) -> str:
        return self.text


@dataclass
class _Area:
    """The ports of one replay's staging area."""

    settings: Settings
    objects: ObjectStore
    worker: WorkerPorts

    def store(self) -> ObjectStore:
        return self.objects

    def load_store(self) -> ObjectStore:
        return self.objects

    def engine(self) -> AbstractContextManager[ExtractionEngine]:
        return nullcontext(InProcessEngine(self.worker))


# Processes ------------------------------------------------------------------------------------------------------------


def operate(world: World, name: str) -> None:
    """An operator starts a replay, or takes the next step of one; so may another operator, of the same one."""
    found = [each for each in read_replays(world.store.view(name)) if each.phase not in _ENDED]
    if len(found) < _OPEN and world.random.random() < 0.4:
        _start(world, name)
    elif found:
        _continue(world, name, world.random.choice(found))


def _start(world: World, name: str) -> None:
    ends = {
        number: sorted(world.random.sample(range(at.start, at.next + 1), 2))
        for commit in world.commits()
        for number, at in sorted(commit.partitions.items())
        if at.start < at.next
    }
    if not ends:
        return  # nothing was extracted yet
    first, until = Position(EARLIEST), Position(LATEST)
    if world.random.random() < 0.7:
        first, until = (Position(offsets={n: each[i] for n, each in ends.items()}) for i in (0, 1))
    warehouse = world.random.choice(list(world.warehouses)) if world.others else FIRST_WAREHOUSE
    replay, proposal = _replays(world, name, 0, warehouse).propose(world.topic, first, until)
    proposal.apply()
    world.met["started"] += 1
    _replays(world, name, replay.number, warehouse).read(replay.number)


def _continue(world: World, name: str, replay: Replay) -> None:
    replays, number = _replays(world, name, replay.number, replay.warehouse), replay.number
    chance = world.random.random()
    if replay.phase == Phase.READING:
        replays.resume(number)
        replays.read(number)
    elif replay.is_changing:
        replays.continue_(number)
        world.met["continued"] += 1
    elif replay.phase == Phase.PROMOTED:
        kind = "accepted" if chance < 0.2 else "rolled back"
        (replays.propose_accept if chance < 0.2 else replays.propose_rollback)(number).apply()
        world.met[kind] += 1
    elif chance < 0.1:
        replays.propose_drop(number).apply()
    else:
        replays.propose_promotion(number).apply()
        world.met["promoted"] += 1
        world.met[f"promoted in {replay.warehouse}"] += 1


def finish(world: World, name: str) -> None:
    """A patient operator ends what began, and ends some replays for good."""
    waited_for = _waited_for(world)
    for each in read_replays(world.store):
        replays = _replays(world, name, each.number, each.warehouse)
        if each.is_changing or each.number in waited_for:
            with suppress(KbqError):
                replays.continue_(each.number)
    for each in read_replays(world.store):
        replays = _replays(world, name, each.number, each.warehouse)
        with suppress(KbqError):
            if each.phase == Phase.PROMOTED and each.number % 3 == 0:
                replays.propose_accept(each.number).apply()


def _own(world: World) -> list[Replay]:
    """The replays of the world's warehouse."""
    return [each for each in read_replays(world.store) if each.warehouse == world.area]


def _waited_for(world: World) -> set[int]:
    """The replays that tables wait for."""
    states = [
        found.value.definition.replacing
        for area in state.areas(world.store).values()
        for found in state.read_table_states(area).values()
    ]
    return {found.replay for found in states if found}


def _replays(world: World, name: str, number: int, area: str) -> Replays:
    """Replays of a warehouse as a process sees them, with the source list that a replay is read and promoted by."""
    store, kafka, fake = world.store.view(name), world.kafka.view(name), world.warehouses[area]
    warehouse = fake.view(name)
    load = "append" if world.recipe.settings.statement.rule.appends else "upsert key=x"
    settings = _settings(OTHER if number % 2 else "d", load, warehouses=bool(world.others))
    settings = settings.for_warehouse(settings.warehouse_named(area))

    def below(folder: str) -> _Area:
        own = StoreBelow(store, folder)
        registry = world.registry.view(name, world.scheduler.decide)
        return _Area(settings.below(folder), own, WorkerPorts(own, kafka, registry, world.clock))

    live = Deployment(
        settings,
        world.clock,
        SourceList(settings, cast("Any", None)),
        lambda: store,
        lambda: store,
        lambda: kafka,
        lambda: warehouse,
        lambda role: (),
        lambda area, role: store,
    )
    return Replays(live, below, lambda: FakeReplayTables(fake, warehouse, partial(draw_error, world)))


def _settings(dataset: str, load: str, *, warehouses: bool) -> Settings:
    text = f"shop.events dataset={dataset} route=record_name error_share=1.0 complete_after_seconds=60 load={load}"
    text += " warehouses=main,lake\n" if warehouses else "\n"
    made = _TWO if warehouses else _SETTINGS
    return replace(made, catalog=replace(made.catalog, source_topics=cast("Any", _Listed(text))))


def is_keyed(world: World, table: TableReference) -> bool:
    """Whether a table is one of upserts, and replayed."""
    keeps = world.recipe.replays and not world.recipe.settings.statement.rule.appends
    return keeps and not is_error_table(table)


def draw_error(world: World) -> JobError | None:
    """Why the next replacement fails, if it does."""
    if world.random.random() >= world.job_error_rate:
        return None
    return JobError("invalidQuery", "the transaction was aborted", transient=True)


# Promises -------------------------------------------------------------------------------------------------------------


def tables(world: World) -> Iterator[TableReference]:
    """The tables that replays brought into being."""
    known = {t for area in state.areas(world.store).values() for t in state.table_registry(area).tables}
    return (table for table in sorted(known) if table.dataset == OTHER)


def live_rows(log: list[tuple[TableReference, Row]]) -> list[tuple[TableReference, Row]]:
    """Without those of shadows."""
    return [(table, row) for table, row in log if not is_shadow(table)]


def is_replaced(world: World) -> Callable[[Row], bool]:
    """Whether a row is of a range that was replaced once: it became visible in no order."""
    ranges = [_range(each) for each in _own(world) if each.attempt]
    return lambda row: any(_has(each, row) for each in ranges)


def wanted_table(world: World) -> Callable[[Row, TableReference], TableReference]:
    """Where a row belongs by the promotions that hold, the latest first, if live loads put it into a table."""
    ranges = [
        (_range(each), OTHER if each.number % 2 else "d")
        for each in sorted(_holding(world), key=lambda each: -each.turn)
    ]

    def wanted(row: Row, table: TableReference) -> TableReference:
        dataset = next((dataset for each, dataset in ranges if _has(each, row)), table.dataset)
        return TableReference(dataset, table.table)

    return wanted


def is_brought(world: World) -> Callable[[Row], bool]:
    """Whether a row comes from a promotion that is in force. The loader may never have given it to the warehouse."""
    ranges = [_range(each) for each in _holding(world)]
    return lambda row: any(_has(each, row) for each in ranges)


def _holding(world: World) -> list[Replay]:
    return [each for each in _own(world) if each.phase in (Phase.PROMOTED, Phase.ACCEPTED)]


def _range(replay: Replay) -> tuple[int, dict[int, range]]:
    return replay.epoch, {
        each.topic_partition.partition: range(each.from_offset, each.until_offset) for each in replay.ranges
    }


def _has(ranges: tuple[int, dict[int, range]], row: Row) -> bool:
    epoch, by_partition = ranges
    return row.epoch == epoch and row.offset in by_partition.get(row.partition, ())


def broken(world: World, has_quarantined: Callable[[TopicPartition], bool]) -> Iterator[str]:
    """What does not hold of replays: each has ended its job, no table waits, and commits count the rows that are in
    tables now."""
    yield from (f"replay {each.number} is {each.phase}" for each in _own(world) if each.is_changing)
    for table, found in state.read_table_states(world.store).items():
        if found.value.definition.replacing:
            yield f"{table} waits for {found.value.definition.replacing}"
    for commit in world.commits():
        for number in commit.partitions:
            if not has_quarantined(commit.topic_partition(number)):
                yield from _miscounted(world, commit, number)


def _miscounted(world: World, commit: Commit, number: int) -> Iterator[str]:
    at = commit.partitions[number]
    given, rows, errors = at.totals_for(world.area), Counter[str](), 0
    if (lacks := lacking(at, world.area)) < 0:
        yield f"partition {number} was brought {-lacks} rows too many"
    for table, row in world.warehouse.log:
        if row.partition == number and row.epoch >= at.since and row.offset >= at.start:
            errors += is_error_table(table)
            rows[str(table)] += not is_error_table(table)
    counted = {name: n for name, n in given.rows.items() if not is_keyed(world, TableReference.parse(name))}
    held = {name: n for name, n in rows.items() if not is_keyed(world, TableReference.parse(name))}
    if +Counter(held) != +Counter(counted) or errors != given.errors:
        yield f"partition {number} has {+rows} and {errors} errors, its commit counts {given}"
