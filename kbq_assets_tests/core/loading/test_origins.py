"""A staging area loads only into tables that it has fed before."""

from __future__ import annotations

import dataclasses

import pytest

from kbq_assets.core.loading.origins import LABEL, doubt, labelled, with_label
from kbq_assets.core.loading.table_notes import StoredTable, TableNotes
from kbq_assets.core.loading.table_state import Accepted, Definition, TableState
from kbq_assets.core.loading.tables import Column, TableOptions
from kbq_assets.core.protocol.waits import ParkReason

OFFSET, TEXT = Column("_kafka_offset", "INT64"), Column("text", "STRING")
FRESH = TableState("u")
#: A state that loaded rows, by an older version and by one that labels tables.
UNLABELLED = TableState("u", marks={"t/0/1/1": 9}, rows={"t/0/1": 9})
LOADED = dataclasses.replace(UNLABELLED, definition=Definition(labelled=True))
GIVEN_UP = dataclasses.replace(LOADED, accepted=Accepted(rows=9))
GONE, FOREIGN = ParkReason.TABLE_GONE, ParkReason.FOREIGN_ROWS


def stored(rows: int = 9, label: str | None = "here", column: Column = OFFSET) -> StoredTable:
    return StoredTable((TEXT, column), labels={LABEL: label} if label is not None else {}, rows=rows)


@pytest.mark.parametrize(
    ("state", "table", "reason"),
    [
        (FRESH, None, None),
        (LOADED, None, GONE),
        (GIVEN_UP, None, None),
        (LOADED, stored(), None),
        (LOADED, stored(rows=0), None),
        (FRESH, stored(), None),
        (LOADED, stored(rows=0, label=None), GONE),
        (UNLABELLED, stored(rows=0, label=None), None),
        (UNLABELLED, stored(rows=0, label="there"), GONE),
        (GIVEN_UP, stored(rows=0, label=None), None),
        (FRESH, stored(rows=0, label="there"), None),
        (LOADED, stored(label="there"), FOREIGN),
        (FRESH, stored(label="there"), FOREIGN),
        (FRESH, stored(label=None), FOREIGN),
        (FRESH, stored(label=None, column=Column("_KAFKA_OFFSET", "INT64")), FOREIGN),
        (FRESH, stored(label=None, column=TEXT), None),
        (FRESH, stored(label="there", column=TEXT), None),
        (UNLABELLED, stored(label=None), None),
    ],
    ids=[
        "not created yet",
        "dropped",
        "dropped, and given up",
        "its own",
        "its own and emptied on purpose",
        "its own, and the state is new",
        "created anew without a label",
        "empty, of a version without labels",
        "empty and of another",
        "created anew, and given up",
        "another's, but empty",
        "another's with rows",
        "another's with rows, and nothing was loaded",
        "rows of a stranger",
        "rows of a stranger in capitals",
        "a table that is not of KBQ",
        "a table that is not of KBQ with a label",
        "fed by an older version",
    ],
)
def test_a_load_goes_on_only_if_table_and_state_belong_together(
    state: TableState, table: StoredTable | None, reason: ParkReason | None
) -> None:
    found = doubt(state, table, "here", "gs://b")
    assert (found.reason if found else None) == reason


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (None, ["it does not exist, but KBQ loaded 9 rows into it", "kbq replay start", "kbq adopt"]),
        (stored(rows=0, label=None), ["it is empty and was created anew, but KBQ loaded 9 rows"]),
        (stored(rows=1234, label="there"), ["its rows (1,234)", "the staging area there", "gs://b (here)"]),
        (stored(label="there"), ["kbq adopt", "KBQ_STAGING"]),
    ],
)
def test_a_doubt_names_both_sides_and_the_ways_out(table: StoredTable | None, words: list[str]) -> None:
    found = doubt(LOADED, table, "here", "gs://b")
    assert found is not None
    assert [word for word in words if word not in found.text] == []


def test_rows_without_a_label_come_from_no_staging_area_that_anybody_names() -> None:
    found = doubt(FRESH, stored(label=None), "here", "gs://b")
    assert found is not None
    assert "from no staging area that it names, and not from gs://b" in found.text


def test_a_label_replaces_a_former_one_and_keeps_the_others() -> None:
    notes = TableNotes("text", {"team": "a", LABEL: "there"})
    assert labelled(notes, "here") == TableNotes("text", {"team": "a", LABEL: "here"})
    options = with_label(TableOptions(notes=notes), "here")
    assert options == TableOptions(notes=labelled(notes, "here"))
