"""Replays of error rows in a lake (ER7), explored exhaustively: two processes replay one error row, whose table today's
options decide each time, while replacements of its range and an erasure go on.

No commit changes two tables. A process may pause for any time between two steps, and may die during any call, which
then takes effect later or never. A process that finds an intent of another one ends it: it runs its job, or gives it
up.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kbq_assets_tests.model.engine import Label


class Rule(enum.Enum):
    """What makes three commits one replay."""

    ONE_INTENT = "ER7: an intent is entered only where there is none"
    SWAPPED = "ER7: an intent is entered on the state that was read"
    STATE_FIRST = "ER7: the error rows are read after the state"
    WAITS = "ER7: an error table that waits for a replacement takes no intent"
    SETTLED = "ER7: an error table waits for a replacement only without an intent"
    LANDED_FIRST = "ER7: error rows are marked once their rows are in the table"
    MARKED_FIRST = "ER7: an intent is removed once its error rows are marked"
    BURNED = "ER7: an intent is given up only after its id"
    LANDED_ONCE = "I1: an id that has ended in the table adds no rows there"
    MARKED_ONCE = "ER7: an id that has ended in the error table marks nothing there"
    MARKED_AS_READ = "I2: error rows are marked only in the table as it was read"


class Intent(NamedTuple):
    """A job and the table that it adds the row to."""

    job: int
    table: int


class State(NamedTuple):
    """The state of the error table."""

    generation: int = 0
    intent: Intent | None = None
    waits: bool = False
    jobs: int = 0


class Table(NamedTuple):
    """A table of the lake: rows of the record, and the ids that ended, of which some did their work."""

    generation: int = 0
    rows: int = 0
    ended: frozenset[int] = frozenset()
    done: frozenset[int] = frozenset()


Pc = tuple[Any, ...]
IDLE: Pc = ("idle",)
#: What the rows of the range become: the record is a row of a third table, or an error row again, or forgotten.
REPLACEMENTS = ("row", "bad", "erased")
BAD, MARKED, GONE = "bad", "marked", "gone"


class World(NamedTuple):
    """Everything that exists."""

    state: State = State()
    errors: Table = Table(rows=1)
    #: the error row
    error: str = BAD
    tables: tuple[Table, ...] = (Table(), Table())
    third: int = 0
    erased: bool = False
    processes: tuple[Pc, ...] = (IDLE, IDLE)
    late: frozenset[Pc] = frozenset()
    crashes: int = 0
    compactions: int = 0
    replacements: int = 0


Step = tuple[Label, World, bool]


@dataclass(frozen=True)
class LakeErrorReplays:
    """The model in a scope: jobs, calls that crash, compactions of the error table, replacements. It lacks the rules in
    ``removed``."""

    jobs: int = 2
    crashes: int = 0
    compactions: int = 0
    replacements: int = 0
    removed: frozenset[Rule] = field(default_factory=frozenset)

    def initial(self) -> World:
        return World(crashes=self.crashes, compactions=self.compactions, replacements=self.replacements)

    def compact(self, state: World) -> World:
        return state

    def successors(self, state: World) -> Iterator[Step]:
        for number, pc in enumerate(state.processes):
            if pc[0] != "call":
                for label, then in self._choices(state) if pc == IDLE else self._next(state, pc):
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
        if state.compactions:
            moved = state.errors._replace(generation=state.errors.generation + 1)
            yield ("compact",), state._replace(errors=moved, compactions=state.compactions - 1), False
        if state.replacements and (state.state.intent is None or Rule.SETTLED in self.removed):
            entered = state.state._replace(generation=state.state.generation + 1, waits=True)
            if not state.state.waits:
                rest = state._replace(state=entered, replacements=state.replacements - 1)
                yield ("wait",), rest, False
        if state.state.waits:
            for kind in REPLACEMENTS:
                yield ("replace", kind), _replaced(state, kind), False

    def violation(self, state: World) -> str | None:
        rows = sum(table.rows for table in state.tables) + state.third
        if rows > 1:
            return f"DOUBLED: {rows} rows"
        if state.erased and rows and not (state.state.intent or state.late or _acts(state)):
            return "ERASED: the record is back"
        if state.error != BAD and not state.erased and not rows:
            return f"LOST: no row, and the error row is {state.error}"
        if self._is_quiet(state) and state.error == BAD and rows:
            return "UNMARKED: the row is there, and nobody will mark its error row"
        return None

    def is_goal(self, state: World) -> bool:
        return self._is_quiet(state) and not state.state.waits

    @staticmethod
    def _is_quiet(world: World) -> bool:
        return not (_acts(world) or world.late or world.state.intent)

    # What a process decides from what it reads

    def _choices(self, world: World) -> Iterator[tuple[Label, Pc]]:
        """It reads the state of the error table, or wrongly the error row first."""
        found = world.state
        if found.intent is not None:
            yield ("intent",), ("target", found)
        if found.jobs < self.jobs:
            for table in range(len(world.tables)):
                if Rule.STATE_FIRST in self.removed:
                    yield ("row", table), ("state", table, world.error)
                elif self._may_enter(found):
                    yield ("state", table), ("row", table, found)

    def _may_enter(self, found: State) -> bool:
        return (found.intent is None or Rule.ONE_INTENT in self.removed) and (
            not found.waits or Rule.WAITS in self.removed
        )

    def _next(self, world: World, pc: Pc) -> Iterator[tuple[Label, Pc]]:
        match pc:
            case ("state", table, error):
                if self._may_enter(world.state):
                    yield from self._entered(error, table, world.state)
                else:
                    yield ("nothing",), IDLE
            case ("row", table, found):
                yield from self._entered(world.error, table, found)
            case ("target", found):
                yield from self._looked(world.tables[found.intent.table], found)
            case ("errors", found):
                yield from self._marked(world, found)

    @staticmethod
    def _entered(error: str, table: int, found: State) -> Iterator[tuple[Label, Pc]]:
        if error != BAD:
            yield ("nothing",), IDLE
            return
        intent = Intent(found.jobs + 1, table)
        entered = State(found.generation + 1, intent, found.waits, intent.job)
        yield ("enter", table), _calls(("swap", entered, found.generation), ("land", intent))

    def _looked(self, target: Table, found: State) -> Iterator[tuple[Label, Pc]]:
        """What a process does about an intent, by what it finds in its table."""
        job = found.intent.job if found.intent else 0
        if job in target.done or Rule.LANDED_FIRST in self.removed:
            yield ("landed",), ("errors", found)
            if Rule.MARKED_FIRST in self.removed:
                yield ("end",), self._ended(found)
        elif job in target.ended:
            yield ("given up",), self._ended(found)
        else:
            yield ("help",), _calls(("land", found.intent))
            if Rule.BURNED in self.removed:
                yield ("give up",), self._ended(found)
            else:
                yield ("burn",), _calls(("burn", found.intent))

    def _marked(self, world: World, found: State) -> Iterator[tuple[Label, Pc]]:
        """What a process does once the row has landed, by what it finds in the error table."""
        assert found.intent is not None
        is_marked = found.intent.job in world.errors.ended
        if Rule.MARKED_ONCE in self.removed:
            is_marked = world.error != BAD
        if is_marked:
            yield ("marked",), self._ended(found)
        else:
            yield ("mark",), _calls(("mark", found.intent.job, world.errors.generation))

    @staticmethod
    def _ended(found: State) -> Pc:
        return _calls(
            ("swap", found._replace(generation=found.generation + 1, intent=None), found.generation)
        )

    def _applied(self, world: World, call: Pc) -> World | None:
        """The world after a call; None if it changes nothing."""
        match call:
            case ("swap", wanted, generation):
                if world.state.generation != generation and Rule.SWAPPED not in self.removed:
                    return None
                return world._replace(state=wanted._replace(generation=world.state.generation + 1))
            case ("land", intent):
                target = world.tables[intent.table]
                if intent.job in target.ended and Rule.LANDED_ONCE not in self.removed:
                    return None
                landed = target._replace(rows=target.rows + 1, done=target.done | {intent.job})
                return _table(world, intent.table, _with_ended(landed, intent.job))
            case ("burn", intent):
                target = world.tables[intent.table]
                return (
                    None
                    if intent.job in target.ended
                    else _table(world, intent.table, _with_ended(target, intent.job))
                )
            case ("mark", job, generation):
                errors = world.errors
                if errors.generation != generation and Rule.MARKED_AS_READ not in self.removed:
                    return None
                error = MARKED if world.error == BAD else world.error
                return world._replace(errors=_with_ended(errors, job), error=error)
        raise ValueError(call)


def _acts(world: World) -> bool:
    return set(world.processes) != {IDLE}


def _replaced(world: World, kind: str) -> World:
    """The rows of the range are replaced or deleted, and the tables go on. A table keeps the ids of ended jobs."""
    tables = tuple(each._replace(rows=0, generation=each.generation + 1) for each in world.tables)
    errors = world.errors._replace(generation=world.errors.generation + 1)
    state = world.state._replace(generation=world.state.generation + 1, waits=False)
    is_erased = kind == "erased" or world.erased
    error = BAD if kind == "bad" and not is_erased else GONE
    third = int(kind == "row" and not is_erased)
    return world._replace(
        state=state, tables=tables, errors=errors, error=error, third=third, erased=is_erased
    )


def _with_ended(table: Table, job: int) -> Table:
    return table._replace(generation=table.generation + 1, ended=table.ended | {job})


def _table(world: World, number: int, table: Table) -> World:
    tables = list(world.tables)
    tables[number] = table
    return world._replace(tables=tuple(tables))


def _at(world: World, number: int, pc: Pc) -> World:
    processes = list(world.processes)
    processes[number] = pc
    return world._replace(processes=tuple(processes))


def _calls(*calls: Pc) -> Pc:
    chain = IDLE
    for call in reversed(calls):
        chain = ("call", call, chain)
    return chain
