"""Paths of fields, canonical forms, and references between types of a schema."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kbq_assets.core.avro.canonical import (
    FINGERPRINT_LENGTH,
    canonical,
    named_types,
    recursive_record,
    schema_fingerprint,
    shared_records,
)
from kbq_assets.core.avro.fields import field_paths, fields_in
from kbq_assets.core.avro.references import inline_references, union_records
from kbq_assets.core.avro.tree import Primitive, parse
from kbq_assets.core.debezium.envelopes import is_envelope, record_of
from kbq_assets.core.errors import UnstageableSchema


def record(*fields: tuple[str, Any], name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields], **more}


INNER = record(("x", "int"), name="Inner")
ENUM = {"type": "enum", "name": "E", "symbols": ["A"]}
FIXED = {"type": "fixed", "name": "F", "size": 1}


@pytest.mark.parametrize(
    ("schema", "paths"),
    [
        ("int", []),
        (record(), []),
        (record(("a", "int"), ("b", "string")), ["a", "b"]),
        (record(("a", INNER)), ["a", "a.x"]),
        (record(("a", ["null", INNER])), ["a", "a.x"]),
        (record(("a", {"type": "array", "items": INNER})), ["a", "a.x"]),
        (record(("a", {"type": "map", "values": INNER})), ["a", "a.x"]),
        (record(("a", ["string", INNER])), ["a", "a.x"]),
        (record(("a", INNER), ("b", "Inner")), ["a", "a.x", "b"]),
        (record(("next", ["null", "R"]), ("v", "int")), ["next", "v"]),
    ],
)
def test_fields_have_dotted_paths_where_a_type_is_first_used(schema: Any, paths: list[str]) -> None:
    assert field_paths(parse(schema)) == paths


def test_fields_come_with_their_types() -> None:
    (_, first), (_, second) = fields_in(parse(record(("a", "int"), ("b", {"type": "array", "items": "int"}))))
    assert isinstance(first, Primitive) and first.kind == "int"
    assert not isinstance(second, Primitive)


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        pytest.param("int", {"type": "int"}, True, id="object"),
        pytest.param("int", {"type": {"type": "int", "doc": "x"}, "default": 5}, True, id="docs and defaults"),
        pytest.param("int", "long", False, id="type"),
        pytest.param("int", {"type": "int", "logicalType": "date"}, False, id="logical type"),
        pytest.param(["null", "int"], ["int", "null"], False, id="order of branches"),
        pytest.param(record(("a", "int")), record(("a", "int"), doc="x", aliases=["S"]), True, id="aliases"),
        pytest.param(record(("a", "int")), record(("b", "int")), False, id="name of a field"),
        pytest.param(record(("a", "int")), record(("a", "int"), name="S"), False, id="name of a record"),
        pytest.param(record(name="n.R"), record(namespace="n"), True, id="namespace"),
        pytest.param(record(("a", "int"), ("b", "int")), record(("b", "int"), ("a", "int")), False, id="order"),
        pytest.param(ENUM, {**ENUM, "default": "A"}, True, id="default of an enum"),
        pytest.param(ENUM, {**ENUM, "symbols": ["A", "B"]}, False, id="symbols"),
        pytest.param(FIXED, {**FIXED, "size": 2}, False, id="size"),
        pytest.param({"type": "array", "items": "int"}, {"type": "map", "values": "int"}, False, id="kinds"),
        pytest.param({"type": "bytes", "logicalType": "decimal", "precision": 4},
                     {"type": "bytes", "logicalType": "decimal", "precision": 5}, False, id="precision"),
    ],
)  # fmt: skip
def test_schemas_that_load_alike_have_one_fingerprint(one: Any, other: Any, alike: bool) -> None:
    assert (canonical(parse(one)) == canonical(parse(other))) is alike
    assert (schema_fingerprint(json.dumps(one)) == schema_fingerprint(json.dumps(other))) is alike


def test_a_fingerprint_is_short_and_the_same_for_text_and_values() -> None:
    assert schema_fingerprint(INNER) == schema_fingerprint(json.dumps(INNER, indent=2))
    assert len(schema_fingerprint(INNER)) == FINGERPRINT_LENGTH


@pytest.mark.parametrize(
    ("schema", "named", "shared", "recursive"),
    [
        ("int", set(), set(), ""),
        (record(), {"R"}, set(), ""),
        (record(("a", INNER)), {"R", "Inner"}, set(), ""),
        (record(("a", INNER), ("b", ["null", "Inner"])), {"R", "Inner"}, {"Inner"}, ""),
        (record(("a", ENUM), ("b", "E")), {"R", "E"}, {"E"}, ""),
        (record(("next", ["null", "R"])), {"R"}, {"R"}, "R"),
        (record(("a", record(("up", ["null", "R"]), name="S"))), {"R", "S"}, {"R"}, "R"),
        (record(("a", record(("next", ["null", "S"]), name="S"))), {"R", "S"}, {"S"}, "S"),
        ({"type": "array", "items": record(("x", {"type": "map", "values": "R"}))}, {"R"}, {"R"}, "R"),
    ],
)
def test_types_are_named_shared_or_contain_themselves(
    schema: Any, named: set[str], shared: set[str], recursive: str
) -> None:
    root = parse(schema)
    assert (named_types(root), set(shared_records(root)), recursive_record(root)) == (
        named,
        shared,
        recursive,
    )


@pytest.mark.parametrize(
    ("union", "names"),
    [
        ([record(name="A"), record(name="B")], ["A", "B"]),
        (["null", record(name="A")], [None, "A"]),
        ([record(name="n.A")], ["A"]),
    ],
)
def test_a_union_of_records_is_a_schema_for_each(union: Any, names: list[str | None]) -> None:
    assert [each["name"] if each else None for each in union_records(union)] == names


def test_a_record_of_a_union_brings_the_types_that_another_one_defines() -> None:
    first = record(("x", INNER), name="A")
    second = record(("y", "Inner"), ("z", ["null", "A"]), name="B")
    _, found = union_records([first, second])
    assert field_paths(parse(found)) == ["y", "y.x", "z", "z.x"]


def test_a_type_within_a_referenced_schema_may_be_used_before_it() -> None:
    outer = record(("x", {**INNER, "namespace": "n"}), name="n.Outer")
    for fields in ([("a", "n.Inner"), ("b", "n.Outer")], [("b", "n.Outer"), ("a", "n.Inner")]):
        found = parse(inline_references(record(*fields), [outer]))
        assert named_types(found) == {"R", "n.Inner", "n.Outer"}
        assert shared_records(found) == {"n.Inner"}


def test_a_name_is_looked_for_in_the_namespace_around_it_first() -> None:
    near, far = {**INNER, "namespace": "n"}, record(("far", "int"), name="Inner")
    found = parse(inline_references(record(("a", "Inner"), namespace="n"), [far, near]))
    assert field_paths(found) == ["a", "a.x"]


@pytest.mark.parametrize("schema", [5, None, {"type": "record", "name": "R", "fields": [5, {"name": "a"}]}])
def test_what_is_no_schema_stays_for_the_parser_to_refuse(schema: Any) -> None:
    assert inline_references(schema, [INNER]) == schema


def test_a_type_that_two_definitions_contradict_stays_a_mistake() -> None:
    other = record(("x", record(("y", "string"), name="Inner")), name="Other")
    schema = record(("a", record(("x", INNER), name="Outer")), ("b", "Other"))
    with pytest.raises(UnstageableSchema, match="type 'Inner' is defined twice"):
        parse(inline_references(schema, [other]))


@pytest.mark.parametrize(
    ("union", "problem"),
    [
        (["int", record()], "a union of int and other types is not a record"),
        ([record(), {"type": "array", "items": "int"}], "a union of array and other types"),
        ([], "a union is empty"),
    ],
)
def test_a_union_of_other_types_has_no_records(union: Any, problem: str) -> None:
    with pytest.raises(UnstageableSchema, match=problem):
        union_records(union)


def test_a_schema_that_is_nested_too_deep_is_refused_before_it_is_parsed() -> None:
    text = '{"type":"array","items":' * 900 + '"string"' + "}" * 900
    with pytest.raises(UnstageableSchema, match="nested too deep"):
        inline_references(text, [INNER])


@pytest.mark.parametrize(
    ("schema", "is_one"),
    [
        (record(("op", "string"), ("source", record(("connector", "string"), name="S"))), True),
        (record(("op", "string"), ("source", ["null", record(("connector", "string"), name="S")])), True),
        (record(("op", "string"), ("source", record(("table", "string"), name="S"))), False),
        (record(("op", "string"), ("source", "string")), False),
        (record(("op", "string"), ("source", ["int", record(("connector", "string"), name="S")])), False),
        (record(("op", ["null", "string"]), ("source", record(("connector", "string"), name="S"))), True),
        (
            record(("op", ["null", "string", "int"]), ("source", record(("connector", "string"), name="S"))),
            False,
        ),
        (record(("op", "bytes"), ("source", record(("connector", "string"), name="S"))), False),
        (record(("op", "null"), ("source", record(("connector", "string"), name="S"))), False),
        (record(("op", "string")), False),
        (record(("source", record(("connector", "string"), name="S"))), False),
        ("string", False),
        ([record(("op", "string"), ("source", record(("connector", "string"), name="S")))], False),
    ],
)
def test_a_change_event_has_an_operation_and_a_source_with_a_connector(schema: Any, is_one: bool) -> None:
    assert is_envelope(parse(schema)) is is_one


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        (INNER, "Inner"),
        (["null", INNER], "Inner"),
        ([INNER, "null"], "Inner"),
        ([INNER], "Inner"),
        (["int", INNER], ""),
        ([INNER, record(name="S")], ""),
        (["null"], ""),
        ("int", ""),
        ({"type": "array", "items": INNER}, ""),
    ],
)
def test_a_row_is_a_record_or_null(schema: Any, name: str) -> None:
    found = record_of(parse(schema))
    assert (found.name if found else "") == name
