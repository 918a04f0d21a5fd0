"""The column of a tagged field is protected, however a JSON Schema expresses the tag."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from kbq_assets.core.catalog.json_columns import rows_of_json
from kbq_assets.core.loading.tables import Column, columns_of
from kbq_assets.core.topics.json.declared import tagged, tags_any_name, undeclared
from kbq_assets.core.topics.json.inference import REST
from kbq_assets.core.topics.personal import parse_decisions

HIGH = {"type": "string", "pii": "HIGH"}
PLAIN = {"type": "string"}
DEFINITIONS = {
    "Address": {"properties": {"street": {**HIGH, "description": "And number."}, "city": PLAIN}},
    "Secret": HIGH,
}


def columns(properties: Any, decisions: str = "", root: Any = None) -> dict[str, Column]:
    schema = {"type": "object", "$defs": DEFINITIONS, "properties": properties, **(root or {})}
    return dict(flat(columns_of(rows_of_json(json.dumps(schema), parse_decisions(decisions)))))


def flat(found: Iterable[Column], prefix: str = "") -> Iterable[tuple[str, Column]]:
    for column in found:
        yield prefix + column.name, column
        yield from flat(column.fields, f"{prefix}{column.name}.")


@pytest.mark.parametrize(
    ("properties", "high"),
    [
        ({"a": HIGH, "b": PLAIN}, ["a"]),
        ({"a": {**PLAIN, "pii": "high"}}, ["a"]),
        ({"home": {"$ref": "#/$defs/Address"}}, ["home.street"]),
        ({"homes": {"type": "array", "items": {"$ref": "#/$defs/Address"}}}, ["homes.street"]),
        ({"a": {"$ref": "#/$defs/Secret"}}, ["a"]),
        ({"a": {"oneOf": [{"type": "null"}, {"$ref": "#/$defs/Secret"}]}}, ["a"]),
        ({"a": {"allOf": [{"properties": {"x": PLAIN}}, {"$ref": "#/$defs/Address"}]}}, ["a.street"]),
        ({"e-mail": HIGH, "mail.to": HIGH, "event_date": HIGH}, ["e_mail", "field_event_date", "mail_to"]),
        ({"a-b": {"properties": {"c d": HIGH, "e": PLAIN}}}, ["a_b.c_d"]),
        ({"A": PLAIN, "a": HIGH}, ["a_2"]),
        ({"a": {"type": "array", "items": HIGH}}, ["a"]),
        ({"a": {"type": ["object", "string"], "properties": {"b": HIGH}}}, ["a"]),
        ({"a": {"type": "array", "items": {"type": "array", "items": HIGH}}}, ["a"]),
        ({"a": {"properties": {"b": PLAIN}, "additionalProperties": {"$ref": "#/$defs/Secret"}}}, ["a"]),
    ],
)
def test_the_column_of_a_tagged_field_has_its_level(properties: Any, high: list[str]) -> None:
    found = columns(properties)
    assert sorted(name for name, column in found.items() if column.pii == "HIGH" and name != REST) == high


ADDRESS = {"$ref": "#/$defs/Address"}


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({"if": {"properties": {"city": PLAIN}}, "then": ADDRESS}, ["street"]),
        ({"if": {}, "else": ADDRESS}, ["street"]),
        ({"if": {"properties": {"a": HIGH}}}, ["a"]),
        ({"dependentSchemas": {"city": ADDRESS}}, ["street"]),
        ({"dependencies": {"city": ADDRESS, "a": ["b"]}}, ["street"]),
        ({"allOf": [{"if": {}, "then": {"else": {"properties": {"a": {"then": HIGH}}}}}]}, ["a"]),
    ],
)
def test_what_is_tagged_on_a_condition_is_tagged(conditions: Any, expected: list[str]) -> None:
    defined = {"$defs": DEFINITIONS}
    assert tagged({**conditions, **defined}) == expected
    inner = {"properties": {"home": conditions}, **defined}
    nested = [f"home.{path}" for path in expected]
    assert tagged(inner) == nested
    assert undeclared({**inner, "required": ["home"]}, [*nested, "home.x", "y"]) == ["home.x", "y"]
    found = columns({"a": PLAIN}, root=conditions)
    assert (found[expected[0]].pii, found[REST].pii) == ("HIGH", "HIGH")


@pytest.mark.parametrize("key", ["if", "then", "else"])
def test_tags_of_any_name_are_seen_on_a_condition(key: str) -> None:
    assert tags_any_name({key: {"additionalProperties": HIGH}})
    assert not tags_any_name({key: {"properties": {"a": HIGH}}})


def test_words_are_found_behind_references() -> None:
    found = columns({"home": {"$ref": "#/$defs/Address", "description": "Where."}})
    assert (found["home"].description, found["home.street"].description) == ("Where.", "And number.")
    assert found["home.city"].description == ""


def test_the_highest_of_several_levels_counts() -> None:
    field = {"pii": "LOW", "allOf": [{**PLAIN, "pii": "MEDIUM"}, {"pii": "none"}]}
    assert columns({"a": field})["a"].pii == "MEDIUM"


@pytest.mark.parametrize(
    ("decisions", "level"),
    [
        ("", "HIGH"),
        ("a:keep,home:drop", "HIGH"),
        ("a:pseudonym,home:drop", ""),
        ("a:null,home.street:drop", ""),
    ],
)
def test_the_side_column_is_as_personal_as_what_may_get_into_it(decisions: str, level: str) -> None:
    found = columns({"a": HIGH, "home": {"$ref": "#/$defs/Address"}}, decisions)
    assert found[REST].pii == level


def test_a_tag_behind_a_reference_is_the_field_s_where_no_path_leads_to_it() -> None:
    inner = {"type": "object", "additionalProperties": {"$ref": "#/$defs/Address"}}
    schema = {"$defs": DEFINITIONS, "properties": {"homes": inner, "cities": {"type": "object"}}}
    assert tagged(schema) == ["homes"]
    chain = {"$defs": {"a": {"properties": {"next": {"$ref": "#/$defs/a"}}}}, "$ref": "#/$defs/a"}
    assert tagged(chain) == []
