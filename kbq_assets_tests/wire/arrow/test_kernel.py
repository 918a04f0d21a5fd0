"""The kernel and fastavro read the same: any flat schema, any record, any damage."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.loading.tables import columns_of
from kbq_assets.wire.arrow.container import Block
from kbq_assets.wire.arrow.decode import Decoder
from kbq_assets.wire.arrow.errors import BadFile
from kbq_assets.wire.arrow.flat import flat_fields
from kbq_assets.wire.arrow.kernel import read_flat

INT, LONG = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
TYPES: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "boolean": ("boolean", st.booleans()),
    "int": ("int", INT),
    "long": ("long", LONG),
    "float": ("float", st.floats(width=32)),
    "double": ("double", st.floats()),
    "bytes": ("bytes", st.binary(max_size=6)),
    "string": ("string", st.text(max_size=6)),
    "enum": ({"type": "enum", "name": "E?", "symbols": ["A", "B", "C"]}, st.sampled_from("ABC")),
    "fixed": ({"type": "fixed", "name": "F?", "size": 3}, st.binary(min_size=3, max_size=3)),
    "empty": ({"type": "fixed", "name": "Z?", "size": 0}, st.just(b"")),
    "null": ("null", st.none()),
}


@st.composite
def flat(draw: st.DrawFn) -> tuple[str, list[dict[str, Any]]]:
    """A flat schema and records of it."""
    fields, values = [], {}
    for i, name in enumerate(["int", *draw(st.lists(st.sampled_from(list(TYPES)), max_size=5))]):
        avro_type, strategy = TYPES[name]
        if isinstance(avro_type, dict):
            avro_type = {**avro_type, "name": avro_type["name"].replace("?", str(i))}
        order = draw(st.sampled_from(["alone", "first", "last"])) if name != "null" else "alone"
        if order != "alone":
            avro_type = ["null", avro_type] if order == "first" else [avro_type, "null"]
            strategy = st.none() | strategy
        fields.append({"name": f"f{i}", "type": avro_type})
        values[f"f{i}"] = strategy
    records = draw(st.lists(st.fixed_dictionaries(values), max_size=6))
    return json.dumps({"type": "record", "name": "r", "fields": fields}), records


def blocks_of(schema: str, records: list[dict[str, Any]], size: int) -> list[Block]:
    """The records in blocks of ``size``."""
    parsed = fastavro.parse_schema(json.loads(schema))
    blocks = []
    for start in range(0, len(records), size):
        stream = io.BytesIO()
        for record in records[start : start + size]:
            fastavro.schemaless_writer(stream, parsed, record)
        blocks.append(Block(len(records[start : start + size]), stream.getvalue()))
    return blocks


def outcome(schema: str, blocks: list[Block], flat_bytes: int) -> Any:
    try:
        table = Decoder(schema, columns_of(schema), flat_bytes=flat_bytes).table(blocks)
    except BadFile:
        return BadFile
    table.validate(full=True)
    return str(table.schema), [repr(row) for row in table.to_pylist()]  # as text: NaN is not itself


def accepts(schema: str, blocks: list[Block]) -> bool:
    fields = flat_fields(avro.parse(json.loads(schema)))
    assert fields is not None
    return read_flat(blocks, fields) is not None


@settings(max_examples=200, deadline=None)
@given(flat(), st.integers(1, 3))
def test_both_read_the_same_records(found: tuple[str, list[dict[str, Any]]], size: int) -> None:
    schema, records = found
    blocks = blocks_of(schema, records, size)
    assert accepts(schema, blocks)
    assert outcome(schema, blocks, 0) == outcome(schema, blocks, 1 << 60)


@settings(max_examples=200, deadline=None)
@given(flat(), st.data())
def test_both_judge_damage_alike(found: tuple[str, list[dict[str, Any]]], data: st.DataObject) -> None:
    schema, records = found
    (block, *_) = blocks_of(schema, records, 9) or [Block(0, b"")]
    damaged = bytearray(block.data)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(damaged)))
        damaged[place : place + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    blocks = [Block(block.count, bytes(damaged))]
    assert outcome(schema, blocks, 0) == outcome(schema, blocks, 1 << 60)


@pytest.mark.parametrize(
    "avro_type",
    [
        ["null", "int", "string"],
        ["int"],
        {"type": "array", "items": "int"},
        {"type": "map", "values": "int"},
        ["null", {"type": "record", "name": "p", "fields": [{"name": "x", "type": "int"}]}],
    ],
    ids=str,
)
def test_what_is_not_flat_is_left_to_fastavro(avro_type: Any) -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "f", "type": avro_type}]}
    assert flat_fields(avro.parse(schema)) is None


@pytest.mark.parametrize(
    ("avro_type", "data"),
    [
        ("boolean", b"\x02"),
        ("int", b"\xff\xff\xff\xff\x1f"),
        ("long", b"\xff" * 9 + b"\x02"),
        ("long", b"\x80" * 10 + b"\x00"),
        ("long", b"\x80"),
        ("double", b"\x00" * 7),
        ("string", b"\x01"),
        ("string", b"\x04a"),
        (["null", "int"], b"\x04\x02"),
        (["null", "int"], b"\x01\x02"),
        ({"type": "enum", "name": "e", "symbols": ["A"]}, b"\x02"),
        ({"type": "enum", "name": "e", "symbols": ["A"]}, b"\x01"),
        ({"type": "fixed", "name": "e", "size": 2}, b"\x01"),
        ("int", b"\x02\x02"),
    ],
    ids=str,
)
def test_a_malformed_value_is_not_accepted_by_the_kernel(avro_type: Any, data: bytes) -> None:
    schema = json.dumps({"type": "record", "name": "r", "fields": [{"name": "f", "type": avro_type}]})
    assert not accepts(schema, [Block(1, data)])


def test_text_that_is_not_utf8_is_refused() -> None:
    schema = json.dumps({"type": "record", "name": "r", "fields": [{"name": "f", "type": "string"}]})
    for flat_bytes in (0, 1 << 60):
        assert outcome(schema, [Block(1, b"\x02\xff")], flat_bytes) is BadFile
