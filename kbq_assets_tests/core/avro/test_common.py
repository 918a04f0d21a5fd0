"""A common schema accepts the values of all schemas, or says why there is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.avro.canonical import without_namespaces
from kbq_assets.core.avro.common import NoCommonSchema, common_schema
from kbq_assets.core.loading.tables import plan_table_change

_MICROS = {"type": "long", "logicalType": "timestamp-micros"}
_MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
_E = {"type": "enum", "name": "E", "symbols": ["a"]}
_F = {"type": "fixed", "name": "F", "size": 2}
_MONEY = {**_F, "name": "M", "size": 8, "logicalType": "decimal", "precision": 9, "scale": 2}


def _decimal(precision: int, scale: int = 2) -> Any:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def _record(**fields: Any) -> str:
    return json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": n, "type": t} for n, t in fields.items()]}
    )


def _inner(**fields: Any) -> Any:
    return json.loads(_record(**fields)) | {"name": "Inner"}


def _types(schema: str) -> dict[str, Any]:
    root = avro.parse(avro.load_schema(schema))
    assert isinstance(root, avro.RecordType)
    return {name: without_namespaces(field.type) for name, field in root.fields.items()}


def _type(type_: Any) -> Any:
    return _types(_record(x=type_))["x"]


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        ("long", "long", "long"),
        ("int", "long", "long"),
        ("float", "double", "double"),
        ("string", ["null", "string"], ["null", "string"]),
        (["string", "null"], "string", ["null", "string"]),
        ("null", "long", ["null", "long"]),
        (_MICROS, ["null", _MICROS], ["null", _MICROS]),
        (_E, "string", "string"),
        (_E, {**_E, "symbols": ["b", "a"]}, "string"),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, {"type": "array", "items": "long"}),
        ({"type": "map", "values": "int"}, {"type": "map", "values": ["null", "int"]},
         {"type": "map", "values": ["null", "int"]}),
        (["int", "string"], ["int", "string"], ["int", "string"]),
        (_F, ["null", _F], ["null", _F]),
        (_F, {**_F, "size": 3}, "bytes"),
        (_F, "bytes", "bytes"),
        (_decimal(9), _decimal(12), _decimal(12)),
        (_decimal(9), ["null", _MONEY], ["null", _decimal(9)]),
    ],
)  # fmt: skip
def test_a_field_of_both_has_a_type_that_takes_both(one: Any, other: Any, common: Any) -> None:
    for pair in ((one, other), (other, one)):
        assert _types(common_schema([_record(x=pair[0]), _record(x=pair[1])]))["x"] == _type(common)


@pytest.mark.parametrize(
    "type_",
    [
        pytest.param(_F, id="fixed"),
        pytest.param(_MONEY, id="decimal"),
        pytest.param(["null", "string", _inner(a="int")], id="union with a record"),
        pytest.param({"type": "array", "items": ["string", _E]}, id="union with an enum"),
        pytest.param(["string", _inner(a=_F, b="F")], id="type that is used twice"),
    ],
)
def test_a_named_type_of_all_schemas_is_common(type_: Any) -> None:
    """A record has many fields that a new version of its schema does not change."""
    one, other = _record(x=type_), _record(x=type_, y="long")
    columns = plan_table_change(one, None).columns
    for schemas in ((one, other), (other, one), (one, other, one)):
        merged = plan_table_change(common_schema(schemas), None).columns
        assert [column for column in merged if column.name == "x"] == list(columns)


def test_fixed_types_of_one_size_are_one_type_whatever_their_names() -> None:
    found = common_schema([_record(x=_MONEY), _record(x={**_MONEY, "name": "Other"})])
    assert [(c.name, c.type) for c in plan_table_change(found, None).columns] == [("x", "NUMERIC")]


@pytest.mark.parametrize(
    "type_", ["long", ["null", "long"], ["long", "string"], {"type": "array", "items": "long"}]
)
def test_a_field_that_one_lacks_is_nullable(type_: Any) -> None:
    branches = [each for each in (type_ if isinstance(type_, list) else [type_]) if each != "null"]
    found = _types(common_schema([_record(x="int"), _record(x="int", y=type_)]))
    assert found == {"x": "int", "y": _type(["null", *branches])}
    assert _types(common_schema([_record(x="int", y=type_), _record(x="int")])) == found


def test_records_inside_records_are_merged_field_by_field() -> None:
    one = _record(i=_inner(a="int"), j=_inner(a="int") | {"name": "Other"})
    other = _record(i=_inner(a="long", b="string"))
    columns = plan_table_change(common_schema([one, other]), None).columns
    assert [(c.name, c.mode, [(f.name, f.type, f.mode) for f in c.fields]) for c in columns] == [
        ("i", "REQUIRED", [("a", "INT64", "REQUIRED"), ("b", "STRING", "NULLABLE")]),
        ("j", "NULLABLE", [("a", "INT64", "REQUIRED")]),
    ]


def test_a_type_that_is_used_twice_is_two_types() -> None:
    text = json.dumps({"type": "record", "name": "R", "fields": [
        {"name": "a", "type": _inner(x="int")}, {"name": "b", "type": "Inner"}]})  # fmt: skip
    assert avro.parse(avro.load_schema(common_schema([text, _record(c="int"), text])))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("long", "string"),
        (_MICROS, _MILLIS),
        (_MICROS, "long"),
        (["int", "string"], ["int", "bytes"]),
        (["int", "string"], "int"),
        (_decimal(9), _decimal(9, scale=3)),
        (_decimal(9), "bytes"),
        (_inner(a="int"), {"type": "map", "values": "int"}),
    ],
)  # fmt: skip
def test_types_without_a_common_one_are_named_with_their_place(one: Any, other: Any) -> None:
    with pytest.raises(NoCommonSchema, match=r"^x: no type accepts both"):
        common_schema([_record(x=one), _record(x=other)])


def test_names_that_are_one_column_are_refused() -> None:
    with pytest.raises(NoCommonSchema, match="one column"):
        common_schema([_record(x="int"), _record(X="int")])
