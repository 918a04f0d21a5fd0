"""Derives a table's order from the options of its topics."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.ordering import transitions
from kbq_assets.core.ordering.table_order import AuditEntry, OrderRule
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.topics.error_tables import is_error_table
from kbq_assets.core.topics.ordering_options import APPLY, HOUR, NONE, PARK, is_late_table
from kbq_assets.core.topics.topic_settings import TopicSettings


def order_rule(
    table: TableReference, topics: Collection[str], settings: Mapping[str, TopicSettings], now: OrderRule
) -> OrderRule:
    """The rule of a table with these topics: ordered if one of them is, by hour if one requests that, and with the
    gates of all.

    While a topic is no longer selected, its options are unknown, so an ordered table stays ordered. Tables of error
    rows, which many topics share, and tables of late rows have no order.
    """
    asked = [settings[topic].ordering for topic in sorted(topics) if topic in settings]
    if is_error_table(table) or is_late_table(table, asked):
        return OrderRule()
    ordered = [each for each in asked if each.order != NONE]
    if len(asked) < len(topics) and now.by and not ordered:
        return now
    if not ordered:
        return OrderRule(extra=now.extra)
    gates = dict.fromkeys(gate for each in ordered for gate in each.gate)
    marker = next((each.hold_until for each in ordered if each.hold_until), "")
    by = HOUR if any(each.order == HOUR for each in ordered) else ordered[0].order
    parks = by == HOUR and any(each.late_rows == PARK for each in ordered)
    return OrderRule(by, tuple(gates), marker, PARK if parks else APPLY, extra=now.extra)


def with_rule(state: TableState, rule: OrderRule, now_ms: int) -> TableState:
    """The state with a changed rule. Batches that were applied before need not pass new gates."""
    if state.rows and rule.by != state.order.rule.by:
        words = f"order={rule.by or NONE} from here on, order={state.order.rule.by or NONE} before"
        state = transitions.note(state, AuditEntry(now_ms, "order", state.order.next, words))
    order = dataclasses.replace(state.order, rule=rule, failed=state.order.failed if rule.by else None)
    if not state.order.rule.gates or not rule.gates:
        order = dataclasses.replace(order, validated=order.settled)
    return dataclasses.replace(state, order=order)
