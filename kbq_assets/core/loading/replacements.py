"""Transitions of a table's state before and after a replay replaces some of its rows (PROTOCOL R3, R5)."""

from __future__ import annotations

import dataclasses

from kbq_assets.core.loading.replacing import Replacing
from kbq_assets.core.loading.table_state import TableState, unpark
from kbq_assets.core.protocol.waits import ParkReason


def begin_replacing(state: TableState, replacing: Replacing) -> TableState:
    """Make a table wait for a replacement. No load job may be in flight."""
    assert state.in_flight is None
    return _with(state, replacing)


def end_replacing(state: TableState, job_id: str, *, done: bool) -> TableState:
    """End the wait and, if the job is ``done``, count the change of rows. Counts it only once. A table parked because
    it was gone is resumed."""
    found = state.definition.replacing
    if found is None or found.job_id != job_id:
        return state
    state = _with(state, None)
    if not done:
        return state
    rows = {**state.rows, **{key: state.rows.get(key, 0) + change for key, change in found.rows.items()}}
    given_up = max(0, state.accepted.rows - found.restored)
    state = dataclasses.replace(
        state,
        rows={key: count for key, count in rows.items() if count or key in state.rows},
        accepted=dataclasses.replace(state.accepted, rows=given_up),
    )
    is_gone = state.parked is not None and state.parked.reason == ParkReason.TABLE_GONE
    return unpark(state) if is_gone else state


def _with(state: TableState, replacing: Replacing | None) -> TableState:
    return dataclasses.replace(state, definition=dataclasses.replace(state.definition, replacing=replacing))
