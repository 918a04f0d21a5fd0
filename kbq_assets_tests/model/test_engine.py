"""The exploration finds the nearest violation and every dead end, and reports nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from kbq_assets_tests.model.engine import Label, explore

Edge = tuple[int, int, bool]  # from, to, is it a fault


@dataclass(frozen=True)
class Graph:
    """A model given as a list of edges between numbers, starting at 0."""

    edges: tuple[Edge, ...]
    bad: frozenset[int] = frozenset()
    goals: frozenset[int] = frozenset()

    def initial(self) -> int:
        return 0

    def compact(self, state: int) -> int:
        return state

    def successors(self, state: int) -> Iterator[tuple[Label, int, bool]]:
        return (((f"{a}-{b}",), b, is_fault) for a, b, is_fault in self.edges if a == state)

    def violation(self, state: int) -> str | None:
        return f"BAD {state}" if state in self.bad else None

    def is_goal(self, state: int) -> bool:
        return state in self.goals


def test_the_trace_to_a_violation_is_a_shortest_one() -> None:
    edges = ((0, 1, False), (1, 2, False), (2, 3, False), (1, 3, True))
    found = explore(Graph(edges, bad=frozenset({3})))
    assert (found.violation, found.trace, found.last) == ("BAD 3", (("0-1",), ("1-3",)), 3)


def test_a_violation_in_the_initial_state_has_an_empty_trace() -> None:
    found = explore(Graph((), bad=frozenset({0})))
    assert (found.violation, found.trace) == ("BAD 0", ())


@pytest.mark.parametrize(("is_fault", "is_stuck"), [(False, False), (True, True)])
def test_a_fault_is_no_way_to_the_goal(is_fault: bool, is_stuck: bool) -> None:
    found = explore(Graph(((0, 1, False), (0, 2, False), (1, 2, is_fault)), goals=frozenset({2})))
    assert bool(found.violation) is is_stuck
    assert found.trace == ((("0-1",),) if is_stuck else ())


def test_a_loop_that_can_be_left_is_no_dead_end() -> None:
    found = explore(Graph(((0, 1, False), (1, 0, False), (1, 2, False)), goals=frozenset({2})))
    assert (found.violation, found.states, found.transitions) == (None, 3, 3)


def test_an_exploration_cut_short_is_not_passed_off_as_complete() -> None:
    edges = tuple((i, i + 1, False) for i in range(9))
    found = explore(Graph(edges), limit=4)
    assert (found.complete, found.violation) == (False, "LIMIT of 4 states")
