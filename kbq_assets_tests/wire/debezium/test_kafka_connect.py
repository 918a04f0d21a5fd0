"""Kafka Connect's JSON becomes Avro that another reader decodes, and what does not fit is refused by name."""

from __future__ import annotations

import contextlib
import io
import json
import math
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.errors import UnstageableSchema
from kbq_assets.core.topics.json.numbers import Number
from kbq_assets.wire.debezium.kafka_connect import avro_of_connect, encoder

TEXTS = {"type": "map", "keys": {"type": "string"}, "values": {"type": "string"}}
DECIMAL = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}}


def struct(*fields: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields), **more}


def row(kind: Mapping[str, Any]) -> dict[str, Any]:
    """A record whose only field is ``a``."""
    return struct({**kind, "field": "a"})


def encoded(schema: Any, payload: Any) -> bytes:
    return encoder(avro.parse(avro_of_connect(schema)))(payload)


def decoded(schema: Any, payload: Any) -> Any:
    """The payload as fastavro reads it."""
    written = fastavro.parse_schema(avro_of_connect(schema))
    return fastavro.schemaless_reader(io.BytesIO(encoded(schema, payload)), written, None)


def value(kind: Mapping[str, Any], payload: Any) -> Any:
    return decoded(row(kind), {"a": payload})["a"]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("boolean", "boolean"), ("int8", "int"), ("int16", "int"), ("int32", "int"), ("int64", "long"),
        ("float", "float"), ("float32", "float"), ("double", "double"), ("float64", "double"),
        ("string", "string"), ("bytes", "bytes"),
    ],
)  # fmt: skip
def test_a_primitive_type_is_the_nullable_one_of_avro(kind: str, expected: str) -> None:
    [field] = avro_of_connect(row({"type": kind}))["fields"]
    assert field["type"] == ["null", {"type": expected}]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ({"type": "array", "items": {"type": "int32"}}, {"type": "array", "items": {"type": "int"}}),
        (
            {"type": "array", "items": {"type": "int32", "optional": True}},
            {"type": "array", "items": ["null", {"type": "int"}]},
        ),
        (TEXTS, {"type": "map", "values": {"type": "string"}}),
        ({**TEXTS, "optional": True}, ["null", {"type": "map", "values": {"type": "string"}}]),
    ],
)
def test_a_list_is_nullable_only_if_it_is_optional(kind: Mapping[str, Any], expected: Any) -> None:
    [field] = avro_of_connect(row(kind))["fields"]
    assert field["type"] == expected


def test_names_and_parameters_of_logical_types_are_kept() -> None:
    [field] = avro_of_connect(row(DECIMAL))["fields"]
    assert field["type"][1] == {
        "type": "bytes",
        "connect.name": "org.apache.kafka.connect.data.Decimal",
        "connect.parameters": {"scale": "2"},
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("shop.Order", "shop.Order"),
        (None, "Record"),
        ("", "Record"),
        ("shop-1.a b", "shop_1.a_b"),
        ("1shop.Order", "_1shop.Order"),
    ],
)
def test_the_name_of_a_record_is_made_valid(name: str | None, expected: str) -> None:
    assert avro_of_connect(struct(name=name))["name"] == expected


def test_a_record_type_that_is_used_twice_is_two_types() -> None:
    inner = struct({"type": "int32", "field": "x"}, name="shop.Point")
    made = avro_of_connect(struct({**inner, "field": "from"}, {**inner, "field": "to"}, name="shop.Line"))
    names = [each["type"][1]["name"] for each in made["fields"]]
    assert names == ["connect_2.Point", "connect_3.Point"]
    assert avro.parse(made)


def test_fields_are_found_by_the_names_that_the_producer_writes() -> None:
    schema = struct(*({"type": "int32", "field": name} for name in ("1st", "größe x", "plain")))
    found = decoded(schema, {"1st": 1, "größe x": 2, "plain": 3})
    assert list(found.values()) == [1, 2, 3]


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param(None, id="null"),
        pytest.param([], id="list"),
        pytest.param({}, id="no type"),
        pytest.param({"type": "struct"}, id="no fields"),
        pytest.param({"type": "struct", "fields": [{"type": "int32"}]}, id="field without a name"),
        pytest.param({"type": "struct", "fields": ["int32"]}, id="field that is no object"),
        pytest.param({"type": "array"}, id="no items"),
        pytest.param({"type": "array", "items": "int32"}, id="items that are no object"),
        pytest.param({"type": "map", "keys": {"type": "string"}}, id="no values"),
        pytest.param({"type": {"type": "int32"}}, id="type that is no text"),
    ],
)
def test_what_is_no_schema_of_connect_names_the_converter(schema: Any) -> None:
    with pytest.raises(UnstageableSchema, match="not a Kafka Connect schema") as caught:
        avro_of_connect(schema)
    assert caught.value.next_step == "check the converter"


