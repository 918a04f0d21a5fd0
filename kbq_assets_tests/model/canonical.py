"""Maps a state to a representative of all states that behave alike: fewer states, the same promises.

The reductions are sound because they only merge states with the same futures:

- Generations count from the held one, since a stale one can never match again.
- A program whose swap will be refused, with only reads before it, is moved to where the refusal leads.
- A late call that would change nothing is dropped.
- A finished job whose id is no longer used is dropped.
- Sequence numbers count from the held one.
- Equal processes are sorted.
- Unique names are numbered by first appearance.

A reduction is off while the rule that it relies on is removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, partial
from itertools import chain
from typing import Any

from kbq_assets_tests.model.extractor import is_epoch_current
from kbq_assets_tests.model.program import IDLE, names_in
from kbq_assets_tests.model.rules import Rule
from kbq_assets_tests.model.world import ATTEMPT, FIRST_NONCE, Commit, Op, Pc, Scope, TableState, World

_DOOMED = frozenset({"intend", "record", "drop", "retry", "set aside"})
_BY_JOB = frozenset({"submit", "poll"})
#: Steps and calls that depend on the commit that is held.
_ON_COMMIT = frozenset({"publish", "swap", "move", "rebase", "swap commit"})


def canonical(scope: Scope, world: World) -> World:
    """The representative of the state."""
    if scope.keeps(Rule.COMMIT_PRECONDITION):
        world = _forget_stale_commit(scope, world)
    if scope.keeps(Rule.STATE_PRECONDITION):
        world = _forget_stale_tables(scope, world)
    if world.in_flight:
        world = world._replace(in_flight=tuple(op for op in world.in_flight if _may_matter(world, op)))
    if not scope.with_registry:
        world = _count_from_held(scope, world)
    return _rename(scope, world)


# --- generations and doomed swaps


def _forget_stale_commit(scope: Scope, world: World) -> World:
    gen = world.commit.gen
    if not gen and not any(
        step[0] in _ON_COMMIT for step in chain(world.extractors, world.operators, world.in_flight)
    ):
        return world
    extractors = tuple(_extractor_on(scope, world, pc) for pc in world.extractors)
    operators = tuple(
        (pc[3] if pc[1] != gen else (pc[0], 0, pc[2]._replace(gen=0), pc[3])) if pc[0] == "swap" else pc
        for pc in world.operators
    )
    in_flight = tuple(
        (op[0], 0, op[2]._replace(gen=0)) if op[0] == "swap commit" else op
        for op in world.in_flight
        if op[0] != "swap commit" or op[1] == gen
    )
    commit = world.commit._replace(gen=0) if gen else world.commit
    return world._replace(commit=commit, extractors=extractors, operators=operators, in_flight=in_flight)


def _extractor_on(scope: Scope, world: World, pc: Pc) -> Pc:
    """The extractor's program counter, given whether its swap will succeed."""
    name, gen = pc[0], world.commit.gen
    if name == "publish":
        pc = ("publish", 0, pc[2]._replace(gen=0), pc[3]) if pc[1] == gen else pc[3]
    elif name == "swap":
        return ("swap", 0, pc[2]._replace(gen=0)) if pc[1] == gen else IDLE
    elif name == "move" and pc[3]:
        if pc[2] == gen:
            return ("move", pc[1], 0, pc[3]._replace(gen=0))
        return ("move", pc[1], -1, ()) if pc[1] else IDLE
    if pc[0] == "rebase" and not scope.with_done and scope.keeps(Rule.UPLOAD_BEFORE_COMMIT):
        return pc if _may_win(scope, world.commit, pc) else IDLE
    return pc


def _may_win(scope: Scope, commit: Commit, pc: Pc) -> bool:
    return bool(commit.next == pc[2] and is_epoch_current(scope, pc[1], commit))


