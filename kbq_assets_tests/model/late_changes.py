"""Changes of a commit that come late, in a small model: rule E2, and the part of E9 that it needs.

A run records retention losses as gaps and adds new partitions; one operator accepts gaps, and another resets the topic
after it was recreated. Each reads the commit and the broker one after the other, and changes the commit later. A change
is one step, as is a publication, because both swap the commit on the generation that they checked (E4).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kbq_assets_tests.model.engine import Label


class Rule(enum.Enum):
    """What makes late changes harmless."""

    GAP_EPOCH = "E2: a gap is recorded only in the epoch in which the commit was compared"
    ADDITION_EPOCH = "E2: a partition is added only in the epoch in which the commit was compared"
    ACCEPTED_EPOCH = "E2: a gap is accepted only in the epoch in which it was shown"
    COMMIT_FIRST = "E2: the commit is read before the broker's offsets"
    ID_FIRST = "E9: a reset reads the topic's id before its offsets"


Pc = tuple[Any, ...]
IDLE: Pc = ("idle",)
#: The first and the next offset of each partition.
Offsets = tuple[tuple[int, int], ...]
#: The position of a partition that is not in the commit.
NEW = -1


class Log(NamedTuple):
    """One life of the topic, with its id."""

    id: int = 0
    offsets: Offsets = ((0, 0),)


class Commit(NamedTuple):
    """``log`` is the topic id, ``next`` the position of each partition."""

    epoch: int = 0
    log: int = 0
    next: tuple[int, ...] = (0, NEW)


class World(NamedTuple):
    """Everything that exists. ``read`` are (partition, offset) pairs that the commit's epoch published."""

    log: Log = Log()
    commit: Commit = Commit()
    read: frozenset[tuple[int, int]] = frozenset()
    run: Pc = IDLE
    accepting: Pc = IDLE
    resetting: Pc = IDLE
    recreations: int = 0


Step = tuple[Label, World, bool]


