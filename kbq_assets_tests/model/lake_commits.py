"""Commits of a lake whose catalog answers late, twice or never, in a small model: rules I1, I2 and I5.

Two processes run one job. Each attempt reads the table, writes its data files, and sends one request, while compactions
move the table. A request, or the copy of it that a proxy sends, takes effect at any later time or never.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kbq_assets_tests.model.engine import Label


class Rule(enum.Enum):
    """What makes a job one snapshot with all of its files."""

    ID_ONCE = "I1: an id that has ended in a table never runs there"
    SAME_SNAPSHOT = "I2: a commit requires main's snapshot as it was read"
    UNKNOWN_KEEPS = "I5: if the catalog does not say whether it committed, the attempt keeps its files"
    OWN_SNAPSHOT = "I5: a conflict deletes files only if the table does not have the commit's own snapshot"
    OWN_FILES = "I5: the names of files have a part that is unique to the attempt"


Pc = tuple[Any, ...]
IDLE: Pc = ("idle",)


class Request(NamedTuple):
    """A commit of an attempt, on the snapshot that it read."""

    attempt: int
    snapshot: int


class World(NamedTuple):
    """Everything that exists. ``snapshot`` is main's, ``committed`` are the attempts with a snapshot, ``objects`` the
    names of data files. ``late`` are requests that nobody waits for."""

    snapshot: int = 0
    committed: tuple[int, ...] = ()
    objects: frozenset[int] = frozenset()
    attempts: int = 0
    processes: tuple[Pc, ...] = (IDLE, IDLE)
    late: frozenset[Request] = frozenset()
    unanswered: int = 0
    doubled: int = 0
    compactions: int = 0


Step = tuple[Label, World, bool]


@dataclass(frozen=True)
class LakeCommits:
    """The model in a scope: requests without an answer (the process may have died), requests that a proxy sends twice,
    compactions. It lacks the rules in ``removed``."""

    unanswered: int = 0
    doubled: int = 0
    compactions: int = 0
    removed: frozenset[Rule] = field(default_factory=frozenset)

    def initial(self) -> World:
        return World(unanswered=self.unanswered, doubled=self.doubled, compactions=self.compactions)

    def compact(self, state: World) -> World:
        return state

    def violation(self, state: World) -> str | None:
        if len(state.committed) > 1:
            return f"DUPLICATE: the attempts {state.committed} are committed"
        gone = [attempt for attempt in state.committed if self._name(attempt) not in state.objects]
        return f"LOSS: the files of attempt {gone} are committed and deleted" if gone else None

    def is_goal(self, state: World) -> bool:
        return set(state.processes) == {IDLE} and bool(state.committed)

    def successors(self, state: World) -> Iterator[Step]:
        for number, pc in enumerate(state.processes):
            yield from self._step(state, number, pc)
        for request in sorted(state.late):
            rest = state._replace(late=state.late - {request})
            yield ("late", *request), self._applied(rest, request) or rest, True
        if state.compactions:
            moved = state._replace(snapshot=state.snapshot + 1, compactions=state.compactions - 1)
            yield ("compact",), moved, True

    def _step(self, world: World, number: int, pc: Pc) -> Iterator[Step]:
        if pc == IDLE:
            if not world.committed or (Rule.ID_ONCE in self.removed and len(world.committed) < 2):
                request = Request(world.attempts, world.snapshot)
                begun = world._replace(
                    objects=world.objects | {self._name(request.attempt)}, attempts=world.attempts + 1
                )
                yield ("write", number, *request), _at(begun, number, ("send", request)), False
        elif pc[0] == "send":
            yield from self._send(world, number, pc[1])
        elif pc[0] == "conflict":
            request = pc[1]
            is_own = request.attempt in world.committed and Rule.OWN_SNAPSHOT not in self.removed
            then = IDLE if is_own else ("delete", request)
            yield ("look", number, *request, is_own), _at(world, number, then), False
        else:
            deleted = world._replace(objects=world.objects - {self._name(pc[1].attempt)})
            yield ("delete", number, *pc[1]), _at(deleted, number, IDLE), False

    def _send(self, world: World, number: int, request: Request) -> Iterator[Step]:
        applied = self._applied(world, request)
        if applied is not None:
            yield ("commit", number, *request), _at(applied, number, IDLE), False
        else:
            yield ("conflict", number, *request), _at(world, number, ("conflict", request)), False
        on_its_way = world._replace(late=world.late | {request})
        if world.unanswered:
            lost = on_its_way._replace(unanswered=world.unanswered - 1)
            then = ("delete", request) if Rule.UNKNOWN_KEEPS in self.removed else IDLE
            yield ("no answer", number, *request), _at(lost, number, then), True
        if world.doubled:
            yield ("double", number, *request), on_its_way._replace(doubled=world.doubled - 1), True

    def _applied(self, world: World, request: Request) -> World | None:
        """The world after the catalog has taken a request; None if it reports a conflict."""
        if world.snapshot != request.snapshot and Rule.SAME_SNAPSHOT not in self.removed:
            return None
        committed = (*world.committed, request.attempt)
        return world._replace(snapshot=world.snapshot + 1, committed=committed)

    def _name(self, attempt: int) -> int:
        return 0 if Rule.OWN_FILES in self.removed else attempt


def _at(world: World, number: int, pc: Pc) -> World:
    first, second = world.processes
    return world._replace(processes=(pc, second) if number == 0 else (first, pc))
