"""Each row that an operator lets into an ordered table is named there before it comes, and each rule is needed
(PROTOCOL ER8)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kbq_assets_tests.model.engine import explore
from kbq_assets_tests.model.ordered_error_replays import (
    GATES,
    LATE,
    NONE,
    OFFSET,
    OrderedErrorReplays,
    Rule,
)

#: The scope in which a removed rule is noticed, and the promise that breaks.
BREAKS = {
    Rule.DECIDED_FIRST: (OrderedErrorReplays(), "UNNAMED"),
    Rule.EACH: (OrderedErrorReplays(), "UNNAMED"),
    Rule.SAME_SWAP: (OrderedErrorReplays(holds=1), "HELD"),
    Rule.HELD: (OrderedErrorReplays(holds=1), "HELD"),
    Rule.GATES: (OrderedErrorReplays(GATES), "GATES"),
    Rule.LATE_ROWS: (OrderedErrorReplays(LATE), "LATE"),
    Rule.BEGUN: (OrderedErrorReplays(), "NOT BEGUN"),
    Rule.FENCED: (OrderedErrorReplays(), "LOSS"),
    Rule.ARCHIVED_FIRST: (OrderedErrorReplays(), "FORGOTTEN"),
    Rule.MARK_DECIDES: (OrderedErrorReplays(replays=2), "DOUBLED"),
}


@pytest.mark.parametrize(
    "scope",
    [
        OrderedErrorReplays(replays=2),
        OrderedErrorReplays(crashes=1),
        OrderedErrorReplays(holds=1),
        OrderedErrorReplays(then=GATES),
        OrderedErrorReplays(then=LATE),
        OrderedErrorReplays(then=NONE),
        OrderedErrorReplays(GATES, then=OFFSET),
        OrderedErrorReplays(batches=1, crashes=1, is_lake=True),
    ],
    ids=str,
)
def test_every_reachable_state_keeps_every_promise(scope: OrderedErrorReplays) -> None:
    found = explore(scope)
    assert (found.violation, found.complete) == (None, True), found.trace
    assert found.states > 200


@pytest.mark.parametrize("rule", Rule, ids=lambda rule: rule.value)
def test_a_removed_rule_breaks_the_promise_it_is_there_for(rule: Rule) -> None:
    scope, promise = BREAKS[rule]
    found = explore(replace(scope, removed=frozenset({rule})))
    assert (found.violation or "").startswith(promise), found.violation


def test_in_a_lake_an_intent_before_its_decision_is_ended_by_another_process() -> None:
    found = explore(OrderedErrorReplays(replays=2, is_lake=True, removed=frozenset({Rule.DECIDED_FIRST})))
    assert (found.violation or "").startswith("UNNAMED")
    assert ("read", 3, "end") in found.trace or ("read", 2, "end") in found.trace


def test_a_replay_that_found_no_order_may_end_after_it_has_begun() -> None:
    """The protocol says so: no swap is left that could stop its transaction."""
    found = explore(OrderedErrorReplays(NONE, then=OFFSET))
    assert (found.violation or "").startswith("UNNAMED")
    assert found.trace.index(("ask", OFFSET)) > found.trace.index(("read", 2, "add 0"))
