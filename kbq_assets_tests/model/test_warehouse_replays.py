"""Replays of several warehouses are independent of each other, and every rule is necessary (PROTOCOL R13)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kbq_assets_tests.model.engine import explore
from kbq_assets_tests.model.warehouse_replay_world import Rule
from kbq_assets_tests.model.warehouse_replays import WarehouseReplays

#: The second warehouse was added after the record was extracted.
ADDED = WarehouseReplays(given=(True, False))
#: The scope in which a removed rule is noticed, and the promise that breaks.
BREAKS = {
    Rule.ONE_WAREHOUSE: (WarehouseReplays(), "PROGRESS"),
    Rule.OWN_TABLES: (ADDED, "COUNT"),
    Rule.OWN_FILES: (WarehouseReplays(), "DOUBLED"),
    Rule.OWN_REPLAYS: (WarehouseReplays((1, 1), makes=(False, True)), "COUNT"),
    Rule.NO_OTHER_FILES: (WarehouseReplays((0,), downs=1), "PROGRESS"),
    Rule.NO_OTHER_REPLAYS: (WarehouseReplays((0, 1), downs=1), "PROGRESS"),
    Rule.NO_OTHER_LOADS: (WarehouseReplays(downs=1), "PROGRESS"),
    Rule.COUNTED_BY_NAME: (ADDED, "COUNT"),
    Rule.COUNTED_BY_JOB: (replace(ADDED, rollbacks=1), "COUNT"),
    Rule.FORMAT: (WarehouseReplays(), "WRONG"),
    Rule.ALL_MARKS: (replace(ADDED, resets=1), "EPOCH"),
    Rule.ALL_BACKLOGS: (WarehouseReplays(moves=2, resets=1), "DOUBLED"),
    Rule.EPOCH_AGAIN: (WarehouseReplays(resets=1, gives_up=True), "DOUBLED"),
    Rule.REGISTERED: (replace(ADDED, others=1), "WRONG"),
    Rule.LABEL_COMPARED: (replace(ADDED, others=1), "FOREIGN"),
    Rule.LABEL_SET: (replace(ADDED, others=1), "FOREIGN"),
    Rule.BROUGHT: (ADDED, "BROUGHT"),
    Rule.UP_TO_LACKING: (WarehouseReplays(has_row=False), "BROUGHT"),
    Rule.TAKEN_BACK: (replace(ADDED, rollbacks=1), "BROUGHT"),
}


@pytest.mark.parametrize(
    "scope",
    [
        WarehouseReplays(crashes=1, operators=2),
        WarehouseReplays((0, 1), crashes=1),
        WarehouseReplays((0, 1), downs=1),
        WarehouseReplays((1, 1), makes=(False, True), rollbacks=1),
        WarehouseReplays((0, 1), given=(True, False), rollbacks=1),
        WarehouseReplays(has_row=False, crashes=1, rollbacks=1),
        WarehouseReplays(moves=2, resets=1, crashes=1),
        WarehouseReplays(resets=1, gives_up=True, crashes=1),
        replace(ADDED, crashes=1, rollbacks=1),
        replace(ADDED, moves=1, resets=1, crashes=1),
        replace(ADDED, others=1, crashes=1),
    ],
    ids=str,
)
def test_every_reachable_state_keeps_every_promise(scope: WarehouseReplays) -> None:
    found = explore(scope)
    assert (found.violation, found.complete) == (None, True), found.trace
    assert found.states > 200


@pytest.mark.parametrize("rule", Rule, ids=lambda rule: rule.value)
def test_a_removed_rule_breaks_the_promise_it_is_there_for(rule: Rule) -> None:
    scope, promise = BREAKS[rule]
    assert explore(scope).violation is None
    found = explore(replace(scope, removed=frozenset({rule})))
    assert (found.violation or "").startswith(promise), found.violation
