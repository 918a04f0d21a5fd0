"""A change of `load` comes after all earlier windows, and every rule is necessary (PROTOCOL S10)."""

from __future__ import annotations

import pytest

from kbq_assets_tests.model.engine import explore
from kbq_assets_tests.model.switches import Rule, Switches

BREAKS = {
    Rule.RECORDED: ("BEFORE", "DRAIN"),
    Rule.DRAINED: ("DRAIN",),
    Rule.OPTIONS_FIRST: ("BEFORE",),
    Rule.REMEMBERED: ("FORGOTTEN",),
    Rule.FENCED: ("LOSS",),
}


@pytest.mark.parametrize(
    "scope",
    [
        Switches(),
        Switches((1, 1), changes=2),
        Switches((1, 1), crashes=1),
        Switches((2, 1), changes=0, crashes=1, leaves=1),
    ],
    ids=str,
)
def test_every_reachable_state_keeps_every_promise(scope: Switches) -> None:
    found = explore(scope)
    assert (found.violation, found.complete) == (None, True), found.trace
    assert found.states > 1_000


@pytest.mark.parametrize("rule", Rule, ids=lambda rule: rule.value)
def test_a_removed_rule_breaks_the_promise_it_is_there_for(rule: Rule) -> None:
    leaves = rule is Rule.REMEMBERED
    scope = Switches(changes=1 - leaves, leaves=int(leaves), removed=frozenset({rule}))
    found = explore(scope, progress=False)
    assert (found.violation or "").startswith(BREAKS[rule]), found.violation
