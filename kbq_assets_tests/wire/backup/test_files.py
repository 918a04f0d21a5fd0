"""Backup files: what goes in comes out, other readers agree, and damage never passes for records."""

from __future__ import annotations

import io
import itertools
from typing import Any, get_args

import fastavro
import numpy as np
import pytest

from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.wire.backup.read import BlockPlace, place_of, read_chunks
from kbq_assets.wire.backup.write import BLOCK_BYTES, BackupWriter
from kbq_assets.wire.chunk import UNREADABLE_HEADERS, Chunk, Origins, RawRecord, Spans, decode_headers
from kbq_assets.wire.files.codec import Codec
from kbq_assets.wire.files.read_container import DamagedFile

TP = TopicPartition("t", 3)
RECORDS = [
    RawRecord(b"value", 5, 1_700_000_000_123, b"key", (("a", b"1"), ("a", None), ("\u00e9", b""))),
    RawRecord(None, 6, -1, b"key"),
    RawRecord(b"", 9, 2**62, None, (("b", b"\xff\x00"),)),
    RawRecord(b"\x00\xff" * 300, 2**40, 0, b""),
]


def chunk_of(records: list[RawRecord]) -> Chunk:
    chunk = Chunk.from_messages(records, keys=True, headers=True)
    epochs = np.arange(len(records), dtype=np.int64)
    origins = Origins(epochs + 7, epochs % 2)
    return Chunk(
        chunk.buffer, chunk.starts, chunk.ends, chunk.offsets, chunk.timestamps, chunk.keys, chunk.headers,
        origins=lambda: origins,
    )  # fmt: skip


def written(*chunks: Chunk, codec: Codec = "zstandard") -> tuple[bytes, BackupWriter]:
    sink = io.BytesIO()
    writer = BackupWriter(sink, 2, TP.partition, b"m" * 16, codec)
    for chunk in chunks:
        writer.add(chunk)
    writer.finish()
    return sink.getvalue(), writer


def found(data: bytes, until: int = 2**41) -> list[Chunk]:
    return [chunk for chunk, _ in read_chunks(io.BytesIO(data), 2, OffsetRange(TP, 0, until))]


def records_of(chunks: list[Chunk]) -> list[RawRecord]:
    return [
        RawRecord(
            chunk.value(i), int(chunk.offsets[i]), int(chunk.timestamps[i]), chunk.key(i),
            tuple(decode_headers(chunk.header_bytes(i) or b"\x00")),
        )
        for chunk in chunks
        for i in range(len(chunk))
    ]  # fmt: skip


def rows_of(data: bytes) -> list[Any]:
    return list(fastavro.reader(io.BytesIO(data)))


@pytest.mark.parametrize("codec", get_args(Codec))
def test_every_byte_of_a_record_comes_back(codec: Codec) -> None:
    data, writer = written(chunk_of(RECORDS), codec=codec)
    chunks = found(data)
    assert records_of(chunks) == RECORDS
    (chunk,) = chunks
    assert chunk.origins is not None
    assert chunk.origins().leader_epochs.tolist() == [7, 8, 9, 10]
    assert chunk.origins().timestamp_types.tolist() == [0, 1, 0, 1]
    assert (writer.rows, writer.bytes_written) == (4, len(data))


@pytest.mark.parametrize("codec", ["deflate", "snappy", "null"])
def test_an_avro_reader_sees_the_same_records(codec: Codec) -> None:
    data, _ = written(chunk_of(RECORDS), codec=codec)
    rows = rows_of(data)
    assert [(r["_kafka_offset"], r["_kafka_timestamp"], r["key"], r["value"]) for r in rows] == [
        (r.offset, r.timestamp, r.key, r.value) for r in RECORDS
    ]
    assert rows[0]["headers"] == [
        {"key": "a", "value": b"1"},
        {"key": "a", "value": None},
        {"key": "\u00e9", "value": b""},
    ]
    assert {(r["_kbq_epoch"], r["_kafka_partition"]) for r in rows} == {(2, 3)}
    assert [(r["leader_epoch"], r["timestamp_type"], r["raw_headers"]) for r in rows] == [
        (7 + i, i % 2, None) for i in range(4)
    ]


def test_headers_that_avro_cannot_hold_are_kept_as_kafka_encodes_them() -> None:
    plain = chunk_of(RECORDS)
    assert plain.headers is not None
    shown = [plain.headers.get(0), UNREADABLE_HEADERS, plain.headers.get(2), plain.headers.get(3)]
    origins = Origins(np.zeros(4, np.int64), np.zeros(4, np.int64), lambda row: b"raw %d" % row)
    chunk = Chunk(
        plain.buffer, plain.starts, plain.ends, plain.offsets, plain.timestamps, plain.keys, Spans.of(shown),
        origins=lambda: origins,
    )  # fmt: skip
    data, _ = written(chunk, codec="deflate")
    rows = rows_of(data)
    assert [r["raw_headers"] for r in rows] == [None, b"raw 1", None, None]
    assert [len(r["headers"]) for r in rows] == [3, 0, 1, 0]
    (back,) = found(data)
    assert back.headers is not None
    assert back.headers.get(1) == UNREADABLE_HEADERS
    assert written(back, codec="deflate")[0] == data


