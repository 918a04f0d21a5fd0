"""Debezium's logical types as Avro's: their schemas, and the values whose bytes change."""

from __future__ import annotations

import io
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.avro.visitor import visit
from kbq_assets.wire.debezium.logical_types import TypedForms, UnfitValue, conversion, semantic

NANOS = {"type": "long", "connect.name": "io.debezium.time.NanoTimestamp"}
ZONED = {"type": "string", "connect.name": "io.debezium.time.ZonedTimestamp"}
VARIABLE = {
    "type": "record",
    "name": "VariableScaleDecimal",
    "namespace": "io.debezium.data",
    "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
    "connect.name": "io.debezium.data.VariableScaleDecimal",
}
CONNECT_DECIMAL = "org.apache.kafka.connect.data.Decimal"


def form(schema: Any) -> Any:
    return visit(avro.parse(schema), TypedForms())


def converted(schema: Any, value: Any) -> Any:
    """The value after its conversion, as another reader decodes it without logical types."""
    source = io.BytesIO()
    fastavro.schemaless_writer(source, fastavro.parse_schema(schema), value)
    out: list[bytes] = []
    end = conversion(avro.parse(schema))(source.getvalue(), 0, out)
    assert end == len(source.getvalue())
    plain = without_logical_types(form(schema))
    return fastavro.schemaless_reader(io.BytesIO(b"".join(out)), fastavro.parse_schema(plain), None)


def without_logical_types(schema: Any) -> Any:
    if isinstance(schema, Mapping):
        return {key: without_logical_types(each) for key, each in schema.items() if key != "logicalType"}
    return [without_logical_types(each) for each in schema] if isinstance(schema, list) else schema


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("io.debezium.time.Date", "int", {"type": "int", "logicalType": "date"}),
        ("io.debezium.time.Time", "int", {"type": "int", "logicalType": "time-millis"}),
        ("io.debezium.time.MicroTime", "long", {"type": "long", "logicalType": "time-micros"}),
        ("io.debezium.time.Timestamp", "long", {"type": "long", "logicalType": "timestamp-millis"}),
        ("io.debezium.time.MicroTimestamp", "long", {"type": "long", "logicalType": "timestamp-micros"}),
        ("io.debezium.time.ZonedTimestamp", "string", {"type": "long", "logicalType": "timestamp-micros"}),
        ("io.debezium.time.Date", "long", "long"),
        ("io.debezium.time.ZonedTimestamp", "bytes", "bytes"),
        ("io.debezium.data.Json", "string", "string"),
        ("", "int", "int"),
    ],
)
def test_a_logical_type_counts_on_its_own_avro_type_alone(name: str, kind: str, expected: Any) -> None:
    assert form({"type": kind, "connect.name": name}) == expected


@pytest.mark.parametrize(
    ("attributes", "precision", "scale"),
    [
        ({"logicalType": "decimal", "precision": 10, "scale": 2}, 10, 2),
        ({"logicalType": "decimal", "precision": 64, "scale": 2}, 40, 2),
        ({"logicalType": "decimal", "precision": 64, "scale": 38}, 64, 38),
        ({"logicalType": "decimal", "precision": 64, "scale": 40}, 64, 40),
        ({"connect.parameters": {"scale": "2"}}, 40, 2),
        ({"connect.parameters": {"scale": 0}}, 38, 0),
    ],
)
def test_a_decimal_has_as_many_digits_as_a_numeric_column(
    attributes: Mapping[str, Any], precision: int, scale: int
) -> None:
    found = form({"type": "bytes", "connect.name": CONNECT_DECIMAL, **attributes})
    assert found == {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


@pytest.mark.parametrize(
    "parameters", [{}, {"scale": "-1"}, {"scale": "x"}, {"scale": "12345"}, "scale", None]
)
def test_a_decimal_without_a_scale_is_bytes(parameters: Any) -> None:
    found = form({"type": "bytes", "connect.name": CONNECT_DECIMAL, "connect.parameters": parameters})
    assert found == {"type": "bytes"}


def test_a_decimal_that_brings_its_scale_has_that_of_bignumeric() -> None:
    assert form(VARIABLE) == {"type": "bytes", "logicalType": "decimal", "precision": 76, "scale": 38}


@pytest.mark.parametrize(
    "fields",
    [
        [{"name": "value", "type": "bytes"}, {"name": "scale", "type": "int"}],
        [{"name": "scale", "type": "long"}, {"name": "value", "type": "bytes"}],
        [{"name": "scale", "type": "int"}, {"name": "value", "type": ["null", "bytes"]}],
        [{"name": "scale", "type": "int"}],
    ],
)
def test_a_record_of_that_name_with_other_fields_stays_a_record(fields: list[Any]) -> None:
    assert form({**VARIABLE, "fields": fields})["type"] == "record"


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "int", "connect.name": "a.B"}, "a.B"),
        ({"type": {"type": "int", "connect.name": "a.B"}}, "a.B"),
        ({"type": "int", "connect.name": 5}, ""),
        ("int", ""),
        ({"type": "record", "name": "a.R", "fields": []}, "a.R"),
    ],
)
def test_a_type_is_known_by_the_name_that_connect_gave_it(schema: Any, expected: str) -> None:
    assert semantic(avro.parse(schema)) == expected


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00.000001Z", 1),
        ("1969-12-31T23:59:59.999999Z", -1),
        ("1970-01-01T02:00:00+02:00", 0),
        ("1970-01-01T00:00:00", 0),
        ("9999-12-31T23:59:59.999999Z", 253_402_300_799_999_999),
        ("0001-01-01T00:00:00Z", -62_135_596_800_000_000),
    ],
)
def test_a_zoned_time_is_microseconds_of_utc(text: str, micros: int) -> None:
    assert converted(ZONED, text) == micros


