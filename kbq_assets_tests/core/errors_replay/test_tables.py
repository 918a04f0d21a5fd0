"""Which tables take replayed rows, and by which rule."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kbq_assets.core.errors import Refused
from kbq_assets.core.errors_replay.tables import rule_for
from kbq_assets.core.loading.replacing import Replacing
from kbq_assets.core.loading.table_state import Definition, JobInFlight, Parked, TableState
from kbq_assets.core.ordering.table_order import FailedBatch, Hold, OrderRule, TableOrder
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
    state: TableState, *wanted: StatementRule, is_ordered: bool = False, changes: bool = False
) -> StatementRule:
    return rule_for(TABLE, state, wanted, is_ordered=is_ordered, are_changes=changes)


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
        (IDLE, UPSERT, "the first one of the `load`"),
        (upserted(), APPEND, "the first one of the `load`"),
        (upserted(), replace(UPSERT, tie="timestamp"), "the first one of the `load`"),
        (
            replace(IDLE, definition=Definition(statements=replace(APPLIED, appended=True))),
            UPSERT,
            "the first one of the `load`",
        ),
        (
            replace(
                IDLE,
                definition=Definition(statements=replace(APPLIED, switch=LoadSwitch(UPSERT, APPEND, {}))),
            ),
            UPSERT,
            "the first one of the `load`",
        ),
        (replace(IDLE, order=TableOrder(OrderRule("offset"))), APPEND, "shows its rows in order"),
        (upserted(TableOrder(OrderRule("hour"))), UPSERT, "complete hours do not change"),
        (upserted(TableOrder(OrderRule("offset", ("person",)))), UPSERT, "each row passes a gate"),
        (upserted(TableOrder(hold=Hold("history"))), UPSERT, "an operator holds it: history"),
        (upserted(parked=Parked("x", "y")), UPSERT, "is parked"),
        (upserted(TableOrder(failed=FailedBatch(4, "j", "e", ()))), UPSERT, "a batch of it failed"),
        (
            replace(IDLE, definition=Definition(statements=APPLIED, failed=JOB)),
            UPSERT,
            "a batch of it failed",
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
