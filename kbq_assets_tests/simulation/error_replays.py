"""Replays of error rows in the simulator: what runs, and what must hold (PROTOCOL ER1 to ER8).

Operators mend poison while everything else goes on. Each replay routes its rows to one of two datasets, so that one
that runs twice shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from kbq_assets.core.extraction.units import Unit, UnitOutcome
from kbq_assets.core.loading.tables import TableOptions
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.topics.error_tables import is_error_table
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.errors_replay.reparse import ReplayPorts, Selection, replay_errors
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.kafka import RecordSource
from kbq_assets.ports.warehouse import ErrorRow
from kbq_assets.worker.unit import WorkerPorts, extract_unit
from kbq_assets_tests.fakes.warehouse import Row
from kbq_assets_tests.simulation.ordered import archived

if TYPE_CHECKING:
    from kbq_assets_tests.simulation.world import World

_DATASETS: Final = ("d", "e")
_NAMED: Final = re.compile(r".+\[(\d+)\] offsets (\d+) to (\d+): known")
_MENDED: Final = b"\x00\x00\x00\x00\x01\x02"


def operate(world: World, name: str) -> None:
    """An operator replays error rows; a function mends most of them."""
    store, warehouse = world.store.view(name), world.warehouse.view(name)
    routed = world.recipe.settings.with_options(dataset=world.random.choice(_DATASETS))

    def parse(unit: Unit, source: RecordSource) -> UnitOutcome:
        registry = world.registry.view(name, world.scheduler.decide)
        return extract_unit(
            unit, WorkerPorts(store, source, registry, world.clock, world.attempt), again=True
        )

    def found(topics: list[str]) -> dict[str, TopicSettings]:
        return {world.topic: routed} if world.topic in topics else {}

    ports = ReplayPorts(store, warehouse, parse, found, lambda table, topics: TableOptions())
    known = "known" if _is_ordered(world) else ""
    report = replay_errors(ports, Selection(repair=partial(_mended, world), out_of_order=known))
    world.met["error rows replayed"] += sum(report.rows.values())


def _mended(world: World, row: ErrorRow) -> bytes | None:
    return _MENDED if world.random.random() < 0.9 else None


def replayed(world: World) -> dict[Row, TableReference]:
    """The rows whose error rows are marked, with their error tables."""
    stored = world.warehouse.stored.items()
    return {row: table for table, found in stored if is_error_table(table) for row in found.replayed}


def as_error_rows(world: World) -> None:
    """Count each row that a replay added in the place of its error row. One that was not marked is then there twice,
    and one that was marked without a row is lost."""
    if not world.recipe.replays_errors:
        return
    marked, log, ends = replayed(world), list[tuple[TableReference, Row]](), [0]
    for table, row in world.warehouse.log:
        is_added = not is_error_table(table) and row in world.warehouse.stored[table].replayed
        if is_added:
            log.append((marked.get(row, table), row))
        elif marked.get(row) != table:
            log.append((table, row))
        ends.append(len(log))
    errors = {row for table, row in (*log, *world.warehouse.erased) if is_error_table(table)}
    world.warehouse.erased[:] = [
        (table, row) for table, row in world.warehouse.erased if is_error_table(table) or row not in errors
    ]
    world.warehouse.log[:] = log
    world.warehouse.job_ends[:] = [ends[end] for end in world.warehouse.job_ends]
    world.brought_back |= marked.keys()


def added(world: World, table: TableReference) -> int:
    """The rows of a table that replays added, which its state does not count."""
    return 0 if is_error_table(table) else len(world.warehouse.stored[table].replayed)


def broken(world: World) -> Iterator[str]:
    """What does not hold: each replay has ended, and ordered tables name the rows that came out of order."""
    for table, found in state.read_table_states(world.store).items():
        if found.value.definition.replaying is not None:
            yield f"{table}: {found.value.definition.replaying} has not ended"
        if _is_ordered(world) and table in world.warehouse.stored and not is_error_table(table):
            order = found.value.order
            entries = (*archived(world, table, order), *order.audit)
            named = [_NAMED.match(each.reason) for each in entries if each.action == "out_of_order"]
            places = [(int(p), int(first), int(last)) for p, first, last in (m.groups() for m in named if m)]
            for row in world.warehouse.stored[table].replayed:
                if not any(row.partition == p and a <= row.offset <= b for p, a, b in places):
                    yield f"{table}: no decision let {row} in"


def _is_ordered(world: World) -> bool:
    return world.recipe.settings.ordering.order != "none"
