"""Avro C++ reads the staged files: every header, and values of all types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fastavro
import pytest

from kbq_assets.wire.chunk import encode_bytes, encode_long
from kbq_assets.wire.files.codec import Codec
from kbq_assets.wire.files.container import header
from kbq_assets_tests.core.avro.test_header import (
    DECIMAL,
    REFUSED_AS_THEY_ARE,
    WIDE,
    random_schemas,
    with_field,
)
from kbq_assets_tests.wire import avro_cpp
from kbq_assets_tests.wire.samples import avro_body, framed
from kbq_assets_tests.wire.test_duckdb_avro import staged
from kbq_assets_tests.worker.test_files import staged_files

INNER = {
    "type": "record",
    "name": "I",
    "fields": [{"name": "n", "type": "int"}, {"name": "s", "type": "string"}],
}
#: Avro's type, ClickHouse's, and a value.
TYPES: dict[str, tuple[Any, str, Any]] = {
    "a": ("boolean", "Bool", True),
    "b": ("int", "Int32", -5),
    "c": ("long", "Int64", 2**62 + 1),
    "d": ("float", "Float32", 0.5),
    "e": ("double", "Float64", -1e300),
    "f": ("bytes", "String", b"bytes"),
    "g": ("string", "String", "größe"),
    "h": ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "String", "B"),
    "i": ({"type": "fixed", "name": "F", "size": 3}, "FixedString(3)", b"abc"),
    "j": ({"type": "int", "logicalType": "date"}, "Int32", 20_454),
    "k": ({"type": "long", "logicalType": "timestamp-micros"}, "Int64", 1_767_225_600_000_001),
    "l": ({"type": "long", "logicalType": "timestamp-millis"}, "Int64", 1_767_225_600_001),
    "m": ({"type": "long", "logicalType": "time-micros"}, "Int64", 3),
    "n": (["null", "int"], "Nullable(Int32)", None),
    "o": (["string", "null"], "Nullable(String)", "x"),
    "p": ({"type": "array", "items": "long"}, "Array(Int64)", [1, -2, 3]),
    "q": ({"type": "map", "values": "int"}, "Map(String, Int32)", {"x": 1}),
    "r": (INNER, "Tuple(n Int32, s String)", {"n": 1, "s": "y"}),
    "s": ({"type": "array", "items": "I"}, "Array(Tuple(n Int32, s String))", [{"n": 2, "s": "z"}]),
    "t": ({"type": "string", "logicalType": "uuid"}, "String", "2f1a1fae-0000-4000-8000-000000000001"),
}


@pytest.mark.thorough
def test_every_header_is_read(tmp_path: Path) -> None:
    file, refused = tmp_path / "empty.avro", []
    for schema in [*REFUSED_AS_THEY_ARE, *random_schemas(200)]:
        file.write_bytes(header(json.dumps(schema), "null", bytes(16), {}))
        try:
            assert avro_cpp.totals(file) == (0, 0)
        except RuntimeError as error:
            refused.append((schema, str(error)))
    assert refused == []


def test_it_refuses_what_bigquery_refuses(tmp_path: Path) -> None:
    file, schema = tmp_path / "copied.avro", json.dumps(with_field("double", default=None)).encode()
    entries = encode_bytes(b"avro.schema") + encode_bytes(schema)
    file.write_bytes(b"Obj\x01" + encode_long(1) + entries + encode_long(0) + bytes(16))
    with pytest.raises(RuntimeError, match="Expected double, but found null"):
        avro_cpp.totals(file)


@pytest.mark.parametrize("codec", ["snappy", "deflate", "null"])
def test_every_staged_row_is_read(codec: Codec, tmp_path: Path) -> None:
    files = staged_files(codec, tmp_path)
    assert [avro_cpp.totals(file) for file in files] == [(2, 0 + 2), (1, 1), (1, 3)]


def test_values_of_all_types_are_those_that_fastavro_reads(tmp_path: Path) -> None:
    fields: list[dict[str, Any]] = [{"name": name, "type": kind} for name, (kind, _, _) in TYPES.items()]
    skipped: list[dict[str, Any]] = [
        {"name": "wide", "type": {**WIDE, **DECIMAL}},
        {"name": "either", "type": ["int", "string"]},
    ]
    schema = {"type": "record", "name": "R", "fields": [*fields, *skipped]}
    plain = {**schema, "fields": [{**each, "type": _plain(each["type"])} for each in [*fields, *skipped]]}
    value = {name: value for name, (_, _, value) in TYPES.items()}
    body = avro_body(plain, {**value, "wide": bytes(16), "either": "x"})
    file = staged("snappy", schema, [framed(body)] * 3, tmp_path / "staged.avro")
    columns = ", ".join(f"{name} {kind}" for name, (_, kind, _) in TYPES.items())
    found = avro_cpp.rows(file, f"{columns}, event_date Int32, _kafka_offset Int64")
    expected = [_text(each) for each in value.values()]
    assert found == [[*expected, 20_454, offset] for offset in range(3)]
    with file.open("rb") as opened:
        assert [row["g"] for row in fastavro.reader(opened) if isinstance(row, dict)] == ["größe"] * 3


def _plain(kind: Any) -> Any:
    return (
        {key: each for key, each in kind.items() if key != "logicalType"} if isinstance(kind, dict) else kind
    )


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value
