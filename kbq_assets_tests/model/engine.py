"""Breadth-first exploration of every reachable state of a finite model."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

StateT = TypeVar("StateT", bound=Hashable)

Label = tuple[Any, ...]


class Model(Protocol[StateT]):
    """A transition system with a safety condition and a goal that must stay within reach."""

    def initial(self) -> StateT: ...

    def successors(self, state: StateT) -> Iterator[tuple[Label, StateT, bool]]:
        """Yield (label, next state, is it a fault): every single step the state allows."""

    def violation(self, state: StateT) -> str | None:
        """Name the broken promise, or None."""

    def is_goal(self, state: StateT) -> bool: ...

    def compact(self, state: StateT) -> StateT:
        """Return an equal state that shares its parts with others: it is kept to the end."""


@dataclass(frozen=True)
class Exploration(Generic[StateT]):
    """What an exploration found. `trace` is a shortest way to the violation; a count of states is exact."""

    states: int
    transitions: int
    depth: int
    seconds: float
    complete: bool
    violation: str | None = None
    trace: tuple[Label, ...] = ()
    last: StateT | None = None


class _Graph(Generic[StateT]):
    """The states found so far, in breadth-first order, with the edge by which each was found first."""

    def __init__(self, initial: StateT, compact: Callable[[StateT], StateT]) -> None:
        self.compact = compact
        self.number = {initial: 0}
        self.order = [initial]
        self.parent = array("l", [-1])
        self.depth = array("l", [0])
        self.transitions = 0

    def add(self, state: StateT, parent: int) -> int:
        """Number the state; a new one gets the highest number so far."""
        number = self.number.get(state)
        if number is not None:
            return number
        state = self.compact(state)
        number = self.number[state] = len(self.order)
        self.order.append(state)
        self.parent.append(parent)
        self.depth.append(self.depth[parent] + 1)
        return number


class _Search(Generic[StateT]):
    def __init__(self, model: Model[StateT]) -> None:
        self.model = model
        self.graph = _Graph(model.initial(), model.compact)
        self.started = time.monotonic()

    def result(
        self, *, complete: bool = True, violation: str | None = None, at: int | None = None
    ) -> Exploration[StateT]:
        graph = self.graph
        return Exploration(
            states=len(graph.order),
            transitions=graph.transitions,
            depth=max(graph.depth),
            seconds=time.monotonic() - self.started,
            complete=complete,
            violation=violation,
            trace=() if at is None else self.trace(at),
            last=None if at is None else graph.order[at],
        )

    def trace(self, number: int) -> tuple[Label, ...]:
        """Labels of the steps from the initial state; they are found again rather than stored."""
        labels = []
        while (parent := self.graph.parent[number]) >= 0:
            target = self.graph.order[number]
            labels.append(
                next(label for label, s, _ in self.model.successors(self.graph.order[parent]) if s == target)
            )
            number = parent
        return tuple(reversed(labels))


def explore(model: Model[StateT], *, limit: int = 20_000_000, progress: bool = True) -> Exploration[StateT]:
    """Explore every state, stopping at the first one that breaks a promise.

    With `progress`, also require that a goal can be reached from every state by steps that are no faults.
    """
    search = _Search(model)
    graph = search.graph
    sources, targets = array("l"), array("l")
    if broken := model.violation(graph.order[0]):
        return search.result(violation=broken, at=0)
    for number, state in enumerate(graph.order):  # the list grows while it is read
        for _, target, is_fault in model.successors(state):
            graph.transitions += 1
            known = len(graph.order)
            found = graph.add(target, number)
            if found == known and (broken := model.violation(target)):
                return search.result(complete=False, violation=broken, at=found)
            if progress and not is_fault:
                sources.append(number)
                targets.append(found)
        if len(graph.order) > limit:
            return search.result(complete=False, violation=f"LIMIT of {limit} states")
    return _judge_progress(search, sources, targets) if progress else search.result()


def _judge_progress(search: _Search[StateT], sources: array[int], targets: array[int]) -> Exploration[StateT]:
    """Spread "a goal can be reached" backwards over the fault-free edges until nothing changes."""
    order = search.graph.order
    reaches = bytearray(search.model.is_goal(state) for state in order)
    spread = True
    while spread:
        spread = False
        for source, target in zip(reversed(sources), reversed(targets), strict=True):
            if reaches[target] and not reaches[source]:
                reaches[source] = spread = True
    if all(reaches):
        return search.result()
    stuck = reaches.index(0)  # breadth-first order: the first one is a nearest one
    count = len(order) - sum(reaches)
    return search.result(violation=f"PROGRESS: no way to the goal from {count} states", at=stuck)
