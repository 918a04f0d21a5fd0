"""Columns are those of BigQuery for Avro with useAvroLogicalTypes, and a table only grows or relaxes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from kbq_assets.core.errors import EncodingError
from kbq_assets.core.loading.tables import (
    Column,
    FullTable,
    IncompatibleColumn,
    TableChange,
    columns_of,
    plan_table_change,
)


def record(*fields: tuple[str, Any], **extra: Any) -> str:
    """An Avro record schema of (name, type) pairs."""
    return json.dumps(
        {"type": "record", "name": "r", "fields": [{"name": n, "type": t} for n, t in fields], **extra}
    )


def column(avro: Any) -> Column:
    """The column of one field called ``f``."""
    (found,) = columns_of(record(("f", avro)))
    return found


def logical(kind: str, logical_type: str, /, **extra: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": logical_type, **extra}


@pytest.mark.parametrize(
    ("avro", "expected"),
    [
        ("boolean", "BOOL"),
        ("int", "INT64"),
        ("long", "INT64"),
        ("float", "FLOAT64"),
        ("double", "FLOAT64"),
        ("bytes", "BYTES"),
        ("string", "STRING"),
        ({"type": "string"}, "STRING"),
        ({"type": {"type": {"type": "long"}}}, "INT64"),
        ({"type": "enum", "name": "e", "symbols": ["A"]}, "STRING"),
        ({"type": "fixed", "name": "x", "size": 4}, "BYTES"),
        (logical("int", "date"), "DATE"),
        (logical("int", "time-millis"), "TIME"),
        (logical("long", "time-micros"), "TIME"),
        (logical("long", "timestamp-millis"), "TIMESTAMP"),
        (logical("long", "timestamp-micros"), "TIMESTAMP"),
        (logical("long", "local-timestamp-millis"), "DATETIME"),
        (logical("long", "local-timestamp-micros"), "DATETIME"),
        (logical("long", "timestamp-nanos"), "INT64"),
        (logical("string", "uuid"), "STRING"),
        (logical("string", "datetime"), "STRING"),
        (logical("fixed", "duration", name="d", size=12), "BYTES"),
        (logical("long", "date"), "INT64"),
        ({"type": "string", "sqlType": "JSON"}, "JSON"),
        ({"type": "string", "sqlType": "GEOGRAPHY"}, "GEOGRAPHY"),
        ({"type": "bytes", "sqlType": "JSON"}, "BYTES"),
    ],
    ids=str,
)
def test_a_scalar_has_bigquerys_type(avro: Any, expected: str) -> None:
    assert column(avro) == Column("f", expected, "REQUIRED")
    assert column(["null", avro]) == Column("f", expected, "NULLABLE")
    assert column([avro, "null"]) == Column("f", expected, "NULLABLE")
    assert column({"type": "array", "items": avro}) == Column("f", expected, "REPEATED")


@pytest.mark.parametrize(
    ("precision", "scale", "expected"),
    [
        (38, 9, "NUMERIC"),
        (29, 0, "NUMERIC"),
        (30, 0, "BIGNUMERIC"),
        (39, 9, "BIGNUMERIC"),
        (38, 10, "BIGNUMERIC"),
        (10, 10, "BIGNUMERIC"),
        (76, 38, "BIGNUMERIC"),
        (38, 0, "BIGNUMERIC"),
        (39, 0, "STRING"),
        (77, 38, "STRING"),
        (40, 39, "STRING"),
        (0, 0, "BYTES"),
        (2, 3, "BYTES"),
        ("4", 2, "BYTES"),
    ],
)
@pytest.mark.parametrize("kind", ["bytes", "fixed"])
def test_a_decimal_takes_the_smallest_type_that_holds_it(
    kind: str, precision: Any, scale: int, expected: str
) -> None:
    extra = {"name": "x", "size": 40} if kind == "fixed" else {}
    avro = logical(kind, "decimal", precision=precision, scale=scale, **extra)
    assert column(avro).type == expected


def test_a_decimal_without_a_scale_is_whole() -> None:
    assert column(logical("bytes", "decimal", precision=5)).type == "NUMERIC"


POINT = {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "int"}]}
X = Column("x", "INT64", "REQUIRED")


@pytest.mark.parametrize(
    ("avro", "expected"),
    [
        (POINT, Column("f", "STRUCT", "REQUIRED", (X,))),
        (["null", POINT], Column("f", "STRUCT", "NULLABLE", (X,))),
        ({"type": "array", "items": POINT}, Column("f", "STRUCT", "REPEATED", (X,))),
        ({"type": "array", "items": ["null", "int"]}, Column("f", "INT64", "REPEATED")),
        (["null", {"type": "array", "items": "int"}], Column("f", "INT64", "REPEATED")),
        ([{"type": "array", "items": "int"}], Column("f", "INT64", "REPEATED")),
        (["int"], Column("f", "INT64", "REQUIRED")),
        (
            {"type": "map", "values": "int"},
            Column("f", "STRUCT", "REPEATED", (Column("key", "STRING"), Column("value", "INT64"))),
        ),
        (
            ["null", {"type": "map", "values": {"type": "array", "items": "int"}}],
            Column(
                "f", "STRUCT", "REPEATED", (Column("key", "STRING"), Column("value", "INT64", "REPEATED"))
            ),
        ),
        (
            ["null", "int", "string", logical("double", "unknown")],
            Column(
                "f",
                "STRUCT",
                "NULLABLE",
                (
                    Column("int_value", "INT64"),
                    Column("string_value", "STRING"),
                    Column("double_value", "FLOAT64"),
                ),
            ),
        ),
        (
            ["string", {**POINT, "namespace": "a.b"}, {"type": "array", "items": "int"}],
            Column(
                "f",
                "STRUCT",
                "NULLABLE",
                (
                    Column("string_value", "STRING"),
                    Column("Point_value", "STRUCT", "NULLABLE", (X,)),
                    Column("array_value", "INT64", "REPEATED"),
                ),
            ),
        ),
    ],
    ids=str,
)
def test_a_nested_type_has_bigquerys_shape(avro: Any, expected: Column) -> None:
    assert column(avro) == expected


@pytest.mark.parametrize(
    "nothing", ["null", ["null"], {"type": "null"}, {"type": "array", "items": "null"}], ids=str
)
def test_what_holds_only_nulls_has_no_column(nothing: Any) -> None:
    assert columns_of(record(("a", "int"), ("f", nothing))) == (Column("a", "INT64", "REQUIRED"),)


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        (record(("a", POINT), ("b", "Point")), ["STRUCT", "STRUCT"]),
        (record(("a", POINT), ("b", ["null", "n.s.Point"]), namespace="n.s"), ["STRUCT", "STRUCT"]),
        (record(("a", {**POINT, "name": "o.Point"}), ("b", "o.Point"), namespace="n"), ["STRUCT", "STRUCT"]),
        (
            record(("a", {**POINT, "namespace": ""}), ("b", ["null", "int"]), namespace="n"),
            ["STRUCT", "INT64"],
        ),
        (
            record(
                ("a", {"type": "enum", "name": "E", "symbols": ["A"], "namespace": "x"}),
                ("b", {"type": "array", "items": "x.E"}),
            ),
            ["STRING", "STRING"],
        ),
        (
            record(
                (
                    "a",
                    {
                        "type": "record",
                        "name": "Outer",
                        "namespace": "in",
                        "fields": [{"name": "p", "type": POINT}, {"name": "q", "type": "Point"}],
                    },
                ),
                ("b", "in.Point"),
            ),
            ["STRUCT", "STRUCT"],
        ),
        (record(("a", {**POINT, "namespace": ""}), ("b", "Point"), namespace="n"), ["STRUCT", "STRUCT"]),
    ],
)
def test_a_named_type_is_found_by_its_namespace(schema: str, types: list[str]) -> None:
    assert [c.type for c in columns_of(schema)] == types


@pytest.mark.parametrize(
    ("avro", "problem"),
    [
        ("Nowhere", "unknown type 'Nowhere' (at f)"),
        ({"type": "array", "items": {"type": "array", "items": "int"}}, "column f: an array of arrays"),
        ({"type": "array", "items": {"type": "map", "values": "int"}}, "column f: an array of arrays"),
        ({"type": "record", "name": "e", "fields": []}, "column f: a record without columns"),
        (
            {"type": "record", "name": "n", "fields": [{"name": "next", "type": ["null", "n"]}]},
            "column f.next: its type contains itself",
        ),
        (
            [{**POINT, "namespace": "a"}, {**POINT, "namespace": "b"}],
            "column f: a union of types with one name",
        ),
    ],
)
def test_a_type_no_column_can_hold_is_refused_by_name(avro: Any, problem: str) -> None:
    with pytest.raises(EncodingError) as caught:
        columns_of(record(("f", avro)))
    assert problem in caught.value.message


def test_records_nest_as_deep_as_bigquery_allows() -> None:
    def nested(depth: int) -> Any:
        inner = nested(depth - 1) if depth else "int"
        return {"type": "record", "name": f"r{depth}", "fields": [{"name": "f", "type": inner}]}

    assert columns_of(json.dumps(nested(15)))
    with pytest.raises(EncodingError, match="more than 15 levels"):
        columns_of(json.dumps(nested(16)))


@pytest.mark.parametrize("levels", [15, 16])
def test_maps_and_unions_are_levels_too(levels: int) -> None:
    avro: Any = "long"
    for number in range(levels):
        inner = {"type": "record", "name": f"r{number}", "fields": [{"name": "f", "type": avro}]}
        avro = ({"type": "map", "values": avro}, ["null", "string", avro], inner)[number % 3]
    if levels == 15:
        assert column(avro)
    else:
        with pytest.raises(EncodingError, match="more than 15 levels"):
            column(avro)


def test_a_table_is_not_given_more_columns_than_it_holds() -> None:
    existing = tuple(Column(f"c{n}", "INT64") for n in range(9_995))
    wider = {
        "type": "record",
        "name": "i",
        "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "int"}],
    }
    fits = plan_table_change(record(("new", wider), ("last", "int")), existing)
    assert len(fits.columns) == 9_997
    named = "with inner, z, the table would have 10003 columns"
    with pytest.raises(FullTable, match=named):
        plan_table_change(record(("inner", wider), ("last", "int"), ("z", "int")), fits.columns)
    # What somebody else filled beyond the limit can still be loaded.
    assert not plan_table_change(
        record(("c0", ["null", "int"])), (*existing, *(Column(f"d{n}", "INT64") for n in range(9)))
    )


def test_a_missing_table_is_created_with_the_schemas_columns() -> None:
    schema = record(("a", "int"), ("b", ["null", "string"]))
    assert plan_table_change(schema, None) == TableChange(True, columns_of(schema))


@pytest.mark.parametrize(
    "schema",
    [
        record(("a", "int")),
        record(("A", "long")),
        record(("a", "int"), ("f", ["null", POINT])),
        record(("a", ["null", "int"]), ("b", {"type": "array", "items": "string"})),
    ],
)
def test_a_table_of_the_schema_needs_no_change(schema: str) -> None:
    change = plan_table_change(schema, columns_of(schema))
    assert not change
    assert change.columns == columns_of(schema)


def test_new_columns_are_added_with_nothing_required_in_them() -> None:
    existing = columns_of(record(("a", "int")))
    wanted = record(("b", POINT), ("a", "int"), ("c", {"type": "array", "items": "int"}), ("d", "string"))
    change = plan_table_change(wanted, existing)
    assert change.added == ("b", "c", "d")
    assert change.columns == (
        Column("a", "INT64", "REQUIRED"),
        Column("b", "STRUCT", "NULLABLE", (Column("x", "INT64"),)),
        Column("c", "INT64", "REPEATED"),
        Column("d", "STRING"),
    )
    assert not plan_table_change(wanted, change.columns)


def test_a_required_column_is_relaxed_when_the_schema_no_longer_promises_it() -> None:
    existing = columns_of(record(("a", "int"), ("b", "int"), ("p", POINT)))
    wider = {**POINT, "fields": [{"name": "x", "type": ["null", "int"]}, {"name": "y", "type": "int"}]}
    change = plan_table_change(record(("a", ["null", "int"]), ("p", wider)), existing)
    assert change.relaxed == ("a", "b", "p.x")
    assert change.added == ("p.y",)
    assert change.columns[2] == Column(
        "p", "STRUCT", "REQUIRED", (Column("x", "INT64"), Column("y", "INT64"))
    )


def test_a_nullable_column_stays_nullable() -> None:
    existing = columns_of(record(("a", ["null", "int"])))
    assert not plan_table_change(record(("a", "int")), existing)


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ("int", "string", "INT64, the records have STRING"),
        ("int", {"type": "array", "items": "int"}, "INT64, the records have REPEATED INT64"),
        (["null", "string"], ["null", "string", "int"], "STRING, the records have STRUCT"),
        ("long", "double", "INT64, the records have FLOAT64"),
    ],
)
def test_a_column_of_another_type_is_refused_with_both_types(before: Any, after: Any, shown: str) -> None:
    with pytest.raises(IncompatibleColumn, match=f"column f: the table has {shown}"):
        plan_table_change(record(("f", after)), columns_of(record(("f", before))))


@pytest.mark.parametrize(
    "name",
    [
        "_TABLE_SUFFIX",
        "_file_name",
        "_PARTITION",
        "_partitiontime",
        "_Row_Timestamp",
        "__ROOT__x",
        "_COLIDENTIFIER_1",
        "a" * 301,
    ],
)
def test_a_name_that_bigquery_refuses_is_refused_at_any_depth(name: str) -> None:
    with pytest.raises(EncodingError, match="rename the field"):
        columns_of(record((name, "int")))
    inner = {**json.loads(record((name, "int"))), "name": "inner"}
    with pytest.raises(EncodingError, match=rf"column outer\.{name}: "):
        columns_of(record(("outer", inner)))


@pytest.mark.parametrize("name", ["gr-e", "1st"])
def test_a_name_that_avro_refuses_is_refused_at_any_depth(name: str) -> None:
    with pytest.raises(EncodingError, match=f"not a valid Avro name: '{name}'"):
        columns_of(record((name, "int")))
    inner = {**json.loads(record((name, "int"))), "name": "inner"}
    with pytest.raises(EncodingError, match=rf"not a valid Avro name: '{name}' \(at outer\)"):
        columns_of(record(("outer", inner)))


@pytest.mark.parametrize("name", ["_CHANGE_TYPE", "_change_sequence_number", "_CHANGE_TIMESTAMP"])
def test_names_of_bigquerys_changes_are_refused(name: str) -> None:
    with pytest.raises(EncodingError, match=f"column {name}: the name is reserved by BigQuery"):
        columns_of(record((name, "int")))


def test_names_that_only_resemble_reserved_ones_are_columns() -> None:
    names = ("_kafka_partition", "partition", "_root_", "table_", "_change_types", "a" * 300)
    assert [c.name for c in columns_of(record(*((name, "int") for name in names)))] == list(names)


def test_columns_that_differ_by_case_alone_are_refused_within_a_record() -> None:
    with pytest.raises(EncodingError, match="fields 'id' and 'ID' have one name"):
        columns_of(record(("id", "int"), ("ID", "string")))
    inner = {**json.loads(record(("ID", "int"))), "name": "inner"}
    assert len(columns_of(record(("id", "int"), ("inner", inner)))) == 2


def test_a_table_has_ten_thousand_columns_those_of_records_included() -> None:
    def schema(count: int) -> str:
        inner = {
            "type": "record",
            "name": "i",
            "fields": [{"name": f"f{n}", "type": "int"} for n in range(count)],
        }
        return record(("inner", inner), ("last", "int"))

    assert len(columns_of(schema(9_998))) == 2
    with pytest.raises(EncodingError, match="10001 columns"):
        columns_of(schema(9_999))


SECRET = {"type": "string", "pii": "high"}
HOME = {"type": "record", "name": "Home", "pii": "HIGH", "fields": [{"name": "street", "type": "string"}]}
KIND = {"type": "enum", "name": "a.Kind", "symbols": ["A"], "pii": "HIGH"}


@pytest.mark.parametrize(
    ("type_", "high"),
    [
        ("string", []),
        (SECRET, ["f"]),
        ({"type": SECRET}, ["f"]),
        ({"type": "string", "logicalType": "uuid", "pii": "HIGH"}, ["f"]),
        (["null", SECRET], ["f"]),
        ({"type": "array", "items": ["null", SECRET]}, ["f"]),
        ({"type": "array", "items": "string", "pii": "HIGH"}, ["f"]),
        ({"type": "map", "values": SECRET}, ["f.value"]),
        (["null", "int", SECRET], ["f.string_value"]),
        (HOME, ["f"]),
        ({"type": "record", "name": "x", "fields": [{"name": "a", "type": SECRET}]}, ["f.a"]),
        (KIND, ["f"]),
    ],
)
def test_a_type_s_level_of_personal_data_is_its_column_s(type_: Any, high: list[str]) -> None:
    found = column(type_)
    paths = {"f": found} | {f"f.{inner.name}": inner for inner in found.fields}
    assert [path for path, each in paths.items() if each.pii == "HIGH"] == high


def test_a_type_that_is_used_again_has_its_level_again() -> None:
    again = {"type": "record", "name": "x", "namespace": "a", "fields": [{"name": "k", "type": "Kind"}]}
    one, two, three = columns_of(record(("a", KIND), ("b", ["null", "a.Kind"]), ("c", again)))
    assert (one.pii, two.pii, three.fields[0].pii) == ("HIGH", "HIGH", "HIGH")


@pytest.mark.parametrize(
    ("field", "type_", "level"),
    [("", "LOW", "LOW"), ("LOW", "high", "HIGH"), ("medium", "NONE", "MEDIUM"), ("other", "", "OTHER")],
)
def test_the_highest_level_of_field_and_type_counts(field: str, type_: str, level: str) -> None:
    fields = [{"name": "f", "type": {"type": "string", "pii": type_}, "pii": field, "doc": "Words."}]
    [found] = columns_of(json.dumps({"type": "record", "name": "r", "fields": fields}))
    assert (found.pii, found.description) == (level, "Words.")


def test_half_a_character_of_a_description_is_replaced() -> None:
    """JSON can escape one; no warehouse takes it, and a description stops no table."""
    fields = [{"name": "f", "type": "int", "doc": "An emoji: \ud83d"}]
    [found] = columns_of(json.dumps({"type": "record", "name": "r", "fields": fields}))
    assert found.description == "An emoji: ?"


def _decimal(precision: int, scale: int) -> str:
    return record(("price", logical("bytes", "decimal", precision=precision, scale=scale)))


@pytest.mark.parametrize(
    ("existing", "wanted", "expected"),
    [
        ((12, 2), (12, 2), (12, 2)),
        ((12, 2), (14, 2), (14, 2)),
        ((12, 2), (6, 4), (14, 4)),
        ((14, 4), (12, 2), (14, 4)),
        ((29, 0), (9, 9), (38, 9)),
        ((38, 9), (12, 2), (38, 9)),
        (None, (12, 2), None),
    ],
)
def test_a_decimal_widens_and_never_narrows(existing: Any, wanted: Any, expected: Any) -> None:
    table = (replace(columns_of(_decimal(12, 2))[0], digits=existing),)
    change = plan_table_change(_decimal(*wanted), table)
    assert (change.columns[0].digits, bool(change)) == (expected, existing != expected)