def test_an_unknown_type_is_named_in_short() -> None:
    with pytest.raises(UnstageableSchema, match=f"no type '{'x' * 40}'$".replace("$", "")):
        avro_of_connect(row({"type": "x" * 99}))


def test_a_schema_that_is_nested_too_deep_is_refused_as_a_schema() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(3000):
        deep = {"type": "array", "items": deep}
    with pytest.raises(UnstageableSchema, match="not a Kafka Connect schema"):
        avro_of_connect(row(deep))


@pytest.mark.parametrize(
    ("kind", "payload", "expected"),
    [
        ({"type": "boolean"}, False, False),
        ({"type": "int32"}, -(2**31), -(2**31)),
        ({"type": "int32"}, 2**31 - 1, 2**31 - 1),
        ({"type": "int64"}, -(2**63), -(2**63)),
        ({"type": "int64"}, 2**63 - 1, 2**63 - 1),
        ({"type": "double"}, Number("0.1"), 0.1),
        ({"type": "double"}, 3, 3.0),
        ({"type": "double"}, "-Infinity", -math.inf),
        ({"type": "float"}, "Infinity", math.inf),
        ({"type": "float"}, Number("0.5"), 0.5),
        ({"type": "string"}, "ü", "ü"),
        ({"type": "bytes"}, "", b""),
        ({"type": "bytes"}, b64encode(b"\x00\xff").decode(), b"\x00\xff"),
        ({"type": "array", "items": {"type": "int32"}}, [], []),
        ({"type": "array", "items": {"type": "int32"}}, None, []),
        ({"type": "array", "items": {"type": "int32"}, "optional": True}, None, None),
        ({"type": "array", "items": {"type": "int32", "optional": True}}, [1, None], [1, None]),
        (TEXTS, {"a": "b", "": "c"}, {"a": "b", "": "c"}),
        (TEXTS, [["a", "b"], ["c", "d"]], {"a": "b", "c": "d"}),
        (TEXTS, [], {}),
        (TEXTS, None, {}),
        ({**TEXTS, "optional": True}, None, None),
        (row({"type": "int32"}), {"a": 1}, {"a": 1}),
        (row({"type": "int32"}), {}, {"a": None}),
    ],
)
def test_a_payload_is_what_another_reader_decodes(
    kind: Mapping[str, Any], payload: Any, expected: Any
) -> None:
    assert value(kind, payload) == expected


def test_not_a_number_is_a_number() -> None:
    assert math.isnan(value({"type": "double"}, "NaN"))


@pytest.mark.parametrize("kind", ["boolean", "int32", "double", "string", "bytes"])
def test_a_field_that_is_missing_or_null_is_null(kind: str) -> None:
    schema = row({"type": kind})
    assert decoded(schema, {}) == decoded(schema, {"a": None}) == {"a": None}


