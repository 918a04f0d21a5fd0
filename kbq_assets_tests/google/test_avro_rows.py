"""Damaged files, byte by byte: a damaged record must never pass for data."""

from __future__ import annotations

import io

import fastavro
import pytest

from kbq_assets_tests.google.avro_rows import Unreadable, read_avro

SCHEMA = {
    "type": "record",
    "name": "r",
    "fields": [{"name": "id", "type": "long"}, {"name": "s", "type": "string"}],
}
ROWS = [{"id": n, "s": "text" * 3} for n in range(60)]
CODECS = ["null", "deflate", "snappy"]


def file_of(codec: str, rows: int = len(ROWS)) -> bytes:
    target = io.BytesIO()
    marker = b"0123456789abcdef"
    fastavro.writer(target, SCHEMA, ROWS[:rows], codec=codec, sync_interval=300, sync_marker=marker)
    return target.getvalue()


@pytest.mark.parametrize("codec", CODECS)
def test_a_whole_file_is_read(codec: str) -> None:
    assert read_avro(file_of(codec)).rows == ROWS


@pytest.mark.parametrize("codec", CODECS)
def test_a_file_cut_anywhere_but_between_blocks_is_unreadable(codec: str) -> None:
    data, marker = file_of(codec), b"0123456789abcdef"
    ends = {end for end in range(len(data)) if data[:end].endswith(marker)}
    readable = set()
    for end in range(len(data)):
        try:
            read_avro(data[:end])
        except Unreadable:
            continue
        readable.add(end)
    assert readable == ends


@pytest.mark.parametrize("codec", CODECS)
def test_a_broken_sync_marker_is_unreadable(codec: str) -> None:
    data = bytearray(file_of(codec))
    data[-1] ^= 1
    with pytest.raises(Unreadable):
        read_avro(bytes(data))


def test_a_schema_that_is_no_record_is_unreadable() -> None:
    target = io.BytesIO()
    fastavro.writer(target, "long", [1, 2])
    with pytest.raises(Unreadable, match="no record"):
        read_avro(target.getvalue())
