"""The promises, as conditions on a state: no loss, no duplicate, order, and a goal for progress."""

from __future__ import annotations

from collections.abc import Iterator

from kbq_assets_tests.model.rules import Rule
from kbq_assets_tests.model.world import EPOCH, TABLE, File, Scope, TableState, World

Record = tuple[int, int]  # (epoch, offset)


def violation(scope: Scope, world: World) -> str | None:
    """The first promise the state breaks, with the record it breaks it for."""
    return (
        _order_or_duplicate(scope, world)
        or _counted_twice(scope, world)
        or _loss(scope, world)
        or _false_done(scope, world)
    )


def _order_or_duplicate(scope: Scope, world: World) -> str | None:
    for column, by_epoch in zip(scope.columns, world.rows, strict=True):
        groups = by_epoch if scope.keeps(Rule.RESET_BUMPS_EPOCH) else (sum(by_epoch, ()),)
        for epoch, offsets in enumerate(groups):
            if len(set(offsets)) != len(offsets):
                return f"DUPLICATE: {_column(scope, column)}, epoch {epoch}: rows {offsets}"
            if list(offsets) != sorted(offsets):
                return f"ORDER: {_column(scope, column)}, epoch {epoch}: rows {offsets}"
    return None


def _column(scope: Scope, column: tuple[int, int]) -> str:
    return f"table {scope.tables[column[0]]}, schema {column[1]}"


def loaded(scope: Scope, world: World) -> set[Record]:
    """Every record with a row in the warehouse."""
    return {(epoch, o) for by_epoch in world.rows for epoch, offsets in enumerate(by_epoch) for o in offsets}


def quarantined(world: World) -> list[File]:
    """Every file that a table's state lists as quarantined, as often as it is listed."""
    return [f for table in world.tables if table for f in table.quarantined]


def _counted_twice(scope: Scope, world: World) -> str | None:
    """Rows + quarantined records = input: nothing is counted in both."""
    files = quarantined(world)
    if not files:
        return None
    aside = [(f[EPOCH], o) for f in files for o in scope.offsets(f)]
    twice = loaded(scope, world).intersection(aside)
    if twice or len(set(aside)) != len(aside):
        return f"COUNTED TWICE: (epoch, offset) {sorted(twice or aside)} are in quarantine and elsewhere"
    return None


def _due(scope: Scope, world: World) -> Iterator[Record]:
    """Every record below a committed position of any epoch."""
    for epoch, end in enumerate((*world.commit.ended, world.commit.next)):
        yield from ((epoch, o) for o in range(end) if scope.symbols[o])


def _loss(scope: Scope, world: World) -> str | None:
    commit = world.commit
    safe = loaded(scope, world)
    listed = {*commit.pending, *world.backlog, *quarantined(world)}
    for file in listed:
        if held := content(scope, world, file):
            safe.update((file[EPOCH], o) for o in scope.offsets(held))
    for file in commit.given_up:
        safe.update((file[EPOCH], o) for o in scope.offsets(file))
    lost = [record for record in _due(scope, world) if record not in safe]
    return f"LOSS: (epoch, offset) {lost} are committed and nowhere" if lost else None


def content(scope: Scope, world: World, file: File) -> File | None:
    """What the store holds at the file's path: the file itself, unless files can be overwritten."""
    if scope.keeps(Rule.ATTEMPT_IN_PATH):
        return file if file in world.files else None
    return next((f for f in world.files if f[:-1] == file[:-1]), None)


def _false_done(scope: Scope, world: World) -> str | None:
    if not scope.with_done:
        return None
    if world.done_high > world.commit.next:
        return "DONE: a done file claims offsets that are not committed"
    if world.done_high > max((d[3] for d in world.done), default=0):
        return "DONE: the highest done file was removed"
    return None


def is_goal(scope: Scope, world: World) -> bool:
    """All extracted, nothing pending or on its way, staging swept if a janitor is there.

    A table that is held parked or has lost its state (L6) keeps its backlog, and stops nothing else.
    """
    commit = world.commit
    if commit.next != scope.end or commit.pending:
        return False
    stopped = scope.held | _lost_tables(world)
    if any(file[TABLE] not in stopped for file in world.backlog):
        return False
    if any(_is_busy(table, index in stopped) for index, table in enumerate(world.tables)):
        return False
    if scope.with_done and world.done_high != scope.end:
        return False
    return not scope.janitors or world.files <= {*quarantined(world), *world.backlog}


def _lost_tables(world: World) -> frozenset[int]:
    indices = range(len(world.tables))
    return frozenset(i for i in indices if not world.tables[i] and world.registry[i] == "active")


def _is_busy(table: TableState | tuple[()], is_stopped: bool) -> bool:
    """Has the table still something to do: its state to create, a load job to end, parking to be resumed?"""
    if not table:
        return not is_stopped
    return bool(table.entry) or (table.parked and not is_stopped)
