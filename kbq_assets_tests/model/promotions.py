"""Promotion and rollback of replays during live loading (R3 to R7): a loader and the operators of two replays, explored
exhaustively.

The table has offset 0, which both replays read again, and offset 1, which they did not. The first replay has no row
for offset 0, the second one. A replacement is one transaction, whose job runs when the warehouse likes, under an
id that runs once. A process may die during any call, which then takes effect later or never.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kbq_assets_tests.model.engine import Label


class Rule(enum.Enum):
    """What makes replacements safe."""

    SETTLED = "R3: a table waits for a replacement only once every file of the range is loaded"
    ONE_AT_A_TIME = "R3: a table waits for one replacement at a time"
    NAMED_ID = "R3: the replay names the job's id before it is submitted, and a repetition keeps it"
    COUNTED_AS_IT_ENDS = "R5: the swap that counts the change lets the table go on"
    FENCED = "R3: states are swapped on the generation that was read"


class State(NamedTuple):
    """The table's state: files loaded, rows counted, the load job in flight, the replacement that it waits for as
    replay, job and change."""

    generation: int = 0
    loaded: int = 0
    rows: int = 0
    entry: int = 0
    waits: tuple[int, int, int] = (0, 0, 0)
    counted: int = 0


class ReplayPhase(NamedTuple):
    """read, promoting, promoted, rolling, rolled; and the id of its last job."""

    generation: int = 0
    phase: str = "read"
    job: int = 0


class Job(NamedTuple):
    """A load of a file, a promotion or a rollback of a replay."""

    id: int
    kind: str
    of: int
    done: bool = False


Pc = tuple[Any, ...]
IDLE: Pc = ("idle",)
NEXT = {"promoting": "promoted", "rolling": "rolled"}


class World(NamedTuple):
    """Everything that exists. ``table`` has (offset, version) pairs, 0 for the version that was loaded; ``former`` the
    rows that each replay replaced. ``ids`` are used up."""

    state: State = State()
    replays: tuple[ReplayPhase, ...] = (ReplayPhase(), ReplayPhase())
    jobs: frozenset[Job] = frozenset()
    table: tuple[tuple[int, int], ...] = ()
    former: tuple[tuple[tuple[int, int], ...], ...] = ((), ())
    processes: tuple[Pc, ...] = (IDLE, IDLE, IDLE)
    late: frozenset[Pc] = frozenset()
    ids: int = 0
    crashes: int = 0
    rollbacks: int = 0


Step = tuple[Label, World, bool]


@dataclass(frozen=True)
class Promotions:
    """The model in a scope: replays, calls that crash, rollbacks. It lacks the rules in ``removed``."""

    replays: int = 1
    crashes: int = 0
    rollbacks: int = 0
    removed: frozenset[Rule] = field(default_factory=frozenset)

    def initial(self) -> World:
        return World(crashes=self.crashes, rollbacks=self.rollbacks)

    def compact(self, state: World) -> World:
        return state

    def successors(self, state: World) -> Iterator[Step]:
        for number, pc in enumerate(state.processes[: self.replays + 1]):
            if pc == IDLE:
                calls = self._load(state) if number == 0 else self._replace(state, number)
                for label, chain in calls:
                    yield ("read", number, label), _at(state, number, chain), False
                continue
            call, then = pc
            after = self._applied(state, call)
            refused = after == state and call[0] != "insert"
            yield call, _at(after, number, IDLE if refused else then), False
            if state.crashes:
                died = state._replace(crashes=state.crashes - 1, late=state.late | {call})
                yield ("crash", *call), _at(died, number, IDLE), True
        for job in sorted(state.jobs):
            if not job.done:
                yield ("runs", *job), _run(state, job), False
        for call in sorted(state.late, key=repr):
            rest = state._replace(late=state.late - {call})
            yield ("late", *call), self._applied(rest, call), False
            yield ("never", *call), rest, False

    def violation(self, state: World) -> str | None:
        offsets = [offset for offset, _ in state.table]
        if len(set(offsets)) < len(offsets):
            return f"DUPLICATE: {state.table}"
        if state.state.loaded == 2 and 1 not in offsets:
            return f"LOSS: {state.table}"
        wanted = {"promoted": False, "rolled": True}.get(state.replays[0].phase)
        if self.replays == 1 and wanted is not None and wanted != ((0, 0) in state.table):
            return f"WRONG: the replay is {state.replays[0].phase}, the table has {state.table}"
        now = state.state
        if now.waits == (0, 0, 0) and not now.entry and now.rows != len(offsets):
            return f"COUNT: {now.rows} rows count, the table has {state.table}"
        return None

    def is_goal(self, state: World) -> bool:
        ended = all(r.phase in ("promoted", "rolled") for r in state.replays[: self.replays])
        return set(state.processes) == {IDLE} and not state.late and ended and state.state.loaded == 2

    # What a process decides from what it reads, as chains of calls

    def _load(self, world: World) -> Iterator[tuple[str, Pc]]:
        now = world.state
        if now.entry:
            status = next((job for job in world.jobs if job.id == now.entry), None)
            if status is None:
                yield "submit", _calls(("insert", Job(now.entry, "load", now.loaded)))
            elif status.done:
                yield "loaded", _calls(_swap(now, loaded=now.loaded + 1, rows=now.rows + 1, entry=0))
        elif now.loaded < 2 and now.waits == (0, 0, 0):
            yield "load", _calls(_swap(now, entry=-1))

    def _replace(self, world: World, number: int) -> Iterator[tuple[str, Pc]]:
        replay, now = world.replays[number - 1], world.state
        if replay.phase == "read" or (replay.phase == "promoted" and world.rollbacks):
            phase = "promoting" if replay.phase == "read" else "rolling"
            yield phase, _calls(("replay", number, replay._replace(phase=phase, job=-1), replay.generation))
        if replay.phase not in NEXT:
            return
        job = next((job for job in world.jobs if job.id == replay.job), None)
        ended = ("replay", number, replay._replace(phase=NEXT[replay.phase]), replay.generation)
        if job is not None and job.done:
            yield "record", self._recorded(now, number, replay, ended)
        elif now.waits[:2] == (number, replay.job):
            named = Job(replay.job, replay.phase, number)
            yield "submit", _calls(("insert", named))
            if (
                Rule.NAMED_ID in self.removed
                and world.ids < 5
                and named.id not in {job.id for job in world.jobs}
            ):
                yield "anew", _calls(("replay", number, replay._replace(job=-1), replay.generation))
        elif self._may_wait(now, number):
            change = len(_rows(world, number, replay.phase)) - sum(offset == 0 for offset, _ in world.table)
            yield "wait", _calls(_swap(now, waits=(number, replay.job, change)))

    def _may_wait(self, now: State, number: int) -> bool:
        free = now.waits == (0, 0, 0) or now.waits[0] == number or Rule.ONE_AT_A_TIME in self.removed
        return free and not now.entry and (now.loaded > 0 or Rule.SETTLED in self.removed)

    def _recorded(self, now: State, number: int, replay: ReplayPhase, ended: Pc) -> Pc:
        if now.waits[:2] != (number, replay.job):
            return _calls(ended)
        counted = {"rows": now.rows + now.waits[2]}
        if Rule.COUNTED_AS_IT_ENDS in self.removed:
            first = _swap(now, **counted)
            return _calls(first, _swap(first[1], waits=(0, 0, 0)), ended)
        return _calls(_swap(now, waits=(0, 0, 0), **counted), ended)

    def _applied(self, world: World, call: Pc) -> World:
        """The world after a call; a swap on another generation, or a second job of one id, changes nothing."""
        match call:
            case ("swap", wanted, generation):
                if world.state.generation != generation and Rule.FENCED not in self.removed:
                    return world
                if wanted.entry == -1:
                    return world._replace(state=wanted._replace(entry=world.ids + 1), ids=world.ids + 1)
                return world._replace(state=wanted)
            case ("insert", job):
                taken = any(known.id == job.id for known in world.jobs)
                return world if taken else world._replace(jobs=world.jobs | {job})
            case ("replay", number, wanted, generation):
                if world.replays[number - 1].generation != generation:
                    return world
                world = world._replace(
                    rollbacks=world.rollbacks - (wanted.phase == "rolling" and wanted.job == -1)
                )
                if wanted.job == -1:
                    wanted, world = wanted._replace(job=world.ids + 1), world._replace(ids=world.ids + 1)
                replays = list(world.replays)
                replays[number - 1] = wanted._replace(generation=generation + 1)
                return world._replace(replays=tuple(replays))
        raise ValueError(call)


def _rows(world: World, number: int, kind: str) -> tuple[tuple[int, int], ...]:
    """What a replacement puts in place of offset 0."""
    if kind == "rolling":
        return world.former[number - 1]
    return () if number == 1 else ((0, 2),)


def _run(world: World, job: Job) -> World:
    jobs = (world.jobs - {job}) | {job._replace(done=True)}
    if job.kind == "load":
        return world._replace(jobs=jobs, table=tuple(sorted((*world.table, (job.of, 0)))))
    old = tuple(row for row in world.table if row[0] == 0)
    kept = tuple(row for row in world.table if row[0] != 0)
    new = _rows(world, job.of, job.kind)
    former = list(world.former)
    if job.kind == "promoting":
        former[job.of - 1] = old
    return world._replace(jobs=jobs, table=tuple(sorted((*kept, *new))), former=tuple(former))


def _at(world: World, number: int, pc: Pc) -> World:
    processes = list(world.processes)
    processes[number] = pc
    return world._replace(processes=tuple(processes))


def _calls(*calls: Pc) -> Pc:
    chain = IDLE
    for call in reversed(calls):
        chain = (call, chain)
    return chain


def _swap(state: State, **changes: Any) -> Pc:
    return ("swap", state._replace(generation=state.generation + 1, **changes), state.generation)
