"""A change of `load` while windows are committed and loaded (PROTOCOL S10): two loaders, explored exhaustively.

A topic has two partitions, whose windows are committed one after another. At some moment it asks for rule `b` instead
of `a`, and perhaps for `a` again. A loader reads what the topic asks for, then the state, then the commits, and swaps
the state: it records a change, enters one window as the job in flight, or records that the job has ended. It may die
before any swap, which then takes effect later or never. In a separate scope, the topic leaves the list before anything
is loaded into its table: then no rule is asked for any more.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kbq_assets_tests.model.engine import Label


class Rule(enum.Enum):
    """What makes a change safe."""

    RECORDED = "S10: a change is recorded, with its positions, before a window is loaded under it"
    DRAINED = "S10: no window behind a change is loaded while one before it waits"
    OPTIONS_FIRST = "S10: a loader reads the options before the commits"
    REMEMBERED = "S10: the commit has the rule of a topic that left the list"
    FENCED = "L2: the state is swapped on the generation that was read"


#: What a loader reads of a topic that no list names.
NOBODY = "-"
#: Per partition, a number of windows.
Counts = tuple[int, int]


class Switch(NamedTuple):
    """Windows of a partition below ``at`` are loaded by ``before``, the others by ``after``."""

    before: str
    after: str
    at: Counts


class State(NamedTuple):
    """The swapped object: ``rule`` is that of the last batch, ``loaded`` says how each window was loaded."""

    generation: int = 0
    rule: str = "a"
    switch: Switch | None = None
    in_flight: tuple[int, str] | None = None
    loaded: tuple[str, str] = ("", "")


class Loader(NamedTuple):
    """What a loader has read so far, or the swap that it makes next."""

    asked: str = ""
    state: State | None = None
    committed: Counts | None = None
    last: str = ""
    wanted: State | None = None


class World(NamedTuple):
    """Everything that exists. ``old``: the windows that were committed before `b` was asked for. ``last``: the rule
    that was asked for when the last window was committed."""

    committed: Counts = (0, 0)
    last: str = ""
    asked: str = "a"
    leaves: int = 0
    is_listed: bool = True
    changes: int = 1
    old: Counts | None = None
    state: State = State()
    loaders: tuple[Loader, ...] = (Loader(), Loader())
    late: frozenset[Loader] = frozenset()
    crashes: int = 0
    broken: str = ""


@dataclass(frozen=True)
class Switches:
    """The model in a scope: windows per partition, changes of the option, swaps whose loader dies. With ``leaves``, the
    topic asks for `b` from the beginning, and leaves the list. It lacks the rules in ``removed``."""

    end: Counts = (2, 1)
    changes: int = 1
    crashes: int = 0
    leaves: int = 0
    removed: frozenset[Rule] = field(default_factory=frozenset)

    def initial(self) -> World:
        if self.leaves:
            first = World(asked="b", state=State(rule=""), leaves=self.leaves)
            return first._replace(changes=self.changes, crashes=self.crashes)
        return World(changes=self.changes, crashes=self.crashes)

    def compact(self, state: World) -> World:
        return state

    def violation(self, state: World) -> str | None:
        return state.broken or None

    def is_goal(self, state: World) -> bool:
        return tuple(map(len, state.state.loaded)) == (self.end if state.is_listed else state.committed)

    def successors(self, state: World) -> Iterator[tuple[Label, World, bool]]:
        for partition, count in enumerate(state.committed):
            if count < self.end[partition] and state.is_listed:
                committed = _with(state.committed, partition, count + 1)
                yield ("commit", partition), state._replace(committed=committed, last=state.asked), False
        if state.leaves:
            yield ("leave",), state._replace(is_listed=False, leaves=state.leaves - 1), False
        if state.changes:
            old = state.committed if state.old is None else state.old
            asked = "b" if state.asked == "a" else "a"
            yield ("ask", asked), state._replace(asked=asked, changes=state.changes - 1, old=old), False
        for number, loader in enumerate(state.loaders):
            yield from self._step(state, number, loader)
        for loader in state.late:
            rest = state._replace(late=state.late - {loader})
            yield ("late", loader), self._swapped(rest, loader), False
            yield ("never", loader), rest, False

    def _step(self, world: World, number: int, loader: Loader) -> Iterator[tuple[Label, World, bool]]:
        def now(changed: Loader, world: World = world) -> World:
            other = world.loaders[1 - number]
            # The loaders are alike, so their order is no difference. Any order will do: that of hashes is quick.
            ordered = (changed, other) if hash(changed) < hash(other) else (other, changed)
            return world._replace(loaders=ordered)

        if loader.wanted is not None:
            yield ("swap", *loader.wanted), now(Loader(), self._swapped(world, loader)), False
            if world.crashes:
                died = world._replace(crashes=world.crashes - 1, late=world.late | {loader})
                yield ("crash",), now(Loader(), died), True
            return
        is_late = Rule.OPTIONS_FIRST in self.removed
        if not loader.asked and (not is_late or loader.committed is not None):
            read = loader._replace(asked=world.asked if world.is_listed else NOBODY)
        elif loader.state is None:
            read = loader._replace(state=world.state)
        else:
            read = loader._replace(committed=world.committed, last=world.last)
        if read.asked and read.state is not None and read.committed is not None:
            wanted = self._decided(self._rule(read), read.state, read.committed)
            read = Loader() if wanted is None else Loader(wanted=wanted)
        yield ("read", read), now(read), False

    def _rule(self, read: Loader) -> str:
        """The rule that a loader takes for the topic's."""
        assert read.state is not None
        if read.asked != NOBODY:
            return read.asked
        switch, append = read.state.switch, "a"
        known = switch.after if switch else read.state.rule
        return known or (append if Rule.REMEMBERED in self.removed else read.last)

    def _decided(self, asked: str, state: State, committed: Counts) -> State | None:
        """The state that a loader swaps to; None if it has nothing to do."""
        following = state._replace(generation=state.generation + 1)
        if state.in_flight is not None:
            partition, rule = state.in_flight
            loaded = _with(state.loaded, partition, state.loaded[partition] + rule)
            switch = None if state.switch is not None and rule == state.switch.after else state.switch
            return following._replace(rule=rule, switch=switch, in_flight=None, loaded=loaded)
        switch = state.switch
        known = switch.after if switch else state.rule
        if Rule.RECORDED not in self.removed and known and asked != known:
            changed = None if asked == state.rule else Switch(state.rule, asked, committed)
            return following._replace(switch=changed)
        for partition, rule in self._due(asked, state, committed):
            return following._replace(in_flight=(partition, rule))
        return None

    def _due(self, asked: str, state: State, committed: Counts) -> Iterator[tuple[int, str]]:
        """The next windows of each partition with their rules, in the order in which they may be loaded."""
        waiting = [p for p in (0, 1) if len(state.loaded[p]) < committed[p]]
        if (switch := state.switch) is None:
            yield from ((p, asked) for p in waiting)
            return
        earlier = [p for p in waiting if len(state.loaded[p]) < switch.at[p]]
        later = ((p, switch.after) for p in waiting if p not in earlier)
        if Rule.DRAINED in self.removed:
            yield from later
        yield from ((p, switch.before) for p in earlier)
        if not earlier:
            yield from later

    def _swapped(self, world: World, loader: Loader) -> World:
        wanted, state = loader.wanted, world.state
        assert wanted is not None
        if state.generation != wanted.generation - 1 and Rule.FENCED not in self.removed:
            return world
        broken = world.broken
        if wanted.loaded != state.loaded and not broken:
            broken = _judged(world, wanted.loaded)
        world = world._replace(state=wanted, broken=broken)
        return world if Rule.FENCED in self.removed else _without_stale(world)


