"""Records that choose tables by their bytes: each lands where its decoded content says, in the order of offsets."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.core.errors import EncoderMisuse, UnstageableSchema
from kbq_assets.core.topics.business_time import parse_business_time
from kbq_assets.wire.chunk import Chunk, RawRecord
from kbq_assets.wire.files.container import BLOCK_BYTES
from kbq_assets.wire.files.encode import RejectedSchema, Route
from kbq_assets.wire.records import select
from kbq_assets.wire.records.reasons import Reason
from kbq_assets.wire.records.select import Chooser, Value
from kbq_assets.wire.records.staged_schema import MetadataColumns, StagedSchema, staged_schema
from kbq_assets_tests.sizes import examples
from kbq_assets_tests.wire.samples import (
    MILLIS,
    Sinks,
    avro_body,
    chunk_of,
    framed,
    read_rows,
    record_of,
    window,
)

ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
SCHEMA = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "at", "type": ["null", "string"]},
        {
            "name": "mixed",
            "type": [
                "string",
                "null",
                "long",
                "boolean",
                {"type": "enum", "name": "E", "symbols": ["A", "B"]},
            ],
        },
        {
            "name": "inner",
            "type": ["null", {"type": "record", "name": "I", "fields": [{"name": "n", "type": "int"}]}],
        },
        {"name": "same", "type": "I"},
        {"name": "list", "type": {"type": "array", "items": "I"}},
    ],
}
INPUTS = ("field.at", "header.h", "field.mixed", "key", "field.inner.n", "field.none")
FIELDS = ("at", "mixed", "inner.n", "none")
#: The event date's field decides about the table too.
STAGED = staged_schema(SCHEMA, MetadataColumns(business_time=parse_business_time("at")), FIELDS)

#: The last is larger than a small block.
words = st.sampled_from(["", "a", "b", "a longer word than a machine's", "Ä", "z" * 6_000])
optional_bytes = st.none() | st.sampled_from([b"", b"x", b"\xff", b"y" * 20])
records = st.fixed_dictionaries(
    {
        "at": st.none() | words,
        "mixed": st.one_of(
            words, st.none(), st.integers(-2, 2), st.booleans(), st.sampled_from([("E", "A"), ("E", "B")])
        ),
        "inner": st.none() | st.fixed_dictionaries({"n": st.integers(0, 2)}),
        "same": st.fixed_dictionaries({"n": st.integers(0, 99)}),
        "list": st.lists(st.fixed_dictionaries({"n": st.integers()}).map(lambda _: {"n": 7}), max_size=2),
    }
)
headers = st.lists(st.tuples(st.sampled_from(["h", "hh", "g"]), optional_bytes), max_size=3)


Headers = Sequence[tuple[str, bytes | None]]


def naive(record: dict[str, Any], key: bytes | None, its_headers: Headers) -> tuple[Value, ...]:
    header = dict(its_headers).get("h")
    mixed = record["mixed"][1] if isinstance(record["mixed"], tuple) else record["mixed"]
    inner = None if record["inner"] is None else record["inner"]["n"]
    return record["at"], header, mixed, key, inner, None


def route_of(schema: StagedSchema, chosen: list[tuple[Value, ...]]) -> Route:
    """A table per distinct values of a record; those whose key is "x" have none."""

    def choose(values: tuple[Value, ...]) -> Route | RejectedSchema:
        chosen.append(values)
        if values[3] == b"x":
            return RejectedSchema(Reason.UNKNOWN_TABLE, repr(values))
        return Route(repr(values), schema)

    return Route("", schema, Chooser(INPUTS, choose))


@pytest.mark.parametrize("hashes_collide", [False, True])
@given(
    data=st.lists(st.tuples(records, optional_bytes, headers, st.booleans()), max_size=30),
    size=st.integers(1, 30),
    block_bytes=st.sampled_from([100, BLOCK_BYTES]),
)
@settings(max_examples=examples(60), deadline=None)
def test_every_record_goes_where_its_content_says(
    hashes_collide: bool,
    data: list[tuple[dict[str, Any], bytes | None, Any, bool]],
    size: int,
    block_bytes: int,
) -> None:
    messages = [
        RawRecord(framed(avro_body(SCHEMA, record)) + b"!" * spoilt, offset, MILLIS, key, its_headers)
        for offset, (record, key, its_headers, spoilt) in enumerate(data)
    ]
    expected: dict[str, list[int]] = {}
    for offset, (record, key, its_headers, spoilt) in enumerate(data):
        if not spoilt:
            expected.setdefault(repr(naive(record, key, its_headers)), []).append(offset)
    sinks, chosen = Sinks(), list[tuple[Value, ...]]()
    encoder = window(sinks, {}, resolve=lambda schema_id: route_of(STAGED, chosen), block_bytes=block_bytes)
    found: dict[str, list[int]] = {}
    with pytest.MonkeyPatch.context() as patch:
        if hashes_collide:
            patch.setattr(select, "_mix", lambda *arguments: None)
        for first in range(0, len(messages), size):
            chunk = Chunk.from_messages(messages[first : first + size], keys=True, headers=True)
            rejects = encoder.add(chunk)
            assert (np.diff(rejects.rows) > 0).all()
            for row, message, reason in zip(rejects.rows, rejects.messages, rejects.reasons, strict=True):
                if reason == Reason.UNKNOWN_TABLE:
                    found.setdefault(message, []).append(int(chunk.offsets[row]))
    encoder.finish()
    for file, stream in sinks.files.items():
        found[file.table] = [row["_kafka_offset"] for row in read_rows(stream.getvalue())]
    assert found == expected
    assert len(chosen) == len(set(map(repr, chosen))), "equal inputs are asked about once"


def test_long_values_are_distinguished_to_their_last_byte() -> None:
    text = record_of(("s", "string"))
    schema = staged_schema(text, MetadataColumns(), ["s"])
    values = [framed(avro_body(text, {"s": "x" * 5_000 + last})) for last in "abab"]
    sinks = Sinks()
    route = Route("", schema, Chooser(("field.s",), lambda values: Route(str(values[0])[-1], schema)))
    encoder = window(sinks, {}, resolve=lambda schema_id: route)
    assert not len(encoder.add(chunk_of(*values)))
    assert {file.table: file.rows for file in encoder.finish()} == {"a": 2, "b": 2}


def test_more_files_than_shared_blocks_have_blocks_of_their_own() -> None:
    text = record_of(("s", "string"))
    schema = staged_schema(text, MetadataColumns(), ["s"])
    route = Route("", schema, Chooser(("field.s",), lambda values: Route(str(values[0]), schema)))
    sinks = Sinks()
    encoder = window(sinks, {}, resolve=lambda schema_id: route, max_tables=2)
    values = [
        framed(avro_body(text, {"s": "ab"[n % 2]}), schema_id) for schema_id in (1, 2) for n in range(4)
    ]
    for first in (0, 8):
        assert not len(encoder.add(chunk_of(*values, first_offset=first)))
    encoder.rotate(max_bytes=0)
    assert not len(encoder.add(chunk_of(*values[:4], first_offset=16)))
    encoder.finish()
    offsets = {
        (file.table, file.schema_id, file.first_offset): [
            row["_kafka_offset"] for row in read_rows(stream.getvalue())
        ]
        for file, stream in sinks.files.items()
    }
    assert offsets == {
        ("a", 1, 0): [0, 2, 8, 10],
        ("b", 1, 1): [1, 3, 9, 11],
        ("a", 2, 4): [4, 6, 12, 14],
        ("b", 2, 5): [5, 7, 13, 15],
        ("a", 1, 16): [16, 18],
        ("b", 1, 17): [17, 19],
    }


@pytest.mark.parametrize(
    ("type_", "path"),
    [
        ("bytes", "f"),
        ("double", "f"),
        ({"type": "long", "logicalType": "timestamp-millis"}, "f"),
        ({"type": "int", "logicalType": "date"}, "f"),
        ({"type": "array", "items": "string"}, "f"),
        ({"type": "map", "values": "string"}, "f.a"),
        ({"type": "record", "name": "I", "fields": [{"name": "a", "type": "string"}]}, "f"),
        (["null", "string", "float"], "f"),
    ],
)
def test_a_field_that_makes_no_name_is_refused(type_: Any, path: str) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "f", "type": type_}]}
    with pytest.raises(UnstageableSchema, match="field 'f' cannot be part of a table's name"):
        staged_schema(schema, MetadataColumns(), [path])


def test_a_chunk_without_the_keys_that_decide_is_a_mistake() -> None:
    route = Route("", STAGED, Chooser(("key",), lambda values: Route("t", STAGED)))
    encoder = window(Sinks(), {}, resolve=lambda schema_id: route)
    value = framed(avro_body(SCHEMA, {"at": None, "mixed": "", "inner": None, "same": {"n": 1}, "list": []}))
    with pytest.raises(EncoderMisuse, match="the chunk has none"):
        encoder.add(chunk_of(value))


@pytest.mark.thorough
def test_two_hundred_open_files_take_little_memory() -> None:
    text = record_of(("s", "string"), ("data", "bytes"))
    schema = staged_schema(text, MetadataColumns(), ["s"])
    route = Route("", schema, Chooser(("field.s",), lambda values: Route(str(values[0]), schema)))
    values = [framed(avro_body(text, {"s": f"t{n % 200}", "data": bytes(1_000)})) for n in range(2_000)]
    chunk = chunk_of(*values)
    window(Sinks(), {1: schema}).add(chunk)  # what kernels take when they are first called is not counted
    tracemalloc.start()
    encoder = window(Sinks(), {}, resolve=lambda schema_id: route, open_sink=lambda file: _Nothing())
    for _ in range(40):
        assert not len(encoder.add(chunk))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(encoder.open_files) == 200
    assert peak < 64_000_000


class _Nothing:
    def write(self, data: bytes, /) -> None:
        pass
