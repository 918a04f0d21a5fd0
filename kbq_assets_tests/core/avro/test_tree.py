"""Writer schemas become trees, strictly: whatever a reader would refuse is refused here, with its place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kbq_assets.core.avro.tree import (
    MAX_SCHEMA_DEPTH,
    PRIMITIVES,
    Array,
    AvroType,
    Enum,
    Fixed,
    Map,
    Primitive,
    RecordType,
    Union,
    branch_name,
    decimal_of,
    full_name,
    is_null,
    legal_name,
    load_schema,
    member_name,
    parse,
)
from kbq_assets.core.errors import UnstageableSchema


def record(*fields: tuple[str, Any], name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields], **more}


def field(schema: Any, *path: str) -> AvroType:
    """The type of a field, through records."""
    node = parse(schema)
    for name in path:
        assert isinstance(node, RecordType)
        node = node.fields[name].type
    return node


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
FIXED = {"type": "fixed", "name": "F", "size": 4}


@pytest.mark.parametrize("kind", sorted(PRIMITIVES))
@pytest.mark.parametrize("form", ["{}", '{{"type": "{}"}}', '{{"type": {{"type": "{}"}}}}'])
def test_a_primitive_type_may_be_written_as_a_name_or_an_object(kind: str, form: str) -> None:
    text = form.format(kind)
    node = parse(load_schema(text if text.startswith("{") else json.dumps(text)))
    assert isinstance(node, Primitive)
    assert node.kind == kind


@pytest.mark.parametrize(
    ("schema", "cls"),
    [
        ({"type": "array", "items": "int"}, Array),
        ({"type": "map", "values": "int"}, Map),
        (["null", "int"], Union),
        (ENUM, Enum),
        (FIXED, Fixed),
        (record(), RecordType),
        ({**record(), "type": "error"}, RecordType),
    ],
)
def test_each_form_is_a_type_of_its_own(schema: Any, cls: type) -> None:
    assert type(parse(schema)) is cls


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        pytest.param(None, "not an Avro type: null", id="null"),
        pytest.param(5, "not an Avro type: 5", id="number"),
        pytest.param({}, "not an Avro type: {}", id="no type"),
        pytest.param({"a": "x" * 99}, r"not an Avro type: .{77}\.\.\.", id="shortened"),
        pytest.param("nobody", "unknown type 'nobody'", id="unknown name"),
        pytest.param({"type": "nobody"}, "unknown type 'nobody'", id="unknown type"),
        pytest.param([], "a union is empty", id="empty union"),
        pytest.param(["int", ["null"]], "directly inside another union", id="union in union"),
        pytest.param(["int", {"type": "int"}], "two branches of one type: int, int", id="same branches"),
        pytest.param([{"type": "map", "values": "int"}, {"type": "map", "values": "long"}], "map, map", id="maps"),
        pytest.param([record(name="A"), "A"], "two branches of one type: A, A", id="same records"),
        pytest.param({"type": "array"}, "'items' is missing", id="no items"),
        pytest.param({"type": "map"}, "'values' is missing", id="no values"),
        pytest.param({"type": "enum", "name": "E"}, "'symbols' is missing", id="no symbols"),
        pytest.param({**ENUM, "symbols": "AB"}, "the symbols of an enum are not a list", id="symbols in a text"),
        pytest.param({**ENUM, "symbols": ["A", "A"]}, "a duplicate symbol", id="symbol twice"),
        pytest.param({**ENUM, "symbols": ["a-b"]}, "not a valid Avro name: 'a-b'", id="symbol"),
        pytest.param({**ENUM, "symbols": [1]}, "not a valid Avro name: 1", id="symbol of another type"),
        pytest.param({**FIXED, "size": -1}, "no valid size: -1", id="negative size"),
        pytest.param({**FIXED, "size": 2**31}, "no valid size: 2147483648", id="large size"),
        pytest.param({**FIXED, "size": "4"}, "no valid size: '4'", id="size in a text"),
        pytest.param({"type": "fixed", "name": "F"}, "no valid size: None", id="no size"),
        pytest.param({"type": "fixed", "size": 4}, "a named type has no name", id="no name"),
        pytest.param({**FIXED, "namespace": 5}, "a named type has no name", id="namespace of another type"),
        pytest.param({**FIXED, "name": "a..b"}, "not a valid Avro name: ''", id="empty part of a name"),
        pytest.param({**FIXED, "name": "1a"}, "not a valid Avro name: '1a'", id="name"),
        pytest.param({**FIXED, "name": "a\n"}, "not a valid Avro name", id="end of line"),
        pytest.param({"type": "record", "name": "R"}, "'fields' is missing", id="no fields"),
        pytest.param({"type": "record", "name": "R", "fields": "ab"}, "fields of a record are not a list", id="fields"),
        pytest.param({"type": "record", "name": "R", "fields": [5]}, "not a valid Avro name: 5", id="field"),
        pytest.param({"type": "record", "name": "R", "fields": [{"type": "int"}]}, "name: None", id="no field name"),
        pytest.param(record(("a", "int"), ("a", "int")), "'a' and 'a' have one name", id="field twice"),
        pytest.param(record(("a", "int"), ("A", "int")), "'a' and 'A' have one name", id="names ignore case"),
        pytest.param(record(("a", FIXED), ("b", FIXED)), "type 'F' is defined twice", id="type twice"),
    ],
)  # fmt: skip
def test_what_a_reader_would_refuse_is_refused(schema: Any, problem: str) -> None:
    with pytest.raises(UnstageableSchema, match=problem) as caught:
        parse(schema)
    assert caught.value.message.startswith("the writer schema cannot be staged: ")
    assert caught.value.next_step


@pytest.mark.parametrize(
    ("type_", "place"),
    [
        ("nobody", "a"),
        ({"type": "array", "items": "nobody"}, r"a\[\]"),
        ({"type": "map", "values": "nobody"}, r"a\{\}"),
        (["null", record(("b", "nobody"), name="S")], r"a\.b"),
        (
            {"type": "array", "items": record(("b", {"type": "map", "values": "nobody"}), name="S")},
            r"a\[\]\.b\{\}",
        ),
    ],
)
def test_a_refusal_names_the_place(type_: Any, place: str) -> None:
    with pytest.raises(UnstageableSchema, match=rf"unknown type 'nobody' \(at {place}\)"):
        parse(record(("a", type_)))


@pytest.mark.parametrize(("levels", "fits"), [(MAX_SCHEMA_DEPTH, True), (MAX_SCHEMA_DEPTH + 1, False)])
def test_a_schema_has_a_deepest_level(levels: int, fits: bool) -> None:
    schema: Any = "int"
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    if fits:
        assert isinstance(parse(schema), Array)
        return
    with pytest.raises(UnstageableSchema, match=f"nested more than {MAX_SCHEMA_DEPTH} levels"):
        parse(schema)


@pytest.mark.parametrize("text", ["", "{", "nonsense", "[" * 100_000, '{"type": "int"'])
def test_a_text_that_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(UnstageableSchema, match="it is not JSON"):
        load_schema(text)


@pytest.mark.parametrize(
    ("schema", "loaded"), [("string", "string"), ('"string"', "string"), (["int"], ["int"])]
)
def test_a_schema_may_be_a_bare_name_or_loaded_already(schema: Any, loaded: Any) -> None:
    assert load_schema(schema) == loaded


@pytest.mark.parametrize(
    ("outer", "reference", "expected"),
    [
        pytest.param({"namespace": "n"}, "Inner", "n.Inner", id="the namespace around"),
        pytest.param({"namespace": "n"}, "n.Inner", "n.Inner", id="full name"),
        pytest.param({}, "Inner", "Inner", id="no namespace"),
        pytest.param(
            {"name": "m.R", "namespace": "n"}, "Inner", "m.Inner", id="a name's own namespace counts"
        ),
    ],
)
def test_names_are_resolved_in_the_namespace_around_them(outer: Any, reference: str, expected: str) -> None:
    inner = record(("x", "int"), name="Inner")
    schema = {**record(("a", inner), ("b", ["null", reference])), **outer}
    used = field(schema, "b")
    assert isinstance(used, Union)
    assert branch_name(used.branches[1]) == expected
    assert used.branches[1] is field(schema, "a") or isinstance(used.branches[1], RecordType)


def test_a_record_may_contain_itself() -> None:
    tree = parse(record(("next", ["null", "R"])))
    assert isinstance(tree, RecordType)
    next_ = tree.fields["next"].type
    assert isinstance(next_, Union)
    assert next_.branches[1] is tree


@pytest.mark.parametrize(
    ("schema", "logical"),
    [
        ({"type": "int", "logicalType": "date"}, (("logicalType", "date"),)),
        (
            {"scale": 2, "type": "bytes", "precision": 4, "logicalType": "decimal"},
            (("logicalType", "decimal"), ("precision", 4), ("scale", 2)),
        ),
        ({"type": "string", "sqlType": "JSON", "other": 1}, (("sqlType", "JSON"),)),
        ({"type": "bytes", "precision": True, "scale": None, "logicalType": ["x"]}, ()),
        ({"type": {"type": "long", "logicalType": "a"}, "logicalType": "b"}, (("logicalType", "a"),)),
        ({"type": "long", "logicalType": "b"}, (("logicalType", "b"),)),
        ({"type": {"type": "long"}, "logicalType": "b"}, (("logicalType", "b"),)),
        ({"type": {"type": "array", "items": "int"}, "logicalType": "b"}, ()),
        ({"type": {**FIXED}, "logicalType": "duration"}, (("logicalType", "duration"),)),
    ],
)
def test_logical_attributes_are_in_canonical_order_and_the_definition_s_own_are_stronger(
    schema: Any, logical: Any
) -> None:
    assert parse(schema).logical == logical


def test_values_of_an_attribute_are_found_outermost_first() -> None:
    node = parse({"type": {"type": {"type": "string", "pii": 3}, "pii": 2}, "pii": 1})
    assert list(node.values_of("pii")) == [1, 2, 3]
    assert list(node.values_of("other")) == []


@pytest.mark.parametrize(
    ("schema", "decimal"),
    [
        ({"type": "bytes", "precision": 10, "scale": 2}, (10, 2)),
        ({"type": "bytes", "precision": 10}, (10, 0)),
        ({"type": "bytes", "precision": 1, "scale": 1}, (1, 1)),
        ({"type": "bytes"}, None),
        ({"type": "bytes", "precision": 0}, None),
        ({"type": "bytes", "precision": 2, "scale": 3}, None),
        ({"type": "bytes", "precision": 2, "scale": -1}, None),
        ({"type": "bytes", "precision": "2"}, None),
        ({"type": "bytes", "precision": 2, "scale": "1"}, None),
        ({"type": "bytes", "precision": 2**31}, None),
        ({"type": "string", "precision": 2}, None),
        ({"type": "fixed", "name": "F", "size": 1, "precision": 9}, (2, 0)),
        ({"type": "fixed", "name": "F", "size": 4, "precision": 99}, (9, 0)),
        ({"type": "fixed", "name": "F", "size": 16, "precision": 99, "scale": 38}, (38, 38)),
        ({"type": "fixed", "name": "F", "size": 16, "precision": 10, "scale": 2}, (10, 2)),
        ({"type": "fixed", "name": "F", "size": 0, "precision": 1}, None),
    ],
)
def test_a_decimal_has_digits_that_its_bytes_can_hold(schema: Any, decimal: tuple[int, int] | None) -> None:
    assert decimal_of(parse({**schema, "logicalType": "decimal"})) == decimal
    assert decimal_of(parse(schema)) is None


@pytest.mark.parametrize(
    ("branches", "several"),
    [
        (["null"], False),
        (["null", "int"], False),
        (["int"], False),
        (["int", "string"], True),
        (["null", ENUM, FIXED], True),
    ],
)
def test_a_union_has_several_types_beside_null(branches: Any, several: bool) -> None:
    union = parse(branches)
    assert isinstance(union, Union)
    assert union.several is several


@pytest.mark.parametrize(
    ("branch", "name", "member"),
    [
        ("int", "int", "int_value"),
        ({**ENUM, "namespace": "a.b"}, "a.b.E", "E_value"),
        (FIXED, "F", "F_value"),
        (record(name="n.R"), "n.R", "R_value"),
        ({"type": "array", "items": "int"}, "array", "array_value"),
        ({"type": "map", "values": "int"}, "map", "map_value"),
    ],
)
def test_branches_are_told_apart_by_their_names(branch: Any, name: str, member: str) -> None:
    node = parse(branch)
    assert (branch_name(node), member_name(node)) == (name, member)


@pytest.mark.parametrize(
    ("name", "namespace", "full"),
    [("A", "", "A"), ("A", "n", "n.A"), ("m.A", "n", "m.A"), ("m.A", "", "m.A")],
)
def test_a_name_with_a_point_is_full(name: str, namespace: str, full: str) -> None:
    assert full_name(name, namespace) == full


@pytest.mark.parametrize(
    ("name", "legal"), [("plain_1", "plain_1"), ("größe", "gr_u00f6_u00dfe"), ("名", "_u540d"), ("", "")]
)
def test_letters_beyond_ascii_become_their_numbers(name: str, legal: str) -> None:
    assert legal_name(name) == legal


def test_only_the_type_null_is_null() -> None:
    assert is_null(parse("null")) and is_null(parse({"type": "null"}))
    assert not any(
        is_null(parse(schema)) for schema in ("int", ["null"], ENUM, {"type": "array", "items": "null"})
    )
