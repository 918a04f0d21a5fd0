"""A damaged container file is refused, wherever it is damaged."""

from __future__ import annotations

import io
import json

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.core.loading.tables import columns_of
from kbq_assets.wire.arrow.container import Block, read_blocks, read_header
from kbq_assets.wire.arrow.decode import Decoder
from kbq_assets.wire.arrow.errors import BadFile
from kbq_assets_tests.sizes import examples

SCHEMA = json.dumps({"type": "record", "name": "r", "fields": [{"name": "text", "type": "string"}]})
DECODER = Decoder(SCHEMA, columns_of(SCHEMA))
RECORDS = [{"text": f"record {i} " * 3} for i in range(50)]


def file_of(codec: str = "snappy", records: list[dict[str, str]] = RECORDS) -> bytes:
    stream = io.BytesIO()
    fastavro.writer(stream, json.loads(SCHEMA), records, codec, sync_interval=200)
    return stream.getvalue()


def read(data: bytes) -> list[object]:
    stream = io.BytesIO(data)
    header = read_header(stream)
    return [record for block in read_blocks(stream, header) for record in DECODER.records(block)]


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy"])
def test_each_codec_is_read(codec: str) -> None:
    assert read(file_of(codec)) == RECORDS
    assert read(file_of(codec, [])) == []


def test_another_codec_is_named() -> None:
    with pytest.raises(BadFile, match="'bzip2'"):
        read(file_of("bzip2"))


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy"])
def test_a_file_cut_anywhere_but_between_blocks_is_refused(codec: str) -> None:
    data = file_of(codec)
    stream = io.BytesIO(data)
    ends = [stream.tell() for _ in [read_header(stream)]]
    header = read_header(io.BytesIO(data))
    ends += [stream.tell() for _ in read_blocks(stream, header)]
    for length in range(len(data)):
        if length in ends:
            assert len(read(data[:length])) < len(RECORDS)
            continue
        with pytest.raises(BadFile):
            read(data[:length])


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_a_changed_byte_is_an_error_of_the_file_or_changes_nothing_else(data: st.DataObject) -> None:
    whole = bytearray(file_of())
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    try:
        found = read(bytes(whole))
    except BadFile:
        return
    # Read all the same: a byte of the header that means nothing, or other compressed bytes of the same records.
    assert found == RECORDS


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"Obj",
        b"Obj\x02" + bytes(50),
        b"PK\x03\x04" + bytes(50),
        b"Obj\x01" + b"\xff" * 20,
        b"Obj\x01\0" + bytes(16),
    ],
)
def test_what_has_no_header_of_avro_is_refused(data: bytes) -> None:
    with pytest.raises(BadFile):
        read_header(io.BytesIO(data))


@pytest.mark.parametrize(
    "block", [b"\x01\x02\x00", b"\x02\x01", b"\x02" + b"\xff" * 9 + b"\x01", b"\xff" * 11]
)
def test_a_block_of_impossible_size_is_refused(block: bytes) -> None:
    stream = io.BytesIO(file_of(records=[]) + block + bytes(40))
    header = read_header(stream)
    with pytest.raises(BadFile):
        list(read_blocks(stream, header))


def test_a_header_in_several_pieces_is_read() -> None:
    pieces = [(b"avro.schema", SCHEMA.encode()), (b"avro.codec", b"null")]
    body = b"".join(b"\x01" + long(len(piece(*p))) + piece(*p) for p in pieces)  # counts of -1 have a size
    stream = io.BytesIO(b"Obj\x01" + body + b"\0" + b"s" * 16 + b"\x02\x04\x02a" + b"s" * 16)
    header = read_header(stream)
    assert (header.schema, header.codec, header.sync_marker) == (SCHEMA, "null", b"s" * 16)
    assert list(read_blocks(stream, header)) == [Block(1, b"\x02a")]


def piece(key: bytes, value: bytes) -> bytes:
    return long(len(key)) + key + long(len(value)) + value


def long(number: int) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, "long", number)
    return stream.getvalue()
