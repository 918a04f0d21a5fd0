"""The order of a table's batches: numbers without gaps, gates per batch, and recorded decisions."""

from __future__ import annotations

import dataclasses
import json

import pytest

from kbq_assets.core.errors import UnsupportedFormat
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.ordering.table_order import (
    AuditEntry,
    FailedBatch,
    Hold,
    OrderRule,
    TableOrder,
)
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.archives import DECISIONS
from kbq_assets_tests.strategies import staged_file

GATED = TableOrder(OrderRule("offset", ("rows", "person")))


def test_a_table_without_an_order_is_stored_as_before() -> None:
    stored = codec.dumps(TableState("u", 3))
    assert json.loads(stored) == {
        "format": 3,
        "checksum": codec.checksum_of(stored),
        "uuid": "u",
        "sequence": 3,
    }


@pytest.mark.parametrize(
    "order",
    [GATED, TableOrder(settled=1), TableOrder(hold=Hold("x")), TableOrder(extra={"of_tomorrow": 1})],
)
def test_a_release_without_orders_refuses_an_ordered_table(
    order: TableOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = TableState("u", order=order)
    stored = codec.dumps(state)
    assert codec.loads(TableState, stored, "x", keep=False) == state
    monkeypatch.setattr(codec, "HIGHEST", 3)
    with pytest.raises(UnsupportedFormat, match="format 4"):
        codec.loads(TableState, stored, "x", keep=False)


def test_batches_have_numbers_without_gaps() -> None:
    order = TableOrder(OrderRule("offset"))
    assert (order.next, order.with_settled().next, order.with_settled().with_settled().settled) == (1, 2, 2)
    failed = dataclasses.replace(order, failed=FailedBatch(1, "kbq-u-1", "bad", (staged_file(0, 5),)))
    assert (failed.next, failed.with_settled().failed) == (1, None)


def test_without_gates_an_applied_batch_counts_as_validated() -> None:
    order = TableOrder(OrderRule("offset")).with_settled()
    assert (order.validated, order.unvalidated, order.open_gates()) == (1, 0, ())


def test_a_batch_is_validated_once_all_of_its_gates_are_green() -> None:
    applied = GATED.with_settled()
    assert (applied.unvalidated, applied.open_gates()) == (1, ("rows", "person"))
    red = applied.with_result("rows", False, "2 rows", 5).with_result("rows", False, "2 rows", 6)
    assert (red.open_gates(), red.validated) == (("rows", "person"), 0)
    found = red.result("rows")
    assert found is not None
    assert (found.tries, found.at_ms) == (2, 6)
    half = red.with_result("rows", True, "", 7)
    assert (half.open_gates(), half.unvalidated) == (("person",), 1)
    green = half.with_result("person", True, "", 8)
    assert (green.open_gates(), green.unvalidated, green.validated) == ((), 0, 1)


def test_a_gate_that_was_green_is_asked_again_for_the_next_batch() -> None:
    order = GATED.with_settled().with_result("rows", True, "", 1).with_result("person", True, "", 1)
    assert order.with_settled().open_gates() == ("rows", "person")


def test_results_of_gates_that_a_table_has_no_longer_are_dropped() -> None:
    order = GATED.with_settled().with_result("rows", False, "bad", 1)
    changed = dataclasses.replace(order, rule=OrderRule("offset", ("person",)))
    assert [each.gate for each in changed.with_result("person", True, "", 2).gates] == ["person"]


@pytest.mark.parametrize(
    ("order", "why"),
    [
        (TableOrder(), ""),
        (TableOrder(hold=Hold("")), "an operator holds it"),
        (TableOrder(hold=Hold("a migration")), "an operator holds it: a migration"),
        (TableOrder(OrderRule("offset", hold_until="history")), "it waits for the marker history"),
        (TableOrder(OrderRule("offset", hold_until="history"), released="history"), ""),
        (
            TableOrder(OrderRule("offset", hold_until="newer"), released="history"),
            "it waits for the marker newer",
        ),
    ],
)
def test_a_table_says_why_it_is_held(order: TableOrder, why: str) -> None:
    assert order.why_held == why


def test_decisions_are_kept_and_their_list_in_the_state_is_bounded() -> None:
    order, kept = TableOrder(), []
    for number in range(200):
        order = order.with_audit(AuditEntry(number, "hold", 1, "r" * 2_000))
        if chunk := order.full_chunk():
            kept.append((order.archived, chunk))
            order = order.without_chunk()
        assert len(order.audit) < DECISIONS.most
    assert [first for first, _ in kept] == list(range(0, order.archived, DECISIONS.chunk))
    everything = [*(entry for _, chunk in kept for entry in chunk), *order.audit]
    assert [entry.at_ms for entry in everything] == list(range(200))
    assert max(len(entry.reason) for entry in everything) == 500