def _forget_stale_tables(scope: Scope, world: World) -> World:
    gens = tuple(table.gen if table else -1 for table in world.tables)
    if max(gens, default=0) <= 0 and not any(
        len(step) > 2 and (isinstance(step[2], TableState) or step[0] == "swap table")
        for step in chain(world.loaders, world.operators, world.in_flight)
    ):
        return world
    loaders = tuple(_table_user_on(world, gens, pc) for pc in world.loaders)
    operators = tuple(_table_user_on(world, gens, pc) for pc in world.operators)
    in_flight = tuple(
        (*op[:2], 0, op[3]._replace(gen=0)) if op[0] == "swap table" else op
        for op in world.in_flight
        if op[0] != "swap table" or op[2] == gens[op[1]]
    )
    tables = world.tables
    if any(gen > 0 for gen in gens):
        tables = tuple(table._replace(gen=0) if table else table for table in tables)
    return world._replace(tables=tables, loaders=loaders, operators=operators, in_flight=in_flight)


def _table_user_on(world: World, gens: tuple[int, ...], pc: Pc) -> Pc:
    if len(pc) < 3 or not isinstance(pc[2], TableState):
        return pc
    name, index, table = pc[0], pc[1], pc[2]
    if table.gen == gens[index]:
        return (name, index, table._replace(gen=0), *pc[3:]) if table.gen else pc
    if name in _DOOMED or name == "end job":
        return IDLE
    if name in _BY_JOB and any(job[0] == _job_of(pc) and job[2] != "running" for job in world.jobs):
        return IDLE
    return (name, index, table._replace(gen=-1), *pc[3:]) if table.gen != -1 else pc


def _job_of(pc: Pc) -> Any:
    return pc[4] if pc[0] == "poll" else ("job", pc[1], pc[2].seq, pc[2].uuid)


# --- calls and jobs that do not matter any more


def _may_matter(world: World, op: Op) -> bool:
    """May the late call still change something?"""
    if op[0] == "insert job":
        return all(job[0] != op[1] for job in world.jobs)
    if op[0] == "create chunk":
        return op[1] not in world.backlog or ("delete chunk", op[1]) in world.in_flight
    if op[0] == "delete":
        return op[1] in world.files or _may_be_uploaded(world, op[1][ATTEMPT])
    return True


def _may_be_uploaded(world: World, attempt: int) -> bool:
    busy = any(pc[0] == "upload" and pc[4] == attempt for pc in world.extractors)
    return busy or any(op[0] == "put" and op[1][ATTEMPT] == attempt for op in world.in_flight)


def _count_from_held(scope: Scope, world: World) -> World:
    if world.jobs:
        named = _named_jobs(scope, world)
        world = world._replace(jobs=frozenset(j for j in world.jobs if j[2] == "running" or j[0] in named))
    for index, table in enumerate(world.tables):
        if table and table.seq:
            world = _shift(world, index, table.seq)
    return world


def _named_jobs(scope: Scope, world: World) -> set[Any]:
    """The job ids that a state, a program or a late call can still name."""
    named = {op[1] for op in world.in_flight if op[0] == "insert job"}
    named |= {_job_of(pc) for pc in world.loaders if pc[0] in _BY_JOB}
    named |= {pc[3] for pc in world.operators if len(pc) > 3 and pc[3] and pc[3][0] == "job"}
    for index, table in enumerate(world.tables):
        if table and table.entry:
            named.add(("job", index, table.seq, table.uuid))
    if not scope.keeps(Rule.JOB_ID_FROM_STATE):
        named |= {(*job[:3], p) for job in named for p in range(scope.loaders)}
    return named


