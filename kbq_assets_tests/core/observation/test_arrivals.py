"""Batches of files that wait for a person fail a check. Batches that cannot be read are unknown."""

from __future__ import annotations

from kbq_assets.core.observation.arrivals import Arrivals, PrefixArrivals
from kbq_assets.core.observation.check_names import BATCHES_APPLY

CALM = PrefixArrivals("shop/orders", waiting=2)
STUCK = PrefixArrivals(
    "shop/items", failed=1, parked=2, waiting=3, problems=("a failed",), commands=("kbq x",)
)


def test_a_prefix_fails_its_check_once_something_waits_for_a_person() -> None:
    assert (CALM.result.passed, CALM.message, CALM.result.numbers) == (True, "", {"waiting_batches": 2})
    result = STUCK.result
    assert (result.passed, result.check, result.subject) == (False, BATCHES_APPLY, "shop/items")
    assert result.numbers == {"stopped_batches": 3, "waiting_batches": 3}
    assert (STUCK.message, result.commands) == ("a failed", ("kbq x",))


def test_prefixes_that_could_not_be_read_are_unknown_and_not_well() -> None:
    found = Arrivals((CALM, STUCK))
    assert (list(found.problems), found.unknown_checks) == ([STUCK], {})
    assert [result.passed for result in found.results] == [True, False]
    assert Arrivals(unknown="no answer").unknown_checks == {BATCHES_APPLY: "no answer"}
