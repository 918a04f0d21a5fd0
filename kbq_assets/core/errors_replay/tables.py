"""Decides whether and how a table accepts the rows of replayed error rows (PROTOCOL ER4 to ER6, ER8)."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from kbq_assets.core.errors import Refused
from kbq_assets.core.errors_replay.intents import ERRORS_JOB, ReplayIntent
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.ordering.table_order import TableOrder
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.statements.rules import UPSERT, StatementRule
from kbq_assets.core.statements.switching import lasting_rule
from kbq_assets.core.topics.ordering_options import APPLY

_READ_AGAIN = "kbq reset reads the range again, in order"
_LET_IN = f"{_READ_AGAIN}; kbq errors replay --out-of-order REASON adds them behind these"
_LATER = "kbq load, then replay again"


def rule_for(
    table: TableReference,
    state: TableState,
    wanted: Collection[StatementRule],
    *,
    is_ordered: bool,
    are_changes: bool,
    lets_in: bool = False,
) -> StatementRule:
    """The rule by which replayed rows change a table. ``wanted`` are the rules of its topics. ``is_ordered``: the
    topics set an order. ``are_changes``: the rows are change events. ``lets_in``: an operator adds them out of order.
    Raises Refused."""
    rule = lasting_rule(table, state, wanted)
    if rule.appends:
        if shows_order(state, is_ordered=is_ordered):
            check_let_in(table, state, is_ordered=is_ordered, lets_in=lets_in)
        return rule
    if rule.kind != UPSERT or are_changes:
        what = "change events" if are_changes else f"load={rule.kind}"
        raise Refused(
            f"{table}: the effect of a record depends on earlier records ({what})", next_step=_READ_AGAIN
        )
    _check_order(table, state)
    _check_idle(table, state)
    return rule


def check_late_rows(table: TableReference, late_rows: str) -> None:
    """Raise Refused if the topic treats rows of complete hours specially, because a replay cannot."""
    if late_rows != APPLY:
        raise Refused(
            f"{table}: a replay cannot apply late_rows={late_rows} to rows of complete hours",
            next_step=_READ_AGAIN,
        )


def shows_order(state: TableState, *, is_ordered: bool) -> bool:
    """Whether readers may rely on an order of a table's rows. ``is_ordered``: its topic sets an order. The audit list
    does not count: a table without an order has decisions too, about its statements and changes of `load`."""
    return is_ordered or dataclasses.replace(state.order, audit=(), archived=0) != TableOrder()


def check_let_in(table: TableReference, state: TableState, *, is_ordered: bool, lets_in: bool) -> None:
    """Raise Refused unless an operator may add rows to an ordered table although readers have seen later ones (ER8)."""
    rule = state.order.rule
    if rule.gates or rule.late != APPLY:
        what = "each row must pass a gate in its batch" if rule.gates else "late rows park it"
        raise Refused(f"{table}: {what}", next_step=_READ_AGAIN)
    if not lets_in:
        raise Refused(
            f"{table} shows its rows in order, but these belong before rows that readers have already seen",
            next_step=_LET_IN,
        )
    if is_ordered and not rule.by:
        raise Refused(f"{table}: its order begins with its next batch", next_step=f"{_LATER}; {_READ_AGAIN}")
    if held := state.order.why_held:
        raise Refused(f"{table}: {held}", next_step=f"kbq order release {table}, then replay again")


def give_up_id(state: TableState) -> TableState:
    """The state with the next job id skipped, so that a loader that read the old state loses its swap (ER5)."""
    return dataclasses.replace(state, sequence=state.sequence + 1)


def _check_order(table: TableReference, state: TableState) -> None:
    rule = state.order.rule
    if rule.by == "hour" or rule.gates:
        what = (
            "complete hours do not change" if rule.by == "hour" else "each row must pass a gate in its batch"
        )
        raise Refused(f"{table}: {what}", next_step=_READ_AGAIN)
    if held := state.order.why_held:
        raise Refused(f"{table}: {held}", next_step=f"kbq order release {table}, then replay again")


def _check_idle(table: TableReference, state: TableState) -> None:
    """Raise Refused unless no statement is in flight or may be entered again: its text may lack columns that the replay
    adds."""
    if state.parked is not None or state.order.failed is not None or state.definition.failed is not None:
        raise Refused(f"{table} is parked, or its batch failed", next_step=f"kbq status {table}")
    if state.in_flight is not None:
        raise Refused(f"{table}: a batch is in flight", next_step=_LATER)
    if (found := state.definition.replacing) is not None:
        raise Refused(f"{table}: {found.what} rows of it", next_step=found.next_step)


def begin_replay(state: TableState, intent: ReplayIntent) -> TableState:
    """The state of an error table with a replay of its rows, with a new id (ER7). Raises Refused while rows of the
    table are being replaced."""
    assert state.definition.replaying is None
    if (found := state.definition.replacing) is not None:
        raise Refused(f"{found.what} its error rows", next_step=found.next_step)
    under = intent.under(f"{ERRORS_JOB}{state.uuid}-{state.sequence + 1}")
    definition = dataclasses.replace(state.definition, replaying=under)
    return dataclasses.replace(give_up_id(state), definition=definition)


def end_replay(state: TableState, job_id: str) -> TableState:
    """The state without the replay with this id. Another replay stays."""
    found = state.definition.replaying
    if found is None or found.job_id != job_id:
        return state
    return dataclasses.replace(state, definition=dataclasses.replace(state.definition, replaying=None))