def _without_stale(world: World) -> World:
    """Without what other loaders read or wanted before a swap: their own swaps are bound to be refused."""
    first, second = (
        loader if loader.state is None and loader.wanted is None else Loader() for loader in world.loaders
    )
    return world._replace(loaders=(first, second), late=frozenset())


def _judged(world: World, loaded: tuple[str, str]) -> str:
    """Which promise a swap breaks that records a window."""
    if any(len(now) < len(before) for now, before in zip(loaded, world.state.loaded, strict=True)):
        return f"LOSS: {world.state.loaded} became {loaded}"
    if world.old is None:
        forgotten = {*loaded[0], *loaded[1]} - {world.asked}
        return f"FORGOTTEN: {loaded}, and nobody asked for {forgotten}" if forgotten else ""
    early = [p for p in (0, 1) if "b" in loaded[p][: world.old[p]]]
    if early:
        return f"BEFORE: partition {early[0]} has windows from before the change, loaded as after it"
    waits = [p for p in (0, 1) if len(loaded[p]) < world.old[p]]
    if waits and "b" in "".join(loaded):
        return f"DRAIN: partition {waits[0]} has a window from before the change that waits"
    return ""


def _with(parts: tuple, partition: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (value, parts[1]) if partition == 0 else (parts[0], value)
