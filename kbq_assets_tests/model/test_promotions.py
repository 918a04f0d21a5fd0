"""Replays are promoted and rolled back during live loading, and every rule is necessary (PROTOCOL, Replay)."""

from __future__ import annotations

import pytest

from kbq_assets_tests.model.engine import explore
from kbq_assets_tests.model.promotions import Promotions, Rule

#: The scope in which a removed rule is noticed, and the promise that breaks.
BREAKS = {
    Rule.SETTLED: (Promotions(), "WRONG"),
    Rule.ONE_AT_A_TIME: (Promotions(replays=2), "COUNT"),
    Rule.NAMED_ID: (Promotions(crashes=1, rollbacks=1), "COUNT"),
    Rule.COUNTED_AS_IT_ENDS: (Promotions(crashes=1), "COUNT"),
    Rule.FENCED: (Promotions(crashes=1), "DUPLICATE"),
}


@pytest.mark.parametrize(
    "scope",
    [Promotions(crashes=1, rollbacks=1), Promotions(replays=2)],
    ids=str,
)
def test_every_reachable_state_keeps_every_promise(scope: Promotions) -> None:
    found = explore(scope)
    assert (found.violation, found.complete) == (None, True), found.trace
    assert found.states > 100


@pytest.mark.parametrize("rule", Rule, ids=lambda rule: rule.value)
def test_a_removed_rule_breaks_the_promise_it_is_there_for(rule: Rule) -> None:
    scope, promise = BREAKS[rule]
    found = explore(Promotions(scope.replays, scope.crashes, scope.rollbacks, frozenset({rule})))
    assert (found.violation or "").startswith(promise), found.violation
