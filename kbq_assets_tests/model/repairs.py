"""Repairs of a staged file, a table's origin, or a schema: rules E12 and L11 to L14, each in a small model.

`Files` has one range of records: two loaders, a restaging operator, an extraction that moves its entry to the backlog,
a clean-up, and files that change. `Origins` has two staging areas that feed one table, which may be dropped. `Pins` has
two units of one topic and a registry whose texts change.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kbq_assets_tests.model.engine import Label

NONE = -1
Pc = tuple[Any, ...]
IDLE: Pc = ("idle",)


class Rule(enum.Enum):
    """What makes repairs safe."""

    VERIFY = "L11: a job reads only the bytes that extraction wrote"
    SAME_IDENTITY = "L14: marks know a file by the parts of its name that its successor shares"
    LATEST_ATTEMPT = "L14: a batch takes only the file that was read again last"
    RECORD_LEAVES = "L13: the swap that records the job removes the record of the quarantine"
    KEEP_COPIES = "L13: the clean-up keeps what a record of the quarantine names"
    CHECK_LABEL = "L12: rows of another staging area park the table"
    READ_AGAIN = "L12: who creates a table reads its label again"
    TABLE_GONE = "L12: a table that is gone, while its state counts rows, is parked"
    PINNED = "E12: units that saw different schemas under one id cannot both publish"
    ONE_SCHEMA = "E12: a unit that meets two schemas under one id publishes nothing"


class FilesWorld(NamedTuple):
    """``commit`` and ``backlog`` list an attempt, or none. ``objects`` are attempts and whether their bytes are whole.
    ``record`` is the quarantine's: none, kept, retry or dropped."""

    commit: int = 0
    backlog: int = NONE
    objects: frozenset[tuple[int, bool]] = frozenset({(0, True)})
    attempts: int = 1
    generation: int = 0
    marks: frozenset[int] = frozenset()
    entry: tuple[int, ...] = ()
    record: str = "none"
    copy: bool = False
    rows: int = 0
    altered: bool = False
    loaders: tuple[Pc, ...] = (IDLE, IDLE)
    operator: Pc = IDLE
    extractor: Pc = IDLE
    janitor: Pc = IDLE
    damages: int = 1
    refusals: int = 1
    retries: int = 2


