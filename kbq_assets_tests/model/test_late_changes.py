"""What was measured on a former log changes nothing after a reset, and every rule is necessary (PROTOCOL E2, E9)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kbq_assets_tests.model.engine import explore
from kbq_assets_tests.model.late_changes import LateChanges, Rule

#: The smallest scope in which a removed rule is noticed, and the promise that breaks.
BREAKS = {
    Rule.GAP_EPOCH: (LateChanges(), "LOSS"),
    Rule.ADDITION_EPOCH: (LateChanges(partitions=2), "LOSS"),
    Rule.ACCEPTED_EPOCH: (LateChanges(accepts=True), "LOSS"),
    Rule.COMMIT_FIRST: (LateChanges(accepts=True), "LOSS"),
    Rule.ID_FIRST: (LateChanges(recreations=2), "LOSS"),
}


@pytest.mark.parametrize(
    ("scope", "states"),
    [
        (LateChanges(partitions=2), 9_000),
        (LateChanges(recreations=2, accepts=True), 7_000),
        pytest.param(LateChanges(partitions=2, accepts=True), 60_000, marks=pytest.mark.thorough),
    ],
    ids=str,
)
def test_every_reachable_state_keeps_every_promise(scope: LateChanges, states: int) -> None:
    found = explore(scope)
    assert (found.violation, found.complete) == (None, True), found.trace
    assert found.states > states


@pytest.mark.parametrize("rule", Rule, ids=lambda rule: rule.value)
def test_a_removed_rule_breaks_the_promise_it_is_there_for(rule: Rule) -> None:
    scope, promise = BREAKS[rule]
    found = explore(replace(scope, removed=frozenset({rule})), progress=False)
    assert (found.violation or "").startswith(promise), found.violation
