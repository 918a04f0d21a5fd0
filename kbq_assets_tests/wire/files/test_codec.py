"""Codecs of blocks: each undoes itself, and damaged or endless blocks are errors of their own."""

from __future__ import annotations

import zlib
from typing import Any, get_args

import fastavro.read
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.core.errors import EncoderMisuse
from kbq_assets.wire.chunk import Bytes
from kbq_assets.wire.files.codec import BadBlock, Codec, compressor, decompress, unpacker, unsnap

CODECS: tuple[Codec, ...] = get_args(Codec)
PLAIN = b"a record, and another record, " * 30


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary(max_size=200), times=st.sampled_from([1, 3, 100]))
@settings(max_examples=25)
def test_a_block_comes_back(codec: Codec, data: bytes, times: int) -> None:
    packed = bytes(compressor(codec)(data * times))
    assert bytes(decompress(codec, packed)) == data * times


@pytest.mark.parametrize("codec", CODECS)
def test_any_contiguous_buffer_is_a_block(codec: Codec) -> None:
    compress = compressor(codec)
    kinds: tuple[Any, ...] = (PLAIN, bytearray(PLAIN), memoryview(PLAIN), np.frombuffer(PLAIN, np.uint8))
    assert len({bytes(compress(kind)) for kind in kinds}) == 1


@pytest.mark.parametrize("codec", CODECS)
def test_a_compressor_depends_on_its_input_alone(codec: Codec) -> None:
    compress = compressor(codec)
    first = bytes(compress(PLAIN))
    compress(b"something else" * 99)
    assert compress(PLAIN) == first == compressor(codec)(PLAIN)


@pytest.mark.parametrize("codec", ["", "gzip", "Snappy", "bzip2", "xz"])
def test_a_codec_that_avro_files_of_kbq_do_not_have_is_a_mistake(codec: Any) -> None:
    with pytest.raises(EncoderMisuse, match="use one of snappy, deflate, null, zstandard"):
        compressor(codec)


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec != "null"])
def test_a_block_that_is_cut_is_bad(codec: Codec) -> None:
    packed = bytes(compressor(codec)(PLAIN))
    for end in range(len(packed)):
        with pytest.raises(BadBlock, match="a block cannot be decompressed"):
            decompress(codec, packed[:end])


@pytest.mark.parametrize("codec", CODECS)
@given(noise=st.binary(max_size=60))
@settings(max_examples=40)
def test_noise_is_bad_or_a_block(codec: Codec, noise: bytes) -> None:
    room: Bytes = np.zeros(1000, np.uint8)
    try:
        data = bytes(decompress(codec, noise))
    except BadBlock:
        with pytest.raises(BadBlock):
            unpacker(codec)(noise, room)
    else:
        assert unpacker(codec)(noise, room) == (len(data) if len(data) <= 1000 else -1)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("spare", [-1, 0, 1])
def test_a_block_is_unpacked_only_if_there_is_room(codec: Codec, spare: int) -> None:
    room: Bytes = np.full(len(PLAIN) + spare, 7, np.uint8)
    size = unpacker(codec)(compressor(codec)(PLAIN), room)
    if spare < 0:
        assert (size, set(room.tolist())) == (-1, {7})
    else:
        assert (size, room[:size].tobytes(), room[size:].tolist()) == (len(PLAIN), PLAIN, [7] * spare)


@pytest.mark.parametrize("level", [1, 3, 19])
def test_a_level_changes_the_size_and_not_the_content(level: int) -> None:
    packed = bytes(compressor("zstandard", level)(PLAIN))
    assert bytes(decompress("zstandard", packed)) == PLAIN


class TestSnappy:
    @pytest.mark.parametrize("data", [b"", b"a", PLAIN], ids=len)
    def test_the_checksum_is_that_of_the_plain_bytes(self, data: bytes) -> None:
        packed = bytes(compressor("snappy")(data))
        assert packed[-4:] == zlib.crc32(data).to_bytes(4, "big")
        assert unsnap(packed) == data

    @pytest.mark.parametrize("at", [-1, -4, 5])
    def test_a_changed_byte_is_noticed(self, at: int) -> None:
        packed = bytearray(compressor("snappy")(PLAIN))
        packed[at] ^= 1
        with pytest.raises(BadBlock):
            decompress("snappy", bytes(packed))

    def test_another_reader_of_the_raw_format_is_checked_too(self) -> None:
        with pytest.raises(zlib.error, match="checksum"):
            unsnap(bytes(compressor("snappy")(PLAIN)), lambda data: PLAIN[:-1])


def test_deflate_is_raw_and_ends() -> None:
    packed = bytes(compressor("deflate")(PLAIN))
    assert zlib.decompress(packed, -15) == PLAIN
    with pytest.raises(BadBlock, match="does not end"):
        decompress("deflate", packed[:-1])


def test_the_codecs_are_known_to_other_readers() -> None:
    assert set(CODECS) <= set(fastavro.read.BLOCK_READERS)