def _shift(world: World, index: int, by: int) -> World:
    """Count the sequence numbers of one table from `by`."""

    def moved(value: Any) -> Any:
        if isinstance(value, TableState):
            return value
        if type(value) is tuple and value:
            if value[0] == "job":
                return ("job", value[1], value[2] - by, value[3]) if value[1] == index else value
            if len(value) > 2 and isinstance(value[2], TableState) and value[1] == index:
                value = (*value[:2], value[2]._replace(seq=value[2].seq - by), *value[3:])
            elif value[0] == "swap table" and value[1] == index:
                value = (*value[:3], value[3]._replace(seq=value[3].seq - by))
            return tuple(moved(item) for item in value)
        return value

    table = world.tables[index]
    assert isinstance(table, TableState)
    tables = (*world.tables[:index], table._replace(seq=0), *world.tables[index + 1 :])
    return world._replace(
        tables=tables,
        jobs=frozenset(moved(job) for job in world.jobs),
        loaders=moved(world.loaders),
        operators=moved(world.operators),
        in_flight=moved(world.in_flight),
    )


# --- names and order


def _rename(scope: Scope, world: World) -> World:
    """Sort what has no order, and number the unique names by first appearance."""
    names = dict.fromkeys(chain(names_in(world.commit), names_in(world.tables)))
    if len(world.in_flight) > 1 or len(world.extractors) > 1 or len(world.loaders) > 1:
        world = _sorted(scope, world, _numbered(names))
    for part in (world.extractors, world.loaders, world.janitors, world.operators, world.in_flight):
        if part and (found := names_in(part)):
            names.update(dict.fromkeys(found))
    for members in (world.backlog, world.files, world.jobs):
        if members:
            names.update(dict.fromkeys(_names_in_set(members, tuple(names))))
    if tuple(names) == tuple(range(FIRST_NONCE, FIRST_NONCE + len(names))):
        return world
    changed = {name: number for name, number in _numbered(names).items() if name != number}
    return World._make(_renamed_part(part, changed) for part in world)


def _numbered(names: Iterable[int]) -> dict[int, int]:
    return {name: FIRST_NONCE + i for i, name in enumerate(names)}


def _sorted(scope: Scope, world: World, numbers: dict[int, int]) -> World:
    """Sort late calls and like processes, by content in which a name that only they know has no number."""
    key = partial(_without_own_names, numbers)
    if len(world.in_flight) > 1:
        world = world._replace(in_flight=tuple(sorted(world.in_flight, key=key)))
    if len(world.extractors) > 1:
        world = world._replace(extractors=tuple(sorted(world.extractors, key=key)))
    if len(world.loaders) > 1 and scope.keeps(Rule.JOB_ID_FROM_STATE):
        world = world._replace(loaders=tuple(sorted(world.loaders, key=key)))
    return world


def _without_own_names(numbers: dict[int, int], value: tuple[Any, ...]) -> Any:
    return _with_names(value, tuple(numbers.get(name, FIRST_NONCE - 1) for name in names_in(value)))


@cache
def _names_in_set(members: frozenset[tuple[Any, ...]], known: tuple[int, ...]) -> tuple[int, ...]:
    return names_in(tuple(sorted(members, key=partial(_without_own_names, _numbered(known)))))


def _renamed_part(part: Any, mapping: dict[int, int]) -> Any:
    """The part of the world with the unique names of the mapping replaced."""
    if isinstance(part, frozenset):
        return frozenset(_renamed_part(item, mapping) for item in part)
    if not isinstance(part, tuple):
        return part
    return _with_names(part, tuple(mapping.get(name, name) for name in names_in(part)))


@cache
def _with_names(value: tuple[Any, ...], names: tuple[int, ...]) -> Any:
    """The value with its unique names, in order of appearance, replaced by these."""
    old = names_in(value)
    return value if old == names else _substituted(value, dict(zip(old, names, strict=True)))


def _substituted(value: Any, mapping: dict[int, int]) -> Any:
    if type(value) is int:
        return mapping[value] if value >= FIRST_NONCE else value
    if not isinstance(value, tuple):
        return value
    items = [_substituted(item, mapping) for item in value]
    return tuple(items) if type(value) is tuple else type(value)(*items)
