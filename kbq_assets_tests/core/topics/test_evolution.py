"""Schemas that contradict their table get variants."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kbq_assets.core.loading.tables import columns_of
from kbq_assets.core.protocol import codec
from kbq_assets.core.topics.evolution import (
    NEW_TABLE_VERSION,
    VARIANT_COLUMN,
    SchemaVariant,
    TableColumn,
    TableVariants,
    TableVersion,
    evolutions,
    find_variant,
    version_table,
    with_table_columns,
)
from kbq_assets_tests.fixtures.work import calls_of

DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
BIG = DECIMAL | {"precision": 60, "scale": 30}
ENUM = {"type": "enum", "name": "E", "symbols": ["A"]}
FIXED = {"type": "fixed", "name": "F", "size": 4}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
Names = dict[tuple[str, ...], str]


def record(name: str = "R", **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": k, "type": t} for k, t in fields.items()]}


def variant(known: TableVariants, policy: str, *parts: tuple[str, ...], **fields: Any) -> SchemaVariant:
    """The variant of a record. Its fields, and these ``parts`` of them, may be renamed."""
    paths = frozenset({*((name,) for name in fields), *parts})
    return find_variant(columns_of(json.dumps(record(**fields))), paths, known, policy)


def renames(first: Any, second: Any, *parts: tuple[str, ...]) -> dict[tuple[str, ...], str]:
    """New names of the field x of the second type, in a table that has the first."""
    known = variant(TableVariants(), VARIANT_COLUMN, x=first).variants
    return dict(variant(known, VARIANT_COLUMN, *parts, x=second).renames)


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
def test_another_type_is_a_variant_column_either_way(first: Any, second: Any, name: str) -> None:
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
    known = variant(TableVariants(), VARIANT_COLUMN, x="long").variants
    both = variant(known, VARIANT_COLUMN, x="string", x__string="long")
    assert both.renames == {("x",): "x__string_2"}
    later = variant(known, VARIANT_COLUMN, x="string").variants
    assert variant(later, VARIANT_COLUMN, x__string="string").renames == {("x__string",): "x__string__string"}


def test_a_schema_always_gets_the_same_variant() -> None:
    schemas: list[dict[str, Any]] = [
        {"x": "long"},
        {"x": "string"},
        {"y": "bytes"},
        {"x": "double", "y": "long"},
    ]
    for policy in (VARIANT_COLUMN, NEW_TABLE_VERSION):
        known, first = TableVariants(), []
        for fields in schemas:
            first.append(variant(known, policy, **fields))
            known = first[-1].variants
        again = [variant(known, policy, **fields) for fields in schemas]
        assert [(p.version, p.renames) for p in again] == [(p.version, p.renames) for p in first]
        assert {codec.dumps(p.variants) for p in again} == {codec.dumps(known)}
        assert codec.loads(TableVariants, codec.dumps(known), "p") == known


def test_a_schema_goes_to_the_first_version_that_it_fits() -> None:
    known, versions = TableVariants(), []
    for fields in ({"x": "long"}, {"x": "string"}, {"x": "long", "y": "long"}, {"x": "string", "y": "bytes"}):
        found = variant(known, NEW_TABLE_VERSION, **fields)
        known = found.variants
        versions.append(found.version)
        assert found.renames == {}
    assert versions == [1, 2, 1, 2]
    assert variant(known, NEW_TABLE_VERSION, x="long", y="bytes").version == 3


def test_a_schema_for_which_a_table_has_no_room_goes_to_a_new_version() -> None:
    nearly_full = TableVersion(tuple(TableColumn(f"a{n}", "INT64") for n in range(9_998)))
    known = TableVariants((nearly_full,))
    for fields, version in ({"b": "int", "c": "int"}, 1), ({"a7": "int", "d": "int"}, 2), ({"a7": "int"}, 1):
        found = variant(known, NEW_TABLE_VERSION, **fields)
        known = found.variants
        assert found.version == version
    assert variant(known, NEW_TABLE_VERSION, a7="int", d="int").version == 2
    # A single table cannot have a variant column for it: the load parks the table.
    assert variant(TableVariants(known.versions[:1]), VARIANT_COLUMN, d="int").version == 1


def test_a_change_of_policy_keeps_what_there_is() -> None:
    known = variant(TableVariants(), NEW_TABLE_VERSION, x="long").variants
    known = variant(known, NEW_TABLE_VERSION, x="string").variants
    assert variant(known, VARIANT_COLUMN, x="string").version == 2
    second = variant(known, VARIANT_COLUMN, x="bytes")
    assert (second.version, second.renames) == (1, {("x",): "x__bytes"})
    back = variant(second.variants, NEW_TABLE_VERSION, x="bytes")
    assert (back.version, back.renames) == (1, {("x",): "x__bytes"})


def test_what_contradictions_led_to_can_be_listed() -> None:
    known = variant(TableVariants(), VARIANT_COLUMN, x=record("I", a="long")).variants
    known = variant(known, VARIANT_COLUMN, ("x", "a"), x=record("I", a="string")).variants
    known = variant(known, NEW_TABLE_VERSION, x="long").variants
    assert [str(each) for each in evolutions("d.t", known)] == [
        "d.t: x.a__string STRING is a variant of x.a",
        "d.t__v2 is a version of d.t",
    ]
    assert version_table("d.t", 1) == "d.t"


def test_what_the_warehouse_has_prevails_and_what_it_has_not_got_yet_stays() -> None:
    known = variant(TableVariants(), VARIANT_COLUMN, x="string", y=record("I", a="long")).variants
    known = variant(known, VARIANT_COLUMN, ("y", "a"), x="string", y=record("I", a="string")).variants
    table = columns_of(json.dumps(record(x="long", x__string="string", y=record("I", a="long", b="bytes"))))
    found = with_table_columns(known, table)
    assert variant(found, VARIANT_COLUMN, x="string").renames == {("x",): "x__string"}
    assert variant(found, VARIANT_COLUMN, x="long").renames == {}
    assert variant(found, VARIANT_COLUMN, y=record("I", a="string")).renames == {("y", "a"): "a__string"}
    assert with_table_columns(found, table) == found


@pytest.mark.parametrize("type_", ["long", "string"], ids=["new columns", "variants of all columns"])
def test_the_work_of_a_merge_grows_with_the_columns(type_: str) -> None:
    def work(count: int) -> int:
        names = [f"f{number}" for number in range(count)]
        table = columns_of(json.dumps(record(**dict.fromkeys(names, "long"))))
        added = names if type_ == "string" else [f"g{number}" for number in range(count)]
        wanted = columns_of(json.dumps(record(**dict.fromkeys(added, type_))))
        known = with_table_columns(TableVariants(), table)
        fields = frozenset((name,) for name in added)

        def merge() -> None:
            found = find_variant(wanted, fields, known, VARIANT_COLUMN)
            with_table_columns(found.variants, wanted)

        return calls_of(merge)

    assert work(400) < 5 * work(100)
