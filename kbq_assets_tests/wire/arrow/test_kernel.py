"""The kernel and fastavro read the same: any schema, any record, any damage."""

from __future__ import annotations

import io
import itertools
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
from kbq_assets.wire.arrow.kernel import read_records
from kbq_assets.wire.arrow.nested import record_node
from kbq_assets_tests.sizes import examples

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


NAMES = (f"n{i}" for i in itertools.count())


@st.composite
def nested(draw: st.DrawFn) -> tuple[str, list[dict[str, Any]]]:
    """A schema of records, lists and unions in each other, with records of it. Arrays of arrays have no column."""

    def value(depth: int, *, in_list: bool) -> tuple[Any, st.SearchStrategy[Any]]:
        name = next(NAMES)
        kind = draw(
            st.sampled_from(
                ["int", "string", "enum", *(["record", "record", "array", "map", "union"] if depth else [])]
            )
        )
        if kind == "union":
            return union(depth, in_list=in_list)
        if kind == "record":
            pairs = {f"m{i}": value(depth - 1, in_list=False) for i in range(draw(st.integers(1, 3)))}
            fields = [{"name": member, "type": each} for member, (each, _) in pairs.items()]
            avro_type: Any = {"type": "record", "name": name, "fields": fields}
            strategy: st.SearchStrategy[Any] = st.fixed_dictionaries({m: s for m, (_, s) in pairs.items()})
        elif kind in ("array", "map") and not in_list:
            items, found = value(depth - 1, in_list=True)
            avro_type = {"type": kind, "items" if kind == "array" else "values": items}
            keys = st.text(max_size=3)
            strategy = (
                st.lists(found, max_size=3) if kind == "array" else st.dictionaries(keys, found, max_size=3)
            )
        else:
            avro_type, strategy = TYPES["int" if kind in ("array", "map") else kind]
            avro_type = {**avro_type, "name": name} if isinstance(avro_type, dict) else avro_type
        if draw(st.booleans()) and not in_list:
            return draw(st.sampled_from([["null", avro_type], [avro_type, "null"]])), st.none() | strategy
        return avro_type, strategy

    def union(depth: int, *, in_list: bool) -> tuple[Any, st.SearchStrategy[Any]]:
        """Of several types, which Python's values tell apart; a record with its name."""
        inner, inner_values = value(depth - 1, in_list=False)
        items, found = value(depth - 1, in_list=True)
        name = next(NAMES)
        record = {"type": "record", "name": name, "fields": [{"name": "m", "type": inner}]}
        branches: list[tuple[Any, st.SearchStrategy[Any]]] = [
            ("int", INT),
            ("string", st.text(max_size=3)),
            ("bytes", st.binary(max_size=3)),
            (record, inner_values.map(lambda value: (name, {"m": value}))),
            ({"type": "array", "items": items}, st.lists(found, max_size=3)),
            *([] if in_list else [("null", st.none())] * 2),
        ]
        places = st.integers(0, len(branches) - 1)
        taken = draw(st.lists(places, min_size=3, max_size=5, unique_by=lambda i: str(branches[i][0])))
        return [branches[i][0] for i in taken], st.one_of([branches[i][1] for i in taken])

    pairs = {f"f{i}": value(3, in_list=False) for i in range(draw(st.integers(1, 3)))}
    fields = [{"name": name, "type": each} for name, (each, _) in pairs.items()]
    values = st.fixed_dictionaries({name: each for name, (_, each) in pairs.items()})
    return json.dumps({"type": "record", "name": "r", "fields": fields}), draw(st.lists(values, max_size=5))


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
    record = record_node(avro.parse(json.loads(schema)))
    assert record is not None
    return read_records(blocks, record) is not None


@settings(max_examples=examples(200), deadline=None)
@given(flat() | nested(), st.integers(1, 3))
def test_both_read_the_same_records(found: tuple[str, list[dict[str, Any]]], size: int) -> None:
    schema, records = found
    blocks = blocks_of(schema, records, size)
    assert accepts(schema, blocks)
    assert outcome(schema, blocks, 0) == outcome(schema, blocks, 1 << 60)


@pytest.mark.thorough
@settings(max_examples=200, deadline=None)
@given(flat() | nested(), st.data())
def test_both_judge_damage_alike(found: tuple[str, list[dict[str, Any]]], data: st.DataObject) -> None:
    schema, records = found
    (block, *_) = blocks_of(schema, records, 9) or [Block(0, b"")]
    damaged = bytearray(block.data)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(damaged)))
        damaged[place : place + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    blocks = [Block(block.count, bytes(damaged))]
    assert outcome(schema, blocks, 0) == outcome(schema, blocks, 1 << 60)


@pytest.mark.parametrize("avro_type", [["int"], {"type": "array", "items": ["string"]}, ["null"]], ids=str)
def test_unions_of_one_type_are_left_to_fastavro(avro_type: Any) -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "f", "type": avro_type}]}
    assert record_node(avro.parse(schema)) is None


def test_a_schema_of_2_to_the_30_values_is_left_to_fastavro_at_once() -> None:
    kind: Any = "int"
    for depth in range(30):
        again = f"r{depth - 1}" if depth else "int"
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": again}]
        kind = {"type": "record", "name": f"r{depth}", "fields": fields}
    assert record_node(avro.parse(kind)) is None


@pytest.mark.parametrize(
    "count", [b"\x06", b"\x80\x80\x80\x80\x80\x01", b"\x05\x00"], ids=["3", "2**34", "-3"]
)
def test_items_without_bytes_are_left_to_fastavro(count: bytes) -> None:
    items = {"type": "array", "items": "null"}
    schema = json.dumps({"type": "record", "name": "r", "fields": [{"name": "f", "type": items}]})
    assert not accepts(schema, [Block(1, count + b"\x00")])


def test_a_block_may_say_how_many_bytes_its_items_have() -> None:
    items = {"type": "array", "items": "int"}
    schema = json.dumps({"type": "record", "name": "r", "fields": [{"name": "f", "type": items}]})
    blocks = [Block(2, b"\x03\x04\x02\x04\x02\x06\x00" + b"\x00")]
    assert accepts(schema, blocks)
    table = Decoder(schema, columns_of(schema), flat_bytes=0).table(blocks)
    assert table.to_pylist() == [{"f": [1, 2, 3]}, {"f": []}]


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
        (["null", "int", "string"], b"\x06\x02"),
        (["null", "int", "string"], b"\x01\x02"),
        (["int", "string"], b"\x04"),
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


def test_texts_of_any_length_are_copied() -> None:
    """Some are copied in words, beyond the end of the text; long ones are copied in one call."""
    texts = ["x" * n + "é" * (n % 3) for n in [*range(80), 0, 33, 1, 5_000, 8]]
    schema = json.dumps(
        {"type": "record", "name": "r", "fields": [{"name": "a", "type": ["null", "string"]}]}
    )
    node = record_node(avro.parse(avro.load_schema(schema)))
    stream = io.BytesIO()
    for text in texts:
        fastavro.schemaless_writer(stream, json.loads(schema), {"a": text or None})
    assert node is not None
    found = read_records([Block(len(texts), stream.getvalue())], node)
    assert found is not None
    found["a"].validate(full=True)
    assert found["a"].to_pylist() == [text or None for text in texts]
