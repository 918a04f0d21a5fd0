"""The operator: parks and resumes tables, gives up a load job, resets the partition (E7, E9, L3)."""

from __future__ import annotations

from collections.abc import Iterator

from kbq_assets_tests.model.program import IDLE, Step, calls, entry_of, find_job, reads
from kbq_assets_tests.model.rules import Rule
from kbq_assets_tests.model.world import Commit, Pc, Scope, TableState, World


def steps(scope: Scope, world: World, _process: int, pc: Pc) -> Iterator[Step]:
    """What the operator standing at `pc` may do next."""
    return _STEPS[pc[0]](scope, world, pc)


def _idle(scope: Scope, world: World, _pc: Pc) -> Iterator[Step]:
    if world.budget.resets:
        yield reads(("decide to reset",), ("reset", world.commit.epoch), spends="resets")
    for index, table in enumerate(world.tables):
        if not table or index in scope.held:
            continue
        if table.parked:
            yield _swap("resume", index, table, table._replace(parked=False))
        elif world.budget.parks:
            yield _swap("park", index, table, table._replace(parked=True))._replace(spends="parks")
        if world.budget.give_ups and entry_of(table):
            yield from _begin_give_up(scope, world, index, table)


def _swap(label: str, index: int, read: TableState, new: TableState) -> Step:
    return calls((label, index), ("swap table", index, read.gen, new), IDLE)


def _begin_give_up(scope: Scope, world: World, index: int, table: TableState) -> Iterator[Step]:
    """L3: a load job may be given up only if its id was never inserted, as far as one can see."""
    job_id = ("job", index, table.seq, table.uuid)
    if find_job(world, job_id) is None:
        place = "burn" if scope.keeps(Rule.GIVE_UP_BURNS) else "end job"
        yield reads(("decide to give up", job_id), (place, index, table, job_id), spends="give_ups")


def _burn(_scope: Scope, _world: World, pc: Pc) -> Iterator[Step]:
    """Insert a no-op under the job's id, so that a late insert of the load is refused."""
    look = ("look", *pc[1:])
    yield calls(("burn", pc[3]), ("insert job", pc[3], ()), look, look, look)


def _look(_scope: Scope, world: World, pc: Pc) -> Iterator[Step]:
    job = find_job(world, pc[3])
    if job is None:
        yield reads(("get job: not found",), ("burn", *pc[1:]))
    elif job[1]:
        yield reads(("get job: it was submitted after all",), IDLE)
    else:
        yield reads(("get job: burned",), ("end job", *pc[1:]))


def _end_job(_scope: Scope, _world: World, pc: Pc) -> Iterator[Step]:
    _, index, table, _ = pc
    yield _swap("swap: give up the job", index, table, table._replace(entry=()))


def _reset(scope: Scope, world: World, pc: Pc) -> Iterator[Step]:
    """E9: read the commit; refuse while windows are pending, unless they are given up."""
    commit = world.commit
    if commit.epoch != pc[1]:
        yield reads(("read commit: reset already",), IDLE)
    elif commit.pending and not scope.reset_gives_up and scope.keeps(Rule.RESET_REFUSES_PENDING):
        yield reads(("refuse: windows are pending",), IDLE)
    else:
        yield reads(("read commit",), ("swap", commit.gen, _after_reset(scope, commit), pc))


def _after_reset(scope: Scope, commit: Commit) -> Commit:
    given_up = commit.pending if scope.keeps(Rule.RESET_REFUSES_PENDING) else ()
    return commit._replace(
        epoch=commit.epoch + 1,
        next=0,
        pending=(),
        given_up=commit.given_up + given_up,
        ended=(*commit.ended, commit.next),
    )


def _swap_reset(_scope: Scope, _world: World, pc: Pc) -> Iterator[Step]:
    _, gen, commit, again = pc
    yield calls(("swap reset", commit), ("swap commit", gen, commit), IDLE, again, again)


_STEPS = {
    "idle": _idle,
    "burn": _burn,
    "look": _look,
    "end job": _end_job,
    "reset": _reset,
    "swap": _swap_reset,
}
