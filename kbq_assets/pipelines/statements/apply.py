"""Settles the statement in flight: submit, poll, read the ledger, record, run again (PROTOCOL S2 to S7)."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import NamedTuple

from kbq_assets.core.errors import JobAlreadyExists, JobFailed, KbqError, UnknownOutcome
from kbq_assets.core.loading import table_state
from kbq_assets.core.loading.table_state import JobInFlight, TableState
from kbq_assets.core.ordering.table_order import FailedBatch
from kbq_assets.core.ordering.transitions import named
from kbq_assets.core.protocol.names import TableReference, quarantine_path
from kbq_assets.core.protocol.waits import ParkReason
from kbq_assets.core.statements import steps
from kbq_assets.pipelines.loading.job_recovery import finish, wait_for
from kbq_assets.pipelines.loading.ports import CONTINUE, Turn
from kbq_assets.pipelines.loading.table_run import MAX_RETRIES, TableRun
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.pipelines.statements.limits import today
from kbq_assets.pipelines.statements.scratch import drop_orphans
from kbq_assets.pipelines.statements.statement_job import statement_job
from kbq_assets.ports.statements import LedgerRow, StatementJob, Statements
from kbq_assets.ports.warehouse import JobError, JobStatus


class _Running(NamedTuple):
    """The statement in flight, with its job and its scratch table."""

    entry: JobInFlight
    statements: Statements
    job: StatementJob
    scratch: TableReference


def settle(run: TableRun, current: Versioned[TableState], entry: JobInFlight) -> Turn:
    """Take the statement in flight one step further. The ledger decides, and not the job's status (S2)."""
    running = _in_flight(run, entry)
    found = run.ports.warehouse.get_job(entry.job_id, entry.project, entry.location, run.table)
    if found is not None and found.state != "DONE":
        return wait_for(run, found, entry)
    is_burned = found is not None and entry.burning and not found.source_uris
    if found is not None and not is_burned and found.statement != running.job.digest:
        return run.park(current, ParkReason.FOREIGN_JOB, f"job {entry.job_id} is not the table's statement")
    ledger, number = running.statements.read_ledger(run.table), running.job.batch
    if ledger is not None and (ledger.batch, ledger.digest) == (number, running.job.digest):
        return _record(run, current, running, found, skipped=ledger.skipped)
    if ledger is None or ledger.batch != number - 1:
        return _park(run, current, ParkReason.LEDGER_DIFFERS, _difference(ledger, number))
    if found is None:
        return _submit(run, current, running)
    if is_burned:
        refused = "the warehouse refused its job, so it changed nothing"
        return _park(run, current, ParkReason.STATEMENT_FAILED, refused)
    return _recover(
        run, current, running, found.error or JobError("lost", "it changed nothing", transient=True)
    )


def _in_flight(run: TableRun, entry: JobInFlight) -> _Running:
    statements, own = run.ports.warehouse.statements, entry.statement
    assert statements is not None and own is not None
    scratch = own.scratch(run.table, entry.job_id)
    return _Running(entry, statements, statement_job(statements, run.table, entry), scratch)


def _difference(ledger: LedgerRow | None, number: int) -> str:
    if ledger is None:
        return f"batch {number} is in flight, but the table has no ledger"
    by = "another program"
    if ledger.batch == number:
        by = "a skip of another statement" if ledger.skipped else "another statement"
    return f"batch {number} is in flight, but the ledger is at batch {ledger.batch}, by {by}"


def _submit(run: TableRun, current: Versioned[TableState], running: _Running) -> Turn:
    try:
        if running.entry.burning:
            run.ports.warehouse.burn_job(
                running.entry.job_id, running.entry.project, running.entry.location, run.table
            )
        else:
            running.statements.insert(running.job)
    except (JobAlreadyExists, UnknownOutcome) as error:
        return run.try_again(f"the warehouse does not answer: {error.message}")
    except JobFailed as error:
        return _refused(run, current, running, error.message)
    return CONTINUE


def _refused(run: TableRun, current: Versioned[TableState], running: _Running, message: str) -> Turn:
    """Park the table for a job that was not inserted. An earlier request may still arrive, so burn its id first
    (S6)."""
    burning = run.swap(current, table_state.burn(current.value))
    if burning is None:
        return CONTINUE
    try:
        run.ports.warehouse.burn_job(
            running.entry.job_id, running.entry.project, running.entry.location, run.table
        )
    except (JobAlreadyExists, UnknownOutcome) as error:
        return run.try_again(f"the warehouse does not answer: {error.message}")
    return _park(run, burning, ParkReason.STATEMENT_FAILED, message)


def _record(
    run: TableRun, current: Versioned[TableState], running: _Running, job: JobStatus | None, *, skipped: bool
) -> Turn:
    """Record the batch according to the ledger. Then drop its scratch table, and those of lost requests (S3)."""
    entry = current.value.in_flight
    assert entry is not None
    billed = job.bytes_billed if job else 0
    day = today(run) if billed else 0
    recorded = steps.record_statement(current.value, skipped=skipped, billed=billed, day=day)
    if run.swap(current, table_state.count_success(recorded, entry, run.ports.clock.now_ms())):
        finish(run, entry)
        brought_back = {bad.file.path for bad in current.value.retried}
        kept = {bad.file.path for bad in recorded.quarantined if not bad.dropped}
        run.ports.store.delete_many([quarantine_path(path) for path in sorted(brought_back - kept)])
        with contextlib.suppress(KbqError):  # a later load drops the rest
            running.statements.drop_scratch(running.scratch)
            if len(run.loaded) == 1:
                drop_orphans(running.statements, run.table, lambda: run.read_state().value)
    return CONTINUE


# Statements that failed -----------------------------------------------------------------------------------------------


def _recover(run: TableRun, current: Versioned[TableState], running: _Running, error: JobError) -> Turn:
    """Decide what to do about a batch whose statement ended without changing anything (S6)."""
    parked_for = current.value.definition.failed
    if parked_for is None or parked_for.job_id != running.entry.job_id:  # a skip enters it again (S5)
        current = dataclasses.replace(current, value=table_state.count_failure(current.value))
    if run.ports.warehouse.columns(running.scratch) is None:
        run.swap(current, run.count_job(steps.load_again(current.value)))
        return CONTINUE
    if error.transient and current.value.failed.jobs < 2 * MAX_RETRIES:
        run.swap(current, table_state.retry(current.value))
        turn, pause = run.try_again(error.message), min(60.0, 2.0 ** (run.retries - 1))
        return Turn("later", pause) if turn is CONTINUE else turn
    if error.transient:
        run.swap(current, table_state.retry(current.value))
        return run.end("failed", f"{error.message}; the next run tries again", transient=True)
    return _park(run, current, ParkReason.STATEMENT_FAILED, f"{error.reason}: {error.message}")


def _park(run: TableRun, current: Versioned[TableState], reason: ParkReason, error: str) -> Turn:
    """Park a table. A failed statement leaves no job in flight, because it has ended or can do nothing any more."""
    if reason == ParkReason.STATEMENT_FAILED:
        entry = current.value.in_flight
        assert entry is not None and entry.statement is not None
        error = named(FailedBatch(entry.statement.number, entry.job_id, error, entry.files))
        current = dataclasses.replace(current, value=steps.fail_statement(current.value))
    return run.park(current, reason, error)
