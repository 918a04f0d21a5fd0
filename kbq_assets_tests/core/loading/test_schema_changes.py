"""A change to a table is noted before it is made, settled afterwards, and never lost in between."""

from __future__ import annotations

import json
from typing import Any

from kbq_assets.core.loading.schema_changes import NEWS_MS, SchemaChange, note_change, settle_change
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.loading.tables import Column, TableChange, columns_of, plan_table_change
from kbq_assets.core.protocol import codec

NOW = 1_700_000_000_000
BLANK = TableState("u")
X = Column("x", "INT64", "REQUIRED")


def schema(*fields: tuple[str, Any]) -> str:
    listed = [{"name": name, "type": type_} for name, type_ in fields]
    return json.dumps({"type": "record", "name": "R", "fields": listed})


def altered(wanted: str, existing: tuple[Column, ...] | None = None) -> TableState:
    return settle_change(note_change(BLANK, plan_table_change(wanted, existing), 7), NOW)


def test_a_table_that_is_created_is_news_with_its_schema() -> None:
    state = altered(schema(("x", "long"), ("n", "string")))
    assert state.definition.changes == (SchemaChange(7, created=True, columns=2, at_ms=NOW),)
    assert str(state.definition.changes[0]) == "2 columns; schema id 7"


def test_columns_are_reported_with_their_types_nested_ones_too() -> None:
    inner = {"type": "record", "name": "A", "fields": [{"name": "zip", "type": "string"}]}
    tags = {"type": "array", "items": "string"}
    [change] = altered(schema(("a", inner), ("tags", tags)), (X, Column("a", "STRUCT"))).definition.changes
    assert change.added == ("a.zip STRING", "tags REPEATED STRING")
    assert str(change) == "new: a.zip STRING, tags REPEATED STRING; now nullable: x; schema id 7"


def test_a_table_that_is_as_it_should_be_is_no_news() -> None:
    assert altered(schema(("x", "long")), columns_of(schema(("x", "long")))) is BLANK


def test_a_note_that_was_not_settled_stays_and_is_settled_by_the_next_loader() -> None:
    died = note_change(BLANK, TableChange(False, (X,), added=("x",)), 7)
    assert died.definition.changes == ()
    unchanged = note_change(died, TableChange(False, (X,)), 8)
    assert unchanged is died
    assert settle_change(unchanged, NOW).definition.changes == (
        SchemaChange(7, added=("x INT64",), at_ms=NOW),
    )


def test_two_notes_before_one_is_settled_are_one_and_name_nothing_twice() -> None:
    died = note_change(BLANK, TableChange(True, (X,)), 7)
    y = Column("y", "STRING")
    again = note_change(
        note_change(died, TableChange(False, (X, y), added=("y",)), 8), TableChange(True, (X, y)), 8
    )
    assert settle_change(again, NOW).definition.changes == (
        SchemaChange(8, created=True, columns=2, added=("y STRING",), at_ms=NOW),
    )


def test_of_many_columns_some_are_named_and_all_counted() -> None:
    columns = tuple(Column(f"c{n}", "STRING") for n in range(100))
    state = note_change(BLANK, TableChange(False, columns, added=tuple(c.name for c in columns)), 1)
    assert state.definition.changing is not None
    assert (len(state.definition.changing.added), state.definition.changing.more) == (30, 70)
    assert len(codec.dumps(state)) < 1_000


def test_changes_are_forgotten_in_time_and_never_grow_without_bound() -> None:
    state = BLANK
    for number in range(50):
        state = settle_change(note_change(state, TableChange(True, (X,)), number), NOW + number)
    assert [change.schema_id for change in state.definition.changes] == list(range(30, 50))
    late = settle_change(note_change(state, TableChange(True, (X,)), 99), NOW + NEWS_MS + 100)
    assert [change.schema_id for change in late.definition.changes] == [99]
    assert codec.loads(TableState, codec.dumps(late), "x") == late
