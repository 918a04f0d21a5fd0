"""The janitor: deletes orphans, one at a time (E6)."""

from __future__ import annotations

from collections.abc import Iterator

from kbq_assets_tests.model.program import IDLE, Step, calls, entry_of, reads
from kbq_assets_tests.model.rules import Rule
from kbq_assets_tests.model.world import EPOCH, FIRST, Commit, File, Pc, Scope, World


def steps(scope: Scope, world: World, _process: int, pc: Pc) -> Iterator[Step]:
    """What a janitor standing at `pc` may do next."""
    return _STEPS[pc[0]](scope, world, pc)


def _idle(scope: Scope, world: World, _pc: Pc) -> Iterator[Step]:
    """List first: the fate of each listed file is decided on its own."""
    if not scope.keeps(Rule.SWEEP_LISTS_FIRST):
        commit, spared = world.commit, frozenset().union(*_listed_by_tables(scope, world))
        yield reads(("read commit, tables and backlogs",), ("list last", commit, tuple(sorted(spared))))
        return
    then = "listed" if scope.keeps(Rule.SWEEP_READS_TABLES_LAST) else "listed, tables first"
    for file in world.files:
        yield reads(("list", file), (then, file))


def _listed(scope: Scope, world: World, pc: Pc) -> Iterator[Step]:
    """Then read the commit."""
    file = pc[1]
    orphan = is_orphan(scope, world.commit, file)
    yield reads(("read commit: orphan?", file, orphan), ("orphan", file) if orphan else IDLE)


def is_orphan(scope: Scope, commit: Commit, file: File) -> bool:
    """E6: not listed, and of an attempt that cannot be committed any more."""
    epochs_count = scope.keeps(Rule.RESET_BUMPS_EPOCH)
    is_older = file[EPOCH] < commit.epoch and epochs_count
    is_current = file[EPOCH] == commit.epoch or not (epochs_count and scope.keeps(Rule.SWEEP_COMPARES_EPOCHS))
    is_past = file[FIRST] < commit.next or not scope.keeps(Rule.SWEEP_SPARES_THE_FUTURE)
    return (is_older or (is_current and is_past)) and file not in commit.pending


def _orphan(scope: Scope, world: World, pc: Pc) -> Iterator[Step]:
    """Last, read the tables' states and backlogs: files only ever move from the commit to them."""
    file = pc[1]
    listed = any(file in files for files in _listed_by_tables(scope, world))
    yield reads(("read tables and backlogs: listed?", file, listed), IDLE if listed else ("delete", file))


def _listed_by_tables(scope: Scope, world: World) -> Iterator[frozenset[File]]:
    if scope.keeps(Rule.SWEEP_SPARES_BACKLOG):
        yield world.backlog
    for table in world.tables:
        entry = entry_of(table)
        if entry and scope.keeps(Rule.SWEEP_SPARES_JOBS):
            yield frozenset(entry.files + entry.rejected)
        if table and scope.keeps(Rule.SWEEP_SPARES_QUARANTINE):
            yield frozenset(table.quarantined)


def _tables_first(scope: Scope, world: World, pc: Pc) -> Iterator[Step]:
    file = pc[1]
    listed = any(file in files for files in _listed_by_tables(scope, world))
    yield reads(
        ("read tables and backlogs: listed?", file, listed), IDLE if listed else ("commit last", file)
    )


def _commit_last(scope: Scope, world: World, pc: Pc) -> Iterator[Step]:
    file = pc[1]
    orphan = is_orphan(scope, world.commit, file)
    yield reads(("read commit: orphan?", file, orphan), ("delete", file) if orphan else IDLE)


def _list_last(scope: Scope, world: World, pc: Pc) -> Iterator[Step]:
    _, commit, spared = pc
    for file in world.files:
        if is_orphan(scope, commit, file) and file not in spared:
            yield reads(("list", file), ("delete", file))
    yield reads(("list nothing",), IDLE)


def _delete(_scope: Scope, _world: World, pc: Pc) -> Iterator[Step]:
    yield calls(("delete", pc[1]), ("delete", pc[1]), IDLE)


_STEPS = {
    "idle": _idle,
    "listed": _listed,
    "orphan": _orphan,
    "listed, tables first": _tables_first,
    "commit last": _commit_last,
    "list last": _list_last,
    "delete": _delete,
}