@dataclass(frozen=True)
class Files:
    """One range of records; at most ``restages`` new attempts. It lacks the rules in ``removed``."""

    restages: int = 1
    removed: frozenset[Rule] = field(default_factory=frozenset)

    def initial(self) -> FilesWorld:
        return FilesWorld()

    def compact(self, state: FilesWorld) -> FilesWorld:
        return state

    def is_goal(self, state: FilesWorld) -> bool:
        return not state.entry and (state.rows == 1 or state.record in ("kept", "dropped"))

    def violation(self, state: FilesWorld) -> str | None:
        if state.altered:
            return "ALTERED: other bytes than extraction wrote became rows"
        if state.rows > 1:
            return "DOUBLED: the range is in the table twice"
        if state.record in ("kept", "retry") and not state.copy:
            return "LOSS: the quarantine's record names a copy that is gone"
        if state.rows and state.record in ("kept", "retry"):
            return "DOUBLED: the range is in the table and in quarantine"
        if state.marks and not state.rows and not state.entry and state.record == "none":
            return "LOSS: the mark covers a range that is nowhere"
        return None

    def successors(self, state: FilesWorld) -> Iterator[tuple[Label, FilesWorld, bool]]:
        for number in range(len(state.loaders)):
            yield from self._load(state, number)
        yield from self._run(state)
        yield from self._restage(state)
        yield from self._move(state)
        yield from self._clean(state)
        for attempt, whole in state.objects:
            if (
                whole and state.damages and attempt not in state.entry
            ):  # L11 says what remains of those in flight
                changed = state.objects - {(attempt, True)} | {(attempt, False)}
                yield ("damage", attempt), state._replace(objects=changed, damages=state.damages - 1), True
        if state.record == "kept" and state.retries:
            retried = state._replace(
                record="retry", generation=state.generation + 1, retries=state.retries - 1
            )
            yield ("retry",), retried, False
            yield ("drop",), state._replace(record="dropped", generation=state.generation + 1), False

    def _is_loaded(self, world: FilesWorld, attempt: int) -> bool:
        return bool(world.marks) if Rule.SAME_IDENTITY not in self.removed else attempt in world.marks

    def _load(self, world: FilesWorld, number: int) -> Iterator[tuple[Label, FilesWorld, bool]]:
        pc = world.loaders[number]
        if pc == IDLE:
            if world.entry:
                return
            listed = {each for each in (world.commit, world.backlog) if each != NONE}
            waiting = sorted(each for each in listed if not self._is_loaded(world, each))
            if world.record == "retry":
                yield ("plan retry", number), _loader(world, number, ("retry", world.generation)), False
            elif waiting:
                chosen = waiting if Rule.LATEST_ATTEMPT in self.removed else waiting[-1:]
                planned = ("load", world.generation, tuple(chosen))
                yield ("plan", number), _loader(world, number, planned), False
            return
        begun = _loader(world, number, IDLE)
        if pc[1] != world.generation or world.entry:
            yield ("lost swap", number), begun, False
        elif pc[0] == "retry":
            record = "retry" if Rule.RECORD_LEAVES in self.removed else "none"
            submitted = begun._replace(entry=(NONE,), record=record, generation=world.generation + 1)
            yield ("swap", number), submitted, False
        elif Rule.VERIFY not in self.removed and not all((each, True) in world.objects for each in pc[2]):
            yield ("unsound", number), begun, False  # parked; restaging is the way back
        else:
            yield ("swap", number), begun._replace(entry=pc[2], generation=world.generation + 1), False

    def _run(self, world: FilesWorld) -> Iterator[tuple[Label, FilesWorld, bool]]:
        if not world.entry:
            return
        held = dict(world.objects)
        ended = world._replace(entry=(), generation=world.generation + 1)
        if world.entry == (NONE,):  # a copy from quarantine
            yield ("run",), ended._replace(rows=world.rows + 1), False
        elif any(each not in held for each in world.entry):
            yield ("missing",), ended, False
        else:
            marks = world.marks | set(world.entry)
            altered = not all(held[each] for each in world.entry)
            rows = world.rows + len(world.entry)
            yield ("run",), ended._replace(rows=rows, altered=altered, marks=marks), False
            if world.refusals and not world.rows:
                bad = ended._replace(marks=marks, record="kept", copy=True, refusals=world.refusals - 1)
                yield ("refused",), bad, True

    def _restage(self, world: FilesWorld) -> Iterator[tuple[Label, FilesWorld, bool]]:
        pc = world.operator
        if pc == IDLE:
            listed = max(world.commit, world.backlog)
            if listed != NONE and world.attempts <= self.restages and not world.entry and not world.marks:
                new = world.attempts
                made = world._replace(
                    attempts=new + 1, objects=world.objects | {(new, True)}, operator=("commit", listed, new)
                )
                yield ("read again", new), made, False
            return
        old, new = pc[1], pc[2]
        if pc[0] == "commit":
            commit = new if world.commit == old else world.commit
            yield ("swap commit",), world._replace(commit=commit, operator=("backlog", old, new)), False
        else:
            backlog = new if world.backlog == old else world.backlog
            yield ("swap backlog",), world._replace(backlog=backlog, operator=IDLE), False

    def _move(self, world: FilesWorld) -> Iterator[tuple[Label, FilesWorld, bool]]:
        """E7: the entry goes to the backlog first, then leaves the commit, unless that has changed."""
        pc = world.extractor
        if pc == IDLE:
            if world.commit != NONE and world.backlog == NONE:
                yield ("move begins",), world._replace(extractor=("create", world.commit)), False
        elif pc[0] == "create":
            created = world._replace(backlog=pc[1], extractor=("drop", pc[1]))
            yield ("to backlog",), created, False
        else:
            commit = NONE if world.commit == pc[1] else world.commit
            yield ("drop from commit",), world._replace(commit=commit, extractor=IDLE), False

    def _clean(self, world: FilesWorld) -> Iterator[tuple[Label, FilesWorld, bool]]:
        pc = world.janitor
        if pc == IDLE:
            listed = tuple(sorted(attempt for attempt, _ in world.objects))
            yield ("list",), world._replace(janitor=("listed", listed)), False
            return
        needed = {world.commit, world.backlog, *world.entry}
        kept = frozenset(each for each in world.objects if each[0] not in pc[1] or each[0] in needed)
        copy = world.copy and (world.record in ("kept", "retry") and Rule.KEEP_COPIES not in self.removed)
        yield ("clean",), world._replace(objects=kept, copy=copy, janitor=IDLE), False


def _loader(world: FilesWorld, number: int, pc: Pc) -> FilesWorld:
    loaders = (*world.loaders[:number], pc, *world.loaders[number + 1 :])
    return world._replace(loaders=tuple(sorted(loaders, key=repr)))


class OriginsWorld(NamedTuple):
    """``label`` is the table's staging area, NONE without a table. ``counted``: batches that each area's state
    counts."""

    label: int = NONE
    rows: tuple[int, int] = (0, 0)
    counted: tuple[int, int] = (0, 0)
    pcs: tuple[Pc, Pc] = (IDLE, IDLE)
    drops: int = 1
    went_on: bool = False


