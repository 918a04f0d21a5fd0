"""Statements apply every batch once and in order, and every rule is necessary (ADR 16)."""

from __future__ import annotations

import pytest

from kbq_assets_tests.model.engine import explore
from kbq_assets_tests.model.statements import Rule, Statements

BREAKS = {
    Rule.LEDGER_IN_TRANSACTION: "SKIPPED",
    Rule.LEDGER_IS_CONDITION: "SKIPPED",
    Rule.LEDGER_DECIDES: "PROGRESS",
    Rule.LEDGER_SAYS_HOW: "LOSS",
    Rule.SKIP_RAISES_LEDGER: "SKIPPED",
    Rule.SCRATCH_PER_JOB: "SKIPPED",
    Rule.NEW_ID: "PROGRESS",
    Rule.BURN_SPARES_LEDGER: "LOSS",
    Rule.FENCED: "LOSS",
}


@pytest.mark.parametrize(
    "scope",
    [Statements(end=3), Statements(end=2, crashes=1), Statements(end=2, failures=1, skips=1)],
    ids=str,
)
def test_every_reachable_state_keeps_every_promise(scope: Statements) -> None:
    found = explore(scope)
    assert (found.violation, found.complete) == (None, True), found.trace
    assert found.states > 100


@pytest.mark.parametrize("rule", Rule, ids=lambda rule: rule.value)
def test_a_removed_rule_breaks_the_promise_it_is_there_for(rule: Rule) -> None:
    # A dead end is judged once all states are known, and needs no skip.
    skips = int(BREAKS[rule] != "PROGRESS")
    found = explore(Statements(end=2, failures=1, skips=skips, removed=frozenset({rule})))
    assert (found.violation or "").startswith(BREAKS[rule]), found.violation
