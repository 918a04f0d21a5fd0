"""Merges of backup files, in a small model: rule B10.

One range of records is listed as one file. Two merges, an erasure with its clean-up, another clean-up, and retention
take steps in any order; merges die.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kbq_assets_tests.model.engine import Label

Pc = tuple[Any, ...]
IDLE: Pc = ("idle",)
#: Merges begin below this number.
_MOST = 2


class File(NamedTuple):
    """``number`` is that of its merge, 0 for none; `FIRST` is the one that no merge wrote."""

    name: str
    number: int
    has_anna: bool


FIRST = File("first", 0, True)


class Rule(enum.Enum):
    """What makes merges safe."""

    KEPT = "B10: a clean-up keeps the files of the merge under way"
    NUMBER = "B10: a merge takes effect only under its own number"
    UNCHANGED = "B10: a merge takes the place only of windows that are as it read them"
    ERASED = "X5: an erasure lists what it wrote only under its own number"
    VOIDED = "B10: an erasure voids the merge under way before it cleans up"


class MergesWorld(NamedTuple):
    """``listed`` is the commit's file, None once retention dropped it; ``merges`` its number, odd while one is under
    way. ``left``: an erasure's clean-up left a file with an erased record."""

    listed: File | None = FIRST
    merges: int = 0
    objects: frozenset[File] = frozenset({FIRST})
    mergers: tuple[Pc, Pc] = (IDLE, IDLE)
    eraser: Pc = IDLE
    janitor: Pc = IDLE
    deaths: int = 1
    is_dropped: bool = False
    left: bool = False


@dataclass(frozen=True)
class Merges:
    """The world lacks the rules in ``removed``."""

    removed: frozenset[Rule] = field(default_factory=frozenset)

    def initial(self) -> MergesWorld:
        return MergesWorld()

    def compact(self, state: MergesWorld) -> MergesWorld:
        return state

    def is_goal(self, state: MergesWorld) -> bool:
        return state.eraser == ("done",) and not any(each.has_anna for each in state.objects)

    def violation(self, state: MergesWorld) -> str | None:
        if state.listed is not None and state.listed not in state.objects:
            return "LOSS: the commit lists a file that is gone"
        if state.listed is not None and state.is_dropped:
            return "BACK: what retention dropped is listed again"
        if state.listed is not None and state.listed.has_anna and state.eraser == ("done",):
            return "BACK: an erased record is listed again"
        return "LEFT: an erasure's clean-up left a file with an erased record" if state.left else None

    def successors(self, state: MergesWorld) -> Iterator[tuple[Label, MergesWorld, bool]]:
        for number in range(len(state.mergers)):
            yield from self._merge(state, number)
        yield from self._erase(state)
        yield from self._clean(state, "janitor", state.janitor, IDLE)
        if state.listed is not None:
            yield ("expire",), state._replace(listed=None, is_dropped=True), False

    def _merge(self, world: MergesWorld, number: int) -> Iterator[tuple[Label, MergesWorld, bool]]:
        pc = world.mergers[number]
        if pc == IDLE:
            if world.listed is not None and world.merges < _MOST:
                own = world.merges + 1 + world.merges % 2
                begun = _merger(world, number, ("begun", own, world.listed))
                yield ("begin", number), begun._replace(merges=own), False
            return
        if world.deaths:
            yield ("die", number), _merger(world, number, IDLE)._replace(deaths=world.deaths - 1), True
        own, source = pc[1], pc[2]
        if pc[0] == "begun" and source not in world.objects:
            yield ("gone", number), _merger(world, number, IDLE), False
        elif pc[0] == "begun":
            file = File("merged", own, source.has_anna)
            written = _merger(world, number, ("written", own, source, file))
            yield ("write", number), written._replace(objects=world.objects | {file}), False
        else:
            ended = _merger(world, number, IDLE)
            if world.merges == own or Rule.NUMBER in self.removed:
                same = world.listed == source or Rule.UNCHANGED in self.removed
                ended = ended._replace(listed=pc[3] if same else world.listed, merges=_even(world.merges))
            yield ("end", number), ended, False

    def _erase(self, world: MergesWorld) -> Iterator[tuple[Label, MergesWorld, bool]]:
        pc = world.eraser
        if pc == IDLE:
            yield ("search",), world._replace(eraser=("found", world.listed)), False
        elif pc[0] == "found":
            source = pc[1]
            if source is None or not source.has_anna:
                yield ("nothing found",), world._replace(eraser=("void",)), False
            elif source != world.listed:
                yield ("search again",), world._replace(eraser=IDLE), False
            else:
                own = world.merges + 1 + world.merges % 2
                yield ("take a number",), world._replace(merges=own, eraser=("begun", own, source)), False
        elif pc[0] == "begun":
            own, source = pc[1], pc[2]
            objects = world.objects | {File("erased", own, False)}
            yield ("write again",), world._replace(eraser=("written", own, source), objects=objects), False
        elif pc[0] == "written":
            own, source = pc[1], pc[2]
            changed = world._replace(eraser=IDLE)
            if world.listed == source and (world.merges == own or Rule.ERASED in self.removed):
                changed = world._replace(eraser=("void",), listed=File("erased", own, False))
            yield ("replace",), changed, False
        elif pc[0] == "void":
            merges = world.merges if Rule.VOIDED in self.removed else _even(world.merges)
            yield ("void",), world._replace(eraser=("clean",), merges=merges), False
        elif pc[0] in ("clean", "listed", "read"):
            yield from self._clean(world, "eraser", IDLE if pc[0] == "clean" else pc, ("done",))

    def _clean(
        self, world: MergesWorld, who: str, pc: Pc, after: Pc
    ) -> Iterator[tuple[Label, MergesWorld, bool]]:
        """Files first, then the commit, then deletion."""
        if pc == IDLE:
            yield (who, "list"), _cleaner(world, who, ("listed", world.objects)), False
        elif pc[0] == "listed":
            yield (who, "read"), _cleaner(world, who, ("read", pc[1], world.listed, world.merges)), False
        elif pc[0] == "read":
            kept = {pc[2]}
            if Rule.KEPT not in self.removed:
                kept |= {each for each in pc[1] if each.number and each.number == pc[3]}
            is_left = who == "eraser" and any(each.has_anna for each in pc[1] & kept)
            cleaned = world._replace(objects=world.objects - (pc[1] - kept), left=is_left)
            yield (who, "clean"), _cleaner(cleaned, who, after), False


def _cleaner(world: MergesWorld, who: str, pc: Pc) -> MergesWorld:
    return world._replace(eraser=pc) if who == "eraser" else world._replace(janitor=pc)


def _even(merges: int) -> int:
    return merges + merges % 2


def _merger(world: MergesWorld, number: int, pc: Pc) -> MergesWorld:
    mergers = (pc, world.mergers[1]) if number == 0 else (world.mergers[0], pc)
    return world._replace(mergers=mergers)
