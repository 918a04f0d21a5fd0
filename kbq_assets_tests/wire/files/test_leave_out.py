"""Staged files without some rows: the others stay as they are, and a damaged file is never taken for a short one."""

from __future__ import annotations

import io
import json
import random
from typing import Any

import fastavro
import pytest

from kbq_assets.core.erasure.offset_sets import Offsets, offsets_of
from kbq_assets.wire.arrow.errors import BadFile
from kbq_assets.wire.files.leave_out import RowFilter

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "_kafka_offset", "type": "long"},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["A", "B"]}},
        {
            "name": "same",
            "type": {"type": "record", "name": "S", "fields": [{"name": "n", "type": "double"}]},
        },
        {"name": "list", "type": {"type": "array", "items": "S"}},
    ],
}
#: As fastavro reads and writes them without logical types.
PLAIN = {
    **SCHEMA,
    "fields": [
        SCHEMA["fields"][0],
        {"name": "at", "type": ["null", "long"]},
        {"name": "price", "type": "bytes"},
        *SCHEMA["fields"][3:],
    ],
}


def row(offset: int) -> dict[str, Any]:
    return {
        "_kafka_offset": offset,
        "at": None if offset % 3 else 2**62 + offset,  # no calendar has it
        "price": b"\xff%d" % offset,
        "kind": "AB"[offset % 2],
        "same": {"n": offset / 7},
        "list": [{"n": float(n)} for n in range(offset % 4)],
    }


def file_of(*offsets: int, codec: str = "snappy", block: int = 1) -> bytes:
    out = io.BytesIO()
    own = {"kbq.origin": "own"}
    fastavro.writer(out, PLAIN, map(row, offsets), codec, sync_interval=block, metadata=own)
    return out.getvalue()


def filtered(data: bytes, *erased: int) -> tuple[bytes, int]:
    rows = RowFilter(offsets_of(erased))
    return b"".join(rows.contents(io.BytesIO(data))), rows.left_out


def rows_of(data: bytes) -> list[Any]:
    return list(fastavro.reader(io.BytesIO(data)))


@pytest.mark.parametrize("block", [1, 1 << 20], ids=["a block a row", "one block"])
@pytest.mark.parametrize("codec", ["snappy", "deflate", "null"])
@pytest.mark.parametrize(
    "erased", [(), (0,), (4,), (9,), (0, 9), (2, 3, 4), tuple(range(10)), (99,)], ids=str
)
def test_the_rows_of_the_other_offsets_stay(block: int, codec: str, erased: tuple[int, ...]) -> None:
    data, left_out = filtered(file_of(*range(10), codec=codec, block=block), *erased)
    kept = [offset for offset in range(10) if offset not in erased]
    assert rows_of(data) == [row(offset) for offset in kept]
    assert left_out == 10 - len(kept)


def test_the_schema_and_the_files_own_entries_stay() -> None:
    data, _ = filtered(file_of(1, 2, codec="deflate"), 2)
    before, after = (fastavro.reader(io.BytesIO(each)).metadata for each in (file_of(1, 2), data))
    assert after["kbq.origin"] == "own"
    assert after["avro.codec"] == "snappy"
    assert json.loads(after["avro.schema"]) == json.loads(before["avro.schema"])
    assert before.keys() == after.keys()


def test_a_block_without_erased_rows_keeps_its_bytes() -> None:
    whole = file_of(1, 2, 3)
    data, left_out = filtered(whole)
    assert left_out == 0
    assert filtered(data) == (data, 0), "what is filtered once does not change again"
    assert len(rows_of(data)) == 3


def test_logical_types_are_copied_without_being_understood() -> None:
    out, time = io.BytesIO(), b'{"type":"long","logicalType":"timestamp-millis"}'
    fastavro.writer(out, SCHEMA, [], "null")
    head, plain = out.getvalue(), file_of(1, 2, 3, codec="null")
    marker = plain[-16:]
    blocks = plain[plain.index(marker) + 16 :].replace(marker, head[-16:])
    data, _ = filtered(head + blocks, 2)
    assert time in data
    assert data.replace(time, b'"long"').count(row(3)["price"]) == 1


def test_a_filter_counts_over_all_of_its_files() -> None:
    rows = RowFilter(offsets_of([1, 5]))
    for data in (file_of(1, 2), file_of(5, 6)):
        b"".join(rows.contents(io.BytesIO(data)))
    assert rows.left_out == 2


@pytest.mark.parametrize(
    ("name", "message"),
    [(b"_kafka_offse!", "header is damaged"), (b"_kafka_offse_", "its rows have no _kafka_offset")],
)
def test_a_file_whose_rows_have_no_offset_is_damaged(name: bytes, message: str) -> None:
    with pytest.raises(BadFile, match=message):
        filtered(file_of(1, 2).replace(b"_kafka_offset", name), 1)


def test_a_file_that_ends_within_a_block_is_damaged() -> None:
    data = file_of(*range(3), block=1 << 20)
    for end in range(len(data) - 60, len(data)):
        with pytest.raises(BadFile):
            filtered(data[:end], 1)


@pytest.mark.parametrize("codec", ["snappy", "deflate", "null"])
def test_a_file_with_any_bytes_changed_is_filtered_or_damaged(codec: str) -> None:
    whole, chance, damaged = file_of(*range(9), codec=codec, block=1 << 20), random.Random(codec), 0
    for _ in range(700):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 2)):
            data[chance.randrange(len(data))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        try:
            filtered(bytes(data), 3)
        except BadFile:
            damaged += 1
    assert damaged > 300


def test_offsets_are_half_open_ranges() -> None:
    erased: Offsets = (2, 4, 7, 8)
    rows = RowFilter(erased)
    data = b"".join(rows.contents(io.BytesIO(file_of(*range(9)))))
    assert [each["_kafka_offset"] for each in rows_of(data)] == [0, 1, 4, 5, 6, 8]
