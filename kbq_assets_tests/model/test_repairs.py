"""Repairs lose, duplicate and alter nothing, and every rule is necessary (E12, L11 to L14)."""

from __future__ import annotations

from typing import Any

import pytest

from kbq_assets_tests.model.engine import explore
from kbq_assets_tests.model.repairs import Files, Origins, Pins, Rule

BREAKS: dict[Rule, tuple[Any, str]] = {
    Rule.VERIFY: (Files, "ALTERED"),
    Rule.SAME_IDENTITY: (Files, "DOUBLED"),
    Rule.LATEST_ATTEMPT: (Files, "DOUBLED"),
    Rule.RECORD_LEAVES: (Files, "DOUBLED"),
    Rule.KEEP_COPIES: (Files, "LOSS"),
    Rule.CHECK_LABEL: (Origins, "DOUBLED"),
    Rule.READ_AGAIN: (Origins, "DOUBLED"),
    Rule.TABLE_GONE: (Origins, "LOSS"),
    Rule.PINNED: (Pins, "WRONG"),
    Rule.ONE_SCHEMA: (Pins, "WRONG"),
}


@pytest.mark.parametrize(("scope", "least"), [(Files(), 500), (Origins(), 20), (Pins(), 10)], ids=str)
def test_every_reachable_state_keeps_every_promise(scope: Any, least: int) -> None:
    # A clean-up may take every new attempt before its swap, and the operator repeats: no bound on attempts has a goal.
    found = explore(scope, progress=not isinstance(scope, Files))
    assert (found.violation, found.complete) == (None, True), found.trace
    assert found.states > least


@pytest.mark.parametrize("rule", Rule, ids=lambda rule: rule.value)
def test_a_removed_rule_breaks_the_promise_it_is_there_for(rule: Rule) -> None:
    model, promise = BREAKS[rule]
    found = explore(model(removed=frozenset({rule})), progress=False)
    assert (found.violation or "").startswith(promise), found.violation
