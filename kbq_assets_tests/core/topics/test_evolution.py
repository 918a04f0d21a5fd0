"""Where schemas go that contradict their table."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kbq_assets.core.loading.tables import columns_of
from kbq_assets.core.protocol import codec
from kbq_assets.core.topics.evolution import (
    NEW_TABLE_VERSION,
    VARIANT_COLUMN,
    Placed,
    Placement,
    evolutions,
    learned,
    place,
    version_table,
)

DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
BIG = DECIMAL | {"precision": 60, "scale": 30}
ENUM = {"type": "enum", "name": "E", "symbols": ["A"]}
FIXED = {"type": "fixed", "name": "F", "size": 4}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
Names = dict[tuple[str, ...], str]


def record(name: str = "R", **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": k, "type": t} for k, t in fields.items()]}


def placed(known: Placement, policy: str, *parts: tuple[str, ...], **fields: Any) -> Placed:
    """Place a record. Its own fields may have other names, and these ``parts`` of it."""
    paths = frozenset({*((name,) for name in fields), *parts})
    return place(columns_of(json.dumps(record(**fields))), paths, known, policy)


def renames(first: Any, second: Any, *parts: tuple[str, ...]) -> dict[tuple[str, ...], str]:
    """New names of the field x of the second type, in a table that has the first."""
    known = placed(Placement(), VARIANT_COLUMN, x=first).placement
    return dict(placed(known, VARIANT_COLUMN, *parts, x=second).renames)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("int", "long"),
        ("float", "double"),
        ("string", ENUM),
        ("bytes", FIXED),
        ("long", ["null", "long"]),
        (DECIMAL, DECIMAL | {"precision": 20, "scale": 4}),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "long"}),
        (record("Inner", a="int"), record("Inner", b="string", a="long")),
    ],
)
def test_what_changes_no_column_type_contradicts_nothing(first: Any, second: Any) -> None:
    assert renames(first, second) == {}
    assert renames(second, first) == {}


@pytest.mark.parametrize(
    ("first", "second", "name"),
    [
        ("long", "string", "x__string"),
        ("long", "double", "x__float64"),
        ("string", "bytes", "x__bytes"),
        ("long", MILLIS, "x__timestamp"),
        (DECIMAL, BIG, "x__bignumeric"),
        ("long", {"type": "array", "items": "long"}, "x__repeated_int64"),
        ("long", record("Inner", a="int"), "x__struct"),
        ({"type": "map", "values": "long"}, {"type": "map", "values": "string"}, "x__repeated_struct"),
    ],
)
def test_another_type_is_a_column_beside_whichever_way(first: Any, second: Any, name: str) -> None:
    assert renames(first, second) == {("x",): name}
    assert list(renames(second, first)) == [("x",)]


def test_a_contradiction_within_a_record_renames_the_field_there() -> None:
    inner = ("x", "a")
    assert renames(record("I", a="long"), record("I", a="string"), inner) == {inner: "a__string"}
    listed = [{"type": "array", "items": record("I", a=kind)} for kind in ("long", "string")]
    assert renames(listed[0], listed[1], inner) == {inner: "a__string"}


def test_parts_of_a_union_keep_their_names_so_the_whole_moves() -> None:
    first, second = ["long", "string"], [MILLIS, "string"]
    assert renames(first, second) == {("x",): "x__struct"}


def test_a_variant_s_name_is_nobody_else_s() -> None:
    known = placed(Placement(), VARIANT_COLUMN, x="long").placement
    both = placed(known, VARIANT_COLUMN, x="string", x__string="long")
    assert both.renames == {("x",): "x__string_2"}
    later = placed(known, VARIANT_COLUMN, x="string").placement
    assert placed(later, VARIANT_COLUMN, x__string="string").renames == {("x__string",): "x__string__string"}


def test_a_schema_is_placed_alike_for_ever() -> None:
    schemas: list[dict[str, Any]] = [
        {"x": "long"},
        {"x": "string"},
        {"y": "bytes"},
        {"x": "double", "y": "long"},
    ]
    for policy in (VARIANT_COLUMN, NEW_TABLE_VERSION):
        known, first = Placement(), []
        for fields in schemas:
            first.append(placed(known, policy, **fields))
            known = first[-1].placement
        again = [placed(known, policy, **fields) for fields in schemas]
        assert [(p.version, p.renames) for p in again] == [(p.version, p.renames) for p in first]
        assert {codec.dumps(p.placement) for p in again} == {codec.dumps(known)}
        assert codec.loads(Placement, codec.dumps(known), "p") == known


def test_a_schema_goes_to_the_first_version_that_it_fits() -> None:
    known, versions = Placement(), []
    for fields in ({"x": "long"}, {"x": "string"}, {"x": "long", "y": "long"}, {"x": "string", "y": "bytes"}):
        found = placed(known, NEW_TABLE_VERSION, **fields)
        known = found.placement
        versions.append(found.version)
        assert found.renames == {}
    assert versions == [1, 2, 1, 2]
    assert placed(known, NEW_TABLE_VERSION, x="long", y="bytes").version == 3


def test_a_change_of_policy_keeps_what_there_is() -> None:
    known = placed(Placement(), NEW_TABLE_VERSION, x="long").placement
    known = placed(known, NEW_TABLE_VERSION, x="string").placement
    assert placed(known, VARIANT_COLUMN, x="string").version == 2
    beside = placed(known, VARIANT_COLUMN, x="bytes")
    assert (beside.version, beside.renames) == (1, {("x",): "x__bytes"})
    back = placed(beside.placement, NEW_TABLE_VERSION, x="bytes")
    assert (back.version, back.renames) == (1, {("x",): "x__bytes"})


def test_what_contradictions_led_to_can_be_told() -> None:
    known = placed(Placement(), VARIANT_COLUMN, x=record("I", a="long")).placement
    known = placed(known, VARIANT_COLUMN, ("x", "a"), x=record("I", a="string")).placement
    known = placed(known, NEW_TABLE_VERSION, x="long").placement
    assert [str(each) for each in evolutions("d.t", known)] == [
        "d.t: x.a__string STRING is a variant of x.a",
        "d.t__v2 is a version of d.t",
    ]
    assert version_table("d.t", 1) == "d.t"


def test_what_the_warehouse_has_prevails_and_what_it_has_not_got_yet_stays() -> None:
    known = placed(Placement(), VARIANT_COLUMN, x="string", y=record("I", a="long")).placement
    known = placed(known, VARIANT_COLUMN, ("y", "a"), x="string", y=record("I", a="string")).placement
    table = columns_of(json.dumps(record(x="long", x__string="string", y=record("I", a="long", b="bytes"))))
    found = learned(known, table)
    assert placed(found, VARIANT_COLUMN, x="string").renames == {("x",): "x__string"}
    assert placed(found, VARIANT_COLUMN, x="long").renames == {}
    assert placed(found, VARIANT_COLUMN, y=record("I", a="string")).renames == {("y", "a"): "a__string"}
    assert learned(found, table) == found
