"""Schemas spread over several subjects of the registry."""

from __future__ import annotations

import json
from typing import Any

import fastavro
import pytest

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.avro.canonical import schema_fingerprint
from kbq_assets.core.avro.references import inline_references
from kbq_assets.core.errors import UnstageableSchema
from kbq_assets.wire.records.staged_schema import MetadataColumns, staged_schema
from kbq_assets_tests.wire.samples import record_of

COUNTRY = {"type": "enum", "name": "Country", "namespace": "geo", "symbols": ["DE", "FR"]}
ADDRESS = record_of(("city", "string"), ("country", "geo.Country"), name="Address") | {"namespace": "people"}
BARE = record_of(("x", "int"), name="Bare")
ORDER = record_of(
    ("to", ["null", "people.Address"]),
    ("from", {"type": "array", "items": "people.Address"}),
    ("country", {"type": "map", "values": "geo.Country"}),
    name="shop.Order",
)
WHOLE = record_of(
    (
        "to",
        [
            "null",
            {**ADDRESS, "fields": [{"name": "city", "type": "string"}, {"name": "country", "type": COUNTRY}]},
        ],
    ),
    ("from", {"type": "array", "items": "people.Address"}),
    ("country", {"type": "map", "values": "geo.Country"}),
    name="shop.Order",
)


@pytest.mark.parametrize("referenced", [[COUNTRY, ADDRESS], [json.dumps(ADDRESS), json.dumps(COUNTRY)]])
def test_referenced_types_are_written_out_where_they_are_first_used(referenced: list[Any]) -> None:
    inlined = inline_references(json.dumps(ORDER), referenced)
    assert schema_fingerprint(inlined) == schema_fingerprint(WHOLE)
    staged = staged_schema(inlined, MetadataColumns(headers=True))
    assert staged.fingerprint == staged_schema(WHOLE, MetadataColumns(headers=True)).fingerprint
    fastavro.parse_schema(json.loads(staged.json))


def test_a_type_without_a_namespace_stays_without_one() -> None:
    # A bare name inside a namespace means that namespace: the reference must be to the bare one.
    schema = record_of(("a", "Bare"), ("b", ["null", "Bare"]))
    staged = staged_schema(inline_references(schema, [BARE]), MetadataColumns())
    fastavro.parse_schema(json.loads(staged.json))


def test_a_name_without_a_namespace_is_found_inside_one_as_java_does() -> None:
    fields = [{"name": "a", "type": {**BARE, "namespace": ""}}, {"name": "b", "type": ["null", "Bare"]}]
    java = {"type": "record", "name": "R", "namespace": "n", "fields": fields}
    assert staged_schema(java, MetadataColumns()).columns[:2] == ("a", "b")
    near = {"type": "record", "name": "Bare", "fields": [{"name": "y", "type": "long"}]}
    nearer = {**java, "fields": [*fields[:1], {"name": "n", "type": near}, {"name": "m", "type": "Bare"}]}
    found = avro.parse(nearer)
    assert isinstance(found, avro.RecordType) and found.fields["m"].type is found.fields["n"].type
    split = {**java, "fields": [{"name": "a", "type": "Bare"}, {"name": "b", "type": ["null", "Bare"]}]}
    assert schema_fingerprint(inline_references(split, [BARE])) == schema_fingerprint(java)


def test_a_reference_that_is_missing_is_refused_by_name() -> None:
    with pytest.raises(UnstageableSchema, match=r"unknown type 'geo.Country' \(at to.country\)"):
        staged_schema(inline_references(ORDER, [ADDRESS]), MetadataColumns())


def test_references_that_are_not_used_do_not_matter() -> None:
    schema = record_of(("a", "int"))
    assert inline_references(schema, [COUNTRY, '"string"']) == schema
