"""Promotion and rollback in a lake (R12), explored exhaustively: two processes replace a range of two tables, with one
commit for each table, while compactions move the tables.

A process may pause for any time between two steps, and may die during any call, which then takes effect later or
never.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kbq_assets_tests.model.engine import Label


class Rule(enum.Enum):
    """What makes a job of several commits one replacement."""

    IN_ORDER = "R12: a table is replaced once the job has replaced the one before it"
    FIRST_DECIDES = "R12: a job is given up in its first table, or not at all"
    COPIED_FIRST = "R12: the former rows are copied before the table is replaced"
    COPY_FENCED = "R12: a copy requires the table of former rows as it was read"
    COPY_READ_FIRST = "R12: the table of former rows is read before the job's id is seen free"
    SAME_SNAPSHOT = "R12: a table is replaced only as it was read"
    ID_ONCE = "I1: an id that has ended in a table never runs there"


class Live(NamedTuple):
    """A table: the rows of the range, the highest id that ended, and the ids that replaced them."""

    generation: int = 0
    rows: str = "old"
    ended: int = 0
    done: frozenset[int] = frozenset()


class Former(NamedTuple):
    """The copies of a table's former rows."""

    generation: int = 0
    rows: str = ""


class Phase(NamedTuple):
    """Of the replay: read, promoting, promoted, rolling, rolled; and the id of its last job."""

    generation: int = 0
    name: str = "read"
    job: int = 0


Pc = tuple[Any, ...]
IDLE: Pc = ("idle",)
BEGINS = {"read": "promoting", "rolled": "promoting", "promoted": "rolling"}
ENDS = {"promoting": "promoted", "rolling": "rolled"}
BACK = {"promoting": "read", "rolling": "promoted"}


class World(NamedTuple):
    """Everything that exists."""

    replay: Phase = Phase()
    live: tuple[Live, ...] = (Live(), Live())
    former: tuple[Former, ...] = (Former(), Former())
    processes: tuple[Pc, ...] = (IDLE, IDLE)
    late: frozenset[Pc] = frozenset()
    #: the rows of the range before the last promotion
    before: str = "old"
    crashes: int = 0
    compactions: int = 0
    others: int = 0


Step = tuple[Label, World, bool]


