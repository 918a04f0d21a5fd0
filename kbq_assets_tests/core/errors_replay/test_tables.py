"""Which tables accept replayed rows, and by which rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kbq_assets.core.errors import Refused
from kbq_assets.core.errors_replay.tables import check_late_rows, rule_for
from kbq_assets.core.loading.replacing import Replacing
from kbq_assets.core.loading.table_state import Definition, JobInFlight, Parked, TableState
from kbq_assets.core.ordering.table_order import AuditEntry, FailedBatch, Hold, OrderRule, TableOrder
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.statements.load_switch import LoadSwitch
from kbq_assets.core.statements.rules import StatementRule
from kbq_assets.core.statements.table_statements import TableStatements

TABLE = TableReference("d", "A")
APPEND, UPSERT = StatementRule(), StatementRule("upsert", ("id",))
IDLE = TableState("u")
APPLIED = TableStatements(UPSERT, 3, appended=False)
JOB = JobInFlight("kbq-u-1", "local", "local", ())


def upserted(order: TableOrder | None = None, **changes: object) -> TableState:
    definition = Definition(statements=APPLIED)
    return replace(IDLE, definition=definition, order=order or TableOrder(), **changes)  # type: ignore[arg-type]


def rule(
    state: TableState,
    *wanted: StatementRule,
    is_ordered: bool = False,
    changes: bool = False,
    lets_in: bool = False,
) -> StatementRule:
    return rule_for(TABLE, state, wanted, is_ordered=is_ordered, are_changes=changes, lets_in=lets_in)


def test_rows_of_an_appended_table_are_added_also_after_it_was_one_of_upserts() -> None:
    assert rule(IDLE) == rule(IDLE, APPEND) == APPEND
    back = replace(IDLE, definition=Definition(statements=replace(APPLIED, appended=True)))
    assert rule(back, APPEND) == APPEND


def test_rows_of_an_upsert_table_come_by_its_rule_whether_or_not_its_topics_are_selected() -> None:
    assert rule(upserted(), UPSERT) == rule(upserted()) == UPSERT
    assert rule(upserted(TableOrder(OrderRule("offset"), 3)), UPSERT, is_ordered=True) == UPSERT


@pytest.mark.parametrize(
    ("state", "wanted", "why"),
    [
        (IDLE, UPSERT, "the first one under its topics' new `load`"),
        (upserted(), APPEND, "the first one under its topics' new `load`"),
        (upserted(), replace(UPSERT, tie="timestamp"), "the first one under its topics' new `load`"),
        (
            replace(IDLE, definition=Definition(statements=replace(APPLIED, appended=True))),
            UPSERT,
            "the first one under its topics' new `load`",
        ),
        (
            replace(
                IDLE,
                definition=Definition(statements=replace(APPLIED, switch=LoadSwitch(UPSERT, APPEND, {}))),
            ),
            UPSERT,
            "the first one under its topics' new `load`",
        ),
        (replace(IDLE, order=TableOrder(OrderRule("offset"))), APPEND, "shows its rows in order"),
        (upserted(TableOrder(OrderRule("hour"))), UPSERT, "complete hours do not change"),
        (upserted(TableOrder(OrderRule("offset", ("person",)))), UPSERT, "each row must pass a gate"),
        (upserted(TableOrder(hold=Hold("history"))), UPSERT, "an operator holds it: history"),
        (upserted(parked=Parked("x", "y")), UPSERT, "is parked"),
        (upserted(TableOrder(failed=FailedBatch(4, "j", "e", ()))), UPSERT, "its batch failed"),
        (
            replace(IDLE, definition=Definition(statements=APPLIED, failed=JOB)),
            UPSERT,
            "its batch failed",
        ),
        (upserted(in_flight=JOB), UPSERT, "a batch is in flight"),
        (
            replace(IDLE, definition=Definition(statements=APPLIED, replacing=Replacing(1, "j"))),
            UPSERT,
            "replay 1 replaces rows of it",
        ),
    ],
)
def test_all_others_refuse_with_the_reason(state: TableState, wanted: StatementRule, why: str) -> None:
    with pytest.raises(Refused, match=why) as refused:
        rule(state, wanted)
    assert refused.value.next_step


def test_change_events_and_a_topic_that_asks_for_an_order_are_refused() -> None:
    with pytest.raises(Refused, match="change events"):
        rule(upserted(), UPSERT, changes=True)
    with pytest.raises(Refused, match="in order"):
        rule(IDLE, APPEND, is_ordered=True)


@pytest.mark.parametrize("action", ["load", "retry", "skip"])
def test_decisions_about_a_statement_give_a_table_no_order(action: str) -> None:
    decided = TableOrder(audit=(AuditEntry(0, action, 1),), archived=100)
    assert rule(replace(IDLE, order=decided), APPEND) == APPEND


@pytest.mark.parametrize("by", ["offset", "hour", ""])
def test_an_operator_lets_rows_into_an_appended_table_in_order(by: str) -> None:
    ordered = replace(IDLE, order=TableOrder(OrderRule(by), 3))
    with pytest.raises(Refused, match="in order") as refused:
        rule(ordered, APPEND)
    assert "kbq reset" in refused.value.next_step
    assert "kbq errors replay --out-of-order" in refused.value.next_step
    assert rule(ordered, APPEND, is_ordered=bool(by), lets_in=True) == APPEND


@pytest.mark.parametrize(
    ("order", "why"),
    [
        (TableOrder(OrderRule("offset", ("person",)), 3), "each row must pass a gate"),
        (TableOrder(OrderRule("hour", late="park"), 3), "late rows park it"),
        (TableOrder(OrderRule("offset"), 3, hold=Hold("history")), "an operator holds it: history"),
        (TableOrder(OrderRule("offset", hold_until="x"), 3), "it waits for the marker x"),
        (TableOrder(), "its order begins with its next batch"),
    ],
)
def test_no_operator_lets_rows_past_a_gate_a_hold_or_a_complete_hour(order: TableOrder, why: str) -> None:
    with pytest.raises(Refused, match=why) as refused:
        rule(replace(IDLE, order=order), APPEND, is_ordered=True, lets_in=True)
    assert "--out-of-order" not in refused.value.next_step


def test_an_option_about_late_rows_keeps_them_out() -> None:
    check_late_rows(TABLE, "apply")
    with pytest.raises(Refused, match="late_rows=table"):
        check_late_rows(TABLE, "table")
