"""Descriptions of tables from the catalog, from schemas and from people, and their precedence."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kbq_assets.core.loading.table_notes import (
    MAX_COLUMN_TEXT,
    ColumnNote,
    StoredTable,
    TableNotes,
    needs_notes,
    noted,
)
from kbq_assets.core.loading.tables import Column, columns_of, plan_table_change

TAG, OTHER = (
    "projects/p/locations/eu/taxonomies/1/policyTags/2",
    "projects/p/locations/eu/taxonomies/1/policyTags/3",
)
SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "email", "type": "string", "doc": "Where to write to.", "pii": "high"},
            {
                "name": "home",
                "doc": "Where it goes.",
                "pii": "LOW",
                "type": [
                    "null",
                    {
                        "type": "record",
                        "name": "Address",
                        "fields": [{"name": "street", "type": "string", "doc": "With number."}],
                    },
                ],
            },
            {"name": "_kafka_offset", "type": "long"},
        ],
    }
)
STAGED = columns_of(SCHEMA)


def texts(columns: tuple[Column, ...]) -> dict[str, str]:
    found = {column.name: column.description for column in columns}
    return found | {f"home.{c.name}": c.description for c in columns[1].fields}


def tags(columns: tuple[Column, ...]) -> dict[str, str]:
    found = {column.name: column.policy_tag for column in columns if column.policy_tag}
    return found | {f"home.{c.name}": c.policy_tag for c in columns[1].fields if c.policy_tag}


def test_a_new_table_has_the_schema_s_texts_and_kbq_s_own() -> None:
    assert texts(noted(STAGED, STAGED, TableNotes())) == {
        "email": "Where to write to.",
        "home": "Where it goes.",
        "home.street": "With number.",
        "_kafka_offset": "The record's offset in its partition. Topic, partition, offset and epoch identify the row.",
    }


def test_the_catalogue_prevails_over_people_and_people_over_schemas() -> None:
    theirs = tuple(replace(column, description="mine", pii="") for column in STAGED)
    notes = TableNotes(columns={"email": ColumnNote("The catalogue's."), "home.street": ColumnNote("Deep.")})
    assert texts(noted(theirs, STAGED, notes)) == {
        "email": "The catalogue's.",
        "home": "mine",
        "home.street": "Deep.",
        "_kafka_offset": "mine",
    }


def test_a_table_as_it_should_be_is_left_alone_whatever_another_schema_says() -> None:
    notes = TableNotes(
        "Orders.", columns={"email": ColumnNote(pii="HIGH")}, policy_tags={"HIGH": TAG, "LOW": OTHER}
    )
    table = noted(plan_table_change(SCHEMA, None).columns, STAGED, notes)
    for schema in (SCHEMA, SCHEMA.replace("Where", "Somewhere").replace('"LOW"', '"HIGH"')):
        change = plan_table_change(schema, table)
        assert not change
        assert noted(change.columns, columns_of(schema), notes) == table


def test_levels_of_personal_data_protect_leaves_and_the_catalogue_s_prevail() -> None:
    levels = {"HIGH": TAG, "LOW": OTHER}
    assert tags(noted(STAGED, STAGED, TableNotes(policy_tags=levels))) == {"email": TAG, "home.street": OTHER}
    notes = TableNotes(columns={"home": ColumnNote(pii="HIGH")}, policy_tags=levels)
    table = noted(STAGED, STAGED, notes)
    assert tags(table) == {"email": TAG, "home.street": TAG}
    # A tag that a person has chosen stays where the catalogue says nothing.
    chosen = (replace(table[0], policy_tag="theirs"), *table[1:])
    assert tags(noted(chosen, STAGED, notes)) == {"email": "theirs", "home.street": TAG}


def test_a_variant_column_is_as_personal_as_its_field() -> None:
    companions = (
        replace(STAGED[0], name="email__int64", pii=""),
        replace(STAGED[1], name="home__struct", pii=""),
    )
    said = {
        "email": ColumnNote("An address.", "HIGH"),
        "home": ColumnNote(),
        "home.street": ColumnNote(pii="LOW"),
    }
    email, home = noted(companions, (), TableNotes(columns=said, policy_tags={"HIGH": TAG, "LOW": OTHER}))
    assert (email.description, email.policy_tag, home.fields[0].policy_tag) == ("An address.", TAG, OTHER)


def test_long_texts_are_cut_to_what_the_warehouse_takes() -> None:
    (column,) = noted([Column("a", "STRING")], (), TableNotes(columns={"a": ColumnNote("x" * 2000)}))
    assert (len(column.description), column.description[-1]) == (MAX_COLUMN_TEXT, "…")


@pytest.mark.parametrize(
    ("description", "labels", "needs"),
    [
        ("Orders.", {"team": "sales", "theirs": "x"}, False),
        ("Old.", {"team": "sales"}, True),
        ("Orders.", {"team": "other"}, True),
        ("Orders.", {}, True),
    ],
)
def test_labels_of_others_stay_and_ours_are_kept_true(
    description: str, labels: dict[str, str], needs: bool
) -> None:
    notes = TableNotes("Orders.", {"team": "sales"})
    assert needs_notes(StoredTable((), description, labels), notes) is needs


def test_a_person_s_description_stays_where_the_catalogue_has_none() -> None:
    assert not needs_notes(StoredTable((), "written in the console"), TableNotes())
