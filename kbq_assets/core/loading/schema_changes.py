"""What became of a table's shape: it was created, got columns, or columns became nullable. Told by notices.

A change is noted in the table's state before the warehouse is altered, and settled by the swap that enters the batch
after it. A loader that dies in between leaves the note; the next one finds nothing to alter, and settles it: a change
is never lost, and none is told that did not happen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kbq_assets.core.loading.tables import Column, TableChange

if TYPE_CHECKING:
    from kbq_assets.core.loading.table_state import TableState

#: How long a change can be told, and how many of a table are kept.
NEWS_MS: Final = 7 * 24 * 3600 * 1000
_KEPT: Final = 20
#: Columns of a change that are named; the others are counted.
_NAMED: Final = 30


@dataclass(frozen=True)
class SchemaChange:
    """A change. ``added`` are ``name TYPE``, ``relaxed`` names; ``more`` were left out. ``columns`` are a created
    table's. ``schema_id`` is the writer's that asked for it; ``at_ms``, by the store, is 0 until it is settled."""

    schema_id: int
    created: bool = False
    columns: int = 0
    added: tuple[str, ...] = ()
    relaxed: tuple[str, ...] = ()
    more: int = 0
    at_ms: int = 0

    def __str__(self) -> str:
        added = f"new: {', '.join(self.added)}" if self.added else ""
        relaxed = f"now nullable: {', '.join(self.relaxed)}" if self.relaxed else ""
        more = f"{self.more} more" if self.more else ""
        count = f"{self.columns} columns" if self.created else ""
        schema = f"schema id {self.schema_id}" if self.schema_id > 0 else ""
        return "; ".join(filter(None, (count, added, relaxed, more, schema)))


def note_change(state: TableState, change: TableChange, schema_id: int) -> TableState:
    """Note what is about to be done to a table. What was noted before and not settled stays in the note."""
    if not (change.create or change.added or change.relaxed):
        return state
    before = state.changing or SchemaChange(schema_id)
    types = dict(_types(change.columns))
    added = [*before.added, *(f"{name} {types.get(name, '')}".strip() for name in change.added)]
    relaxed = [*before.relaxed, *change.relaxed]
    named, loosened = list(dict.fromkeys(added))[:_NAMED], list(dict.fromkeys(relaxed))[:_NAMED]
    left_out = len(dict.fromkeys(added)) - len(named) + len(dict.fromkeys(relaxed)) - len(loosened)
    created = before.created or change.create
    noted = SchemaChange(
        schema_id,
        created,
        len(change.columns) if created else 0,
        tuple(named),
        tuple(loosened),
        max(before.more, left_out),
    )
    return dataclasses.replace(state, changing=noted)


def settle_change(state: TableState, now_ms: int) -> TableState:
    """Note that what was noted is done; old changes, and those beyond the last few, are forgotten."""
    if state.changing is None:
        return state
    done = dataclasses.replace(state.changing, at_ms=now_ms)
    recent = [change for change in state.changes if now_ms - change.at_ms < NEWS_MS]
    return dataclasses.replace(state, changing=None, changes=(*recent, done)[-_KEPT:])


def _types(columns: Iterable[Column], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The type of each column by its dotted path."""
    for column in columns:
        name = prefix + column.name
        yield name, f"{'REPEATED ' if column.mode == 'REPEATED' else ''}{column.type}"
        yield from _types(column.fields, f"{name}.")
