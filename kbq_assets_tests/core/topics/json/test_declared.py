"""Types that a JSON Schema declares; whatever it says, it is no error."""

from __future__ import annotations

from typing import Any

import pytest

from kbq_assets.core.topics.json.declared import declared
from kbq_assets.core.topics.json.inference import InferredSchema
from kbq_assets_tests.core.topics.json.test_inference import kinds


def columns(schema: Any) -> Any:
    return kinds(InferredSchema().grown_by(declared(schema)).root)


def of(field: Any) -> Any:
    return columns({"type": "object", "properties": {"a": field}}).get("a")


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ({"type": "integer"}, "INT64"),
        ({"type": "number"}, "FLOAT64"),
        ({"type": ["null", "boolean"]}, "BOOL"),
        ({"type": ["string", "integer"]}, "JSON"),
        ({"oneOf": [{"type": "null"}, {"type": "string", "format": "date"}]}, "STRING"),
        ({"anyOf": [{"type": "integer"}, {"type": "number"}]}, "FLOAT64"),
        ({"type": "array", "items": {"type": "integer"}}, ["INT64"]),
        ({"type": "array"}, None),
        ({"type": "object"}, None),
        ({"properties": {"b": {"type": "string"}}}, {"b": "STRING"}),
        ({"allOf": [{"properties": {"b": {"type": "string"}}}, {"properties": {"c": {"type": "number"}}}]},
         {"b": "STRING", "c": "FLOAT64"}),
        ({"if": {"type": "integer"}, "then": {"type": "number"}, "else": {"type": "null"}}, "FLOAT64"),
        ({"properties": {"b": {"type": "string"}},
          "dependentSchemas": {"b": {"properties": {"c": {"type": "number"}}}}},
         {"b": "STRING", "c": "FLOAT64"}),
        ({"dependencies": {"x": ["y"], "z": {"type": "boolean"}}}, "BOOL"),
        ({"if": {"type": "integer"}}, None),
        ({"enum": ["x", "y"]}, None),
        ({"$ref": "other.json#/x"}, None),
        (True, None),
        ({"type": "nonsense"}, None),
    ],
)  # fmt: skip
def test_a_declared_type_is_a_column_s(field: Any, expected: Any) -> None:
    assert of(field) == expected


def test_references_are_followed_and_end() -> None:
    schema = {
        "$defs": {
            "node": {
                "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}},
            }
        },
        "$ref": "#/$defs/node",
    }
    found = columns(schema)
    assert found["v"] == "INT64"
    assert found["next"]["next"]["v"] == "INT64"
    loop = {"$ref": "#"}
    assert columns(loop) == {}


@pytest.mark.parametrize("schema", [None, [], 5, {}, {"properties": []}, {"properties": {"a": None}}])
def test_what_says_nothing_declares_nothing(schema: Any) -> None:
    assert columns(schema) == {}
