"""Columns of BigQuery's JSON schemas. Each mistake is reported with its field."""

from __future__ import annotations

from typing import Any

import pytest

from kbq_assets.adapters.filebatches.bigquery_columns import schema_columns
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.loading.tables import Column


def field(**given: Any) -> dict[str, Any]:
    return {"fields": [{"name": "a", "type": "STRING", **given}]}


@pytest.mark.parametrize(
    ("schema", "columns"),
    [
        (None, ()),
        ({"fields": []}, ()),
        (field(), (Column("a", "STRING"),)),
        (field(type="integer", mode="required"), (Column("a", "INT64", "REQUIRED"),)),
        (field(type="Float", mode=None), (Column("a", "FLOAT64"),)),
        (field(type="BOOLEAN", mode="REPEATED"), (Column("a", "BOOL", "REPEATED"),)),
        (
            field(type="RECORD", mode="REPEATED", **field(name="b", type="DATE")),
            (Column("a", "STRUCT", "REPEATED", (Column("b", "DATE"),)),),
        ),
        (field(description="kept elsewhere", policyTags={}), (Column("a", "STRING"),)),
    ],
    ids=str,
)
def test_fields_are_columns(schema: dict[str, Any] | None, columns: tuple[Column, ...]) -> None:
    assert schema_columns(schema) == columns


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({}, "no list of fields"),
        ([], "no list of fields"),
        ("text", "no list of fields"),
        ({"fields": None}, "no list of fields"),
        ({"fields": "a"}, "no list of fields"),
        ({"fields": {"a": "STRING"}}, "no list of fields"),
        ({"fields": ["a"]}, "no list of fields"),
        (field(name=None), "a field without a name"),
        (field(name=""), "a field without a name"),
        (field(name=5), "a field without a name"),
        (field(type=None), "a has the type NONE"),
        (field(type=""), "a has the type none"),
        (field(type="INTERVAL"), "a has the type INTERVAL"),
        (field(mode="REPEATD"), "a has the mode REPEATD"),
        (field(type="RECORD"), "no list of fields"),
        (field(type="STRUCT", **field(name="b", mode="x")), "b has the mode X"),
    ],
    ids=str,
)
def test_what_is_no_column_is_named(schema: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as raised:
        schema_columns(schema)
    assert raised.value.next_step
