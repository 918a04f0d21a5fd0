"""Checks that a table belongs to the staging area that loads it (PROTOCOL L12).

A table has the id of the staging area whose state counts its rows. Another staging area would load rows that the table
already has, and if a table is gone, its state would continue without the lost rows. In both cases loading stops until
an operator decides.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from kbq_assets.core.loading.table_notes import StoredTable, TableNotes
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.loading.tables import TableOptions
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.waits import ParkReason

#: The label of a table that has its staging area's id.
LABEL: Final = "kbq_staging"
_POSITION: Final = "_kafka_offset"


class Doubt(NamedTuple):
    """Why a staging area must not load into a table: the park reason, and a text."""

    reason: ParkReason
    text: str


def doubt(state: TableState, stored: StoredTable | None, staging_id: str, place: str) -> Doubt | None:
    """The reason that a load must not continue; None if the table and its state belong together. ``place`` is the
    staging area's address. Tables loaded by an older version have no id, but this staging area's marks prove that it
    fed them.
    """
    rows = sum(state.rows.values()) - state.accepted.rows
    if stored is None:
        return _gone("does not exist", rows) if rows > 0 else None
    named = stored.labels.get(LABEL, "")
    if named == staging_id:
        return None
    if not stored.rows:
        return (
            _gone("is empty and was created anew", rows)
            if rows > 0 and (named or state.definition.labelled)
            else None
        )
    if not any(column.name.lower() == _POSITION for column in stored.columns) or (state.marks and not named):
        return None
    loader = f"the staging area {named}" if named else "no staging area that it names"
    return Doubt(
        ParkReason.FOREIGN_ROWS,
        f"its rows ({stored.rows:,}) come from {loader}, and not from {place} ({staging_id}): a load could double them."
        " Set KBQ_STAGING (or KBQ_HOME) back to the staging area that fed it. Or feed it from here: kbq adopt",
    )


def _gone(what: str, rows: int) -> Doubt:
    return Doubt(
        ParkReason.TABLE_GONE,
        f"it {what}, but KBQ loaded {counted(rows, 'row')} into it. Set KBQ_WAREHOUSE (or KBQ_HOME) back, or restore"
        " the warehouse; then kbq resume. Or read them again: kbq replay start TOPIC. Or go on without them: kbq adopt",
    )


def with_label(options: TableOptions, staging_id: str) -> TableOptions:
    """A table's options, with its staging area's id as a label."""
    return replace(options, notes=labelled(options.notes, staging_id))


def labelled(notes: TableNotes, staging_id: str) -> TableNotes:
    return replace(notes, labels={**notes.labels, LABEL: staging_id})
