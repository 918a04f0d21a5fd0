"""Validation against JSON Schemas: messages without values, no fetching, limits on schemas, patterns and documents."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from kbq_assets.adapters.json_schema import DocumentCheck
from kbq_assets.core.errors import UnstageableSchema
from kbq_assets.wire.records.reasons import Reason

ORDER = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "integer"},
        "total": {"type": "number", "multipleOf": 0.01},
        "items": {"type": "array", "items": {"properties": {"a/b": {"maxLength": 3}}}},
    },
    "additionalProperties": False,
}


def message(schema: Any, document: Any, **more: Any) -> str:
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    found = DocumentCheck(json.dumps(schema), **more)(text)
    assert found is None or found.reason is Reason.VIOLATES_SCHEMA
    return "" if found is None else found.message


def test_a_violation_is_reported_by_its_place_and_never_by_the_value() -> None:
    assert message(ORDER, {"id": 1, "total": 19.99, "items": [{}]}) == ""
    assert message(ORDER, {"id": "secret"}) == "/id violates its JSON Schema at /properties/id/type"
    assert message(ORDER, {"id": 1, "items": [{"a/b": "secret"}]}) == (
        "/items/0/a~1b violates its JSON Schema at /properties/items/items/properties/a~1b/maxLength"
    )
    assert message(ORDER, {"secret": 1}).startswith("the value violates its JSON Schema at /")
    personal = message({"additionalProperties": {"type": "integer"}}, {"jo@x.org": "a"}, is_personal=True)
    assert personal == "the value violates its JSON Schema at /additionalProperties/type"


def test_numbers_are_judged_as_they_are_written() -> None:
    assert message({"const": 12345678901234567890.5}, b"1.0") != ""
    assert message({"multipleOf": 0.1}, b"1.1") == ""
    assert message({"maximum": 12345678901234567890}, b"12345678901234567891") != ""
    assert message({"type": "integer"}, b"1" * 30) == ""
    assert message({"type": "integer"}, b"1.0") == ""


def test_a_reference_is_another_schema_of_the_registry() -> None:
    schema = {"properties": {"home": {"$ref": "address.json"}}}
    address = ("address.json", '{"required": ["zip"]}')
    assert message(schema, {"home": {}}, references=[address]).startswith("/home violates")


@pytest.mark.parametrize("name", ["a.json", "v2/a.json", "https://x.org/v2/a.json"])
def test_of_references_whose_names_end_alike_the_one_that_is_meant_counts(name: str) -> None:
    names = ["a.json", "https://x.org/v2/a.json", "v2/a.json"]
    references = [(each, json.dumps({"required": [each]})) for each in names]
    schema = {"properties": {"home": {"$ref": name}}}
    assert message(schema, {"home": {name: 1}}, references=references) == ""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "cannot be read as JSON"),
        ("[" * 5000, "cannot be read as JSON"),
        ('{"minimum": NaN}', "cannot be read as JSON"),
        ("5", "neither an object"),
        ('{"type": 5}', "not a valid JSON Schema"),
        ('{"pattern": "(?=a)b"}', "not a valid JSON Schema"),
        ('{"pattern": "(a{1000}){1000}"}', "not a valid JSON Schema"),
        ('{"$ref": "file:///etc/passwd"}', "does not fetch schemas"),
        ('{"$schema": "https://example.com/own"}', "not a valid JSON Schema"),
        ('{"description": "' + "x" * (1 << 20) + '"}', "more than 1 MB"),
    ],
)
def test_schemas_that_cannot_validate_are_refused(text: str, why: str) -> None:
    with pytest.raises(UnstageableSchema, match=why):
        DocumentCheck(text)


def test_hostile_schemas_and_documents_take_no_time() -> None:
    again = {"anyOf": [{"properties": {"a": {"$ref": "#"}, "b": {"type": "null"}}}] * 3}
    deep = b'{"a":' * 60 + b'{"b":1}' + b"}" * 60
    alternatives = {"anyOf": [{"items": {"type": "string"}}]}
    cases = [
        (again, deep, Reason.TOO_COMPLEX),
        ({"items": {"enum": [*range(5000)]}}, json.dumps([0.5] * 100_000).encode(), Reason.TOO_COMPLEX),
        (alternatives, json.dumps([1] * 100_000).encode(), Reason.VIOLATES_SCHEMA),
        ({"pattern": "^(a+)+$"}, b'"' + b"a" * 10_000 + b'!"', Reason.VIOLATES_SCHEMA),
        ({"type": "object"}, b"1" * 5000, Reason.TOO_COMPLEX),
    ]
    started = time.process_time()
    for schema, document, reason in cases:
        found = DocumentCheck(json.dumps(schema))(document)
        assert found is not None
        assert found.reason is reason
    assert time.process_time() - started < 20
