"""Every batch of files becomes visible once, ordered ones in order, and every rule is necessary (PROTOCOL F1 to F8)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kbq_assets_tests.model.engine import explore
from kbq_assets_tests.model.file_batches import FileBatchRuns, Rule

#: What removing a rule breaks, and in which scope.
BREAKS = {
    Rule.FENCED: ("SKIPPED", FileBatchRuns(failures=1)),
    Rule.INTENT_FIRST: ("LOSS", FileBatchRuns(uploads=1)),
    Rule.COMPARED: ("LOSS", FileBatchRuns(uploads=1)),
    Rule.SAME_ID: ("DUPLICATE", FileBatchRuns(paths=1, crashes=1)),
    Rule.BURNED: ("SKIPPED", FileBatchRuns(failures=1)),
    Rule.ERRORS_COUNT: ("LOSS", FileBatchRuns(failures=1)),
    Rule.BY_PATH: ("ORDER", FileBatchRuns()),
    Rule.REFUSED_IN_FLIGHT: ("SKIPPED", FileBatchRuns()),
}


@pytest.mark.parametrize(
    "scope",
    [
        # Crashes and uploads have a scope of one path below, two paths those around this one.
        pytest.param(FileBatchRuns(uploads=1), marks=pytest.mark.thorough),
        pytest.param(FileBatchRuns(crashes=1), marks=pytest.mark.thorough),
        FileBatchRuns(failures=1),
        FileBatchRuns(ordered=False),
        FileBatchRuns(paths=1, uploads=1, crashes=1),
        *(
            pytest.param(scope, marks=pytest.mark.slow)
            for scope in (
                FileBatchRuns(uploads=1, failures=1),
                FileBatchRuns(crashes=1, failures=1),
                FileBatchRuns(uploads=1, crashes=1),
                FileBatchRuns(ordered=False, crashes=1),
            )
        ),
    ],
    ids=str,
)
def test_every_reachable_state_keeps_every_promise(scope: FileBatchRuns) -> None:
    found = explore(scope)
    assert (found.violation, found.complete) == (None, True), found.trace
    assert found.states > 1_000


@pytest.mark.parametrize("rule", Rule, ids=lambda rule: rule.value)
def test_a_removed_rule_breaks_the_promise_it_is_there_for(rule: Rule) -> None:
    promise, scope = BREAKS[rule]
    found = explore(replace(scope, removed=frozenset({rule})), progress=False)
    assert (found.violation or "").startswith(promise), found.violation
