"""Backup files, merged: the same records in the same blocks, and sums that are those of the bytes."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import io
from typing import Any

import google_crc32c
import pytest

from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.wire.backup.merge import BlockMerger, OtherHeader
from kbq_assets.wire.chunk import encode_long
from kbq_assets.wire.files.container import header_of
from kbq_assets.wire.files.read_container import DamagedFile, read_blocks, read_header

ONE, TWO, NEW = (bytes([number]) * 16 for number in (1, 2, 9))
ENTRIES = {"avro.schema": b'"long"', "avro.codec": b"zstandard", "own": b"\0"}


def file_of(marker: bytes, *blocks: tuple[int, bytes], codec: bytes = b"zstandard") -> bytes:
    parts = (encode_long(count) + encode_long(len(data)) + data + marker for count, data in blocks)
    return header_of({**ENTRIES, "avro.codec": codec}, marker) + b"".join(parts)


def crc32c(data: bytes) -> str:
    return base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()


def content(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def entry(data: bytes, rows: int) -> StagedFile:
    return StagedFile("a", 0, 1, rows, len(data), 1, crc32c(data), "", content=content(data))


def merged(*files: tuple[bytes, int]) -> tuple[bytes, BlockMerger]:
    sink = io.BytesIO()
    merger = BlockMerger(sink, NEW)
    for data, rows in files:
        merger.add(io.BytesIO(data), entry(data, rows))
    return sink.getvalue(), merger


A = file_of(ONE, (2, b"ab"), (1, b"c"))
B = file_of(TWO, (3, b"def"))
EMPTY = file_of(TWO)


@pytest.mark.parametrize(
    ("files", "blocks"),
    [
        ([(A, 3)], [(2, b"ab"), (1, b"c")]),
        ([(A, 3), (B, 3)], [(2, b"ab"), (1, b"c"), (3, b"def")]),
        ([(B, 3), (A, 3)], [(3, b"def"), (2, b"ab"), (1, b"c")]),
        ([(EMPTY, 0), (A, 3), (EMPTY, 0)], [(2, b"ab"), (1, b"c")]),
        ([(EMPTY, 0)], []),
    ],
    ids=["one", "two", "in the order given", "files without records", "none"],
)
def test_blocks_follow_one_another_under_one_header(
    files: list[tuple[bytes, int]], blocks: list[tuple[int, bytes]]
) -> None:
    data, merger = merged(*files)
    stream = io.BytesIO(data)
    header = read_header(stream)
    assert (dict(header.entries), header.sync_marker) == (ENTRIES, NEW)
    assert list(read_blocks(stream, header)) == blocks
    assert (merger.size, merger.crc32c, merger.content) == (len(data), crc32c(data), content(data))


def test_a_merged_file_may_be_merged_again() -> None:
    data, _ = merged((A, 3), (B, 3))
    assert merged((data, 6))[0] == data


def test_nothing_merged_is_no_file() -> None:
    data, merger = merged()
    assert (data, merger.size, merger.crc32c, merger.content) == (b"", 0, crc32c(b""), content(b""))


def test_a_file_of_another_codec_is_none_to_merge() -> None:
    other = file_of(TWO, (3, b"def"), codec=b"deflate")
    merger = BlockMerger(io.BytesIO(), NEW)
    merger.add(io.BytesIO(A), entry(A, 3))
    with pytest.raises(OtherHeader):
        merger.add(io.BytesIO(other), entry(other, 3))


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": 2},
        {"rows": 4},
        {"bytes": len(A) - 1},
        {"crc32c": "AAAAAA=="},
        {"content": content(B)},
        {"content": ""},
    ],
    ids=str,
)
def test_a_file_that_is_not_the_committed_one_is_damage(wrong: dict[str, Any]) -> None:
    with pytest.raises(DamagedFile, match="not what was committed"):
        BlockMerger(io.BytesIO(), NEW).add(io.BytesIO(A), dataclasses.replace(entry(A, 3), **wrong))


def test_a_file_that_is_cut_or_changed_anywhere_is_damage() -> None:
    for at in range(len(A)):
        changed = bytearray(A)
        changed[at] ^= 1
        for data in (A[:at], bytes(changed)):
            with pytest.raises(DamagedFile):
                BlockMerger(io.BytesIO(), NEW).add(io.BytesIO(data), entry(A, 3))
