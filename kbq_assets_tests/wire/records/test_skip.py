"""Moving past values: by any type, however its items are cut into blocks, exactly as far as a reader goes."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.core.avro import tree as avro
from kbq_assets.wire.chunk import encode_long
from kbq_assets.wire.records.skip import skip_of
from kbq_assets_tests.wire.reference import encode

INNER = {
    "type": "record",
    "name": "I",
    "fields": [{"name": "n", "type": "long"}, {"name": "s", "type": "string"}],
}
CASES: dict[str, tuple[Any, list[Any]]] = {
    "null": ("null", [None]),
    "boolean": ("boolean", [True, False]),
    "int": ("int", [0, -1, 63, 64, -65, 2**31 - 1, -(2**31)]),
    "long": ("long", [0, 2**63 - 1, -(2**63)]),
    "float": ("float", [0.5]),
    "double": ("double", [0.5]),
    "bytes": ("bytes", [b"", b"\x80" * 200]),
    "string": ("string", ["", "é" * 100]),
    "fixed": ({"type": "fixed", "name": "F", "size": 5}, [b"\x80" * 5]),
    "enum": ({"type": "enum", "name": "E", "symbols": [f"S{n}" for n in range(99)]}, [0, 98]),
    "array": ({"type": "array", "items": "long"}, [[], [1], list(range(300))]),
    "nulls": ({"type": "array", "items": "null"}, [[], [None] * 9]),
    "map": ({"type": "map", "values": "string"}, [[], [("a", "b"), ("", "é" * 99)]]),
    "records": ({"type": "array", "items": INNER}, [[], [{"n": 5, "s": "x"}] * 9]),
}
record_values = st.fixed_dictionaries({"n": st.integers(-(2**63), 2**63 - 1), "s": st.text(max_size=9)})


def encoded(schema: Any, value: Any, seed: int) -> bytes:
    """As any writer may: items in blocks of any size, with or without a size in bytes."""
    return encode(avro.parse(schema), value, random.Random(seed))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("before", [b"", b"\xff" * 7], ids=["at the beginning", "behind others"])
def test_the_position_is_that_of_the_next_value(name: str, before: bytes) -> None:
    schema, values = CASES[name]
    skip = skip_of(avro.parse(schema))
    for value in values:
        for seed in range(8):
            data = encoded(schema, value, seed)
            assert skip(before + data + b"\x81", len(before)) == len(before + data)


@given(values=st.lists(record_values, max_size=5), seed=st.integers(0, 99))
@settings(max_examples=40)
def test_nested_blocks_are_passed_whole(values: list[Any], seed: int) -> None:
    schema = {"type": "map", "values": {"type": "array", "items": INNER}}
    data = encoded(schema, [("a", values), ("b", [])], seed)
    assert skip_of(avro.parse(schema))(data, 0) == len(data)


@pytest.mark.parametrize(("branch", "body"), [(0, b""), (1, b"\x08abcd"), (2, b"\x80\x01")])
def test_a_union_is_as_long_as_its_branch(branch: int, body: bytes) -> None:
    skip = skip_of(avro.parse(["null", "string", "int"]))
    assert skip(encode_long(branch) + body + b"more", 0) == 1 + len(body)


def test_fields_follow_one_another() -> None:
    schema = {**INNER, "fields": [*INNER["fields"], {"name": "z", "type": ["null", "double"]}]}
    data = encode_long(-1) + b"\x04ab" + b"\x02" + bytes(8)
    assert skip_of(avro.parse(schema))(data, 0) == len(data)
    assert skip_of(avro.parse({**INNER, "fields": []}))(data, 3) == 3


def test_a_block_with_its_size_is_passed_without_reading_its_items() -> None:
    skip = skip_of(avro.parse({"type": "array", "items": "string"}))
    unreadable = b"\xff" * 5
    data = encode_long(-3) + encode_long(len(unreadable)) + unreadable + b"\x00"
    assert skip(data, 0) == len(data)