@dataclass(frozen=True)
class LakePromotions:
    """The model in a scope: jobs, calls that crash, compactions, promotions of another replay of the range. It lacks
    the rules in ``removed``."""

    jobs: int = 2
    crashes: int = 0
    compactions: int = 0
    others: int = 0
    removed: frozenset[Rule] = field(default_factory=frozenset)

    def initial(self) -> World:
        return World(crashes=self.crashes, compactions=self.compactions, others=self.others)

    def compact(self, state: World) -> World:
        return state

    def successors(self, state: World) -> Iterator[Step]:
        for number, pc in enumerate(state.processes):
            if pc[0] != "call":
                choices = self._choices(state) if pc == IDLE else self._next(state, pc)
                for label, then in choices:
                    yield ("read", number, *label), _at(state, number, then), False
                continue
            _, call, then = pc
            after = self._applied(state, call)
            yield call, _at(after or state, number, IDLE if after is None else then), False
            if state.crashes:
                died = state._replace(crashes=state.crashes - 1, late=state.late | {call})
                yield ("crash", *call), _at(died, number, IDLE), True
        for call in sorted(state.late, key=repr):
            rest = state._replace(late=state.late - {call})
            yield ("late", *call), self._applied(rest, call) or rest, False
            yield ("never", *call), rest, False
        for table, live in enumerate(state.live):
            if state.compactions:
                moved = _table(state, table, live._replace(generation=live.generation + 1))
                yield ("compact", table), moved._replace(compactions=state.compactions - 1), False
        if state.others and state.replay.name in ("read", "rolled"):
            other = tuple(each._replace(generation=each.generation + 1, rows="other") for each in state.live)
            yield ("other",), state._replace(live=other, before="other", others=state.others - 1), False

    def violation(self, state: World) -> str | None:
        rows = [live.rows for live in state.live]
        before = state.before
        wanted = {"read": before, "promoted": "new", "rolled": before}.get(state.replay.name)
        if wanted is not None and set(rows) != {wanted}:
            return f"WRONG: the replay is {state.replay.name}, the tables have {rows}"
        return None

    def is_goal(self, state: World) -> bool:
        return set(state.processes) == {IDLE} and not state.late and state.replay.name not in ENDS

    # What a process decides from what it reads

    def _choices(self, world: World) -> Iterator[tuple[Label, Pc]]:
        replay = world.replay
        if replay.name not in ENDS:
            if replay.job < self.jobs:
                begun = replay._replace(name=BEGINS[replay.name], job=replay.job + 1)
                yield ("begin",), _calls(("replay", begun, replay.generation))
            return
        done = [replay.job in live.done for live in world.live]
        if all(done):
            ended = replay._replace(name=ENDS[replay.name])
            yield ("end",), _calls(("replay", ended, replay.generation))
        for table, is_done in enumerate(done):
            if not is_done and (all(done[:table]) or Rule.IN_ORDER in self.removed):
                yield ("table", table), self._read(world, table)
        if not done[0]:
            back = replay._replace(name=BACK[replay.name])
            decides = -1 if Rule.FIRST_DECIDES in self.removed else 0
            yield ("give up",), _calls(("burn", decides, replay.job), ("replay", back, replay.generation))

    def _read(self, world: World, table: int) -> Pc:
        """What a process reads first."""
        job, kind = world.replay.job, world.replay.name
        if kind == "promoting" and Rule.COPY_READ_FIRST not in self.removed:
            return ("copies", table, job, world.former[table].generation)
        return ("live", table, job, kind, world.live[table])

    def _next(self, world: World, pc: Pc) -> Iterator[tuple[Label, Pc]]:
        """What a process does after its first reading."""
        if pc[0] == "copies":
            _, table, job, generation = pc
            live, kind = world.live[table], "promoting"
        else:
            _, table, job, kind, live = pc
            generation = world.former[table].generation
        if live.ended >= job and Rule.ID_ONCE not in self.removed:
            yield ("ended", table), IDLE
        elif kind == "rolling":
            new = world.former[table].rows
            yield ("replace", table), _calls(("commit", table, job, live.generation, new))
        else:
            calls = (
                ("copy", table, generation, live.rows),
                ("commit", table, job, live.generation, "new"),
            )
            yield (
                ("replace", table),
                _calls(*(calls[::-1] if Rule.COPIED_FIRST in self.removed else calls)),
            )

    def _applied(self, world: World, call: Pc) -> World | None:
        """The world after a call; None if it changes nothing."""
        match call:
            case ("replay", wanted, generation):
                if world.replay.generation != generation:
                    return None
                return world._replace(replay=wanted._replace(generation=generation + 1))
            case ("copy", table, generation, rows):
                former = world.former[table]
                if former.generation != generation and Rule.COPY_FENCED not in self.removed:
                    return None
                copies = list(world.former)
                copies[table] = Former(former.generation + 1, rows)
                return world._replace(former=tuple(copies))
            case ("burn", table, job):
                live = world.live[table]
                if job in live.done:
                    return None
                moved = live._replace(generation=live.generation + 1, ended=max(job, live.ended))
                return _table(world, table % len(world.live), moved)
            case ("commit", table, job, generation, rows):
                live = world.live[table]
                is_same = live.generation == generation
                if not is_same and (Rule.SAME_SNAPSHOT not in self.removed or live.ended >= job):
                    return None
                done = live.done | {job}
                new = Live(live.generation + 1, rows if is_same else "doubled", max(job, live.ended), done)
                return _table(world, table, new)
        raise ValueError(call)


def _table(world: World, table: int, live: Live) -> World:
    tables = list(world.live)
    tables[table] = live
    return world._replace(live=tuple(tables))


def _at(world: World, number: int, pc: Pc) -> World:
    processes = list(world.processes)
    processes[number] = pc
    return world._replace(processes=tuple(processes))


def _calls(*calls: Pc) -> Pc:
    chain = IDLE
    for call in reversed(calls):
        chain = ("call", call, chain)
    return chain