def test_the_content_hash_does_not_depend_on_chunks_and_blocks() -> None:
    many = [RawRecord(b"v" * (i % 900), i, i, b"k" * (i % 7)) for i in range(3_000)]
    whole = chunk_of(many)
    _, one = written(whole)
    cuts = [0, 1, 700, 701, 2_999, 3_000]
    _, parts = written(*(whole.slice(a, b) for a, b in itertools.pairwise(cuts)))
    assert one.content == parts.content
    assert one.raw_bytes > 2 * BLOCK_BYTES
    assert records_of(found(written(whole)[0])) == many
    changed = [*many[:-1], many[-1]._replace(key=b"other")]
    assert written(chunk_of(changed))[1].content != one.content


@pytest.mark.parametrize("codec", ["zstandard", "snappy"])
def test_blocks_are_read_as_few_chunks_of_bounded_size(codec: Codec) -> None:
    sizes = [900] * 12_000 + [6_000_000] + [900] * 10
    many = [RawRecord(b"v" * size, i, i, b"k") for i, size in enumerate(sizes)]
    data, writer = written(chunk_of(many), codec=codec)
    chunks = found(data)
    assert records_of(chunks) == many
    assert writer.raw_bytes / 4e6 < len(chunks) < 8  # and of over a hundred blocks
    assert (
        max(len(chunk.buffer) for chunk in chunks if len(chunk) > 1) <= 4 * 1024 * 1024 + 2 * BLOCK_BYTES + 64
    )


def test_a_higher_level_makes_a_smaller_file_of_the_same_records() -> None:
    many = [RawRecord(b"order %d of nobody" % (i * 7919), i, i, b"k%d" % i) for i in range(5_000)]
    fast, dense = io.BytesIO(), io.BytesIO()
    for sink, level in ((fast, -5), (dense, 3)):
        writer = BackupWriter(sink, 2, TP.partition, b"m" * 16, level=level)
        writer.add(chunk_of(many))
        writer.finish()
    assert len(dense.getvalue()) < 0.9 * len(fast.getvalue())
    assert records_of(found(dense.getvalue())) == records_of(found(fast.getvalue())) == many


def test_a_record_larger_than_a_block_has_a_block_of_its_own() -> None:
    sizes = [10, 3 * BLOCK_BYTES, 10, BLOCK_BYTES + 1, BLOCK_BYTES - 1, 0]
    many = [RawRecord(b"x" * size, i, 1, None) for i, size in enumerate(sizes)]
    assert records_of(found(written(chunk_of(many))[0])) == many


def test_a_file_without_records_is_a_file() -> None:
    data, writer = written(codec="deflate")
    assert (found(data), writer.rows) == ([], 0)
    assert rows_of(data) == []


def test_damage_is_an_error_and_never_another_record() -> None:
    data, _ = written(chunk_of([RawRecord(b"v%d" % i, i, i, b"k") for i in range(50)]))
    expected = records_of(found(data))
    for at in range(0, len(data), 7):
        for bit in (1, 128):
            damaged = bytearray(data)
            damaged[at] ^= bit
            try:
                chunks = found(bytes(damaged))
            except DamagedFile:
                continue
            # zstd stores no checksum: the commit's detects the rest, before a record is delivered.
            assert sum(map(len, chunks)) <= len(expected)
    for length in (0, 3, len(data) - 1, len(data) - 20):
        with pytest.raises(DamagedFile):
            found(data[:length])


@pytest.mark.parametrize("first_and_until", [(0, 40), (10, 100)])
def test_records_outside_the_window_of_a_name_are_damage(first_and_until: tuple[int, int]) -> None:
    data, _ = written(chunk_of([RawRecord(b"v", i) for i in range(50)]))
    with pytest.raises(DamagedFile, match="out of order"):
        list(read_chunks(io.BytesIO(data), 2, OffsetRange(TP, *first_and_until)))


@pytest.mark.parametrize("epoch", [1, 300])
def test_records_of_another_epoch_are_damage(epoch: int) -> None:
    data, _ = written(chunk_of(RECORDS))
    with pytest.raises(DamagedFile):
        list(read_chunks(io.BytesIO(data), epoch, OffsetRange(TP, 0, 2**41)))


def test_a_record_is_found_by_block_byte_and_index_as_another_reader_counts_them() -> None:
    many = [RawRecord(b"v" * (i * 40), 2 * i, i, b"k") for i in range(300)]
    data, _ = written(chunk_of(many[:170]), chunk_of(many[170:]), codec="deflate")
    blocks: Any = fastavro.block_reader(io.BytesIO(data))
    expected = {
        int(record["_kafka_offset"]): BlockPlace(number, block.offset, index)
        for number, block in enumerate(blocks)
        for index, record in enumerate(block)
    }
    assert len({place.block for place in expected.values()}) > 3
    range_ = OffsetRange(TP, 0, 600)
    assert {offset: place_of(io.BytesIO(data), 2, range_, offset) for offset in expected} == expected
    assert [place_of(io.BytesIO(data), 2, range_, offset) for offset in (1, 301, 599)] == [None] * 3
    with pytest.raises(DamagedFile):
        place_of(io.BytesIO(data[:-20]), 2, range_, 598)
    with pytest.raises(DamagedFile):
        place_of(io.BytesIO(data), 3, range_, 0)
