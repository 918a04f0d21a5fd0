"""Error rows that an operator lets into an ordered table (ER8), explored exhaustively: a loader of batches in order,
two processes that replay two error rows, and an operator who holds the table and releases it.

A process may pause for any time before a call, and may die during one, which then takes effect later or never. The
audit list has room for two decisions: older ones move to another object (O6). In a lake, a process that finds an intent
ends it (`lake_error_replays.py` has those steps); here that is one call.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kbq_assets_tests.model.engine import Label


class Rule(enum.Enum):
    """What names each row that comes out of order."""

    DECIDED_FIRST = "ER8: a swap adds the decision before the transaction, or the intent"
    EACH = "ER8: each transaction has a decision of its own"
    SAME_SWAP = "ER8: the swap that adds the decision refuses"
    HELD = "ER8: the swap refuses while the table is held"
    GATES = "ER8: the swap refuses while the table has gates"
    LATE_ROWS = "ER8: the swap refuses while the table parks late rows"
    BEGUN = "ER8: the swap refuses before the order has begun"
    FENCED = "ER8: the decision is swapped on the state that was read"
    ARCHIVED_FIRST = "O6: older decisions are in an object of their own before the swap"
    MARK_DECIDES = "ER1: a row is added only if its error row is not marked"


#: The error rows, and the room for decisions.
ROWS = (0, 1)
ROOM = 2
#: The rules that a topic may ask for: nothing, an order, one with gates, or one that parks late rows.
NONE, OFFSET, GATES, LATE = "none", "offset", "gates", "late"


class State(NamedTuple):
    """The state of the table: the rule of its batches, the last batch, a hold, and the audit list."""

    generation: int = 0
    rule: str = NONE
    settled: int = 0
    is_held: bool = False
    audit: tuple[str, ...] = ()
    archived: int = 0


Pc = tuple[Any, ...]
IDLE: Pc = ("idle",)


class World(NamedTuple):
    """Everything that exists. ``rows``: how often each error row is a row of the table, ``late_rows`` those that came
    behind ordered batches; ``batches`` and ``history`` are those that swaps ever added."""

    asks: str = OFFSET
    state: State = State()
    archives: frozenset[tuple[int, str]] = frozenset()
    rows: tuple[int, ...] = (0,) * len(ROWS)
    marked: frozenset[int] = frozenset()
    late_rows: frozenset[int] = frozenset()
    intent: int | None = None
    batches: int = 0
    history: tuple[str, ...] = ()
    processes: tuple[Pc, ...] = (IDLE, IDLE, IDLE, IDLE)
    late: frozenset[Pc] = frozenset()
    crashes: int = 0
    holds: int = 0
    changes: int = 0


Step = tuple[Label, World, bool]


@dataclass(frozen=True)
class OrderedErrorReplays:
    """The model in a scope: what the topic asks for, and the change of it; batches; replays at once; calls that crash;
    holds. It lacks the rules in ``removed``."""

    asks: str = OFFSET
    then: str = ""
    batches: int = 2
    replays: int = 1
    crashes: int = 0
    holds: int = 0
    is_lake: bool = False
    removed: frozenset[Rule] = field(default_factory=frozenset)

    def initial(self) -> World:
        return World(asks=self.asks, crashes=self.crashes, holds=self.holds, changes=bool(self.then))

    def compact(self, state: World) -> World:
        return state

    def successors(self, state: World) -> Iterator[Step]:
        if state.changes:
            yield ("ask", self.then), state._replace(asks=self.then, changes=0), False
        deciders = (self._load, self._hold, self._replay, self._replay)
        for number, pc in enumerate(state.processes[: 2 + self.replays]):
            if pc == IDLE or pc[0] == "checked":
                for label, chain in deciders[number](state) if pc == IDLE else self._decide(state, pc[1]):
                    yield ("read", number, label), _at(state, number, chain), False
                continue
            call, then = pc
            after = self._applied(state, call)
            yield call, _at(after or state, number, IDLE if after is None else then), False
            if state.crashes:
                died = state._replace(crashes=state.crashes - 1, late=state.late | {call})
                yield ("crash", *call), _at(died, number, IDLE), True
        for call in sorted(state.late, key=repr):
            rest = state._replace(late=state.late - {call})
            yield ("late", *call), self._applied(rest, call) or rest, False
            yield ("never", *call), rest, False

    def violation(self, state: World) -> str | None:
        now = state.state
        kept = (*(text for _, text in sorted(state.archives)[: now.archived]), *now.audit)
        if max(state.rows) > 1:
            return f"DOUBLED: {state.rows}"
        if unnamed := [row for row in sorted(state.late_rows) if f"in {row}" not in kept]:
            return f"UNNAMED: rows {unnamed} came out of order, the decisions are {kept}"
        if now.settled != state.batches:
            return f"LOSS: {state.batches} batches, the state counts {now.settled}"
        if kept != state.history:
            return f"FORGOTTEN: the decisions were {state.history}, and {kept} are kept"
        return _judged(state.history)

    def is_goal(self, state: World) -> bool:
        is_idle = set(state.processes) == {IDLE} and not state.late and state.intent is None
        return is_idle and state.batches == self.batches and not state.state.is_held

    # What a process decides from what it reads, as chains of calls

    def _load(self, world: World) -> Iterator[tuple[str, Pc]]:
        now = world.state
        if now.settled == self.batches:
            return
        if now.rule != world.asks:
            yield "rule", _calls(*self._noted(now._replace(rule=world.asks), f"order {world.asks}", now))
        elif not now.is_held:
            batch = now._replace(settled=now.settled + 1, generation=now.generation + 1)
            yield "batch", _calls(("swap", batch, now.generation, ""))

    def _hold(self, world: World) -> Iterator[tuple[str, Pc]]:
        now = world.state
        if now.is_held:
            yield "release", _calls(*self._noted(now._replace(is_held=False), "release", now))
        elif world.holds and now.rule != NONE:
            yield "hold", _calls(*self._noted(now._replace(is_held=True), "hold", now))

    def _replay(self, world: World) -> Iterator[tuple[str, Pc]]:
        if world.intent is not None:
            yield "end", _calls(("land", world.intent))
            return
        waiting = [row for row in ROWS if row not in world.marked]
        for row in waiting:
            if not self._shows_order(world):
                yield f"add {row}", _calls(self._added(row))
            elif self._may_come(world):
                yield from [("checked", ("checked", row))] if self._is_split else self._decide(world, row)

    @property
    def _is_split(self) -> bool:
        return Rule.SAME_SWAP in self.removed

    @staticmethod
    def _shows_order(world: World) -> bool:
        return world.asks != NONE or world.state.rule != NONE or bool(world.state.audit)

    def _may_come(self, world: World) -> bool:
        """What the swap checks."""
        now, removed = world.state, self.removed
        refused = (
            (now.is_held and Rule.HELD not in removed)
            or (now.rule == GATES and Rule.GATES not in removed)
            or (now.rule == LATE and Rule.LATE_ROWS not in removed)
            or (now.rule == NONE and world.asks != NONE and Rule.BEGUN not in removed)
        )
        return not refused

    def _decide(self, world: World, row: int) -> Iterator[tuple[str, Pc]]:
        now = world.state
        noted = self._noted(now, f"in {row}", now)
        others = [each for each in ROWS if each != row]
        if Rule.EACH in self.removed:
            yield f"let in {row} and more", _calls(*noted, *map(self._added, (row, *others)))
        elif Rule.DECIDED_FIRST in self.removed:
            yield f"let in {row}", _calls(self._added(row), *noted)
        else:
            yield f"let in {row}", _calls(*noted, self._added(row))

    def _added(self, row: int) -> Pc:
        return ("intent", row) if self.is_lake else ("land", row)

    def _noted(self, wanted: State, text: str, now: State) -> list[Pc]:
        """The calls that add a decision: older ones move to an object first."""
        if len(now.audit) < ROOM:
            wanted = wanted._replace(generation=now.generation + 1, audit=(*now.audit, text))
            return [("swap", wanted, now.generation, text)]
        audit = (*now.audit[1:], text)
        wanted = wanted._replace(generation=now.generation + 1, audit=audit, archived=now.archived + 1)
        found: list[Pc] = [("archive", now.archived, now.audit[0]), ("swap", wanted, now.generation, text)]
        return found[::-1] if Rule.ARCHIVED_FIRST in self.removed else found

    def _applied(self, world: World, call: Pc) -> World | None:
        """The world after a call; None if it changes nothing that the caller may build on."""
        match call:
            case ("archive", first, text):
                return world._replace(archives=world.archives | {(first, text)})
            case ("swap", wanted, generation, text):
                now = world.state
                if now.generation != generation and Rule.FENCED not in self.removed:
                    return None
                return world._replace(
                    state=wanted,
                    batches=world.batches + (not text),
                    history=(*world.history, text) if text else world.history,
                    holds=world.holds - (text == "hold"),
                )
            case ("intent", row):
                is_free = world.intent is None and row not in world.marked
                return world._replace(intent=row) if is_free else None
            case ("land", row):
                return self._landed(world, row)
        raise ValueError(call)

    def _landed(self, world: World, row: int) -> World | None:
        """The transaction of ER1, or an intent that is ended. A row after an ordered batch is late."""
        if row in world.marked and Rule.MARK_DECIDES not in self.removed:
            return None
        rows = list(world.rows)
        rows[row] += 1
        is_late = world.state.rule != NONE and world.batches > 0
        return world._replace(
            rows=tuple(rows),
            marked=world.marked | {row},
            late_rows=world.late_rows | {row} if is_late else world.late_rows,
            intent=None if world.intent == row else world.intent,
        )


def _judged(history: tuple[str, ...]) -> str | None:
    """Which decision to let a row in was refused by the decisions before it."""
    is_held, rule = False, ""
    for text in history:
        if text.startswith("in ") and (is_held or rule in ("", GATES, LATE)):
            why = "HELD" if is_held else rule.upper() or "NOT BEGUN"
            return f"{why}: a row was let in: {history}"
        is_held = text == "hold" or (is_held and text != "release")
        rule = text.removeprefix("order ") if text.startswith("order ") else rule
    return None


def _at(world: World, number: int, pc: Pc) -> World:
    processes = list(world.processes)
    processes[number] = pc
    return world._replace(processes=tuple(processes))


def _calls(*calls: Pc) -> Pc:
    chain = IDLE
    for call in reversed(calls):
        chain = (call, chain)
    return chain
