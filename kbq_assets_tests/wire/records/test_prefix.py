"""Confluent's prefix: the id of each record, and what stands for one where there is none."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.wire.chunk import Chunk, RawRecord
from kbq_assets.wire.records.prefix import BAD_MAGIC, NULL, PREFIX, SHORT, split_prefix


def ids(*values: bytes | None) -> list[int]:
    chunk = Chunk.from_messages([RawRecord(value, n) for n, value in enumerate(values)])
    found: list[int] = split_prefix(chunk).tolist()
    return found


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, NULL),
        (b"", SHORT),
        (b"\0", SHORT),
        (b"\0\0\0\1", SHORT),
        (b"\1", BAD_MAGIC),
        (b"{}", BAD_MAGIC),
        (b"\1\0\0\0\1", BAD_MAGIC),
        (b"\0\0\0\0\1", 1),
        (b"\0\0\0\0\0", 0),
        (b"\0\x7f\xff\xff\xff", 2**31 - 1),
        (b"\0\x80\0\0\0", 2**31),
        (b"\0\xff\xff\xff\xff", 2**32 - 1),
        (b"\0\1\2\3\4body", 0x01020304),
    ],
    ids=repr,
)
def test_an_id_is_four_bytes_behind_a_zero(value: bytes | None, expected: int) -> None:
    assert ids(value) == [expected]
    assert ids(b"\0\0\0\0\7", value, None) == [7, expected, NULL], "neighbors change nothing"


@given(st.lists(st.none() | st.binary(max_size=12), max_size=12))
@settings(max_examples=60)
def test_the_kernel_agrees_with_python(values: list[bytes | None]) -> None:
    def expected(value: bytes | None) -> int:
        if value is None:
            return NULL
        if value[:1] not in (b"", b"\0"):
            return BAD_MAGIC
        return SHORT if len(value) < PREFIX else int(struct.unpack_from(">I", value, 1)[0])

    assert ids(*values) == [expected(value) for value in values]


def test_a_slice_of_a_chunk_has_the_ids_of_its_records() -> None:
    chunk = Chunk.from_messages([RawRecord(b"\0\0\0\0" + bytes([n]), n) for n in range(5)])
    assert split_prefix(chunk.slice(2, 4)).tolist() == [2, 3]
    assert split_prefix(chunk.slice(2, 2)).tolist() == []