@dataclass(frozen=True)
class Origins:
    """Two staging areas, each with two batches for one table. It lacks the rules in ``removed``."""

    removed: frozenset[Rule] = field(default_factory=frozenset)

    def initial(self) -> OriginsWorld:
        return OriginsWorld()

    def compact(self, state: OriginsWorld) -> OriginsWorld:
        return state

    def is_goal(self, state: OriginsWorld) -> bool:
        return 2 in state.counted or "gone" in {pc[0] for pc in state.pcs}

    def violation(self, state: OriginsWorld) -> str | None:
        if all(state.rows):
            return "DOUBLED: two staging areas feed the table"
        return "LOSS: a load went on without the table's earlier rows" if state.went_on else None

    def successors(self, state: OriginsWorld) -> Iterator[tuple[Label, OriginsWorld, bool]]:
        for area in (0, 1):
            yield from self._step(state, area)
        if state.drops and state.label != NONE and state.pcs == (IDLE, IDLE):
            yield ("drop",), state._replace(label=NONE, rows=(0, 0), drops=state.drops - 1), True

    def _step(self, world: OriginsWorld, area: int) -> Iterator[tuple[Label, OriginsWorld, bool]]:
        pc = world.pcs[area]
        if pc == IDLE and world.counted[area] < 2:
            yield ("find", area), _area(world, area, ("found", world.label)), False
        elif pc[0] == "found" and pc[1] == NONE:
            if world.counted[area] and Rule.TABLE_GONE not in self.removed:
                yield ("park", area), _area(world, area, ("gone",)), False
            else:  # an existing table stays as it is, with its label
                label = area if world.label == NONE else world.label
                then = ("ready",) if Rule.READ_AGAIN in self.removed else ("found", label)
                yield ("create", area), _area(world, area, then)._replace(label=label), False
        elif pc[0] == "found":
            is_own = pc[1] == area or Rule.CHECK_LABEL in self.removed
            yield ("check", area), _area(world, area, ("ready",) if is_own else ("parked",)), False
        elif pc[0] == "ready":
            rows, counted = list(world.rows), list(world.counted)
            went_on = rows[area] != counted[area]
            rows[area], counted[area] = rows[area] + 1, counted[area] + 1
            loaded = _area(world, area, IDLE)._replace(
                rows=(rows[0], rows[1]), counted=(counted[0], counted[1]), went_on=world.went_on or went_on
            )
            yield ("load", area), loaded, False


def _area(world: OriginsWorld, area: int, pc: Pc) -> OriginsWorld:
    return world._replace(pcs=(pc, world.pcs[1]) if area == 0 else (world.pcs[0], pc))


class PinsWorld(NamedTuple):
    """``text`` is the registry's, ``pin`` the commit's; ``windows`` are the texts of published windows."""

    text: int = 0
    pin: int = NONE
    windows: frozenset[int] = frozenset()
    units: tuple[Pc, ...] = (IDLE, IDLE)
    published: int = 0


@dataclass(frozen=True)
class Pins:
    """Two units whose records have one schema id. It lacks the rules in ``removed``."""

    removed: frozenset[Rule] = field(default_factory=frozenset)

    def initial(self) -> PinsWorld:
        return PinsWorld()

    def compact(self, state: PinsWorld) -> PinsWorld:
        return state

    def is_goal(self, state: PinsWorld) -> bool:
        return set(state.units) <= {IDLE, ("stopped",)}

    def violation(self, state: PinsWorld) -> str | None:
        return "WRONG: rows of one id were read by two schemas" if len(state.windows) > 1 else None

    def successors(self, state: PinsWorld) -> Iterator[tuple[Label, PinsWorld, bool]]:
        if state.text == 0:
            yield ("registry changes",), state._replace(text=1), True
        for number, pc in enumerate(state.units):
            yield from self._step(state, number, pc)

    def _step(self, world: PinsWorld, number: int, pc: Pc) -> Iterator[tuple[Label, PinsWorld, bool]]:
        if pc == IDLE and world.published < 2:
            yield ("read", number), _unit(world, number, ("read", (world.text,))), False
        elif pc[0] == "read":
            seen = pc[1]
            if len(seen) < 2:  # another worker's cache may be empty: the schema is fetched again
                yield ("fetch again", number), _unit(world, number, ("read", (*seen, world.text))), False
            mixed = len(set(seen)) > 1 and Rule.ONE_SCHEMA not in self.removed
            pinned = world.pin not in (NONE, seen[0]) and Rule.PINNED not in self.removed
            if mixed or pinned:
                yield ("stop", number), _unit(world, number, ("stopped",)), False
            else:
                done = _unit(world, number, IDLE)
                pin = seen[0] if world.pin == NONE else world.pin
                windows = world.windows | set(seen)
                yield (
                    ("publish", number),
                    done._replace(pin=pin, windows=windows, published=world.published + 1),
                    False,
                )


def _unit(world: PinsWorld, number: int, pc: Pc) -> PinsWorld:
    units = (*world.units[:number], pc, *world.units[number + 1 :])
    return world._replace(units=tuple(sorted(units, key=repr)))
