"""Messages as rows, type by type, compared with Google's library and fastavro."""

from __future__ import annotations

import io
import json
import tracemalloc
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from kbq_assets.adapters.protobuf import avro_schema_of, compile_types, fields_of, row_encoder
from kbq_assets.core.errors import EncodingError
from kbq_assets.core.loading.tables import columns_of
from kbq_assets.wire.files.encode import RejectedSchema
from kbq_assets.wire.records.reasons import Reason
from kbq_assets_tests.adapters.protobuf.messages import NODE, ORDER, new, order

TYPES = compile_types(ORDER, {})


def row(message: Any) -> dict[str, Any]:
    type_ = TYPES.at([1])
    assert type_ is not None
    data = row_encoder(type_)(message.SerializeToString())
    assert isinstance(data, bytes)
    found = fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(avro_schema_of(type_)), None)
    assert isinstance(found, dict)
    return found


def encoder(schema: str, index: int = 0) -> Any:
    type_ = compile_types(schema, {}).at([index])
    assert type_ is not None
    return row_encoder(type_)


def decoded(data: bytes, schema: str, index: int = 0) -> Any:
    type_ = new(index, schema=schema).DESCRIPTOR
    encoded = encoder(schema, index)(data)
    assert isinstance(encoded, bytes), encoded
    return fastavro.schemaless_reader(io.BytesIO(encoded), fastavro.parse_schema(avro_schema_of(type_)), None)


def refused(data: bytes, schema: str, index: int = 0) -> tuple[Reason, str]:
    found = encoder(schema, index)(data)
    assert isinstance(found, RejectedSchema)
    return found.reason, found.message


def test_what_is_absent_is_null_or_protobuf_s_default() -> None:
    assert row(order()) == {
        "id": 0, "note": None, "at": None, "items": [], "by_sku": [], "state": "NEW", "card": None, "voucher": None,
        "limit": None, "more": None, "big": Decimal(0), "price": 0.0, "weight": 0.0, "n": 0, "z": 0, "raw": b"",
        "ok": False, "took": None, "numbers": [], "f": Decimal(0), "s": 0, "first": None,
    }  # fmt: skip


def test_every_type_arrives() -> None:
    message = order(
        id=-(2**63), note="", state=1, card="x", big=2**64 - 1, price=1.5, weight=0.5, n=2**32 - 1, z=-1, raw=b"\xff",
        ok=True, f=2**63, s=-(2**31),
    )  # fmt: skip
    message.at.FromJsonString("2025-01-31T12:00:00.123456Z")
    message.took.FromMilliseconds(1500)
    message.limit.value = 0
    message.more.update({"a": [1, None, {"b": "é"}]})
    message.items.add(sku="a", count=2)
    message.by_sku["z"].count = 1
    message.by_sku["b"].count = 2
    message.numbers.extend([1, -1])
    message.first.sku = "s"
    found = row(message)
    assert found["at"] == datetime(2025, 1, 31, 12, 0, 0, 123456, UTC)
    assert json.loads(found.pop("more")) == {"a": [1.0, None, {"b": "é"}]}
    assert [pair["key"] for pair in found["by_sku"]] == ["b", "z"]
    assert found["by_sku"][1]["value"] == {"sku": "", "count": 1}
    rest = {k: v for k, v in found.items() if k not in ("at", "by_sku")}
    assert rest == {
        "id": -(2**63), "note": "", "items": [{"sku": "a", "count": 2}], "state": "PAID", "card": "x", "voucher": None,
        "limit": 0, "big": Decimal(2**64 - 1), "price": 1.5, "weight": 0.5, "n": 2**32 - 1, "z": -1, "raw": b"\xff",
        "ok": True, "took": 1_500_000, "numbers": [1, -1], "f": Decimal(2**63), "s": -(2**31),
        "first": {"sku": "s", "count": 0},
    }  # fmt: skip


def test_a_state_without_a_name_is_its_number() -> None:
    assert row(order(state=7))["state"] == "7"


def test_tables_take_the_schema() -> None:
    type_ = TYPES.at([1])
    assert type_ is not None
    columns = {c.name: (c.type, c.mode) for c in columns_of(json.dumps(avro_schema_of(type_)))}
    assert columns["at"] == ("TIMESTAMP", "NULLABLE")
    assert columns["by_sku"] == ("STRUCT", "REPEATED")
    assert columns["more"] == ("JSON", "NULLABLE")
    assert columns["big"] == ("NUMERIC", "REQUIRED")
    assert columns["numbers"] == ("INT64", "REPEATED")


