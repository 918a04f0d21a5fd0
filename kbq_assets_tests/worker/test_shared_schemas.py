"""Compiled schemas, which the units of a process share."""

from __future__ import annotations

import json

import pytest

from kbq_assets.core.errors import UnstageableSchema
from kbq_assets.core.topics.business_time import parse_business_time
from kbq_assets.core.topics.personal import Decision
from kbq_assets.wire.records.staged_schema import MetadataColumns
from kbq_assets.worker.routes import stageable


def schema(name: str, **field: object) -> str:
    fields = [{"name": "at", "type": "string", **field}]
    return json.dumps({"type": "record", "name": name, "fields": fields})


def test_units_share_a_compiled_schema() -> None:
    first = stageable(schema("Shared"), (), MetadataColumns(), ())
    assert stageable(schema("Shared"), [], MetadataColumns(), ()) is first


def test_what_decides_about_a_compiled_schema_is_part_of_it() -> None:
    usual = MetadataColumns()
    dated = MetadataColumns(business_time=parse_business_time("at"))
    found = [
        stageable(schema("Decided"), (), usual, ()),
        stageable(schema("Decided"), (), dated, ()),
        stageable(schema("Decided"), (), usual, ("at",)),
        stageable(schema("Other"), (), usual, ()),
    ]
    assert [each.event_field for each in found] == ["", "at", "", ""]
    assert [each.program.routes for each in found] == [0, 0, 1, 0]
    assert len({id(each) for each in found}) == 4


def test_a_decision_that_is_withdrawn_stops_a_schema_that_was_compiled_with_it() -> None:
    tagged = schema("Tagged", pii="HIGH")
    stageable(tagged, [Decision("at", "keep")], MetadataColumns(), ())
    with pytest.raises(UnstageableSchema, match="no decision about"):
        stageable(tagged, [], MetadataColumns(), ())


def test_a_long_schema_is_not_kept() -> None:
    long = schema("Long", doc="x" * 40_000)
    assert stageable(long, (), MetadataColumns(), ()) is not stageable(long, (), MetadataColumns(), ())
