"""Chunks and the bytes next to the values."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbq_assets.core.errors import EncoderMisuse
from kbq_assets.wire.chunk import (
    PADDING,
    Chunk,
    RawRecord,
    Spans,
    decode_headers,
    encode_headers,
    encode_long,
)
from kbq_assets.wire.records.staged_schema import MetadataColumns, metadata_fields

messages = st.builds(
    RawRecord,
    value=st.none() | st.binary(max_size=20),
    offset=st.integers(0, 2**62),
    timestamp=st.integers(-1, 2**62),
    key=st.none() | st.binary(max_size=8),
    headers=st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3),
)


@given(st.lists(messages, max_size=6))
def test_a_chunk_gives_back_its_messages(rows: list[RawRecord]) -> None:
    chunk = Chunk.from_messages(rows, keys=True, headers=True)
    read = [
        RawRecord(
            chunk.value(index),
            int(chunk.offsets[index]),
            int(chunk.timestamps[index]),
            chunk.key(index),
            decode_headers(chunk.header_bytes(index) or b"\x00"),
        )
        for index in range(len(chunk))
    ]
    assert read == [row._replace(headers=list(row.headers)) for row in rows]


def test_keys_and_headers_are_there_only_if_asked_for() -> None:
    chunk = Chunk.from_messages([RawRecord(b"v", 0, key=b"k", headers=[("h", b"1")])])
    assert (chunk.keys, chunk.headers, chunk.key(0), chunk.header_bytes(0)) == (None, None, None, None)


def test_a_slice_shares_the_buffer() -> None:
    chunk = Chunk.from_messages(
        [RawRecord(b"a", 0, key=b"x"), RawRecord(b"b", 1, key=b"y"), RawRecord(b"c", 2)], keys=True
    )
    part = chunk.slice(1, 3)
    assert part.buffer is chunk.buffer
    assert np.shares_memory(part.starts, chunk.starts)
    assert [part.value(0), part.value(1), part.key(0), part.key(1)] == [b"b", b"c", b"y", None]


@given(st.lists(st.tuples(st.text(), st.none() | st.binary()), max_size=4))
def test_headers_are_the_avro_array_of_the_staged_schema(headers: list[tuple[str, bytes | None]]) -> None:
    field = next(f for f in metadata_fields(MetadataColumns(headers=True)) if f["name"] == "_kafka_headers")
    schema: Any = fastavro.parse_schema(field["type"])
    read = fastavro.schemaless_reader(io.BytesIO(encode_headers(headers)), schema, None)
    assert read == [{"key": key, "value": value} for key, value in headers]
    assert decode_headers(encode_headers(headers)) == headers


def test_a_header_name_that_is_not_unicode_is_still_written() -> None:
    assert decode_headers(encode_headers([("a\udcff", b"")])) == [("a?", b"")]


@given(st.integers(-(2**63), 2**63 - 1))
def test_longs_are_encoded_as_fastavro_does(number: int) -> None:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, "long", number)
    assert encode_long(number) == stream.getvalue()


def numbers(*values: int) -> Any:
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    "broken",
    [
        lambda: Spans(
            np.frombuffer(bytes(20), np.uint8), numbers(0), numbers(1)
        ),  # read-only: another type to numba
        lambda: Spans(np.zeros(20, np.uint8)[::2], numbers(0), numbers(1)),
        lambda: Spans(np.zeros(20, np.int8), numbers(0), numbers(1)),
        lambda: Spans(np.zeros(20, np.uint8), numbers(0), numbers(20 - PADDING + 1)),
        lambda: Spans(np.zeros(20, np.uint8), np.zeros(1, np.int32), numbers(1)),
        lambda: Chunk(np.zeros(20, np.uint8), numbers(0), numbers(1), numbers(0, 1), numbers(0)),
        lambda: Chunk(np.zeros(20, np.uint8), numbers(0), numbers(1), numbers(0), numbers(0), Spans.of([])),
    ],
)
def test_a_malformed_chunk_is_refused(broken: Any) -> None:
    with pytest.raises(EncoderMisuse):
        broken()
