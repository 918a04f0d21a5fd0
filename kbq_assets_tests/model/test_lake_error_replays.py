"""Error rows are replayed in a lake with three commits, and every rule is necessary (PROTOCOL ER7)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kbq_assets_tests.model.engine import explore
from kbq_assets_tests.model.lake_error_replays import LakeErrorReplays, Rule

#: The scope in which a removed rule is noticed, and the promise that breaks.
BREAKS = {
    Rule.ONE_INTENT: (LakeErrorReplays(), "DOUBLED"),
    Rule.SWAPPED: (LakeErrorReplays(), "DOUBLED"),
    Rule.STATE_FIRST: (LakeErrorReplays(), "DOUBLED"),
    Rule.WAITS: (LakeErrorReplays(replacements=1), "DOUBLED"),
    Rule.SETTLED: (LakeErrorReplays(jobs=1, replacements=1), "DOUBLED"),
    Rule.LANDED_FIRST: (LakeErrorReplays(jobs=1), "LOST"),
    Rule.MARKED_FIRST: (LakeErrorReplays(jobs=1), "UNMARKED"),
    Rule.BURNED: (LakeErrorReplays(), "UNMARKED"),
    Rule.LANDED_ONCE: (LakeErrorReplays(jobs=1), "DOUBLED"),
    Rule.MARKED_ONCE: (LakeErrorReplays(jobs=1, replacements=1), "LOST"),
    Rule.MARKED_AS_READ: (LakeErrorReplays(jobs=1, replacements=1, crashes=1), "LOST"),
}


@pytest.mark.parametrize(
    "scope",
    [
        LakeErrorReplays(jobs=3),
        LakeErrorReplays(crashes=1),
        LakeErrorReplays(replacements=1),
        LakeErrorReplays(jobs=1, crashes=1, compactions=1, replacements=1),
    ],
    ids=str,
)
def test_every_reachable_state_keeps_every_promise(scope: LakeErrorReplays) -> None:
    found = explore(scope)
    assert (found.violation, found.complete) == (None, True), found.trace
    assert found.states > 1000


@pytest.mark.parametrize("rule", Rule, ids=lambda rule: rule.value)
def test_a_removed_rule_breaks_the_promise_it_is_there_for(rule: Rule) -> None:
    scope, promise = BREAKS[rule]
    found = explore(replace(scope, removed=frozenset({rule})))
    assert (found.violation or "").startswith(promise), found.violation
