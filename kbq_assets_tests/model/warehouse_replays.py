"""Replays for one of two warehouses (R13), explored exhaustively: a loader of each warehouse, and operators who start,
promote and roll back replays of one record in either.

A process may stop for as long as it likes before any call, and may die during one, which then takes effect later or
never. A load is one swap here (`promotions.py` has its steps), and so is a job in the warehouse. A warehouse may go
down for good, the epoch may rise by a reset of other partitions, and another staging area may feed the same table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kbq_assets_tests.model.warehouse_replay_world import (
    BACK,
    BEGINS,
    ENDS,
    IDLE,
    LAST,
    NO_JOB,
    Area,
    Change,
    JobId,
    Pc,
    Replay,
    Rule,
    Step,
    World,
    applied,
    at,
    broken,
    calls,
    lacking,
    with_area,
)

LOADERS = 2


@dataclass(frozen=True)
class WarehouseReplays:
    """The model in a scope. It lacks the rules in ``removed``."""

    #: the warehouse of each replay
    replays: tuple[int, ...] = (1,)
    #: whether a window gave each warehouse the record
    given: tuple[bool, bool] = (True, True)
    #: whether extraction made a row of the record, and whether each replay does
    has_row: bool = True
    makes: tuple[bool, ...] = (True, True)
    #: processes that work on each replay
    operators: int = 1
    crashes: int = 0
    rollbacks: int = 0
    #: files that move to a backlog; resets of other partitions, which may give up pending files; warehouses that go
    #: down
    moves: int = 0
    resets: int = 0
    gives_up: bool = False
    downs: int = 0
    #: another staging area replays and loads in the second warehouse, where this one never loaded a table
    others: int = 0
    removed: frozenset[Rule] = field(default_factory=frozenset)

    def initial(self) -> World:
        files = tuple("commit" if given and self.has_row else "none" for given in self.given)
        second = Area(file=files[1])
        if self.others:
            # Its replay 1 has run there, under an id that has no staging area either.
            ran = frozenset({("", 1, 1)})
            second = second._replace(is_registered=False, label="", done=ran)
        return World(
            areas=(Area(file=files[0]), second),
            replays=tuple(map(Replay, self.replays)),
            processes=(IDLE,) * (LOADERS + self.operators * len(self.replays)),
            crashes=self.crashes,
            rollbacks=self.rollbacks,
            moves=self.moves,
            resets=self.resets,
            downs=self.downs,
        )

    def compact(self, state: World) -> World:
        return state

    def successors(self, state: World) -> Iterator[Step]:
        for number, pc in enumerate(state.processes):
            if pc == IDLE:
                found = (
                    self._load(state, number) if number < LOADERS else self._operate(state, number - LOADERS)
                )
                for label, chain in found:
                    yield ("read", number, label), at(state, number, chain), False
                continue
            call, then = pc
            after = applied(state, call)
            yield call, at(after or state, number, IDLE if after is None else then), False
            if state.crashes:
                died = state._replace(crashes=state.crashes - 1, late=state.late | {call})
                yield ("crash", *call), at(died, number, IDLE), True
        for call in sorted(state.late, key=repr):
            rest = state._replace(late=state.late - {call})
            yield ("late", *call), applied(rest, call) or rest, False
            yield ("never", *call), rest, False
        yield from self._around(state)

    def _around(self, world: World) -> Iterator[Step]:
        """What happens around the replays."""
        for number, area in enumerate(world.areas):
            if world.moves and area.file == "commit":
                moved = with_area(world, number, file="backlog")
                yield ("park", number), moved._replace(moves=world.moves - 1), False
            if world.downs and not area.is_down:
                down = with_area(world, number, is_down=True)
                yield ("down", number), down._replace(downs=world.downs - 1), False
        if self.others and not world.areas[1].label:
            yield ("other",), with_area(world, 1, label="other", has_foreign_rows=True), False
        if world.resets and (self.gives_up or all(area.file != "commit" for area in world.areas)):
            after = world._replace(epoch=world.epoch + 1, resets=world.resets - 1)
            for number, area in enumerate(world.areas):
                if area.file == "commit":
                    after = with_area(after, number, file="given up")
            yield ("reset",), after, False

    def violation(self, state: World) -> str | None:
        return next(broken(state, self.given, self.has_row, self.makes), None)

    def is_goal(self, state: World) -> bool:
        up = [area for area in state.areas if not area.is_down]
        ended = (each.phase in LAST for each in state.replays if not state.areas[each.warehouse].is_down)
        return (
            not state.late
            and all(ended)
            and all(area.waits is None and area.file not in ("commit", "backlog") for area in up)
        )

    # What a process decides from what it reads, as chains of calls

    def _load(self, world: World, number: int) -> Iterator[tuple[str, Pc]]:
        area = world.areas[number]
        waits = area.waits is not None
        if Rule.NO_OTHER_LOADS in self.removed:
            waits = any(each.waits is not None for each in world.areas)
        if area.file in ("commit", "backlog") and not waits and not area.is_down:
            yield "load", calls(("load", number, area.generation))

    def _operate(self, world: World, operator: int) -> Iterator[tuple[str, Pc]]:
        number = operator % len(self.replays) + 1
        replay = world.replays[number - 1]
        yield from self._replace(world, number, replay)
        if Rule.FORMAT in self.removed and replay.warehouse:
            older = replay._replace(warehouse=0)
            yield from ((f"older {label}", chain) for label, chain in self._replace(world, number, older))

    def _replace(self, world: World, number: int, replay: Replay) -> Iterator[tuple[str, Pc]]:
        own = replay.warehouse
        if replay.phase == "new":
            yield "start", self._moved(number, replay, phase="reading", epoch=self._epoch(world, own))
        elif replay.phase == "reading":
            listed = {0, 1} if Rule.ONE_WAREHOUSE in self.removed else {own}
            if listed == {own}:  # its loader loads for one warehouse, and no file may wait for another one
                yield "read", self._moved(number, replay, phase="read")
        elif replay.phase in BEGINS and (replay.phase == "read" or world.rollbacks):
            if self._is_settled(world, replay):
                yield "begin", self._begun(world, number, replay)
        elif replay.phase in ENDS:
            yield from self._continued(world, number, replay)

    def _begun(self, world: World, number: int, replay: Replay) -> Pc:
        area = world.areas[replay.warehouse]
        named = area.is_registered or Rule.REGISTERED not in self.removed
        job = ("own" if named else "", number, replay.job[2] + 1)
        begun = self._moved(number, replay, phase=BEGINS[replay.phase], job=job)
        if area.is_registered or Rule.REGISTERED in self.removed:
            return begun
        return ("register", replay.warehouse), begun

    def _continued(self, world: World, number: int, replay: Replay) -> Iterator[tuple[str, Pc]]:
        own = replay.warehouse
        holder = 0 if Rule.OWN_TABLES in self.removed else own
        area, waiting = world.areas[own], world.areas[holder]
        if replay.job in area.done:
            yield "record", self._recorded(world, number, replay, holder)
        elif replay.job in area.burned:
            yield "given up", self._left(world, number, replay, holder, BACK[replay.phase], done=False)
        elif waiting.waits is not None and waiting.waits[1] == replay.job:
            if self._is_refused(world, number, replay):
                yield "give up", calls(("burn", own, replay.job))
            elif not area.label and Rule.LABEL_SET not in self.removed:
                yield "label", calls(("label", own))
            elif self._is_alone(world, number, replay) and not area.is_down:
                rows = self._new_rows(number, replay)
                yield "replace", calls(("insert", own, replay.job, number, replay.phase, rows))
        elif self._may_wait(waiting) and self._is_settled(world, replay):
            old = sum(epoch == replay.epoch for epoch, _ in area.table)
            change = len(self._new_rows(number, replay)) - old
            waits = number, replay.job, change
            yield "wait", calls(("state", holder, waiting.generation, waits, waiting.rows))

    def _may_wait(self, area: Area) -> bool:
        return area.waits is None or Rule.OWN_REPLAYS in self.removed

    def _is_settled(self, world: World, replay: Replay) -> bool:
        """Whether no file of the range waits to be loaded."""
        own = world.areas[replay.warehouse]
        found = [own]
        if Rule.OWN_FILES in self.removed:
            found = [world.areas[0]]
        if Rule.NO_OTHER_FILES in self.removed:
            found = list(world.areas)
        return replay.epoch > 1 or all(area.file not in ("commit", "backlog") for area in found)

    def _is_refused(self, world: World, number: int, replay: Replay) -> bool:
        """Whether an operator finds out, once the table waits, that the rows must not be replaced."""
        if replay.phase == "rolling":
            others = self._others(world, number, replay)
            return any(each.phase == "promoted" and each.turn > replay.turn for each in others)
        is_foreign = (
            world.areas[replay.warehouse].label == "other" and Rule.LABEL_COMPARED not in self.removed
        )
        is_older = (
            Rule.EPOCH_AGAIN not in self.removed
            and world.areas[replay.warehouse].file == "loaded"
            and replay.epoch > 1
        )
        return is_foreign or is_older

    def _is_alone(self, world: World, number: int, replay: Replay) -> bool:
        """Whether no replay of another table changes rows of the range: those of one table exclude each other."""
        return not any(
            each.phase in ENDS and each.warehouse != replay.warehouse
            for each in self._others(world, number, replay)
        )

    def _others(self, world: World, number: int, replay: Replay) -> list[Replay]:
        """The replays that may replace the same rows."""
        others = (*world.replays[: number - 1], *world.replays[number:])
        if Rule.NO_OTHER_REPLAYS in self.removed:
            return list(others)
        return [each for each in others if each.warehouse == replay.warehouse]

    def _epoch(self, world: World, own: int) -> int:
        """The epoch of the record, by marks and backlogs: that of the commit if nobody has loaded it."""
        areas = [world.areas[own]] if Rule.ALL_MARKS in self.removed else world.areas
        known = ("loaded",) if Rule.ALL_BACKLOGS in self.removed else ("loaded", "backlog")
        return 1 if any(area.file in known for area in areas) else world.epoch

    def _new_rows(self, number: int, replay: Replay) -> tuple[tuple[int, int], ...]:
        if replay.phase == "rolling":
            return replay.former
        return ((replay.epoch, number),) if self.makes[number - 1] else ()

    def _recorded(self, world: World, number: int, replay: Replay, holder: int) -> Pc:
        waits = world.areas[holder].waits
        if waits is None or waits[1] != replay.job:
            return self._moved(number, replay, phase=ENDS[replay.phase])
        change = self._change(world, number, replay, waits[2])
        turn = replay.turn if replay.phase == "rolling" else 1 + max(each.turn for each in world.replays)
        noted = replay._replace(turn=turn)
        left = self._left(world, number, noted, holder, ENDS[replay.phase], done=True)
        return ("count", change), left

    def _left(self, world: World, number: int, replay: Replay, holder: int, phase: str, *, done: bool) -> Pc:
        """Let the table go on, then end the replay's job."""
        area, ended = world.areas[holder], self._moved(number, replay, phase=phase)
        if area.waits is None or area.waits[1] != replay.job:
            return ended
        rows = area.rows + (area.waits[2] if done else 0)
        return ("state", holder, area.generation, None, rows), ended

    def _change(self, world: World, number: int, replay: Replay, rows: int) -> Change:
        own = replay.warehouse
        name = own if Rule.COUNTED_BY_NAME not in self.removed else 0
        job: JobId = replay.job if Rule.COUNTED_BY_JOB not in self.removed else NO_JOB
        lacks = lacking(world, own, self.given[own], self.has_row)
        if Rule.BROUGHT in self.removed:
            brought = 0
        elif replay.phase == "rolling":
            known = (each for each in world.changes if (each.warehouse, each.job[1]) == (own, number))
            brought = 0 if Rule.TAKEN_BACK in self.removed else -sum(each.brought for each in known)
        else:
            brought = rows if Rule.UP_TO_LACKING in self.removed else min(rows, lacks)
        return Change(name, job, rows, max(brought, 0) if replay.phase == "promoting" else brought)

    @staticmethod
    def _moved(number: int, replay: Replay, **changes: object) -> Pc:
        stored = replay._replace(**changes)  # type: ignore[arg-type]
        return calls(("replay", number, stored, replay.generation))
