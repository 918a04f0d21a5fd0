"""Transitions for failed batches of ordered tables, and for operators' decisions (PROTOCOL O3, O4)."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Final

from kbq_assets.core.errors import Refused
from kbq_assets.core.loading import table_state
from kbq_assets.core.loading.table_state import QuarantinedFile, TableState
from kbq_assets.core.ordering.table_order import AuditEntry, FailedBatch, Hold
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.waits import ParkReason

#: Reasons that `kbq order release` ends.
HELD: Final = frozenset({ParkReason.HELD, ParkReason.WAITS_FOR_MARKER})
#: Reasons for a batch that is applied but not validated.
GATED: Final = frozenset({ParkReason.GATE_RED, ParkReason.GATE_WAITS})


def fail_batch(
    state: TableState,
    reason: ParkReason,
    error: str,
    files: Collection[StagedFile],
    now_ms: int,
    bad: Collection[str] = (),
) -> TableState:
    """Park a table whose next batch cannot be loaded. For an ordered table, also record the batch as failed."""
    if not state.order.rule.by:
        return table_state.park(state, reason, error, now_ms)
    job_id = state.in_flight.job_id if state.in_flight else ""
    failed = FailedBatch(state.order.next, job_id, error, tuple(files), tuple(bad))
    stopped = dataclasses.replace(state, order=dataclasses.replace(state.order, failed=failed))
    return table_state.park(stopped, reason, named(failed), now_ms)


def named(failed: FailedBatch) -> str:
    """A failed batch as text: its number, job, error and first files."""
    job = f", job {failed.job_id}" if failed.job_id else ""
    return f"batch {failed.number}{job}: {failed.error}{_files(failed)}"


def _files(failed: FailedBatch) -> str:
    shown = failed.bad or tuple(file.path for file in failed.files)
    more = f" and {len(shown) - 3} more" if len(shown) > 3 else ""
    return f" (files: {', '.join(shown[:3])}{more})"


def failed_batch(state: TableState) -> int:
    """Number of the failed batch that an operator may retry or skip; 0 if there is none, or if its job may still run. A
    failed statement has the ledger's number."""
    failed, parked = state.definition.failed, state.parked
    if state.in_flight is not None:
        return 0
    if failed and failed.statement and parked is not None and parked.reason == ParkReason.STATEMENT_FAILED:
        return failed.statement.number
    return state.order.failed.number if state.order.failed else 0


def retry(state: TableState, entry: AuditEntry) -> TableState:
    """Load the failed batch again. Raises Refused if none failed."""
    failed = _failed(state)
    entry = dataclasses.replace(entry, action="retry", batch=failed.number)
    return note(table_state.unpark(state), entry)


def skip(state: TableState, batch: int, entry: AuditEntry) -> TableState:
    """Continue after the failed batch, whose rows an operator applied by hand or gives up. Its files are given up, as
    by `kbq quarantine drop`. Raises Refused if another batch is meant, or if its job may still run."""
    failed = _failed(state)
    if failed.number != batch:
        raise Refused(f"batch {failed.number} failed, not {batch}", next_step="check with kbq order status")
    marks = dict(state.marks)
    for file in failed.files:
        key = table_state.mark_key(file)
        marks[key] = max(marks.get(key, 0), file.until)
    given_up = tuple(QuarantinedFile(f, f"skipped: {entry.reason}", dropped=True) for f in failed.files)
    rows = sum(file.rows for file in failed.files)
    entry = dataclasses.replace(entry, action="skip", batch=batch, files=len(failed.files), rows=rows)
    skipped = dataclasses.replace(
        state, marks=marks, quarantined=(*state.quarantined, *given_up), order=state.order.with_settled()
    )
    return note(table_state.unpark(skipped), entry)


def _failed(state: TableState) -> FailedBatch:
    if state.order.failed is None:
        raise Refused("no batch has failed", next_step="kbq order status")
    if state.in_flight is not None:
        raise Refused(
            f"job {state.in_flight.job_id} is loading it again", next_step="wait for it with kbq load"
        )
    return state.order.failed


