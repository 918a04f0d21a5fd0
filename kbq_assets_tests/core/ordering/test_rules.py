"""The options of a table's topics become one rule, and a change of the rule is recorded."""

from __future__ import annotations

import dataclasses

import pytest

from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.ordering.rules import order_rule, with_rule
from kbq_assets.core.ordering.table_order import AuditEntry, FailedBatch, OrderRule, TableOrder
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.topics.ordering_options import OrderingOptions
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets_tests.strategies import staged_file

TABLE = TableReference("d", "t")
UNORDERED = OrderRule()
NONE = OrderingOptions()
OFFSET = OrderingOptions("offset")
HOUR = OrderingOptions("hour")
PERSON = OrderingOptions("offset", gate=("person",))
CHECKED = OrderingOptions("offset", gate=("check:x", "person"), hold_until="history")
PARKING = OrderingOptions("hour", late_rows="park")
TO_TABLE = OrderingOptions("hour", late_rows="table")


def rule_of(
    *asked: OrderingOptions, table: TableReference = TABLE, now: OrderRule = UNORDERED, missing: int = 0
) -> OrderRule:
    """The rule of a table that topics with these options feed, and ``missing`` ones that are not selected."""
    settings = {f"t{n}": TopicSettings(ordering=options) for n, options in enumerate(asked)}
    gone = [f"gone{n}" for n in range(missing)]
    return order_rule(table, [*reversed(settings), *gone], settings, now)


@pytest.mark.parametrize(
    ("asked", "rule"),
    [
        ([], OrderRule()),
        ([NONE], OrderRule()),
        ([OFFSET], OrderRule("offset")),
        ([NONE, OFFSET], OrderRule("offset")),
        ([OFFSET, HOUR], OrderRule("hour")),
        ([PERSON, NONE, CHECKED], OrderRule("offset", ("person", "check:x"), "history")),
        ([CHECKED, PERSON], OrderRule("offset", ("check:x", "person"), "history")),
        ([HOUR, PARKING], OrderRule("hour", late="park")),
        ([OFFSET, PARKING], OrderRule("hour", late="park")),
        ([TO_TABLE], OrderRule("hour")),
    ],
    ids=[
        "no topic",
        "no order",
        "offset",
        "one of two is ordered",
        "hour beats offset",
        "gates of all, in the order of the topics",
        "a gate once",
        "one of two parks late rows",
        "late rows park with one by offset",
        "late rows have a table",
    ],
)
def test_the_strictest_topic_decides(asked: list[OrderingOptions], rule: OrderRule) -> None:
    assert rule_of(*asked) == rule


@pytest.mark.parametrize("name", ["kbq_errors", "kbq_errors__team"])
def test_an_error_table_has_no_order(name: str) -> None:
    now = OrderRule("offset")
    assert rule_of(HOUR, table=TableReference("d", name), now=now) == OrderRule()


def test_a_table_of_late_rows_has_no_order_but_a_name_alone_makes_none() -> None:
    late = TableReference("d", "t_late")
    assert rule_of(TO_TABLE, table=late) == OrderRule()
    assert rule_of(HOUR, table=late) == OrderRule("hour")


def test_a_topic_that_is_not_selected_takes_no_order_away() -> None:
    now = OrderRule("offset", ("person",))
    assert rule_of(now=now, missing=1) == now
    assert rule_of(NONE, now=now, missing=1) == now
    assert rule_of(NONE, missing=1) == OrderRule()
    assert rule_of(HOUR, now=now, missing=1) == OrderRule("hour")
    assert rule_of(NONE, now=now) == OrderRule()


def test_what_a_later_release_stores_with_a_rule_survives() -> None:
    now = OrderRule("offset", extra={"of_tomorrow": 1})
    assert rule_of(NONE, now=now).extra == rule_of(HOUR, now=now).extra == now.extra


FAILED = FailedBatch(4, "", "no", (staged_file(0, 5),))


def state_of(order: TableOrder, rows: int = 9) -> TableState:
    return TableState("u", rows={"t/0/1": rows} if rows else {}, order=order)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("", "offset", "order=offset from here on, order=none before"),
        ("offset", "", "order=none from here on, order=offset before"),
        ("offset", "hour", "order=hour from here on, order=offset before"),
    ],
)
def test_a_table_with_rows_records_the_change_of_its_order(before: str, after: str, words: str) -> None:
    order = TableOrder(OrderRule(before), settled=3, validated=3)
    assert with_rule(state_of(order), OrderRule(after), 60).order.audit == (
        AuditEntry(60, "order", 4, words),
    )


@pytest.mark.parametrize(
    ("rows", "rule"), [(0, OrderRule("hour")), (9, OrderRule("offset", ("person",), "history"))]
)
def test_a_table_without_rows_or_with_the_same_order_records_none(rows: int, rule: OrderRule) -> None:
    changed = with_rule(state_of(TableOrder(OrderRule("offset")), rows), rule, 60)
    assert (changed.order.audit, changed.order.rule) == ((), rule)


def test_only_a_table_with_an_order_keeps_its_failed_batch() -> None:
    order = TableOrder(OrderRule("offset"), settled=3, failed=FAILED)
    assert with_rule(state_of(order), OrderRule("hour"), 60).order.failed == FAILED
    assert with_rule(state_of(order), OrderRule(), 60).order.failed is None


@pytest.mark.parametrize(
    ("before", "after", "unvalidated"),
    [((), ("person",), 0), (("person",), (), 0), (("person",), ("person", "check:x"), 3)],
    ids=["the first gate", "the last gate goes", "one more gate"],
)
def test_only_a_batch_that_had_a_gate_to_pass_waits_for_one(
    before: tuple[str, ...], after: tuple[str, ...], unvalidated: int
) -> None:
    order = TableOrder(OrderRule("offset", before), settled=3, validated=2)
    changed = with_rule(state_of(order), OrderRule("offset", after), 60).order
    assert (changed.unvalidated, changed.settled) == (unvalidated, 3)


def test_the_rest_of_the_state_stays() -> None:
    state = state_of(TableOrder(OrderRule("offset"), settled=3))
    changed = with_rule(state, OrderRule("hour"), 60)
    assert dataclasses.replace(changed, order=state.order) == state
