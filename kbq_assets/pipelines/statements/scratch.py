"""Scratch tables of lost requests (PROTOCOL S3)."""

from __future__ import annotations

from collections.abc import Callable

from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.statements.side_tables import scratch_number
from kbq_assets.ports.statements import Statements


def drop_orphans(statements: Statements, table: TableReference, read_state: Callable[[], TableState]) -> None:
    """Drop scratch tables that no job of a table fills or reads any more. They are listed before its state is read."""
    listed = statements.scratch_tables(table.dataset)
    state = read_state()
    entry = state.in_flight
    used = entry.statement.scratch(table, entry.job_id) if entry and entry.statement else None
    for scratch in listed:
        number = scratch_number(scratch.table, state.uuid)
        if number is not None and number <= state.sequence and scratch != used:
            statements.drop_scratch(scratch)
