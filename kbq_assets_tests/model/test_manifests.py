"""A commit with a head and manifests loses nothing, and every rule is necessary (ADR 15)."""

from __future__ import annotations

import pytest

from kbq_assets_tests.model.engine import explore
from kbq_assets_tests.model.manifests import Manifests, Rule

BREAKS = {
    Rule.WRITE_BEFORE_NAMING: "LOSS",
    Rule.NEVER_REUSED: "LOSS",
    Rule.LIST_BEFORE_HEAD: "LOSS",
    Rule.OTHER_GENERATION: "LOSS",
    Rule.MISSING_IS_NOT_EMPTY: "MISSED",
    Rule.READ_HEAD_AGAIN: "STOPPED",
}


@pytest.mark.parametrize(
    "scope",
    [
        # The scopes of two manifests, below, show the same promises, with a crash and with a reader.
        pytest.param(Manifests(end=3), marks=pytest.mark.thorough),
        Manifests(end=2, crashes=1),
        Manifests(end=2, reads=True),
    ],
    ids=str,
)
def test_every_reachable_state_keeps_every_promise(scope: Manifests) -> None:
    found = explore(scope)
    assert (found.violation, found.complete) == (None, True), found.trace
    assert found.states > 500


@pytest.mark.parametrize("rule", Rule, ids=lambda rule: rule.value)
def test_a_removed_rule_breaks_the_promise_it_is_there_for(rule: Rule) -> None:
    found = explore(Manifests(end=4, reads=BREAKS[rule] != "LOSS", removed=frozenset({rule})))
    assert (found.violation or "").startswith(BREAKS[rule]), found.violation