@pytest.mark.parametrize(
    "text", ["", "infinity", "-infinity", "10000-01-01T00:00:00Z", "2020-02-30T00:00:00Z"]
)
def test_a_zoned_time_that_is_none_is_an_unfit_value(text: str) -> None:
    with pytest.raises(UnfitValue, match="not a time in the years 1 to 9999"):
        converted(ZONED, text)


@pytest.mark.parametrize(
    ("nanos", "micros"), [(0, 0), (999, 0), (1000, 1), (-1, -1), (-1000, -1), (-1001, -2)]
)
def test_nanoseconds_are_rounded_down(nanos: int, micros: int) -> None:
    assert converted(NANOS, nanos) == micros


def variable(scale: int, unscaled: int) -> Decimal:
    data = unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)
    found = converted(VARIABLE, {"scale": scale, "value": data})
    return Decimal(int.from_bytes(found, "big", signed=True)).scaleb(-38)


def test_digits_behind_the_38th_may_be_zeros_alone() -> None:
    assert variable(40, 100) == Decimal(1).scaleb(-38)
    with pytest.raises(UnfitValue, match="more than 38 decimal places"):
        variable(39, 1)


@pytest.mark.parametrize(("scale", "fits"), [(-39, False), (-38, True), (380, True), (381, False)])
def test_a_scale_beyond_all_columns_is_an_unfit_value(scale: int, fits: bool) -> None:
    if fits:
        assert variable(scale, 0) == 0
        return
    with pytest.raises(UnfitValue, match=f"the scale {scale}"):
        variable(scale, 0)


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        pytest.param({"type": "array", "items": NANOS}, [1000, 2000], [1, 2], id="array"),
        pytest.param({"type": "array", "items": NANOS}, [], [], id="empty array"),
        pytest.param({"type": "map", "values": NANOS}, {"a": 1000}, {"a": 1}, id="map"),
        pytest.param(["null", NANOS], 1000, 1, id="union"),
        pytest.param(["null", NANOS], None, None, id="null"),
        pytest.param(["string", NANOS], "text", "text", id="other branch"),
        pytest.param(
            {"type": "record", "name": "R", "fields": [
                {"name": "a", "type": "string"}, {"name": "b", "type": NANOS}, {"name": "c", "type": "int"}]},
            {"a": "x", "b": 5000, "c": 7}, {"a": "x", "b": 5, "c": 7}, id="record",
        ),
        pytest.param(
            {"type": "record", "name": "R", "fields": [
                {"name": "a", "type": {"type": "array", "items": ["null", NANOS]}}]},
            {"a": [None, 1000]}, {"a": [None, 1]}, id="nested",
        ),
        pytest.param(
            {"type": "array", "items": {"type": "map", "values": "int"}}, [{"a": 1}], [{"a": 1}], id="unchanged"
        ),
    ],
)  # fmt: skip
def test_values_are_converted_wherever_they_are_and_others_stay(
    schema: Any, value: Any, expected: Any
) -> None:
    assert converted(schema, value) == expected


@settings(max_examples=20)
@given(st.integers(-38, 38), st.integers(-(10**15), 10**15))
def test_a_decimal_of_any_scale_keeps_its_value(scale: int, unscaled: int) -> None:
    assert variable(scale, unscaled) == Decimal(unscaled).scaleb(-scale)
