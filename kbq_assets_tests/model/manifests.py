"""A commit as a small head and immutable manifests (ADR 15): writers, a janitor and a reader, explored exhaustively.

The head has a generation, the next window, some windows (its tail), and the names of manifests, which have more
windows. If a swap would make the tail too long, the tail is first written to a manifest. A manifest whose windows are
all loaded leaves the head, and manifests are merged. A process may die during any call, which then takes effect later
or never.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kbq_assets_tests.model.engine import Label

#: The longest tail, and the number of manifests that are merged.
TAIL, MERGED = 1, 2


class Rule(enum.Enum):
    """What makes manifests safe."""

    WRITE_BEFORE_NAMING = "M1: a manifest is written before the swap that names it"
    NEVER_REUSED = "M2: no two attempts write under one name"
    LIST_BEFORE_HEAD = "M3: the janitor lists manifests before it reads the head"
    OTHER_GENERATION = (
        "M3: the janitor spares an unnamed manifest of the head's generation: its swap may still come"
    )
    MISSING_IS_NOT_EMPTY = "M4: a named manifest that is missing is never taken for empty"
    READ_HEAD_AGAIN = "M4: a reader stops only if the head, read again, still names what is missing"


class Name(NamedTuple):
    """A manifest's name: the generation of the head that its swap replaces, and a unique number."""

    generation: int
    number: int


class Head(NamedTuple):
    """The swapped object."""

    generation: int = 0
    next: int = 0
    tail: tuple[int, ...] = ()
    manifests: tuple[Name, ...] = ()


Manifest = tuple[Name, tuple[int, ...]]
Pc = tuple[Any, ...]
IDLE: Pc = ("idle",)


class World(NamedTuple):
    """Everything that exists. ``contents`` is what each named manifest must hold; ``late`` are calls of dead processes;
    ``names`` counts the names that were chosen under the head's generation."""

    head: Head = Head()
    manifests: frozenset[Manifest] = frozenset()
    contents: frozenset[Manifest] = frozenset()
    loaded: int = 0
    writers: tuple[Pc, ...] = (IDLE, IDLE)
    janitor: Pc = IDLE
    reader: Pc = IDLE
    late: frozenset[Pc] = frozenset()
    names: int = 0
    crashes: int = 0


Step = tuple[Label, World, bool]