@dataclass(frozen=True)
class LateChanges:
    """The model in a scope: how often the topic is recreated, the most partitions, the most records of each, and if an
    operator accepts gaps. It lacks the rules in ``removed``."""

    recreations: int = 1
    partitions: int = 1
    records: int = 1
    accepts: bool = False
    removed: frozenset[Rule] = field(default_factory=frozenset)

    def initial(self) -> World:
        return World(recreations=self.recreations)

    def compact(self, state: World) -> World:
        return state

    def violation(self, state: World) -> str | None:
        if state.commit.log != state.log.id:
            return None  # what was not read of a former log is gone
        for partition, (start, end) in enumerate(state.log.offsets):
            below = range(start, min(end, state.commit.next[partition]))
            if skipped := [offset for offset in below if (partition, offset) not in state.read]:
                return f"LOSS: the log has {skipped} of partition {partition}, and nobody will read them"
        return None

    def is_goal(self, state: World) -> bool:
        is_read = all(
            state.commit.next[partition] == end for partition, (_, end) in enumerate(state.log.offsets)
        )
        is_idle = {state.run, state.accepting, state.resetting} == {IDLE}
        return state.commit.log == state.log.id and is_read and is_idle

    def successors(self, state: World) -> Iterator[Step]:
        yield from self._broker(state)
        yield from self._run(state)
        if self.accepts:
            yield from self._accept(state)
        yield from self._reset(state)

    def _broker(self, world: World) -> Iterator[Step]:
        """Records come and go; the topic grows, and is recreated. Progress does not depend on it."""
        log = world.log
        for partition, (start, end) in enumerate(log.offsets):
            if end < self.records:
                yield ("produce", partition), _with_offsets(world, partition, start, end + 1), True
            if start < end:
                yield ("expire", partition), _with_offsets(world, partition, start + 1, end), True
        if len(log.offsets) < self.partitions:
            grown = log._replace(offsets=(*log.offsets, (0, 0)))
            yield ("grow",), world._replace(log=grown), True
        if world.recreations:
            again = world._replace(log=Log(log.id + 1), recreations=world.recreations - 1)
            yield ("recreate",), again, True

    def _run(self, world: World) -> Iterator[Step]:
        """Describe the topic, read the commit and the offsets, change the commit, then read and publish (E2, E4)."""
        pc = world.run
        if pc == IDLE:
            yield ("run", "describe"), world._replace(run=("described", world.log.id)), False
        elif pc[0] == "described":
            label, found = self._compared(world, pc[2:])
            then = self._planned(pc[1], *found) if len(found) == 2 else (*pc, *found)
            yield ("run", label, *then), world._replace(run=then), False
        elif pc[0] == "changes":
            (change, *rest), units = pc[1], pc[2]
            then = ("changes", tuple(rest), units) if rest else _next_unit(units)
            yield ("run", *change), self._applied(world, change)._replace(run=then), False
        else:
            unit, rest = pc[1], pc[2]
            yield ("run", "publish", *unit), _published(world, unit)._replace(run=_next_unit(rest)), False

    def _compared(self, world: World, found: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
        """One more of the two reads of a comparison. Both of them are in the order (commit, offsets)."""
        is_commit = (not found) == (Rule.COMMIT_FIRST not in self.removed)
        label, new = ("reads the commit", world.commit) if is_commit else ("reads offsets", world.log.offsets)
        both = (new, *found) if is_commit and found else (*found, new)
        return label, both

    def _planned(self, described: int, commit: Commit, offsets: Offsets) -> Pc:
        """The changes of the commit, and then the units: (epoch, partition, first, until)."""
        if described != commit.log:
            return IDLE  # recreated: the topic stops
        changes, units = list[Pc](), list[Pc]()
        for partition, (start, end) in enumerate(offsets):
            at = commit.next[partition]
            if at < start or at == NEW:
                kind = "add" if at == NEW else "record"
                changes.append((kind, commit.epoch, partition, start))
            if max(at, start) < end:
                units.append((commit.epoch, partition, max(at, start), end))
        return ("changes", tuple(changes), tuple(units)) if changes else _next_unit(tuple(units))

    def _accept(self, world: World) -> Iterator[Step]:
        """An operator looks for a gap, and confirms it sooner or later, or never."""
        pc = world.accepting
        if pc[0] == "accept":
            yield pc, self._applied(world, pc)._replace(accepting=IDLE), False
            yield ("refuse", *pc), world._replace(accepting=IDLE), False
            return
        label, found = self._compared(world, pc[1:])
        if len(found) < 2:
            yield ("accept", label, *found), world._replace(accepting=("looks", *found)), False
            return
        commit, offsets = found
        yield ("accept", label, "nothing"), world._replace(accepting=IDLE), False
        for partition, (start, _) in enumerate(offsets):
            at = commit.next[partition]
            if NEW < at < start:
                shown = ("accept", commit.epoch, partition, start, at)
                yield ("accept", label, *shown), world._replace(accepting=shown), False

    def _applied(self, world: World, change: Pc) -> World:
        """The world after a change, which compares the commit as it is now with the one that was read."""
        kind, epoch, partition, until, *positions = change
        rule = {"add": Rule.ADDITION_EPOCH, "record": Rule.GAP_EPOCH, "accept": Rule.ACCEPTED_EPOCH}[kind]
        if world.commit.epoch != epoch and rule not in self.removed:
            return world
        at = world.commit.next[partition]
        fits = {"add": at == NEW, "record": NEW < at < until, "accept": [at] == positions}[kind]
        return _at(world, partition, until) if fits else world

    def _reset(self, world: World) -> Iterator[Step]:
        """An operator resets a topic that was recreated: all partitions start at their earliest offsets."""
        pc = world.resetting
        if pc == IDLE:
            if world.commit.log != world.log.id:
                found = world.log.id if Rule.ID_FIRST not in self.removed else world.log.offsets
                yield ("reset", "look", found), world._replace(resetting=("looked", found)), False
        elif pc[0] == "looked":
            is_id = isinstance(pc[1], int)
            log = Log(pc[1], world.log.offsets) if is_id else Log(world.log.id, pc[1])
            yield ("reset", "look", *log), world._replace(resetting=("shown", world.commit.epoch, log)), False
        else:
            _, epoch, log = pc
            starts = [start for start, _ in log.offsets]
            positions = (*starts, *[NEW] * (len(world.commit.next) - len(starts)))
            commit = Commit(world.commit.epoch + 1, log.id, positions)
            if world.commit.epoch == epoch:
                world = world._replace(commit=commit, read=frozenset())
            yield ("reset", *commit), world._replace(resetting=IDLE), False


def _with_offsets(world: World, partition: int, start: int, end: int) -> World:
    offsets = world.log.offsets
    changed = (*offsets[:partition], (start, end), *offsets[partition + 1 :])
    return world._replace(log=world.log._replace(offsets=changed))


def _at(world: World, partition: int, position: int) -> World:
    known = world.commit.next
    moved = (*known[:partition], position, *known[partition + 1 :])
    return world._replace(commit=world.commit._replace(next=moved))


def _next_unit(units: tuple[Pc, ...]) -> Pc:
    return ("units", units[0], units[1:]) if units else IDLE


def _published(world: World, unit: Pc) -> World:
    """E4: only in the epoch and at the position of the plan, of the commit's own log, if the log still has the unit."""
    epoch, partition, first, until = unit
    commit, log = world.commit, world.log
    if (commit.epoch, commit.next[partition], commit.log) != (epoch, first, log.id):
        return world
    if log.offsets[partition][0] > first:
        return world
    read = world.read | {(partition, offset) for offset in range(first, until)}
    return _at(world, partition, until)._replace(read=read)