@pytest.mark.parametrize("data", [b"\xff", b"\x08", b"\x12\x05ab", b"\x12\x01\xff"])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    assert refused(data, ORDER, 1) == (Reason.INVALID_PROTOBUF, "the value is not a message of its schema")


def test_a_proto2_string_that_is_not_utf_8_spoils_its_message_alone() -> None:
    """The library hands out bytes for it, where everything else is text."""
    schema = 'syntax = "proto2"; message A { optional string s = 1; map<string, string> m = 2; }'
    assert "in field s: a string is not valid UTF-8" in refused(b"\x0a\x01\xff", schema)[1]
    assert "field m" in refused(b"\x12\x06\x0a\x01\xff\x12\x01a", schema)[1]
    assert encoder(schema)(b"\x0a\x01a") == b"\x02\x02a\x00"


def test_a_type_is_found_by_its_path() -> None:
    found = TYPES.at([2, 0])
    assert found is not None and found.full_name == "shop.Refund.Reason"
    assert TYPES.at([9]) is None
    assert TYPES.at([1, 5]) is None


def test_a_message_that_contains_itself_has_no_columns() -> None:
    with pytest.raises(EncodingError, match="Node contains itself at field next"):
        avro_schema_of(new(0, schema=NODE).DESCRIPTOR)


def test_a_message_without_fields_is_a_marker() -> None:
    """So the table only gets columns when the type gets fields."""
    schema = """syntax = "proto3"; message Ping {} message Set { int32 x = 1; }
    message A { oneof what { Ping ping = 1; Set set = 2; } repeated Ping all = 3; map<string, Ping> by = 4; }"""
    assert decoded(b"\x0a\x00\x1a\x00\x22\x03\x0a\x01k", schema, 2) == {
        "ping": {"_kbq_is_set": True}, "set": None, "all": [{"_kbq_is_set": True}],
        "by": [{"key": "k", "value": {"_kbq_is_set": True}}],
    }  # fmt: skip
    assert decoded(b"\x12\x02\x08\x05", schema, 2)["ping"] is None
    assert decoded(b"", schema, 0) == {"_kbq_is_set": True}
    columns_of(json.dumps(avro_schema_of(new(2, schema=schema).DESCRIPTOR)))


def test_types_with_similar_paths_have_different_names() -> None:
    schema = """syntax = "proto3"; message X { int32 v = 1; } message b_X { int32 v = 1; }
    message A_a_X { int32 w = 1; } message a_b { X X = 1; }
    message A { b_X a = 1; X a_b = 2; a_b X = 3; A_a_X A = 4; X c = 5; }"""
    avro = avro_schema_of(new(4, schema=schema).DESCRIPTOR)
    fastavro.parse_schema(avro)
    names = {each["name"]: each["type"][1]["name"] for each in avro["fields"]}
    assert names == {"a": "a_b_X", "a_b": "a_b_X_2", "X": "X_a_b", "A": "A_A_a_X", "c": "c_X"}


def test_a_type_may_be_called_like_a_field_around_it() -> None:
    schema = 'syntax = "proto3"; message B { int32 v = 1; } message A { B B = 1; } message C { A B = 1; }'
    assert decoded(b"\x0a\x04\x0a\x02\x08\x01", schema, 2) == {"B": {"B": {"v": 1}}}


def test_types_that_hold_each_other_twice_do_not_grow_without_bound() -> None:
    levels = "".join(f"message M{i} {{ M{i + 1} a = 1; M{i + 1} b = 2; }}" for i in range(40))
    schema = f'syntax = "proto3"; {levels} message M40 {{ int32 v = 1; }}'
    with pytest.raises(EncodingError, match="more than 10000 fields"):
        avro_schema_of(new(0, schema=schema).DESCRIPTOR)
    assert len(list(fields_of(schema))) == 10_000


