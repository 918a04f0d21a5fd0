"""Messages as rows, type by type, against what Google's library and fastavro make of them."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from kbq_assets.adapters.protobuf import avro_schema_of, compile_types, row_encoder
from kbq_assets.core.errors import EncodingError
from kbq_assets.core.loading.tables import columns_of
from kbq_assets_tests.adapters.protobuf.messages import NODE, ORDER, new, order

TYPES = compile_types(ORDER, {})


def row(message: Any) -> dict[str, Any]:
    type_ = TYPES.at([1])
    assert type_ is not None
    data = row_encoder(type_)(message.SerializeToString())
    assert data is not None
    found = fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(avro_schema_of(type_)), None)
    assert isinstance(found, dict)
    return found


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
def test_what_is_no_message_is_none(data: bytes) -> None:
    type_ = TYPES.at([1])
    assert type_ is not None
    assert row_encoder(type_)(data) is None


def test_a_proto2_string_that_is_not_utf_8_spoils_its_message_alone() -> None:
    """The library hands out bytes for it, where everything else is text."""
    schema = 'syntax = "proto2"; message A { optional string s = 1; map<string, string> m = 2; }'
    type_ = compile_types(schema, {}).at([0])
    assert type_ is not None
    encode = row_encoder(type_)
    assert encode(b"\x0a\x01\xff") is None
    assert encode(b"\x12\x06\x0a\x01\xff\x12\x01a") is None
    assert encode(b"\x0a\x01a") == b"\x02\x02a\x00"


def test_a_type_is_found_by_its_path() -> None:
    found = TYPES.at([2, 0])
    assert found is not None and found.full_name == "shop.Refund.Reason"
    assert TYPES.at([9]) is None
    assert TYPES.at([1, 5]) is None


def test_a_message_that_contains_itself_has_no_columns() -> None:
    with pytest.raises(EncodingError, match="Node contains itself"):
        avro_schema_of(new(0, schema=NODE).DESCRIPTOR)
    with pytest.raises(EncodingError, match="has no field"):
        avro_schema_of(new(0, schema='syntax = "proto3"; message E {}').DESCRIPTOR)


def test_imports_are_the_registry_s_references() -> None:
    main = 'syntax = "proto3"; import "shop/item.proto"; message A { shop.Item item = 1; }'
    item = 'syntax = "proto3"; package shop; message Item { string sku = 1; }'
    found = compile_types(main, {"shop/item.proto": item}).at([0])
    assert found is not None and found.fields[0].message_type.full_name == "shop.Item"


@pytest.mark.parametrize(
    "schema", ["", "message", '{"type":"record"}', 'syntax = "proto3"; import "gone.proto";']
)
def test_what_is_no_schema_is_refused(schema: str) -> None:
    if schema:
        with pytest.raises(EncodingError, match="not Protobuf"):
            compile_types(schema, {})
    else:
        assert compile_types(schema, {}).at([0]) is None


@pytest.mark.parametrize("name", ["a\0.proto", "\ud800.proto", "x" * 300 + ".proto", ""])
def test_an_import_that_no_file_can_be_called_is_refused(name: str) -> None:
    with pytest.raises(EncodingError, match="cannot be compiled"):
        compile_types('syntax = "proto3"; message A { int32 x = 1; }', {name: 'syntax = "proto3";'})


def test_imports_may_be_called_like_each_other_s_folders_and_like_the_schema_itself() -> None:
    texts = {
        name: f'syntax = "proto3"; package {package}; message M {{ int32 x = 1; }}'
        for name, package in (("a", "p"), ("a/b.proto", "q"), ("schema.proto", "r"))
    }
    main = "".join(
        [
            'syntax = "proto3";',
            *(f'import "{name}";' for name in texts),
            "message A { p.M x = 1; q.M y = 2; r.M z = 3; }",
        ]
    )
    found = compile_types(main, texts).at([0])
    assert found is not None
    assert [field.message_type.full_name for field in found.fields] == ["p.M", "q.M", "r.M"]


def test_an_import_does_not_leave_its_folder() -> None:
    with pytest.raises(EncodingError, match="imports"):
        compile_types("", {"../../x.proto": ""})
