"""Batches of files (PROTOCOL F1 to F8): two runners, an operator and an uploader, explored exhaustively.

A batch is a path and the generation of its success object. A runner reads the state and lists the source. Then it
swaps the state, submits a job or uses up an id, and goes on with the state that it swapped. A process may die during
any call, which then takes effect later or never. A job reads the files that exist when it is inserted. Files may be
uploaded again at any time, except while the state lists their batch as in flight.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kbq_assets_tests.model.engine import Label


class Rule(enum.Enum):
    """What makes batches of files safe."""

    FENCED = "F3: the state is swapped on the generation that was read"
    INTENT_FIRST = "F3: a batch is entered before its job is submitted"
    COMPARED = "F4: a job is submitted if the files are those of the state"
    SAME_ID = "F4: a job that the warehouse does not know is submitted under its own id"
    BURNED = "F4: an id is burned before its batch is pending again, or fails"
    ERRORS_COUNT = "F5: a batch whose job ended with an error is not applied"
    BY_PATH = "F6: an ordered batch waits for those in flight, failed, or pending before it"
    REFUSED_IN_FLIGHT = "F8: no retry or skip while the job is in flight"


class InFlight(NamedTuple):
    """A batch in flight. ``burning``: its id is given up, and then it is pending `again`, or `failed`."""

    path: int
    generation: int
    id: int
    burning: str = ""


#: A batch: path and generation.
Batch = tuple[int, int]


class State(NamedTuple):
    """The swapped object. ``applied`` has the newest settled generation of each path."""

    applied: tuple[int, ...]
    generation: int = 0
    sequence: int = 0
    in_flight: frozenset[InFlight] = frozenset()
    failed: frozenset[Batch] = frozenset()
    skipped: frozenset[Batch] = frozenset()


class Job(NamedTuple):
    """A job of the warehouse: the batch that it read (None if burned). It is running, done or failed."""

    id: int
    batch: Batch | None
    status: str


class Process(NamedTuple):
    """What a process knows, and the call that it makes next."""

    state: State | None = None
    listing: tuple[int, ...] | None = None
    call: tuple[Any, ...] | None = None


IDLE = Process()


class World(NamedTuple):
    """Everything that exists. ``source`` has the generation of each path's success object, ``visible`` the batches in
    the order in which jobs applied them."""

    source: tuple[int, ...]
    state: State
    jobs: frozenset[Job] = frozenset()
    visible: tuple[Batch, ...] = ()
    runners: tuple[Process, ...] = (IDLE, IDLE)
    operator: Process = IDLE
    late: frozenset[tuple[Any, ...]] = frozenset()
    uploads: int = 0
    crashes: int = 0
    failures: int = 0


Step = tuple[Label, World, bool]


@dataclass(frozen=True)
class FileBatchRuns:
    """The model in a scope: paths, further uploads, calls that crash, jobs that fail or are refused. It lacks the rules
    in ``removed``."""

    paths: int = 2
    uploads: int = 0
    crashes: int = 0
    failures: int = 0
    ordered: bool = True
    removed: frozenset[Rule] = field(default_factory=frozenset)

    def initial(self) -> World:
        none = (0,) * self.paths
        return World(none, State(none), uploads=self.uploads, crashes=self.crashes, failures=self.failures)

    def compact(self, state: World) -> World:
        return state

    def violation(self, state: World) -> str | None:
        if len({*state.visible}) < len(state.visible):
            return f"DUPLICATE: {state.visible}"
        skipped = {path for path, _ in state.state.skipped}  # uploaded again, such a path comes later
        first = [*dict.fromkeys(path for path, _ in state.visible if path not in skipped)]
        if self.ordered and first != sorted(first):
            return f"ORDER: {state.visible}"
        if wrong := state.state.skipped & {*state.visible}:
            return f"SKIPPED: {sorted(wrong)} are visible although an operator gave them up"
        settled = {(path, newest) for path, newest in enumerate(state.state.applied) if newest}
        missing = settled - state.state.skipped - {*state.visible}
        return f"LOSS: {sorted(missing)} count as applied" if missing else None

    def is_goal(self, state: World) -> bool:
        idle = {*state.runners, state.operator} == {IDLE} and not state.late
        return idle and 0 not in state.source and state.state.applied == state.source

    def successors(self, state: World) -> Iterator[Step]:
        yield from self._uploads(state)
        for number, process in enumerate(state.runners):
            for label, world, own, is_fault in self._runner(state, process):
                yield label, _with_runner(world, number, own), is_fault
        for label, world, own, is_fault in self._operator(state, state.operator):
            yield label, world._replace(operator=own), is_fault
        for job in sorted(state.jobs, key=repr):
            if job.status == "running":
                yield from _ends(state, job)
        for call in sorted(state.late, key=repr):
            rest = state._replace(late=state.late - {call})
            yield ("late", *call), self._called(rest, call), False
            yield ("never", *call), rest, False

    def _uploads(self, world: World) -> Iterator[Step]:
        """First uploads come in the order of their paths."""
        used = {running.path for running in world.state.in_flight}
        for path, newest in enumerate(world.source):
            uploaded = (*world.source[:path], newest + 1, *world.source[path + 1 :])
            if newest and world.uploads and path not in used:
                yield ("again", path), world._replace(source=uploaded, uploads=world.uploads - 1), False
            elif not newest and 0 not in world.source[:path]:
                yield ("upload", path), world._replace(source=uploaded), False

    # Processes read, then call

    def _runner(self, world: World, own: Process) -> Iterator[tuple[Label, World, Process, bool]]:
        if own.call is not None:
            yield from self._make(world, own, own.call)
        elif own.state is None:
            yield ("state",), world, own._replace(state=world.state), False
        elif own.listing is None:
            yield ("list",), world, own._replace(listing=world.source), False
        else:
            unchanged = tuple(  # an entry lists the batch's files, and sees another success object
                newest * (newest == now) for newest, now in zip(own.listing, world.source, strict=True)
            )
            for call in self._planned(world, own.state, own.listing, unchanged):
                yield ("plan", *call), world, own._replace(call=call), False
            yield ("ends",), world, IDLE, False

    def _operator(self, world: World, own: Process) -> Iterator[tuple[Label, World, Process, bool]]:
        if own.call is not None:
            yield from self._make(world, own, own.call)
            return
        state = world.state
        stopped = {*state.failed}
        if Rule.REFUSED_IN_FLIGHT in self.removed:
            stopped |= {(each.path, each.generation) for each in state.in_flight}
        for batch in sorted(stopped):
            rest = frozenset(each for each in state.in_flight if each[:2] != batch)
            retried = state._replace(failed=state.failed - {batch}, in_flight=rest)
            skipped = _settled(retried, batch)._replace(skipped=state.skipped | {batch})
            for name, wanted in (("retry", retried), ("skip", skipped)):
                yield (name, *batch), world, Process(call=_swap(state, wanted)), False

    def _make(
        self, world: World, own: Process, call: tuple[Any, ...]
    ) -> Iterator[tuple[Label, World, Process, bool]]:
        after, then = self._called(world, call), own._replace(call=None)
        if call[0] == "swap":
            then = IDLE if after == world else then._replace(state=call[1]) if own.state else IDLE
        if call[0] == "submit first":
            then = then._replace(call=call[1])
        if call[0] == "compare":
            then = then._replace(call=self._compared(world, call[1], call[2]))
        yield call, after, then, False
        if call[0] == "insert" and world.failures:
            refused = call[1]._replace(burning="failed")
            swap = _swap(own.state, _entered_again(own.state, call[1], refused)) if own.state else None
            yield (
                ("refused", *call),
                world._replace(failures=world.failures - 1),
                own._replace(call=swap),
                True,
            )
        if world.crashes and call[0] != "compare":
            yield (
                ("crash", *call),
                world._replace(crashes=world.crashes - 1, late=world.late | {call}),
                IDLE,
                True,
            )

    # What a runner does next

    def _planned(
        self, world: World, state: State, listing: tuple[int, ...], unchanged: tuple[int, ...]
    ) -> Iterator[tuple[Any, ...]]:
        for running in sorted(state.in_flight):
            yield from self._step(world, state, running)
        for path in filter(unchanged.__getitem__, self._ready(state, listing)):
            running = InFlight(path, listing[path], state.sequence + 1)
            entered = state._replace(
                sequence=running.id,
                in_flight=state.in_flight | {running},
                failed=frozenset(each for each in state.failed if each[0] != path),
            )
            enter = _swap(state, entered)
            yield ("submit first", enter, running) if Rule.INTENT_FIRST in self.removed else enter

    def _ready(self, state: State, listing: tuple[int, ...]) -> Iterator[int]:
        busy = {each.path for each in state.in_flight} | {path for path, _ in state.failed}
        pending = [path for path, newest in enumerate(listing) if newest not in (0, state.applied[path])]
        one_by_one = self.ordered and Rule.BY_PATH not in self.removed
        if one_by_one and busy:
            return
        yield from (path for path in pending[: 1 if one_by_one else None] if path not in busy)

    def _step(self, world: World, state: State, running: InFlight) -> Iterator[tuple[Any, ...]]:
        """What follows from the state of the job in flight."""
        batch, left = running[:2], state._replace(in_flight=state.in_flight - {running})
        job = next((each for each in world.jobs if each.id == running.id), None)
        if job is None and running.burning:
            if Rule.BURNED in self.removed:
                yield _swap(state, _given_up(left, running))
            else:
                yield ("burn", running)
        elif job is None:
            yield ("compare", running, state)
        elif job.batch is None:
            yield _swap(state, _given_up(left, running))
        elif job.status == "failed" and Rule.ERRORS_COUNT not in self.removed:
            yield _swap(state, left._replace(failed=left.failed | {batch}))
        elif job.status != "running":
            yield _swap(state, _settled(left, batch))

    def _compared(self, world: World, running: InFlight, state: State) -> tuple[Any, ...]:
        """The call that submits a job, or gives it up because its files are others by now."""
        if world.source[running.path] != running.generation and Rule.COMPARED not in self.removed:
            return _swap(state, _entered_again(state, running, running._replace(burning="again")))
        if Rule.SAME_ID in self.removed and ("insert", running) in world.late:
            another = running._replace(id=state.sequence + 1)
            return _swap(state, _entered_again(state, running, another)._replace(sequence=another.id))
        return ("insert", running)

    # The calls

    def _called(self, world: World, call: tuple[Any, ...]) -> World:
        """The world after a call; a swap on another generation, or a second job of one id, changes nothing."""
        match call:
            case ("swap", wanted, generation):
                if world.state.generation != generation and Rule.FENCED not in self.removed:
                    return world
                return world._replace(state=wanted)
            case ("insert", running) | ("submit first", _, running):
                return _inserted(
                    world, Job(running.id, (running.path, world.source[running.path]), "running")
                )
            case ("burn", running):
                return _inserted(world, Job(running.id, None, "done"))
        return world


def _inserted(world: World, job: Job) -> World:
    if any(each.id == job.id for each in world.jobs):
        return world
    return world._replace(jobs=world.jobs | {job})


def _ends(world: World, job: Job) -> Iterator[Step]:
    rest = world.jobs - {job}
    assert job.batch is not None
    done = world._replace(jobs=rest | {job._replace(status="done")}, visible=(*world.visible, job.batch))
    yield ("done", *job), done, False
    if world.failures:
        failed = world._replace(jobs=rest | {job._replace(status="failed")}, failures=world.failures - 1)
        yield ("fails", *job), failed, True


def _swap(state: State, wanted: State) -> tuple[Any, ...]:
    return ("swap", wanted._replace(generation=state.generation + 1), state.generation)


def _settled(state: State, batch: Batch) -> State:
    path, newest = batch
    return state._replace(applied=(*state.applied[:path], newest, *state.applied[path + 1 :]))


def _given_up(left: State, running: InFlight) -> State:
    return left._replace(failed=left.failed | {running[:2]}) if running.burning == "failed" else left


def _entered_again(state: State, running: InFlight, other: InFlight) -> State:
    return state._replace(in_flight=state.in_flight - {running} | {other})


def _with_runner(world: World, number: int, own: Process) -> World:
    runners = (*world.runners[:number], own, *world.runners[number + 1 :])
    return world._replace(runners=tuple(sorted(runners, key=repr)))
