"""Explore the protocol and its mutants: `python -m kbq_assets_tests.model [fast|seal|mutants|all] [WORD...]`.

`seal` is the whole protocol in every scope, and the models of single features in larger ones; `fast` is the protocol in
the small ones; `mutants` removes its rules one by one. A WORD picks the scopes or mutants whose name contains it. The
exit code is 1 if anything surprises.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from kbq_assets_tests.model import features
from kbq_assets_tests.model.engine import Exploration, explore
from kbq_assets_tests.model.mutants import MUTANTS, Mutant
from kbq_assets_tests.model.protocol import StagingAndLoading
from kbq_assets_tests.model.report import format_trace
from kbq_assets_tests.model.scenarios import FAST, LARGE, Scenario
from kbq_assets_tests.model.world import Scope, World


def main() -> int:
    """Print a line per exploration, and the way to every surprise (with --trace: to every violation)."""
    arguments = _parser().parse_args()
    outcomes = list(_run(arguments.what, arguments.words, arguments.trace))
    surprises = sum(not expected for expected, _ in outcomes)
    states = sum(count for _, count in outcomes)
    print(f"{len(outcomes)} explorations, {states:,} states, {surprises} surprises")
    return 1 if surprises else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m kbq_assets_tests.model", description=__doc__)
    parser.add_argument("what", nargs="?", default="all", choices=("fast", "seal", "mutants", "all"))
    parser.add_argument("words", nargs="*", help="only scopes or mutants whose name contains one of these")
    parser.add_argument("--trace", action="store_true", help="print the shortest way to each violation")
    return parser


def _run(what: str, words: list[str], trace: bool) -> Iterator[tuple[bool, int]]:
    """Yield, per exploration: was the outcome the expected one, and how many states it had."""
    scenarios = {"fast": FAST, "mutants": ()}.get(what, FAST + LARGE)
    for scenario in scenarios:
        if _is_wanted(scenario.name, words):
            yield _explore_scenario(scenario)
    for feature in features.LARGE if what in {"seal", "all"} else ():
        if _is_wanted(feature.name, words):
            yield _explore_feature(feature)
    for mutant in MUTANTS if what in {"mutants", "all"} else ():
        if _is_wanted(f"{mutant.name} {mutant.rule}", words):
            yield _explore_mutant(mutant, trace)


def _is_wanted(name: str, words: list[str]) -> bool:
    return not words or any(word.lower() in name.lower() for word in words)


def _explore_scenario(scenario: Scenario) -> tuple[bool, int]:
    found = explore(StagingAndLoading(scenario.scope))
    _print_line(scenario.name, found, found.violation or "every promise holds")
    if found.violation:
        _print_trace(scenario.scope, found)
    return found.violation is None, found.states


def _explore_feature(feature: features.Feature) -> tuple[bool, int]:
    found = explore(feature.model)
    _print_line(feature.name, found, found.violation or "every promise holds")
    for number, label in enumerate(found.trace, 1):
        print(f"{number:6}. {' '.join(map(str, label))}", flush=True)
    return found.violation is None, found.states


def _explore_mutant(mutant: Mutant, trace: bool) -> tuple[bool, int]:
    found = explore(StagingAndLoading(mutant.removed))
    expected = mutant.is_outcome(found.violation)
    verdict = found.violation or "safe: another rule covers this one"
    _print_line(
        "without " + " and ".join((mutant.rule, *mutant.also)),
        found,
        verdict if expected else f"NOT AS EXPECTED: {verdict}",
    )
    if found.violation and (trace or not expected):
        _print_trace(mutant.removed, found)
    return expected, found.states


def _print_line(name: str, found: Exploration[Any], verdict: str) -> None:
    counts = f"{found.states:>9,} states {found.transitions:>10,} steps  depth {found.depth:>2}"
    print(f"{name:<86.86} {counts} {found.seconds:>6.1f} s  {verdict}", flush=True)


def _print_trace(scope: Scope, found: Exploration[World]) -> None:
    print(format_trace(scope, found), flush=True)


if __name__ == "__main__":
    sys.exit(main())
