"""Transitions of a table's state for a batch with two jobs: the load job, and the statement that applies the batch."""

from __future__ import annotations

import dataclasses

from kbq_assets.core.errors import Refused
from kbq_assets.core.loading.table_state import (
    QuarantinedFile,
    TableState,
    record_success,
    under_new_id,
    unpark,
)
from kbq_assets.core.ordering.table_order import AuditEntry
from kbq_assets.core.protocol.waits import ParkReason
from kbq_assets.core.statements.table_statements import applied


def begin_statement(state: TableState, rows: int) -> TableState:
    """Enter the statement of a batch that the job in flight has loaded, with a new id (S4)."""
    assert state.in_flight is not None and state.in_flight.statement is not None
    loaded = dataclasses.replace(state.in_flight.statement, loaded_by=state.in_flight.job_id, rows=rows)
    return under_new_id(state, dataclasses.replace(state.in_flight, statement=loaded))


def load_again(state: TableState) -> TableState:
    """Enter the load job of a batch again, with a new id, because its scratch table is gone (S6)."""
    assert state.in_flight is not None and state.in_flight.statement is not None
    unloaded = dataclasses.replace(state.in_flight.statement, loaded_by="", rows=0)
    return under_new_id(state, dataclasses.replace(state.in_flight, statement=unloaded))


def record_statement(state: TableState, *, skipped: bool, billed: int = 0, day: int = 0) -> TableState:
    """Record the result of the statement in flight, as read from the ledger (S2, S5). Rows of a skipped batch do not
    count as loaded. Its files are given up, as by `kbq quarantine drop`."""
    assert state.in_flight is not None and state.in_flight.statement is not None
    done, rows, files = state.in_flight.statement, state.in_flight.rows, state.in_flight.files
    recorded = record_success(state, rows if skipped else done.rows)
    if skipped:
        why = f"skipped: {_reason(state, done.number)}"
        given_up = tuple(QuarantinedFile(file, why, dropped=True) for file in files)
        recorded = dataclasses.replace(
            recorded, rows=state.rows, hours=state.hours, quarantined=(*recorded.quarantined, *given_up)
        )
    found = applied(state.definition.statements, done, skipped=skipped, rows=rows, billed=billed, day=day)
    definition = dataclasses.replace(recorded.definition, statements=found, failed=None)
    return dataclasses.replace(recorded, definition=definition)


def _reason(state: TableState, batch: int) -> str:
    decisions = (each for each in reversed(state.order.audit) if (each.action, each.batch) == ("skip", batch))
    return next((each.reason for each in decisions), "by an operator")


def fail_statement(state: TableState) -> TableState:
    """Drop the statement in flight, which changed nothing and can no longer change anything, and remember it as failed.
    Its files are pending again."""
    definition = dataclasses.replace(state.definition, failed=state.in_flight)
    return dataclasses.replace(state, in_flight=None, definition=definition)


def retry_statement(state: TableState, entry: AuditEntry) -> TableState:
    """Retry the batch whose statement failed, and record the decision. Raises Refused if none failed."""
    failed = state.definition.failed
    if state.parked is None or state.parked.reason != ParkReason.STATEMENT_FAILED or failed is None:
        raise Refused("no statement has failed", next_step="kbq order status")
    assert failed.statement is not None
    entry = dataclasses.replace(entry, action="retry", batch=failed.statement.number)
    return dataclasses.replace(unpark(state), order=state.order.with_audit(entry))


def begin_skip(state: TableState, batch: int, entry: AuditEntry) -> TableState:
    """Enter the failed statement as the job in flight again, so that no other files get its batch number, and record
    the decision to skip it (S5). Does nothing if that is done already. Raises Refused if another batch is meant, or if
    the batch's files are being retried."""
    failed = state.definition.failed
    if failed is None or failed.statement is None:
        raise Refused("no statement has failed", next_step="kbq status; kbq resume --table retries the batch")
    if failed.statement.number != batch:
        raise Refused(f"batch {failed.statement.number} failed, not {batch}", next_step="kbq order status")
    if state.in_flight == failed:
        return state
    if state.in_flight is not None:
        raise Refused(
            f"job {state.in_flight.job_id} loads its files again", next_step="wait for it with kbq load"
        )
    entry = dataclasses.replace(
        entry, action="skip", batch=batch, files=len(failed.files), rows=sum(f.rows for f in failed.files)
    )
    return dataclasses.replace(state, in_flight=failed, order=state.order.with_audit(entry))


def end_skip(state: TableState, job_id: str, *, skipped: bool) -> TableState:
    """Record the result of the batch that `begin_skip` entered, as read from the ledger, unless a loader did, and
    resume the table."""
    if state.in_flight is None or state.in_flight.job_id != job_id:
        return state
    recorded = record_statement(state, skipped=skipped)
    is_parked_for_it = state.parked is not None and state.parked.reason == ParkReason.STATEMENT_FAILED
    return unpark(recorded) if is_parked_for_it else recorded


def follow_ledger(state: TableState, batch: int) -> TableState:
    """Continue with the batch number from the ledger, unless the table was resumed meanwhile (S7). Files in flight are
    pending again."""
    if state.parked is None or state.parked.reason != ParkReason.LEDGER_DIFFERS:
        return state
    found = dataclasses.replace(state.definition.statements, applied=batch)
    definition = dataclasses.replace(state.definition, statements=found, failed=None)
    return unpark(dataclasses.replace(state, definition=definition, in_flight=None))
