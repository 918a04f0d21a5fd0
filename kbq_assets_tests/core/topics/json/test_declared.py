"""Types that a JSON Schema declares. No schema raises an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from kbq_assets.core.topics.json.declared import declared, tagged, tags_any_name, undeclared
from kbq_assets.core.topics.json.inference import MOST_COLUMNS, InferredSchema
from kbq_assets_tests.core.topics.json.test_inference import kinds

#: JSON Schema's own schema, which contains itself at eleven places.
METASCHEMA: Final = Path(__file__).parent / "draft-07.json"


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
        ({"type": ["null", {"type": "object", "properties": {"b": {"type": "string"}}}]}, {"b": "STRING"}),
        ({"type": ["integer", {"type": ["object", ["x"], None]}]}, "JSON"),
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
    assert found["next"] == "JSON"
    loop = {"$ref": "#"}
    assert columns(loop) == {}


class Counted(dict[str, Any]):
    """Counts how often schemas are looked at."""

    looks = 0

    def get(self, key: str, default: Any = None) -> Any:
        Counted.looks += 1
        return super().get(key, default)


def looks(text: str) -> int:
    schema = json.loads(text, object_hook=Counted)
    Counted.looks = 0
    assert columns(schema)
    tagged(schema)
    undeclared(schema, ["x.y"])
    assert not tags_any_name(schema)
    return Counted.looks


def recursive(types: int, fields: int) -> str:
    """Types whose fields refer to each other and to themselves."""
    node = {f"p{n}": {"$ref": f"#/$defs/n{n % types}"} for n in range(fields)}
    defs = {f"n{n}": {"properties": {"v": {"type": "integer"}, **node}} for n in range(types)}
    return json.dumps({"$ref": "#/$defs/n0", "$defs": defs})


def test_a_type_that_contains_itself_costs_what_its_text_does() -> None:
    assert columns(json.loads(recursive(1, 3))) == {"v": "INT64", "p0": "JSON", "p1": "JSON", "p2": "JSON"}
    assert looks(recursive(1, 400)) < 4.5 * looks(recursive(1, 100))
    assert looks(METASCHEMA.read_text()) < 10_000


@pytest.mark.parametrize("types", [5, 40])
def test_types_that_contain_one_another_end_at_a_table_s_size(types: int) -> None:
    text = recursive(types, types)
    assert len(columns(json.loads(text))) == types + 1
    assert looks(text) < 200 * MOST_COLUMNS


@pytest.mark.parametrize("schema", [None, [], 5, {}, {"properties": []}, {"properties": {"a": None}}])
def test_what_says_nothing_declares_nothing(schema: Any) -> None:
    assert columns(schema) == {}
