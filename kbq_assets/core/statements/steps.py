"""Steps of a table's state through the two jobs of a batch: the load job, and the statement that applies it."""

from __future__ import annotations

import dataclasses

from kbq_assets.core.loading.table_state import TableState, record_success, under_new_id, unpark
from kbq_assets.core.protocol.waits import ParkReason
from kbq_assets.core.statements.table_statements import applied


def begin_statement(state: TableState, rows: int) -> TableState:
    """Enter the statement of a batch, which the job in flight has loaded, under a fresh id (S4)."""
    assert state.in_flight is not None and state.in_flight.statement is not None
    loaded = dataclasses.replace(state.in_flight.statement, loaded_by=state.in_flight.job_id, rows=rows)
    return under_new_id(state, dataclasses.replace(state.in_flight, statement=loaded))


def load_again(state: TableState) -> TableState:
    """Enter the load job of a batch whose scratch table is gone, under a fresh id (S6)."""
    assert state.in_flight is not None and state.in_flight.statement is not None
    unloaded = dataclasses.replace(state.in_flight.statement, loaded_by="", rows=0)
    return under_new_id(state, dataclasses.replace(state.in_flight, statement=unloaded))


def record_statement(state: TableState, *, skipped: bool, billed: int = 0) -> TableState:
    """Record the statement in flight as the ledger says (S2, S5). Rows of a skipped batch do not count as loaded."""
    assert state.in_flight is not None and state.in_flight.statement is not None
    done, rows = state.in_flight.statement, state.in_flight.rows
    recorded = record_success(state, rows if skipped else done.rows)
    if skipped:
        recorded = dataclasses.replace(recorded, rows=state.rows, hours=state.hours)
    found = applied(state.definition.statements, done, skipped=skipped, rows=rows, billed=billed)
    return dataclasses.replace(
        recorded, definition=dataclasses.replace(recorded.definition, statements=found)
    )


def follow_ledger(state: TableState, batch: int) -> TableState:
    """Number batches from the ledger on, unless that was decided meanwhile (S7). Files in flight are pending again."""
    if state.parked is None or state.parked.reason != ParkReason.LEDGER_DIFFERS:
        return state
    found = dataclasses.replace(state.definition.statements, applied=batch)
    definition = dataclasses.replace(state.definition, statements=found)
    return unpark(dataclasses.replace(state, definition=definition, in_flight=None))
