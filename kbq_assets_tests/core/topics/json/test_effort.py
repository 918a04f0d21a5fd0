"""The steps of a validation are known before it starts, even for schemas that would take forever."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from kbq_assets.core.errors import UnstageableSchema
from kbq_assets.core.topics.json import effort
from kbq_assets.core.topics.json.effort import Effort

METASCHEMA = json.loads(Path(__file__).with_name("draft-07.json").read_text())


def each(schema: Any, depth: int = 100, references: Any = None) -> int:
    return Effort(schema, references or {}).steps(1, depth)


def twice(inner: Any) -> Any:
    return {"allOf": [inner, inner]}


def test_a_plain_schema_takes_a_few_steps_for_each_value() -> None:
    fields = {f"f{n}": {"type": "string", "minLength": 1} for n in range(20)}
    schema = {"type": "object", "properties": {**fields, "items": {"items": {"properties": fields}}}}
    assert each(schema) == 3
    assert each({**schema, "required": [*fields]}) == 3 + 20
    assert each({"enum": [*range(1000)]}) == 1002
    assert each(True) == 1


def test_a_schema_that_contains_itself_once_takes_as_many_at_any_depth() -> None:
    tree = {"properties": {"children": {"type": "array", "items": {"$ref": "#"}}, "name": {"type": "string"}}}
    assert each(tree, 3) == each(tree, 500) == 3
    assert each(METASCHEMA, 100) < 300


def test_alternatives_that_contain_one_another_double_the_steps() -> None:
    definitions = {f"a{n}": twice({"$ref": f"#/$defs/a{n + 1}"}) for n in range(40)}
    assert each({"$ref": "#/$defs/a0", "$defs": {**definitions, "a40": {"type": "object"}}}) > 10**8
    again = twice({"properties": {"a": {"$ref": "#"}}})
    assert [each(again, depth) for depth in (2, 3, 4)] == [4 * 5, 8 * 5, 16 * 5]
    assert each(again, 64) > 10**8


def test_a_schema_that_takes_more_at_each_level_is_known_without_asking_at_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tree of named and other fields: 400,000 levels took seconds, and no document has more than 500."""
    size = Mock(side_effect=effort._size)
    monkeypatch.setattr(effort, "_size", size)
    tree = {"properties": {"a": {"$ref": "#"}}, "additionalProperties": {"type": "string"}}
    first, *others = (each(tree, depth) for depth in (100, 499, 500))
    assert 100 < first < others[0] < others[1] < 10_000
    assert size.call_count < 50
    assert each(tree, 600) > 10**8


def test_different_fields_of_alternatives_do_not() -> None:
    either = {"oneOf": [{"properties": {key: {"items": {"$ref": "#"}}}} for key in ("and", "or", "not")]}
    assert each(either, 100) < 20


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"$ref": "other.json"}, "does not fetch schemas"),
        ({"$ref": "https://example.com/a.json#/x"}, "does not fetch schemas"),
        ({"$ref": "#/$defs/a"}, "does not exist"),
        ({"allOf": [{"$ref": "#"}]}, "consists of itself"),
        (
            {"properties": {"a": {"anyOf": [{"type": "null"}, {"$ref": "#/properties/a"}]}}},
            "consists of itself",
        ),
        ({"enum": [{} for _ in range(20_000)]}, "more than 10000 parts"),
    ],
)
def test_schemas_that_cannot_be_judged_are_refused(schema: Any, why: str) -> None:
    with pytest.raises(UnstageableSchema, match=why):
        each(schema)


def test_references_are_found_by_name_by_id_and_by_anchor() -> None:
    address = {"definitions": {"zip": {"$anchor": "zip", "enum": [1, 2, 3]}}}
    schema = {"$id": "https://example.com/a/order.json", "items": {"$ref": "address.json#/definitions/zip"}}
    assert each(schema, references={"address.json": address}) == 8
    embedded = {"$id": "address.json", "$defs": {"zip": {"$anchor": "zip", "enum": [1, 2, 3]}}}
    assert each({**schema, "items": {"$ref": "address.json#zip"}, "$defs": {"a": embedded}}) == 8


def test_two_parts_that_share_a_third_are_no_circle() -> None:
    definitions = {"b": {"$ref": "#/$defs/c"}, "c": {"type": "string"}}
    assert each({"anyOf": [{"$ref": "#/$defs/c"}, {"$ref": "#/$defs/b"}], "$defs": definitions}) > 1


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "http://[#a"},
        {"$id": "http://[#x", "type": "object"},
        {"$id": "http://a/b", "properties": {"a": {"id": "http://["}}},
        {"$id": "http://a/b", "properties": {"a": {"$ref": "http://["}}},
    ],
)
def test_an_address_that_is_none_is_the_schema_s_fault(schema: Any) -> None:
    with pytest.raises(UnstageableSchema, match="has an invalid address"):
        each(schema)
