"""Batches that a statement applies, in order, each once (ADR 16): two loaders and an operator, explored exhaustively.

A load job puts a batch into a scratch table. A second job is one transaction: it raises the target's ledger from k-1
to k and runs the statement on the scratch table. The state is swapped; jobs run when the warehouse likes, under ids
that run once. A process may die during any call, which then takes effect later or never. A job's status may be an error
although its transaction is committed. The operator may skip a batch.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kbq_assets_tests.model.engine import Label


class Rule(enum.Enum):
    """What makes statements safe."""

    LEDGER_IN_TRANSACTION = "S1: the transaction of the statement raises the ledger"
    LEDGER_IS_CONDITION = "S1: the transaction requires that the ledger stands at the batch before"
    LEDGER_DECIDES = "S2: the ledger decides whether a batch is applied, not the job's status"
    LEDGER_SAYS_HOW = (
        "S5: the ledger says whether its batch was applied or skipped, and whoever records it says the same"
    )
    SKIP_RAISES_LEDGER = "S5: skipping a batch raises the ledger before the state says so"
    SCRATCH_PER_JOB = "S3: a scratch table is named after the load job that fills it"
    NEW_ID = "S6: a statement that failed runs again under a new id"
    BURN_SPARES_LEDGER = "S6: burning the id of a refused statement does not raise the ledger"
    FENCED = "L2: the state is swapped on the generation that was read"


class InFlight(NamedTuple):
    """The job that the table waits for: kind (load or apply), id, batch, and the scratch table of the batch."""

    kind: str
    id: int
    batch: int
    scratch: int


class State(NamedTuple):
    """The swapped object: ``skipped`` are batches that an operator gave up."""

    generation: int = 0
    sequence: int = 0
    applied: int = 0
    skipped: frozenset[int] = frozenset()
    in_flight: InFlight | None = None


class Job(NamedTuple):
    """A job of the warehouse; its status is running, done, failed or burned."""

    in_flight: InFlight
    status: str


Pc = tuple[Any, ...]
IDLE: Pc = ("idle",)


class World(NamedTuple):
    """Everything that exists. ``table`` holds the batches in the order in which statements applied them; ``ledger`` the
    last batch, and whether the operator skipped it."""

    state: State = State()
    jobs: frozenset[Job] = frozenset()
    scratch: frozenset[tuple[int, tuple[int, ...]]] = frozenset()
    table: tuple[int, ...] = ()
    ledger: tuple[int, bool] = (0, False)
    loaders: tuple[Pc, ...] = (IDLE, IDLE)
    operator: Pc = IDLE
    late: frozenset[Pc] = frozenset()
    crashes: int = 0
    failures: int = 0
    skips: int = 0


Step = tuple[Label, World, bool]


@dataclass(frozen=True)
class Statements:
    """The model in a scope: batches, calls that crash, statements that fail, batches that the operator skips. It lacks
    the rules in ``removed``."""

    end: int = 2
    crashes: int = 0
    failures: int = 0
    skips: int = 0
    removed: frozenset[Rule] = field(default_factory=frozenset)

    def initial(self) -> World:
        return World(crashes=self.crashes, failures=self.failures, skips=self.skips)

    @property
    def most_swaps(self) -> int:
        """Three swaps per batch, and one more per fault. More than that means that the program never ends."""
        return 3 * self.end + self.failures + self.crashes + self.skips

    def compact(self, state: World) -> World:
        return state

    def successors(self, state: World) -> Iterator[Step]:
        for number, pc in enumerate(state.loaders):
            yield from self._step(state, pc, lambda w, pc, n=number: _loader_at(w, n, pc), self._decide)
        yield from self._step(state, state.operator, lambda w, pc: w._replace(operator=pc), self._skip)
        for job in sorted(state.jobs):
            if job.status == "running":
                yield from self._run(state, job)
        for call in sorted(state.late, key=repr):
            rest = state._replace(late=state.late - {call})
            yield ("late", *call), self._applied(rest, call), False
            yield ("never", *call), rest, False

    def violation(self, state: World) -> str | None:
        if len(set(state.table)) < len(state.table):
            return f"DUPLICATE: {state.table}"
        if list(state.table) != sorted(state.table):
            return f"ORDER: {state.table}"
        known = state.state
        if wrong := known.skipped & set(state.table):
            return f"SKIPPED: {sorted(wrong)} are in the table although an operator gave them up"
        missing = set(range(1, known.applied + 1)) - known.skipped - set(state.table)
        return f"LOSS: {sorted(missing)} count as applied" if missing else None

    def is_goal(self, state: World) -> bool:
        idle = {*state.loaders, state.operator} == {IDLE} and not state.late
        return idle and state.state.applied == self.end

    # A process reads, then makes the calls that follow from what it read, one after another

    def _step(self, world: World, pc: Pc, at: Any, begin: Any) -> Iterator[Step]:
        if pc == IDLE:
            for label, calls in begin(world):
                yield ("read", label), at(world, calls), False
            return
        call, then = pc
        after = self._applied(world, call)
        refused = after == world and call[0] == "swap"
        yield call, at(after, IDLE if refused else then), False
        if call[0] == "insert" and call[1].kind == "apply" and world.failures:
            raised = [("raise", call[1].batch, False)] if Rule.BURN_SPARES_LEDGER in self.removed else []
            fewer = world._replace(failures=world.failures - 1, late=world.late | {call})
            yield ("refused", *call), at(fewer, _calls(("burn", call[1]), *raised)), True
        if world.crashes:
            died = world._replace(crashes=world.crashes - 1, late=world.late | {call})
            yield ("crash", *call), at(died, IDLE), True

    def _decide(self, world: World) -> Iterator[tuple[str, Pc]]:
        state, submitted = world.state, world.state.in_flight
        if submitted is None:
            if state.applied < self.end:
                yield "load", _calls(self._begin(state, "load", state.applied + 1, 0))
            return
        status = next((job.status for job in world.jobs if job.in_flight.id == submitted.id), None)
        if status is None:
            yield "submit", _calls(("insert", submitted))
        elif status != "running" and submitted.kind == "load":
            yield "loaded", _calls(self._begin(state, "apply", submitted.batch, submitted.scratch))
        elif status != "running":
            yield from self._settle(world, submitted, status)

    def _settle(self, world: World, submitted: InFlight, status: str) -> Iterator[tuple[str, Pc]]:
        reached = (
            status == "done" if Rule.LEDGER_DECIDES in self.removed else world.ledger[0] >= submitted.batch
        )
        if reached:
            skipped = world.ledger == (submitted.batch, True) and Rule.LEDGER_SAYS_HOW not in self.removed
            yield "applied", _calls(_record(world.state, submitted.batch, skipped=skipped))
        elif Rule.LEDGER_IN_TRANSACTION in self.removed and status == "done":
            raised = ("raise", submitted.batch, False)
            yield "raise", _calls(raised, _record(world.state, submitted.batch, skipped=False))
        elif world.state.generation < self.most_swaps:
            yield "again", _calls(self._begin(world.state, "apply", submitted.batch, submitted.scratch))

    def _begin(self, state: State, kind: str, batch: int, scratch: int) -> Pc:
        """The swap that enters a job, under the next id; a statement's retry without the rule keeps the id."""
        submitted = state.in_flight
        again = kind == "apply" and submitted is not None and submitted.kind == "apply"
        number = submitted.id if submitted and again and Rule.NEW_ID in self.removed else state.sequence + 1
        if kind == "load":
            scratch = 0 if Rule.SCRATCH_PER_JOB in self.removed else number
        return _swap(state, sequence=number, in_flight=InFlight(kind, number, batch, scratch))

    # The operator: raise the ledger, unless the batch is applied; then record

    def _skip(self, world: World) -> Iterator[tuple[str, Pc]]:
        submitted = world.state.in_flight
        if not world.skips or submitted is None or world.ledger[0] >= submitted.batch:
            return
        record = _record(world.state, submitted.batch, skipped=True)
        if Rule.SKIP_RAISES_LEDGER in self.removed:
            yield "skip", _calls(record)
        else:
            yield "skip", _calls(("raise", submitted.batch, True), ("record", submitted.batch))

    # The warehouse

    def _run(self, world: World, job: Job) -> Iterator[Step]:
        submitted = job.in_flight
        if submitted.kind == "load":
            yield (
                ("runs", *submitted),
                _ended(world, job, "done")._replace(scratch=_filled(world, submitted)),
                False,
            )
            return
        rows = dict(world.scratch).get(submitted.scratch)
        behind = world.ledger[0] != submitted.batch - 1 and Rule.LEDGER_IS_CONDITION not in self.removed
        if rows is None or behind:
            yield ("refused", *submitted), _ended(world, job, "failed"), False
            return
        applied = world._replace(table=world.table + rows)
        if Rule.LEDGER_IN_TRANSACTION not in self.removed:
            applied = applied._replace(ledger=(submitted.batch, False))
        yield ("runs", *submitted), _ended(applied, job, "done"), False
        if world.failures:
            fewer = world.failures - 1
            yield ("fails", *submitted), _ended(world, job, "failed")._replace(failures=fewer), True
            late = _ended(applied, job, "failed")._replace(failures=fewer)
            yield ("fails after commit", *submitted), late, True

    def _applied(self, world: World, call: Pc) -> World:
        """The world after a call; a swap on another generation, or a second job of one id, changes nothing."""
        match call:
            case ("swap", wanted, generation):
                if world.state.generation != generation and Rule.FENCED not in self.removed:
                    return world
                return world._replace(state=wanted)
            case ("insert" | "burn" as name, submitted):
                taken = any(job.in_flight.id == submitted.id for job in world.jobs)
                job = Job(submitted, "running" if name == "insert" else "burned")
                return world if taken else world._replace(jobs=world.jobs | {job})
            case ("raise", batch, skipped):
                if world.ledger[0] != batch - 1:
                    return world
                return world._replace(ledger=(batch, skipped), skips=world.skips - skipped)
            case ("record", batch):
                return self._recorded(world, batch)
        raise ValueError(call)

    def _recorded(self, world: World, batch: int) -> World:
        """The operator reads ledger and state again, and swaps: a batch that was applied is not skipped."""
        if world.state.applied != batch - 1 or world.ledger[0] < batch:
            return world
        return self._applied(world, _record(world.state, batch, skipped=world.ledger == (batch, True)))


def _calls(*calls: Pc) -> Pc:
    chain = IDLE
    for call in reversed(calls):
        chain = (call, chain)
    return chain


def _swap(state: State, **changes: Any) -> Pc:
    wanted = state._replace(generation=state.generation + 1, **changes)
    return ("swap", wanted, state.generation)


def _record(state: State, batch: int, *, skipped: bool) -> Pc:
    given_up = state.skipped | {batch} if skipped else state.skipped
    return _swap(state, applied=batch, skipped=given_up, in_flight=None)


def _loader_at(world: World, number: int, pc: Pc) -> World:
    loaders = (*world.loaders[:number], pc, *world.loaders[number + 1 :])
    return world._replace(loaders=tuple(sorted(loaders, key=repr)))


def _ended(world: World, job: Job, status: str) -> World:
    return world._replace(jobs=(world.jobs - {job}) | {Job(job.in_flight, status)})


def _filled(world: World, submitted: InFlight) -> frozenset[tuple[int, tuple[int, ...]]]:
    held = dict(world.scratch)
    held[submitted.scratch] = (*held.get(submitted.scratch, ()), submitted.batch)
    return frozenset(held.items())
