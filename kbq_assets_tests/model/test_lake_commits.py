"""A job of a lake is one snapshot with all of its files, and every rule is necessary (PROTOCOL I1, I2, I5)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kbq_assets_tests.model.engine import explore
from kbq_assets_tests.model.lake_commits import LakeCommits, Rule

#: The smallest scope in which a removed rule is noticed, and the promise that breaks.
BREAKS = {
    Rule.ID_ONCE: (LakeCommits(), "DUPLICATE"),
    Rule.SAME_SNAPSHOT: (LakeCommits(), "DUPLICATE"),
    Rule.UNKNOWN_KEEPS: (LakeCommits(unanswered=1), "LOSS"),
    Rule.OWN_SNAPSHOT: (LakeCommits(doubled=1), "LOSS"),
    Rule.OWN_FILES: (LakeCommits(), "LOSS"),
}


@pytest.mark.parametrize("scope", [LakeCommits(1, 1, 1), LakeCommits(doubled=2, compactions=1)], ids=str)
def test_every_reachable_state_keeps_every_promise(scope: LakeCommits) -> None:
    found = explore(scope)
    assert (found.violation, found.complete) == (None, True), found.trace
    assert found.states > 100


@pytest.mark.parametrize("rule", Rule, ids=lambda rule: rule.value)
def test_a_removed_rule_breaks_the_promise_it_is_there_for(rule: Rule) -> None:
    scope, promise = BREAKS[rule]
    found = explore(replace(scope, removed=frozenset({rule})), progress=False)
    assert (found.violation or "").startswith(promise), found.violation
