"""Blocks into an array: of every codec, in any order of whole and damaged ones, each as if it were the first."""

from __future__ import annotations

from typing import get_args

import cramjam
import numpy as np
import pytest
import zstandard

from kbq_assets.wire.files.codec import BadBlock, Codec, compressor, unpacker

TEXT = b"a record, and another record, " * 400
#: Zstandard's, as others write them: without the size of the contents, and by another library.
FOREIGN = {
    "no size": zstandard.ZstdCompressor(write_content_size=False).compress(TEXT),
    "cramjam": bytes(cramjam.zstd.compress(TEXT)),
}


@pytest.mark.parametrize("codec", get_args(Codec))
def test_a_block_comes_back(codec: Codec) -> None:
    unpack, block = unpacker(codec), compressor(codec)(np.frombuffer(bytearray(TEXT), np.uint8))
    for spare in (0, 1, 5_000):
        room = np.full(len(TEXT) + spare, 7, np.uint8)
        assert unpack(block, room) == len(TEXT)
        assert room.tobytes() == TEXT + b"\x07" * spare


@pytest.mark.parametrize("codec", get_args(Codec))
def test_a_block_larger_than_the_room_leaves_it_as_it_was(codec: Codec) -> None:
    unpack, block = unpacker(codec), compressor(codec)(np.frombuffer(bytearray(TEXT), np.uint8))
    room = np.full(len(TEXT) - 1, 7, np.uint8)
    assert unpack(block, room) == -1
    assert (room == 7).all()


@pytest.mark.parametrize("block", FOREIGN.values(), ids=FOREIGN)
def test_blocks_of_other_writers_come_back(block: bytes) -> None:
    unpack, room = unpacker("zstandard"), np.empty(len(TEXT), np.uint8)
    assert (unpack(block, room), room.tobytes()) == (len(TEXT), TEXT)
    assert unpack(block, room[1:]) == -1


@pytest.mark.parametrize("codec", ["zstandard", "snappy", "deflate"])
def test_a_damaged_block_is_refused_and_the_next_one_read(codec: Codec) -> None:
    unpack, block = unpacker(codec), bytes(compressor(codec)(np.frombuffer(bytearray(TEXT), np.uint8)))
    room = np.empty(2 * len(TEXT), np.uint8)
    for damaged in (b"", b"noise", block[:-1], block[:9]):
        with pytest.raises(BadBlock):
            unpack(damaged, room)
        assert (unpack(block, room), room[: len(TEXT)].tobytes()) == (len(TEXT), TEXT)


def test_bytes_behind_a_block_are_damage() -> None:
    block = bytes(compressor("zstandard")(TEXT))
    with pytest.raises(BadBlock):
        unpacker("zstandard")(block + b"more", np.empty(2 * len(TEXT), np.uint8))


def test_a_size_that_no_machine_has_takes_no_memory() -> None:
    head = zstandard.ZstdCompressor(level=1).compress(TEXT)[:4] + b"\xe0" + (2**60).to_bytes(8, "little")
    with pytest.raises(BadBlock):
        unpacker("zstandard")(head + b"\x01\x00\x00", np.empty(100, np.uint8))
