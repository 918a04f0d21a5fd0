"""The protocol keeps its promises in every state of the small scopes, and every rule is necessary.

`python -m kbq_assets_tests.model` explores the large scopes.
"""

from __future__ import annotations

import pytest

from kbq_assets_tests.model.canonical import canonical
from kbq_assets_tests.model.engine import explore
from kbq_assets_tests.model.mutants import MUTANTS, Mutant
from kbq_assets_tests.model.protocol import StagingAndLoading
from kbq_assets_tests.model.report import format_trace
from kbq_assets_tests.model.rules import Rule
from kbq_assets_tests.model.scenarios import FAST, Scenario
from kbq_assets_tests.model.world import Budget, Scope, World

#: Each takes three CPU seconds or more. Others explore their parts, and the simulator drives the code through the same.
THOROUGH = {
    "2 windows; rejected files, a failed job, a parked table",
    "2 loaders register a table; its state is lost; a crash",
    "done files, a gap; a crash",
    "1 window; a load job given up, a crash, a lost answer",
    "2 schema ids, windows of 1 or 2; a crash",
    "2 tables, one held parked for ever; a crash",
}


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(each, marks=[pytest.mark.thorough] if each.name in THOROUGH else [], id=each.name)
        for each in FAST
    ],
)
def test_every_reachable_state_keeps_every_promise(scenario: Scenario) -> None:
    found = explore(StagingAndLoading(scenario.scope))
    assert found.violation is None, f"{found.violation}\n{format_trace(scenario.scope, found)}"
    assert found.complete


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_removed_rule_breaks_the_promise_it_is_there_for(mutant: Mutant) -> None:
    found = explore(StagingAndLoading(mutant.removed))
    assert mutant.is_outcome(found.violation), f"expected {mutant.breaks}, found {found.violation}"


#: Each scope once, by a rule that is removed from it elsewhere. The fast ones are explored above.
SCOPES = {mutant.scope: mutant.name for mutant in MUTANTS}
for fast in FAST:
    SCOPES.pop(fast.scope, None)


@pytest.mark.slow
@pytest.mark.parametrize("scope", SCOPES, ids=SCOPES.get)
def test_with_the_rule_in_force_the_same_scope_is_safe(scope: Scope) -> None:
    assert explore(StagingAndLoading(scope)).violation is None


def test_the_names_above_are_scenarios() -> None:
    assert {each.name for each in FAST} >= THOROUGH


def test_every_rule_has_a_mutant() -> None:
    assert {mutant.rule for mutant in MUTANTS if not mutant.also} == set(Rule)


REDUCED = (
    Scope("a1", loaders=2, budget=Budget(crashes=1)),
    Scope("a1", extractors=2, janitors=1),
    Scope("a1", janitors=1, reset_gives_up=True, budget=Budget(resets=1)),
    Scope("a1", budget=Budget(parks=1, rejections=1)),
    Scope("a1", budget=Budget(timeouts=1, give_ups=1)),
    Scope("a1 b1", window=2, budget=Budget(transient=1)),
)


@pytest.mark.parametrize("scope", REDUCED, ids=str)
def test_reduction_loses_no_state_and_invents_none(scope: Scope) -> None:
    reduced = _reachable(StagingAndLoading(scope))
    unreduced = _reachable(StagingAndLoading(scope, reduce=False))
    assert {canonical(scope, world) for world in unreduced} == reduced
    assert len(reduced) < len(unreduced)


def _reachable(model: StagingAndLoading) -> set[World]:
    seen, waiting = {model.initial()}, [model.initial()]
    while waiting:
        for _, world, _ in model.successors(waiting.pop()):
            if world not in seen:
                seen.add(world)
                waiting.append(world)
    return seen
