"""The loader: chooses a table, plans a batch (L1), follows its load job (`jobs`), cleans up (L4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from kbq_assets_tests.model import jobs
from kbq_assets_tests.model.program import IDLE, Step, calls, entry_of, fresh_nonce, reads
from kbq_assets_tests.model.rules import Rule
from kbq_assets_tests.model.world import (
    EPOCH,
    FIRST,
    MISSING,
    NEW_TABLE,
    SCHEMA,
    TABLE,
    File,
    Files,
    JobEntry,
    Pc,
    Scope,
    TableState,
    World,
)


def steps(scope: Scope, world: World, process: int, pc: Pc) -> Iterator[Step]:
    """What a loader standing at `pc` may do next."""
    if pc[0] == "submit":
        return jobs.submit(scope, world, process, pc)
    return _STEPS[pc[0]](scope, world, pc)


# --- planning


def _idle(scope: Scope, world: World, _pc: Pc) -> Iterator[Step]:
    """Choose a table: adopt its load job, or begin to read what is pending."""
    for index, table in enumerate(world.tables):
        if not table or world.registry[index] != "active":
            yield from _register(scope, world, index)
            continue
        entry = entry_of(table)
        if entry:
            yield reads(("read state: a load job",), jobs.place("submit", index, table, entry))
        if entry and scope.keeps(Rule.UNREADABLE_STATE_STOPS):
            continue
        if not table.parked:
            yield from _begin(scope, world, index)
    yield from _consume(scope, world)
    yield from _clean_done(scope, world)


def _register(scope: Scope, world: World, index: int) -> Iterator[Step]:
    """L6: `creating` before the object, `active` before its first use; missing when active = stop."""
    status, table = world.registry[index], world.tables[index]
    if status == "absent":
        yield calls(("register", index), ("register", index, "absent", "creating"), IDLE)
    elif status == "creating" and table is MISSING:
        uuid = 0 if scope.keeps(Rule.UUID_IN_REGISTRY) else fresh_nonce(world)
        yield reads(("read registry: creating",), ("create", index, uuid))
    elif status == "creating":
        yield calls(("activate", index), ("register", index, "creating", "active"), IDLE)
    elif not scope.keeps(Rule.MISSING_STATE_STOPS):
        yield reads(("read state: missing, so empty",), ("create", index, fresh_nonce(world)))


def _create(_scope: Scope, _world: World, pc: Pc) -> Iterator[Step]:
    """A late create cannot revive a lost table as a stranger: its uuid comes from the registry."""
    yield calls(("create state", pc[1]), ("create table", *pc[1:]), IDLE)


def _begin(scope: Scope, world: World, index: int) -> Iterator[Step]:
    """L1: read the commit first, the backlog after it."""
    if scope.keeps(Rule.BACKLOG_AFTER_COMMIT):
        listed = _of_table(world.commit.pending, index)
        yield reads(("read commit", index, listed), ("listed", index, listed, world.commit.given_up))
    else:
        listed = _of_table(sorted(world.backlog), index)
        yield reads(("read backlog", index, listed), ("backlog first", index, listed, ()))


def _of_table(files: Iterable[File], index: int) -> Files:
    return tuple(f for f in files if f[TABLE] == index)


def _listed(scope: Scope, world: World, pc: Pc) -> Iterator[Step]:
    _, index, listed, given_up = pc
    backlog = tuple(f for f in _of_table(sorted(world.backlog), index) if f not in listed)
    if scope.keeps(Rule.GIVEN_UP_IS_IGNORED):
        backlog = tuple(f for f in backlog if f not in given_up)
    yield from _plan(scope, world, index, listed + backlog)


def _backlog_first(scope: Scope, world: World, pc: Pc) -> Iterator[Step]:
    _, index, backlog, _ = pc
    listed = tuple(f for f in _of_table(world.commit.pending, index) if f not in backlog)
    yield from _plan(scope, world, index, listed + backlog)


def _plan(scope: Scope, world: World, index: int, candidates: Files) -> Iterator[Step]:
    """Read the state and plan one batch beyond its marks, or a shorter one."""
    if scope.split_reads:
        yield reads(("then read the state",), ("read", index, candidates))
    else:
        yield from _plan_batch(scope, world, ("read", index, candidates))


def _plan_batch(scope: Scope, world: World, pc: Pc) -> Iterator[Step]:
    _, index, candidates = pc
    table = world.tables[index]
    seen = _as_read(scope, world, table)
    pending = _pending(scope, seen, candidates) if seen and not seen.entry and not seen.parked else ()
    for count in range(1, min(scope.batch, len(pending)) + 1):
        batch = pending[:count] if scope.keeps(Rule.BATCH_IS_PREFIX) else pending[-count:]
        yield reads(("read state, plan", batch), ("intend", index, seen, JobEntry(batch, ())))
    if not pending:
        yield reads(("nothing to load", index), IDLE)


def _as_read(scope: Scope, world: World, table: TableState | tuple[()]) -> TableState | tuple[()]:
    if table and world.budget.unreadable and not scope.keeps(Rule.UNREADABLE_STATE_STOPS):
        return NEW_TABLE._replace(gen=table.gen, uuid=table.uuid, seq=table.seq)
    return table


def _pending(scope: Scope, table: TableState, candidates: Files) -> Files:
    """L1: of the files beyond the marks, those of the schema whose oldest window is oldest, in order."""
    marks = dict(table.marks)
    beyond = [f for f in candidates if f[FIRST] >= marks.get(scope.mark_key(f), 0)]
    if not beyond:
        return ()
    if scope.keeps(Rule.BACKLOG_MERGED_BY_OFFSET):
        beyond.sort()
    oldest = min(beyond, key=lambda f: (f[EPOCH], f[FIRST], f[SCHEMA]))
    return tuple(f for f in beyond if (f[EPOCH], f[SCHEMA]) == (oldest[EPOCH], oldest[SCHEMA]))


# --- afterwards


def _delete(_scope: Scope, _world: World, pc: Pc) -> Iterator[Step]:
    """L4: deletes follow the record; what a crash leaves is the janitor's."""
    first, rest = pc[1][0], pc[1][1:]
    yield calls(("delete", first), ("delete", first), ("delete", rest) if rest else IDLE)


