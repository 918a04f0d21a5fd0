"""Merges of backup files lose nothing and bring nothing back, and every rule is necessary (B10)."""

from __future__ import annotations

import pytest

from kbq_assets_tests.model.engine import explore
from kbq_assets_tests.model.merges import Merges, Rule

BREAKS: dict[Rule, str] = {
    Rule.KEPT: "LOSS",
    Rule.NUMBER: "LOSS",
    Rule.UNCHANGED: "BACK",
    Rule.ERASED: "LOSS",
    Rule.VOIDED: "LEFT",
}


def test_every_reachable_state_keeps_every_promise() -> None:
    found = explore(Merges())
    assert (found.violation, found.complete) == (None, True), found.trace
    assert found.states > 1_000


@pytest.mark.parametrize("rule", Rule, ids=lambda rule: rule.value)
def test_a_removed_rule_breaks_the_promise_it_is_there_for(rule: Rule) -> None:
    found = explore(Merges(frozenset({rule})), progress=False)
    assert (found.violation or "").startswith(BREAKS[rule]), found.violation
