"""Steps and reads that the programs of all processes have in common."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from kbq_assets_tests.model.world import FIRST_NONCE, Job, JobEntry, JobId, Op, Pc, TableState, World

IDLE: Pc = ("idle",)


class Step(NamedTuple):
    """One step a program may take from where it stands.

    Without `op` it only reads or decides. With one, it goes on at `done`, at `refused` when the precondition
    did not hold, at `unknown` when no answer came. `spends` names the budget of an act that is no duty of
    anyone's: like a fault, it does not count as progress.
    """

    label: tuple[Any, ...]
    op: Op | None
    done: Pc
    refused: Pc
    unknown: Pc
    spends: str = ""


def reads(label: tuple[Any, ...], then: Pc, *, spends: str = "") -> Step:
    """A step that reads or decides, and ends at once."""
    return Step(label, None, then, then, then, spends)


def calls(label: tuple[Any, ...], op: Op, done: Pc, refused: Pc = IDLE, unknown: Pc = IDLE) -> Step:
    """A step that makes one remote call."""
    return Step(label, op, done, refused, unknown)


@cache
def names_in(value: tuple[Any, ...]) -> tuple[int, ...]:
    """Every unique name inside the value, in order of first appearance."""
    found: dict[int, None] = {}
    for item in value:
        if type(item) is int:
            if item >= FIRST_NONCE:
                found[item] = None
        elif isinstance(item, tuple):
            found.update(dict.fromkeys(names_in(item)))
    return tuple(found)


def fresh_nonce(world: World) -> int:
    """A name that nothing in the world carries."""
    names = [n for part in world if isinstance(part, (tuple, frozenset)) for n in names_in(tuple(part))]
    return max(names, default=FIRST_NONCE - 1) + 1


def find_job(world: World, job_id: JobId) -> Job | None:
    """The warehouse's job of that id."""
    return next((job for job in world.jobs if job[0] == job_id), None)


def is_held(world: World, index: int) -> bool:
    """Is the table parked (or gone)?"""
    table = world.tables[index]
    return bool(table) and isinstance(table, TableState) and table.parked


def entry_of(table: TableState | tuple[()]) -> JobEntry | None:
    """The table's load job in flight, if it has a state and a job."""
    return table.entry or None if table else None