def _consume(scope: Scope, world: World) -> Iterator[Step]:
    """A backlog chunk whose file is covered, or was given up, has served."""
    for file in world.backlog:
        given_up = file in world.commit.given_up and scope.keeps(Rule.GIVEN_UP_IS_IGNORED)
        if given_up or scope.covers(world.tables[file[TABLE]], file):
            yield calls(("delete chunk", file), ("delete chunk", file), IDLE)


def _clean_done(scope: Scope, world: World) -> Iterator[Step]:
    """L4, L7: a done file goes when its avro file is gone, its window loaded and a higher one exists."""
    for done in world.done:
        table, schema, _, until = done
        is_loaded = dict(_marks(world.tables[table])).get((0, schema), 0) >= until
        is_highest = all(other[3] <= until for other in world.done)
        if (
            is_loaded
            and not (is_highest and scope.keeps(Rule.HIGHEST_DONE_STAYS))
            and not _has_avro(world, done)
        ):
            yield reads(("list done files; clean", done), ("clean", done))


def _marks(table: TableState | tuple[()]) -> tuple[Any, ...]:
    return table.marks if table else ()


def _has_avro(world: World, done: tuple[int, int, int, int]) -> bool:
    return any((f[TABLE], f[SCHEMA], f[FIRST]) == done[:3] for f in world.files)


def _clean(_scope: Scope, _world: World, pc: Pc) -> Iterator[Step]:
    yield calls(("delete done", pc[1]), ("delete done", pc[1]), IDLE)


_STEPS = {
    "idle": _idle,
    "create": _create,
    "listed": _listed,
    "backlog first": _backlog_first,
    "read": _plan_batch,
    "delete": _delete,
    "clean": _clean,
    **jobs.STEPS,
}
