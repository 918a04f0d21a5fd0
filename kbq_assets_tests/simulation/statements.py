"""Statements in the simulator: operators who skip batches, some of which their ledger hears of late (PROTOCOL S5)."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from kbq_assets.core.errors import KbqError, NotFound, Refused, UnknownOutcome
from kbq_assets.core.loading.batches import pending_files
from kbq_assets.core.loading.table_state import JobInFlight, TableState
from kbq_assets.core.ordering.table_order import AuditEntry
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.waits import ParkReason
from kbq_assets.core.statements.rules import APPEND
from kbq_assets.core.topics.error_tables import is_error_table
from kbq_assets.pipelines.operate import adopt
from kbq_assets.pipelines.operate.commands import propose_resume_table
from kbq_assets.pipelines.ordering.decisions import read_table
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.statements.skip import propose_skip
from kbq_assets.ports.statements import LedgerRow
from kbq_assets_tests.fakes.faults import Call
from kbq_assets_tests.fakes.warehouse import LateCall
from kbq_assets_tests.simulation import ordered

if TYPE_CHECKING:
    from kbq_assets_tests.simulation.world import World


def judge_load(world: World, before: TableState, after: TableState) -> list[str]:
    """What a swap breaks that enters or records a batch: another `load` than the last batch's has its change recorded,
    and comes after the windows before the change (S10)."""
    ended, job = before.in_flight, after.in_flight
    if ended is not None and job is None and after.rows != before.rows:
        world.loaded_as[ended.files[0].table] = _kind(ended)
    if job is None or ended is not None or not job.files:
        return []
    table, kind, switch = job.files[0].table, _kind(job), before.definition.statements.switch
    first = kind if world.recipe.rules or is_error_table(table) else world.rule.kind
    last = world.loaded_as.get(table, first)
    is_retry = {f.path for f in job.files} <= {bad.file.path for bad in before.retried}
    if switch is None or switch.taken:
        return (
            [] if kind == last else [f"{table} is loaded by {kind} after {last}, and no change is recorded"]
        )
    if is_retry:
        return []
    side = [switch.is_before(file) for file in job.files]
    if kind == switch.before.kind:
        return [] if all(side) else [f"{table}: windows after its change are loaded by {kind}"]
    given_up = ordered.given_up(world)
    waiting = [file for file in world.waiting() if file.table == table and file.path not in given_up]
    earlier = [f.path for f in pending_files(before, waiting) if switch.is_before(f)]
    world.met["switched"] += 1
    return (
        [f"{table}: {earlier or 'windows'} from before its change wait, or are loaded by {kind}"]
        if earlier or any(side)
        else []
    )


def _kind(job: JobInFlight) -> str:
    return job.statement.rule.kind if job.statement else APPEND


def skip_late(world: World, name: str) -> None:
    """Skip every batch whose statement failed. Their ledgers hear of it late, or never."""
    store, warehouse = world.store.view(name), world.warehouse.view(name)
    entry = AuditEntry(world.store.time_ms, "", 0, "simulated", name)

    def late(table: TableReference, batch: int, digest: str) -> LedgerRow | None:
        call = Call(name, "skip", str(table), writes=True)
        world.warehouse.late.append(
            LateCall(call, lambda: world.warehouse.statements.skip(table, batch, digest))
        )
        raise UnknownOutcome("no answer", next_step="repeat it")

    setattr(warehouse.statements, "skip", late)  # noqa: B010 - only in this process
    for table in world.tables:
        with suppress(Refused, NotFound, UnknownOutcome):
            failed = read_table(store, table).definition.failed
            if failed is not None and failed.statement is not None:
                world.met["skip"] += 1
                propose_skip(store, warehouse, table, failed.statement.number, entry).apply()


def resume(world: World) -> None:
    """Resume all tables."""
    for table in world.tables:
        with suppress(Refused, NotFound):
            propose_resume_table(world.store, table).apply()


def repair(world: World) -> None:
    """Repeat skips that only the ledger has, and adopt a ledger that differs."""
    for table, found in state.read_table_states(world.store).items():
        failed, ledger = found.value.definition.failed, world.warehouse.statements.ledgers.get(table)
        entry, parked = AuditEntry(world.store.time_ms, "", 0, "simulated", "operator"), found.value.parked
        with suppress(KbqError):
            if parked is not None and parked.reason == ParkReason.LEDGER_DIFFERS:
                world.met["ledger differs"] += 1
                adopt.propose(world.store, world.warehouse, table).apply()
            elif failed and failed.statement and ledger is not None and ledger.skipped:
                propose_skip(world.store, world.warehouse, table, failed.statement.number, entry).apply()