@pytest.mark.parametrize(
    ("kind", "payload", "problem"),
    [
        ({"type": "boolean"}, 1, "a int, not a bool"),
        ({"type": "int32"}, 2**31, "not an int"),
        ({"type": "int32"}, -(2**31) - 1, "not an int"),
        ({"type": "int32"}, True, "not an int"),
        ({"type": "int64"}, 2**63, "not a long"),
        ({"type": "int64"}, Number("1.0"), "not a long"),
        ({"type": "double"}, "1", "not a number"),
        ({"type": "double"}, True, "not a number"),
        ({"type": "double"}, Number("1e400"), "a number that does not fit a double"),
        ({"type": "double"}, 10**400, "a number that does not fit a double"),
        ({"type": "float"}, Number("1e39"), "a number that does not fit a float"),
        ({"type": "string"}, 1, "a int, not a str"),
        ({"type": "string"}, Number("1.5"), "a number, not a str"),
        ({"type": "string"}, "\ud800", "surrogates not allowed"),
        ({"type": "bytes"}, "no base64!", "not base64"),
        ({"type": "bytes"}, True, "neither base64 nor a number"),
        ({"type": "bytes"}, [], "neither base64 nor a number"),
        ({"type": "array", "items": {"type": "int32"}}, {}, "a dict, not a list"),
        ({"type": "array", "items": {"type": "int32"}}, [None], "not an int"),
        (TEXTS, "ab", "a str, not a list"),
        (TEXTS, [1], "a int, not a list"),
        (TEXTS, ["ab"], "a str, not a list"),
        (TEXTS, [{"a": 1, "b": 2}], "a dict, not a list"),
        (TEXTS, [["a", "b", "c"]], "an entry that is not a pair"),
        (TEXTS, [["a"]], "an entry that is not a pair"),
        (TEXTS, [[1, "b"]], "a int, not a str"),
        (row({"type": "int32"}), [], "a list, not a dict"),
    ],
)
def test_a_payload_that_does_not_fit_is_a_value_error_that_names_the_field(
    kind: Mapping[str, Any], payload: Any, problem: str
) -> None:
    with pytest.raises(ValueError, match=f"^field a: .*{problem}"):
        encoded(row(kind), {"a": payload})


def test_the_error_names_the_path_of_a_nested_field() -> None:
    with pytest.raises(ValueError, match=r"^field a\.a: not an int$"):
        encoded(row(row({"type": "int32"})), {"a": {"a": "x"}})


def test_the_payload_itself_must_be_an_object() -> None:
    with pytest.raises(ValueError, match="a list, not a dict"):
        encoded(row({"type": "int32"}), [1])


def unscaled(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (Number("1.23"), 123), (Number("-1.23"), -123), (Number("1.230"), 123), (5, 500), (0, 0), (-1, -100),
        (Number("1e2"), 10_000), (Number("12e-1"), 120), (Number("1.27"), 127), (Number("1.28"), 128),
        (Number("-1.28"), -128), (Number("1e500"), 10**502), ("AHs=", 123),
    ],
)  # fmt: skip
def test_a_decimal_in_digits_is_its_unscaled_number(payload: Any, expected: int) -> None:
    assert unscaled(value(DECIMAL, payload)) == expected


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (Number("1.234"), "more than 2 decimal places"),
        (Number("1e-3"), "more than 2 decimal places"),
        (Number("1e2000"), "a number that does not fit a decimal"),
        (Number("1e-2000"), "a number that does not fit a decimal"),
    ],
)
def test_a_decimal_that_its_scale_cannot_hold_is_refused(payload: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        value(DECIMAL, payload)


@pytest.mark.parametrize("scale", ["x", "", "-1", "٣", "9999", None])
def test_a_scale_that_is_no_number_counts_as_0(scale: Any) -> None:
    kind = {**DECIMAL, "parameters": {"scale": scale}}
    assert unscaled(value(kind, 7)) == 7


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.just(Number("1.5")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2)
    ),
    max_leaves=6,
)
KINDS = st.sampled_from(
    [TEXTS, DECIMAL, row({"type": "int64"}), {"type": "array", "items": {"type": "string"}}]
    + [{"type": kind} for kind in ("boolean", "int32", "float", "double", "string", "bytes")]
)


@settings(max_examples=20)
@given(st.decimals(-(10**20), 10**20, allow_nan=False, places=2))
def test_any_decimal_of_its_scale_survives(number: Any) -> None:
    assert unscaled(value(DECIMAL, Number(f"{number:f}"))) == int(number * 100)


@settings(max_examples=40)
@given(KINDS, JSON_VALUES)
def test_any_payload_is_encoded_or_refused_as_a_value(kind: Mapping[str, Any], payload: Any) -> None:
    try:
        found = encoded(row(kind), {"a": payload})
    except ValueError:
        return
    assert found


@settings(max_examples=40)
@given(
    st.recursive(
        st.none() | st.text(max_size=2) | st.integers(),
        lambda inner: st.dictionaries(
            st.sampled_from(["type", "fields", "items", "values", "field", "name", "optional", "parameters"]),
            inner | st.sampled_from(["struct", "array", "map", "int32"]) | st.lists(inner, max_size=2),
        ),
        max_leaves=8,
    )
)
def test_any_json_is_a_schema_or_refused_as_one(schema: Any) -> None:
    with contextlib.suppress(UnstageableSchema):
        assert json.dumps(avro_of_connect(schema))
