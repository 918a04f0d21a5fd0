"""Rules for the fields of schemas, in Avro, JSON Schema and Protobuf alike."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from kbq_assets.adapters.protobuf import fields_of
from kbq_assets.core.avro.tree import parse
from kbq_assets.core.catalog import CatalogFiles, CatalogProblem
from kbq_assets.core.catalog.schema_rules import SchemaRules
from kbq_assets.pipelines.catalog.reader import read_catalog
from kbq_assets.pipelines.catalog.schema_kinds import (
    SchemaFile,
    avro_problems,
    json_problems,
    protobuf_problems,
)
from kbq_assets_tests.core.catalog.documents import documents

RULES = SchemaRules({"event_id": "text", "at": "time", "size": "number", "meta.x": "any"}, "[a-z_]+", "")
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
GOOD = {
    "avro": {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "event_id", "type": ["null", "string"]},
            {"name": "at", "type": MILLIS},
            {"name": "size", "type": "int"},
            {
                "name": "meta",
                "type": {"type": "record", "name": "M", "fields": [{"name": "x", "type": "bytes"}]},
            },
        ],
    },
    "json": {
        "type": "object",
        "properties": {
            "event_id": {"type": ["string", "null"]},
            "at": {"type": "string", "format": "date-time"},
            "size": {"type": "integer"},
            "meta": {"type": "object", "properties": {"x": {"type": "boolean"}}},
        },
    },
    "protobuf": """syntax = "proto3"; import "google/protobuf/timestamp.proto";
        message R { string event_id = 1; google.protobuf.Timestamp at = 2; double size = 3; M meta = 4; }
        message M { bytes x = 1; }""",
}
CHECKS: dict[str, Callable[[SchemaFile], Iterator[CatalogProblem]]] = {
    "avro": lambda schema: avro_problems(schema, parse(json.loads(schema.text))),
    "json": json_problems,
    "protobuf": lambda schema: protobuf_problems(schema, fields_of),
}


def broken(kind: str, text: str) -> list[tuple[str, str]]:
    schema = SchemaFile("value", "value", text, kind.upper(), "t-value", RULES)
    return [(problem.where.removeprefix("R."), problem.message) for problem in CHECKS[kind](schema)]


def text_of(kind: str) -> str:
    good = GOOD[kind]
    return good if isinstance(good, str) else json.dumps(good)


@pytest.mark.parametrize("kind", GOOD)
def test_a_schema_that_keeps_the_rules(kind: str) -> None:
    assert broken(kind, text_of(kind)) == []


@pytest.mark.parametrize("kind", GOOD)
@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("event_id", "evnt_id", ("event_id", "is mandatory and missing")),
        ("event_id", "eventId", ("eventId", "'eventId' breaks the rule for names of fields")),
    ],
)
def test_a_name_that_breaks_them(kind: str, old: str, new: str, expected: tuple[str, str]) -> None:
    assert expected in broken(kind, text_of(kind).replace(old, new))


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        ("avro", json.dumps(MILLIS), '"long"'),
        ("json", '"string", "format": "date-time"', '"integer"'),
        ("protobuf", "google.protobuf.Timestamp at", "int64 at"),
    ],
)
def test_a_type_that_breaks_them(kind: str, old: str, new: str) -> None:
    assert broken(kind, text_of(kind).replace(old, new)) == [
        ("at", "must be of kind time, but has another type")
    ]


def test_rules_are_inherited_by_company_domain_and_typology_and_add_up() -> None:
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "made_at", "type": "string"}]})
    files = documents(
        {
            "catalog.yaml": "typologies: {entity: {schema_rules: {mandatory: {entity_id: any}}}}",
            "shop/defaults.yaml": "schema_rules: {mandatory: {event_id: text}}",
            "shop/sales/defaults.yaml": "schema_rules: {mandatory: {made_at: time}}",
            "shop/sales/a/prod/topic.yaml": "typology: entity",
            "shop/other/b/prod/topic.yaml": "schema_rules: {mandatory: {event_id: null}}",
        }
    )
    schemas = {f"shop/{topic}/schemas/value.avsc": schema for topic in ("sales/a", "other/b")}
    found = read_catalog(CatalogFiles(files, schemas)).problems
    assert {(each.path, each.where) for each in found} == {
        ("shop/sales/a/schemas/value.avsc", where) for where in ("entity_id", "event_id", "made_at")
    }