def hold(state: TableState, entry: AuditEntry) -> TableState:
    """Hold the table: no batch starts. A job in flight is still settled."""
    entry = dataclasses.replace(entry, action="hold", batch=state.order.next)
    order = dataclasses.replace(state.order, hold=Hold(entry.reason, entry.at_ms))
    return note(dataclasses.replace(state, order=order), entry)


def release(state: TableState, entry: AuditEntry) -> TableState:
    """Let batches start, even if they wait for a marker. Raises Refused if nothing holds the table."""
    if not state.order.why_held:
        raise Refused("nothing holds the table", next_step="kbq order status")
    entry = dataclasses.replace(entry, action="release", batch=state.order.next)
    order = dataclasses.replace(state.order, hold=None, released=state.order.rule.hold_until)
    released = dataclasses.replace(state, order=order)
    if state.parked is not None and state.parked.reason in HELD:
        released = table_state.unpark(released)
    return note(released, entry)


def let_in(state: TableState, entry: AuditEntry) -> TableState:
    """Record that rows are added after rows with later offsets (ER8)."""
    return note(state, dataclasses.replace(entry, action="out_of_order", batch=state.order.settled))


def marked(state: TableState, now_ms: int) -> TableState:
    marker = state.order.rule.hold_until
    order = dataclasses.replace(state.order, released=marker)
    entry = AuditEntry(now_ms, "release", order.next, f"the marker {marker} exists")
    return note(dataclasses.replace(state, order=order), entry)


def judge(
    state: TableState, gate: str, is_green: bool, message: str, now_ms: int, seen: int = 0
) -> TableState:
    """Record a gate's result for the last batch. A red gate parks the table until it is evaluated again."""
    order = state.order.with_result(gate, is_green, message, now_ms, seen)
    judged = dataclasses.replace(state, order=order)
    if is_green:
        return judged
    red = f"batch {order.settled} is applied and not validated: {gate}: {message}"
    return table_state.park(judged, ParkReason.GATE_RED, red, now_ms)


def await_person(state: TableState, now_ms: int) -> TableState:
    """Park a table until a person validates its last batch."""
    waits = f"batch {state.order.settled} is applied and not validated: it waits for a person"
    return table_state.park(state, ParkReason.GATE_WAITS, waits, now_ms)


def ask_later(state: TableState, why: str, now_ms: int) -> TableState:
    """Park a table with a gate that this load cannot evaluate. A later load does, after a pause."""
    waits = f"batch {state.order.settled} is applied and not validated: {why}"
    return table_state.park(state, ParkReason.GATE_RED, waits, now_ms)


def _let_late_rows_in(state: TableState, entry: AuditEntry) -> TableState:
    entry = dataclasses.replace(entry, action="continue", batch=state.order.next)
    order = dataclasses.replace(state.order, late_allowed=state.order.next)
    return note(table_state.unpark(dataclasses.replace(state, order=order)), entry)


def go_on(state: TableState, entry: AuditEntry) -> TableState:
    """By a person's decision, pass all gates of the last batch, or allow the late rows of the next one. Raises Refused
    if nothing waits for a decision."""
    order = state.order
    if state.parked is not None and state.parked.reason == ParkReason.LATE_ROWS:
        return _let_late_rows_in(state, entry)
    if not (gates := order.open_gates()):
        raise Refused("no gate is open", next_step="kbq order status")
    entry = dataclasses.replace(entry, action="continue", batch=order.settled)
    for gate in gates:
        order = order.with_result(gate, True, f"passed by {entry.by or 'a person'}", entry.at_ms)
    passed = dataclasses.replace(state, order=order)
    if state.parked is not None and state.parked.reason in GATED:
        passed = table_state.unpark(passed)
    return note(passed, entry)


def note(state: TableState, entry: AuditEntry) -> TableState:
    """Add an audit entry."""
    return dataclasses.replace(state, order=state.order.with_audit(entry))
