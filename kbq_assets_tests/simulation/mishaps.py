"""Damage to the systems around KBQ while it runs, and how an operator repairs it (PROTOCOL E12, L11 to L14).

Files are damaged or deleted, a registry is wiped and refilled, a table is dropped or claimed by another staging area,
and somebody starts KBQ with an empty staging area.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from kbq_assets.core.errors import NotFound, Refused
from kbq_assets.core.loading.origins import LABEL
from kbq_assets.core.loading.table_state import Parked
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.waits import ParkReason
from kbq_assets.pipelines.loading.verification import StagedContents
from kbq_assets.pipelines.operate import adopt as adoption
from kbq_assets.pipelines.operate import quarantine
from kbq_assets.pipelines.protocol import state
from kbq_assets_tests.fakes.warehouse import Row

if TYPE_CHECKING:
    from kbq_assets_tests.simulation.world import World

_OTHER_AREA = "another staging area"


def lose_placements(world: World) -> None:
    """Somebody deletes the placements, which say which columns the tables were given."""
    for entry in list(world.store.list("placements/")):
        world.store.delete(entry.path)


def lose_a_file(world: World) -> None:
    """Somebody deletes a staged file that waits."""
    if waiting := world.waiting():
        world.store.delete(world.random.choice(waiting).path)


def damage_a_file(world: World) -> None:
    """A file that waits loses its last blocks. What is left is a whole Avro file."""
    _let_loads_end(world)  # L11 does not promise to notice what changes between its listing and the job's end
    at_rest = [file.path for file in world.waiting() if file.path in world.store.objects]
    if not at_rest:
        return
    path = world.random.choice(at_rest)
    stored = world.store.objects[path]
    cut = stored.data[: stored.data.index(stored.data[-16:]) + 16]
    world.store.objects[path] = dataclasses.replace(stored, data=cut)
    world.met["damaged"] += 1


def rewrite_a_schema(world: World) -> None:
    """A refilled registry has another schema under an id that is in use, or gets the first one back."""
    schemas = world.registry.schemas
    used = sorted({id_ for commit in world.commits() for id_ in commit.schema_ids if id_ in schemas})
    if restore_schemas(world) or not used:
        return
    id_ = world.random.choice(used)
    schemas[id_] = schemas[world.random.choice([other for other in sorted(schemas) if other != id_])]
    world.met["schemas rewritten"] += 1
    world.scheduler.trace.append(f"schema {id_} is rewritten")


def restore_schemas(world: World) -> bool:
    """The registry has again what it had. Whether it had anything else."""
    changed = world.registry.schemas != world.registry_before
    world.registry.schemas.update(world.registry_before)
    return changed


def lose_a_table(world: World) -> None:
    """Somebody drops a table, or restores the warehouse from before the table existed."""
    filled = [t for t in state.read_table_states(world.store) if world.warehouse.rows(t)]
    if filled:
        del world.warehouse.stored[world.random.choice(sorted(filled))]
        world.met["tables lost"] += 1


def relabel_a_table(world: World) -> None:
    """The operator of another staging area adopts a table."""
    if tables := sorted(set(world.warehouse.stored) & set(world.tables)):
        world.warehouse.stored[world.random.choice(tables)].labels[LABEL] = _OTHER_AREA


def intrude(world: World) -> None:
    """Somebody runs KBQ with another staging area, which has another history of the same topic and tables."""
    ours = state.table_registry(world.store).staging_id
    stored = [world.warehouse.stored.get(table) for table in world.tables]
    if all(table is not None and table.rows and table.labels.get(LABEL) == ours for table in stored):
        world.extract("intruder", world.elsewhere)
        world.load("intruder", world.elsewhere)
        world.met["intrusions"] += 1


def _let_loads_end(world: World) -> None:
    """Until no loader or operator runs and no load job is running, in any warehouse."""
    while any(
        "loader" in process.name or "operator" in process.name for process in world.scheduler.processes
    ):
        world.scheduler.step()
        world.run_job()
    for warehouse in world.warehouses.values():
        while warehouse.late:
            warehouse.deliver_late()
        while warehouse.pending:
            world.run_job()


# How an operator mends it ---------------------------------------------------------------------------------------------


def unsound(world: World) -> list[StagedFile]:
    """Files that wait and are gone or damaged, each once."""
    waiting = {file.path: file for file in world.waiting()}
    found = StagedContents(world.store, math.inf).unsound(waiting.values())
    return [waiting[path] for path in found.paths]


def mend(world: World, name: str) -> None:
    """An operator adopts tables, or decides about a file in quarantine."""
    if adopt(world, name):
        return
    found = quarantine.find_quarantined(world.store.view(name))
    if not found:
        return
    chosen = [world.random.choice(found)]
    file = chosen[0].bad.file
    if world.random.random() < 0.3:
        quarantine.propose_drop(world.store.view(name), chosen).apply()
        world.met["dropped"] += 1
        return
    if world.random.random() < 0.7:
        world.warehouse.bad_paths.discard(file.path)  # the table takes it now
    world.brought_back.update(rows_of(world, file))
    quarantine.propose_retry(world.store.view(name), chosen).apply()
    world.met["retried"] += 1


def adopt(world: World, name: str) -> bool:
    """`kbq adopt` for each table that is gone, or that another staging area feeds. Whether there was one."""
    states = state.read_table_states(world.store)
    parked = [table for table, found in sorted(states.items()) if _is_foreign(found.value.parked)]
    for table in parked:
        try:
            adoption.propose(world.store.view(name), world.warehouse.view(name), table).apply()
        except (Refused, NotFound):
            continue
        world.met["adopted"] += 1
    return bool(parked)


def _is_foreign(parked: Parked | None) -> bool:
    return parked is not None and parked.reason in (ParkReason.FOREIGN_ROWS, ParkReason.TABLE_GONE)


def rows_of(world: World, file: StagedFile) -> list[Row]:
    """The rows of a file, by what was produced."""
    name = file.name
    return [Row(name.epoch, *name.topic_partition, offset) for offset in world.offsets(file)]
