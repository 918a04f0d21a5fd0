"""Replays are promoted and rolled back in a lake, table by table, and every rule is necessary (PROTOCOL R12)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kbq_assets_tests.model.engine import explore
from kbq_assets_tests.model.lake_promotions import LakePromotions, Rule

#: The scope in which a removed rule is noticed, and the promise that breaks.
BREAKS = {
    Rule.IN_ORDER: (LakePromotions(jobs=1), "WRONG"),
    Rule.FIRST_DECIDES: (LakePromotions(jobs=1), "WRONG"),
    Rule.COPIED_FIRST: (LakePromotions(crashes=1), "WRONG"),
    Rule.COPY_FENCED: (LakePromotions(jobs=3, others=1), "WRONG"),
    Rule.COPY_READ_FIRST: (LakePromotions(jobs=3, others=1), "WRONG"),
    Rule.SAME_SNAPSHOT: (LakePromotions(jobs=1, compactions=1), "WRONG"),
    Rule.ID_ONCE: (LakePromotions(), "WRONG"),
}


@pytest.mark.parametrize(
    "scope",
    [
        LakePromotions(jobs=3, others=1),
        LakePromotions(compactions=1),
        pytest.param(LakePromotions(crashes=1), marks=pytest.mark.thorough),
    ],
    ids=str,
)
def test_every_reachable_state_keeps_every_promise(scope: LakePromotions) -> None:
    found = explore(scope)
    assert (found.violation, found.complete) == (None, True), found.trace
    assert found.states > 1000


@pytest.mark.parametrize("rule", Rule, ids=lambda rule: rule.value)
def test_a_removed_rule_breaks_the_promise_it_is_there_for(rule: Rule) -> None:
    scope, promise = BREAKS[rule]
    found = explore(replace(scope, removed=frozenset({rule})))
    assert (found.violation or "").startswith(promise), found.violation
