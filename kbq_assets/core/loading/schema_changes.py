"""Changes of a table's schema, for notices: the table was created, got columns, or columns became nullable.

The loader notes a change in the table's state before it alters the warehouse, and settles the note in the swap that
enters the batch. If it dies in between, the next loader finds nothing to alter and settles the note. So every change is
reported, and only changes that happened.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kbq_assets.core.loading.tables import Column, TableChange
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.codec import Stored

if TYPE_CHECKING:
    from kbq_assets.core.loading.table_state import TableState

#: How long a change can be reported, and the number that a table keeps.
NEWS_MS: Final = 7 * 24 * 3600 * 1000
_KEPT: Final = 20
#: Most columns named per change; the others are only counted.
_NAMED: Final = 30


@dataclass(frozen=True)
class SchemaChange(Stored):
    """A change of a table's schema."""

    #: the writer schema that needed it
    schema_id: int
    created: bool = False
    #: columns of a created table
    columns: int = 0
    #: `name TYPE` of each new column
    added: tuple[str, ...] = ()
    #: names of columns that became nullable
    relaxed: tuple[str, ...] = ()
    #: number of changed columns that are not named
    more: int = 0
    #: when it was settled, by the store's time; 0 before that
    at_ms: int = 0

    def __str__(self) -> str:
        added = f"new: {', '.join(self.added)}" if self.added else ""
        relaxed = f"now nullable: {', '.join(self.relaxed)}" if self.relaxed else ""
        more = f"{self.more} more" if self.more else ""
        count = counted(self.columns, "column") if self.created else ""
        schema = f"schema id {self.schema_id}" if self.schema_id > 0 else ""
        return "; ".join(filter(None, (count, added, relaxed, more, schema)))


def note_change(state: TableState, change: TableChange, schema_id: int) -> TableState:
    """Note a change before it is made. Includes an earlier note that is not settled."""
    if not (change.create or change.added or change.relaxed):
        return state
    before = state.definition.changing or SchemaChange(schema_id)
    types = dict(_types(change.columns))
    added = [*before.added, *(f"{name} {types.get(name, '')}".strip() for name in change.added)]
    relaxed = [*before.relaxed, *change.relaxed]
    named, loosened = list(dict.fromkeys(added))[:_NAMED], list(dict.fromkeys(relaxed))[:_NAMED]
    left_out = len(dict.fromkeys(added)) - len(named) + len(dict.fromkeys(relaxed)) - len(loosened)
    created = before.created or change.create
    noted = dataclasses.replace(
        before,
        schema_id=schema_id,
        created=created,
        columns=len(change.columns) if created else 0,
        added=tuple(named),
        relaxed=tuple(loosened),
        more=max(before.more, left_out),
    )
    definition = dataclasses.replace(state.definition, changing=noted)
    return dataclasses.replace(state, definition=definition)


def settle_change(state: TableState, now_ms: int) -> TableState:
    """Turn the note into a recent change, and drop old changes."""
    if state.definition.changing is None:
        return state
    done = dataclasses.replace(state.definition.changing, at_ms=now_ms)
    recent = [change for change in state.definition.changes if now_ms - change.at_ms < NEWS_MS]
    changes = (*recent, done)[-_KEPT:]
    return dataclasses.replace(
        state, definition=dataclasses.replace(state.definition, changing=None, changes=changes)
    )


def _types(columns: Iterable[Column], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted path and type of each column."""
    for column in columns:
        name = prefix + column.name
        yield name, f"{'REPEATED ' if column.mode == 'REPEATED' else ''}{column.type}"
        yield from _types(column.fields, f"{name}.")