def test_a_decimal_of_known_digits_is_a_decimal() -> None:
    schema = """syntax = "proto3"; import "confluent/meta.proto"; import "confluent/type/decimal.proto";
    message A { confluent.type.Decimal d = 1 [(confluent.field_meta) = {
      params: [{key: "precision", value: "5"}, {key: "scale", value: "2"}]}];
      confluent.type.Decimal any = 2; }"""

    def message(unscaled: int, scale: int) -> bytes:
        found = new(0, schema=schema)
        found.d.value, found.d.scale = unscaled.to_bytes(4, "big", signed=True), scale
        data: bytes = found.SerializeToString()
        return data

    cases = {(-12345, 2): "-123.45", (1, 0): "1.00", (120, 3): "0.12", (-120, 3): "-0.12", (5, -2): "500.00"}
    for (unscaled, scale), text in cases.items():
        assert decoded(message(unscaled, scale), schema)["d"] == Decimal(text)
    for unscaled, scale in ((123, 3), (1, -3), (100_000, 2), (1, -(2**31)), (1, 2**31 - 1)):
        reason, why = refused(message(unscaled, scale), schema)
        assert (reason, "in field d" in why) == (Reason.OUT_OF_RANGE, True)
    assert decoded(message(0, -(2**31)), schema)["d"] == 0
    assert decoded(b"\x12\x03\x0a\x01\x07", schema)["any"] == {"value": b"\x07", "precision": 0, "scale": 0}


@pytest.mark.parametrize(
    ("seconds", "nanos", "micros"),
    [
        (-1, -500, -1_000_000),
        (-1, -1500, -1_000_001),
        (0, -999, 0),
        (1, 1999, 1_000_001),
        (-2, 0, -2_000_000),
    ],
)
def test_a_duration_is_cut_off_towards_zero(seconds: int, nanos: int, micros: int) -> None:
    message = order()
    message.took.seconds, message.took.nanos = seconds, nanos
    assert row(message)["took"] == micros


def test_a_time_that_no_column_holds_names_its_field() -> None:
    message = order(id=1)
    for seconds in (253_402_300_800, -62_135_596_801, 2**63 - 1):
        message.at.seconds = seconds
        reason, why = refused(message.SerializeToString(), ORDER, 1)
        assert (reason, why.endswith(": in field at: a Timestamp outside the years 1 to 9999")) == (
            Reason.OUT_OF_RANGE, True,
        )  # fmt: skip
    message.ClearField("at")
    message.took.seconds = 2**62
    assert "in field took" in refused(message.SerializeToString(), ORDER, 1)[1]


def test_what_json_cannot_say_is_text() -> None:
    message = order()
    for name, number in (("a", float("nan")), ("b", float("inf")), ("c", float("-inf")), ("d", 1.5)):
        message.more[name] = number
    message.more["e"] = [True, None, "x", {}]
    assert json.loads(row(message)["more"]) == {
        "a": "NaN", "b": "Infinity", "c": "-Infinity", "d": 1.5, "e": [True, None, "x", {}],
    }  # fmt: skip


def test_a_field_mask_keeps_paths_that_camel_case_would_change() -> None:
    schema = """syntax = "proto3"; import "google/protobuf/field_mask.proto";
    message A { google.protobuf.FieldMask m = 1; }"""
    message = new(0, schema=schema)
    message.m.paths.extend(["a_b.c_d", "foo_Bar", "x_", "plain"])
    assert json.loads(decoded(message.SerializeToString(), schema)["m"]) == "aB.cD,foo_Bar,x_,plain"


def test_a_required_field_that_is_missing_is_named_at_any_depth() -> None:
    schema = """syntax = "proto2"; message I { required int32 y = 1; }
    message A { optional int32 x = 1; map<string, I> items = 2; repeated I more = 3; required I one = 4; }"""
    whole = b"\x22\x02\x08\x01"
    assert decoded(whole, schema, 1)["one"] == {"y": 1}
    for data, field, name in (
        (b"\x08\x01", "one", "one"),
        (whole + b"\x12\x05\x0a\x01k\x12\x00", "items", "y"),
        (whole + b"\x12\x03\x0a\x01k", "items", "y"),
        (whole + b"\x1a\x00", "more", "y"),
    ):
        assert refused(data, schema, 1) == (
            Reason.INVALID_PROTOBUF,
            f"the value is not a message of its schema: in field {field}: the required field {name} is missing",
        )
    # The library's own search for missing fields dies of a key that is not UTF-8.
    assert "in field items" in refused(whole + b"\x12\x03\x0a\x01\xff", schema, 1)[1]


def test_many_small_items_take_no_more_memory_than_their_message() -> None:
    schema = 'syntax = "proto3"; message A { repeated int32 n = 1; }'
    encode, data = encoder(schema), b"\x0a\x80\x80\x04" + b"\x07" * 65_536
    tracemalloc.start()
    try:
        encode(data)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