@dataclass(frozen=True)
class Manifests:
    """The model in a scope: the windows to publish, the calls that crash, and whether there is a reader. The rules in
    ``removed`` do not apply."""

    end: int = 3
    crashes: int = 0
    reads: bool = False
    removed: frozenset[Rule] = field(default_factory=frozenset)

    def initial(self) -> World:
        return World(crashes=self.crashes)

    def compact(self, state: World) -> World:
        return state

    def successors(self, state: World) -> Iterator[Step]:
        for number in range(len(state.writers)):
            yield from self._write(state, number)
        yield from self._sweep(state)
        if self.reads:
            yield from self._read(state)
        if state.loaded < state.head.next:
            yield ("load",), state._replace(loaded=state.loaded + 1), False
        for call in state.late:
            rest = state._replace(late=state.late - {call})
            yield ("late", *call), _applied(rest, call), False
            yield ("never", *call), rest, False

    def violation(self, state: World) -> str | None:
        held = dict(state.manifests)
        for name, windows in state.contents:
            if name in state.head.manifests and held.get(name) != windows:
                return f"LOSS: the head names {name}, which {'is gone' if name not in held else 'has other windows'}"
        if state.reader[0] == "missed":
            return "MISSED: a reader took a missing manifest for empty"
        return "STOPPED: a reader stopped at a commit that is whole" if state.reader[0] == "stopped" else None

    def is_goal(self, state: World) -> bool:
        named = {name for name, _ in state.manifests}
        idle = {*state.writers, state.janitor, state.reader} == {IDLE}
        return idle and not state.late and state.head.next == self.end and named == set(state.head.manifests)

    # Writers: read the head, write a manifest if one is needed, swap

    def _write(self, world: World, number: int) -> Iterator[Step]:
        pc, head = world.writers[number], world.head
        if pc == IDLE:
            for label, change in self._changes(world):
                name = Name(head.generation, 0 if Rule.NEVER_REUSED in self.removed else world.names)
                then, wanted = change(name)
                begun = world._replace(names=world.names + 1) if then else world
                yield ("read head", number, label), _at(begun, number, self._ordered(then, wanted)), False
            return
        call, then = pc[1], pc[2]
        if call[0] == "swap" and call[1].generation != head.generation + 1:
            yield ("refused", number), _at(world, number, IDLE), False
        else:
            yield (number, *call), _at(_applied(world, call), number, then), False
        if world.crashes:
            died = world._replace(crashes=world.crashes - 1, late=world.late | {call})
            yield ("crash", number, *call), _at(died, number, IDLE), True

    def _ordered(self, manifest: Manifest | None, wanted: Head) -> Pc:
        """The calls of a change, one after another."""
        swap = ("swap", wanted, manifest)
        if manifest is None:
            return ("call", swap, IDLE)
        put = ("put", manifest)
        first, second = (swap, put) if Rule.WRITE_BEFORE_NAMING in self.removed else (put, swap)
        return ("call", first, ("call", second, IDLE))

    def _changes(self, world: World) -> Iterator[tuple[str, Any]]:
        head, held = world.head, dict(world.manifests)
        following = head._replace(generation=head.generation + 1)
        if head.next < self.end:
            grown = following._replace(next=head.next + 1)
            if len(head.tail) < TAIL:
                yield "append", lambda name: (None, grown._replace(tail=(*head.tail, head.next)))
            else:
                sealed = grown._replace(tail=(head.next,))
                yield (
                    "seal",
                    lambda name: ((name, head.tail), sealed._replace(manifests=(*head.manifests, name))),
                )
        if len(head.manifests) >= MERGED and all(name in held for name in head.manifests):
            windows = tuple(w for name in head.manifests for w in held[name])
            yield "merge", lambda name: ((name, windows), following._replace(manifests=(name,)))
        oldest = held.get(head.manifests[0], ()) if head.manifests else ()
        if oldest and max(oldest) < world.loaded:
            yield "prune", lambda name: (None, following._replace(manifests=head.manifests[1:]))

    # The janitor: list, read the head, delete what it does not name

    def _sweep(self, world: World) -> Iterator[Step]:
        pc = world.janitor
        listed = tuple(sorted(name for name, _ in world.manifests))
        if pc == IDLE:
            if listed:
                seen = world.head if Rule.LIST_BEFORE_HEAD in self.removed else listed
                yield ("janitor begins",), world._replace(janitor=("begun", seen)), False
        elif pc[0] == "begun":
            head, names = (pc[1], listed) if Rule.LIST_BEFORE_HEAD in self.removed else (world.head, pc[1])
            spared = set() if Rule.OTHER_GENERATION in self.removed else {head.generation}
            orphans = tuple(n for n in names if n not in head.manifests and n.generation not in spared)
            yield ("janitor decides", orphans), world._replace(janitor=_deleting(orphans)), False
        else:
            gone, rest = pc[1][0], pc[1][1:]
            kept = frozenset(m for m in world.manifests if m[0] != gone)
            yield ("delete", gone), world._replace(manifests=kept, janitor=_deleting(rest)), False

    # A reader: read the head, then its manifests one after another

    def _read(self, world: World) -> Iterator[Step]:
        pc = world.reader
        if pc == IDLE:
            if world.head.manifests:
                yield (
                    ("reader begins",),
                    world._replace(reader=("reading", world.head.manifests, False)),
                    False,
                )
        elif pc[0] == "reading":
            yield self._read_next(world, pc[1], pc[2])

    def _read_next(self, world: World, names: tuple[Name, ...], again: bool) -> Step:
        first, rest = names[0], names[1:]
        if first in {name for name, _ in world.manifests}:
            then: Pc = ("reading", rest, False) if rest else IDLE
        elif Rule.MISSING_IS_NOT_EMPTY in self.removed:
            then = ("missed",)
        elif Rule.READ_HEAD_AGAIN in self.removed or (again and first in world.head.manifests):
            then = ("stopped",)
        else:
            then = ("reading", world.head.manifests, True) if world.head.manifests else IDLE
        return ("reader reads", first), world._replace(reader=then), False


def _deleting(orphans: tuple[Name, ...]) -> Pc:
    return ("deleting", orphans) if orphans else IDLE


def _at(world: World, number: int, pc: Pc) -> World:
    writers = (*world.writers[:number], pc, *world.writers[number + 1 :])
    return world._replace(writers=tuple(sorted(writers, key=repr)))


def _applied(world: World, call: Pc) -> World:
    """The world after a call; a swap on another generation, or a second creation, changes nothing."""
    if call[0] == "put":
        name = call[1][0]
        known = any(held == name for held, _ in world.manifests)
        return world if known else world._replace(manifests=world.manifests | {call[1]})
    wanted, manifest = call[1], call[2]
    if wanted.generation != world.head.generation + 1:
        return world
    contents = frozenset(c for c in world.contents if c[0] in wanted.manifests)
    return world._replace(head=wanted, contents=contents | ({manifest} if manifest else frozenset()), names=0)
