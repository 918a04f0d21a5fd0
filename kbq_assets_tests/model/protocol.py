"""The protocol as a transition system: every process's next step, every fault, the warehouse's jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from types import ModuleType
from typing import Any, Final

from kbq_assets_tests.model import extractor, janitor, loader, operator, promises
from kbq_assets_tests.model.canonical import canonical
from kbq_assets_tests.model.engine import Label
from kbq_assets_tests.model.program import IDLE, Step
from kbq_assets_tests.model.rules import Rule
from kbq_assets_tests.model.world import (
    EPOCH,
    MISSING,
    SCHEMA,
    SWAPS,
    TABLE,
    Files,
    Job,
    Op,
    Pc,
    Scope,
    World,
    apply,
    initial_world,
    replaced,
)

Transition = tuple[Label, World, bool]
_KEPT_WORLDS: Final = 50_000

PROGRAMS: dict[str, ModuleType] = {
    "extractors": extractor,
    "loaders": loader,
    "janitors": janitor,
    "operators": operator,
}


@dataclass(frozen=True)
class StagingAndLoading:
    """The model of one partition within a scope; see `engine.Model`.

    `reduce=False` keeps every state as it comes: for testing the reductions in small scopes.
    """

    scope: Scope
    reduce: bool = True
    parts: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def initial(self) -> World:
        return initial_world(self.scope)

    def violation(self, state: World) -> str | None:
        return promises.violation(self.scope, state)

    def is_goal(self, state: World) -> bool:
        return promises.is_goal(self.scope, state)

    def compact(self, state: World) -> World:
        return World._make(map(self.parts.setdefault, state, state))

    def successors(self, state: World) -> Iterator[Transition]:
        """Every single step: of a process, of the warehouse, of a late call, of bad luck."""
        for label, world, is_fault in self._raw_successors(state):
            yield label, self._canonical(world) if self.reduce else world, is_fault

    @cached_property
    def _canonical(self) -> Callable[[World], World]:
        """Half of the steps lead to a world that another step led to shortly before."""
        return lru_cache(_KEPT_WORLDS)(partial(canonical, self.scope))

    def _raw_successors(self, world: World) -> Iterator[Transition]:
        for role, program in PROGRAMS.items():
            yield from self._role_steps(world, role, program)
        yield from self._late_calls(world)
        for job in world.jobs:
            if job[2] == "running":
                yield from self._job_ends(world, job)
        yield from _losses(world)

    def _role_steps(self, world: World, role: str, program: ModuleType) -> Iterator[Transition]:
        pcs: tuple[Pc, ...] = getattr(world, role)
        alike = self.scope.keeps(Rule.JOB_ID_FROM_STATE)
        for process, pc in enumerate(pcs):
            if alike and process and pc in pcs[:process]:
                continue  # its twin's steps lead to the same states
            name = f"{role[:-1]} {process}"
            for step in program.steps(self.scope, world, process, pc):
                for label, after, next_pc, is_fault in self._outcomes(world, step):
                    moved: dict[str, Any] = {role: replaced(pcs, process, next_pc)}
                    yield (name, *label), after._replace(**moved), is_fault

    def _outcomes(self, world: World, step: Step) -> Iterator[tuple[Label, World, Pc, bool]]:
        """How a step may end. A crash before a call is a crash with a call in flight that never lands."""
        spent = _spend(world, step.spends) if step.spends else world
        is_fault = bool(step.spends)
        if step.op is None:
            yield step.label, spent, step.done, is_fault
            return
        after, accepted = apply(self.scope, spent, step.op)
        if accepted:
            yield step.label, after, step.done, is_fault
        else:
            yield (*step.label, "-> refused"), after, step.refused, is_fault
        if step.spends:
            return
        if world.budget.timeouts:
            yield from _timeouts(world, step, after if accepted else None)
        if world.budget.crashes:
            crashed = _launch(_spend(world, "crashes"), step.op)
            yield ("CRASHES, in flight:", *step.label), crashed, IDLE, True

    def _late_calls(self, world: World) -> Iterator[Transition]:
        for index, op in enumerate(world.in_flight):
            landed = world._replace(in_flight=world.in_flight[:index] + world.in_flight[index + 1 :])
            yield ("LATE", *op), apply(self.scope, landed, op)[0], True

    def _job_ends(self, world: World, job: Job) -> Iterator[Transition]:
        """The warehouse's load is atomic: all rows of all files, or none."""
        contents = tuple(promises.content(self.scope, world, file) for file in job[1])
        present: Files = tuple(c for c in contents if c)
        if len(present) < len(contents):
            yield ("warehouse", "file missing", job[0]), _ended(world, job, "file missing"), False
            return
        loaded = world._replace(rows=self._rows_after(world, present))
        yield ("warehouse", "loads", job[0]), _ended(loaded, job, "loaded"), False
        if world.budget.transient:
            yield ("warehouse", "FAILS", job[0]), _ended(_spend(world, "transient"), job, "failed"), True
        if world.budget.rejections:
            for file in job[1]:
                after = _ended(_spend(world, "rejections"), job, "rejected", (file,))
                yield ("warehouse", "REJECTS", file, job[0]), after, True

    def _rows_after(self, world: World, files: Files) -> tuple[tuple[tuple[int, ...], ...], ...]:
        rows = world.rows
        for file in files:
            column = self.scope.columns.index((file[TABLE], file[SCHEMA]))
            more = rows[column][file[EPOCH]] + tuple(self.scope.offsets(file))
            rows = replaced(rows, column, replaced(rows[column], file[EPOCH], more))
        return rows


def _spend(world: World, name: str) -> World:
    left = getattr(world.budget, name) - 1
    return world._replace(budget=world.budget._replace(**{name: left}))


def _launch(world: World, op: Op) -> World:
    return world._replace(in_flight=(*world.in_flight, op))


def _timeouts(world: World, step: Step, applied: World | None) -> Iterator[tuple[Label, World, Pc, bool]]:
    assert step.op
    if applied and step.op[0] in SWAPS:
        yield (
            (*step.label, "-> APPLIED, but its own retry is refused"),
            _spend(applied, "timeouts"),
            step.refused,
            True,
        )
    yield (*step.label, "-> NO ANSWER"), _launch(_spend(world, "timeouts"), step.op), step.unknown, True


def _ended(world: World, job: Job, status: str, rejected: Files = ()) -> World:
    return world._replace(jobs=(world.jobs - {job}) | {(job[0], job[1], status, rejected)})


def _losses(world: World) -> Iterator[Transition]:
    """Someone deletes a table's state (L6)."""
    if not world.budget.losses:
        return
    for index, table in enumerate(world.tables):
        if table:
            lost: Any = world._replace(tables=replaced(world.tables, index, MISSING))
            yield ("LOST: state of table", index), _spend(lost, "losses"), True
