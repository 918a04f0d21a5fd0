"""A kernel finds the blocks of lz4 frames: with all options, cut off anywhere, with many blocks."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence

import cramjam
import numpy as np
import pytest

from kbq_assets.adapters.kafka.fetch import codecs
from kbq_assets.adapters.kafka.fetch.errors import Damaged

#: Bits of a frame's first byte of flags.
VERSION, STANDS_ALONE, BLOCK_CHECKSUMS, SIZE, CHECKSUM, DICTIONARY = 64, 32, 16, 8, 4, 1
PLAIN = VERSION | STANDS_ALONE
#: The largest block, by its code in the header.
MOST = {4: 65_536, 5: 262_144, 6: 1_048_576, 7: 4_194_304}
TEXT = b"a record, and another record, " * 40


def block(data: bytes, *, is_stored: bool = False) -> bytes:
    if is_stored:
        return struct.pack("<I", len(data) | 1 << 31) + data
    packed = bytes(cramjam.lz4.compress_block(data, store_size=False))
    return struct.pack("<I", len(packed)) + packed


def frame(blocks: Sequence[bytes], flags: int = PLAIN, code: int = 4) -> bytes:
    head = struct.pack("<IBB", 0x184D2204, flags, code << 4)
    head += b"s" * 8 * bool(flags & SIZE) + b"dict" * bool(flags & DICTIONARY) + b"h"
    checked = [each + b"csum" * bool(flags & BLOCK_CHECKSUMS) for each in blocks]
    return head + b"".join(checked) + bytes(4) + b"csum" * bool(flags & CHECKSUM)


def unpacked(packed: bytes) -> bytes:
    data = np.frombuffer(bytearray(packed), np.uint8)
    out = np.empty(codecs.room(codecs.LZ4, data, 2**28), np.uint8)
    return out[: codecs.unpack(codecs.LZ4, data, out)].tobytes()


@pytest.mark.parametrize(
    "options",
    [sum(chosen) for n in range(5) for chosen in itertools.combinations((16, 8, 4, 1), n)],
)
def test_frames_with_every_option_unpack(options: int) -> None:
    blocks = [block(TEXT), block(TEXT[7:], is_stored=True), block(b"")]
    assert unpacked(frame(blocks, PLAIN | options) * 2) == (TEXT + TEXT[7:]) * 2


@pytest.mark.parametrize("code", MOST)
def test_a_packed_block_has_the_room_of_the_frames_largest(code: int) -> None:
    packed = block(bytes(MOST[code]))
    data = np.frombuffer(bytearray(frame([packed, block(b"xy", is_stored=True)], code=code)), np.uint8)
    assert codecs.room(codecs.LZ4, data, 2**28) == min(MOST[code], 255 * (len(packed) - 4)) + 2
    assert unpacked(data.tobytes()) == bytes(MOST[code]) + b"xy"


@pytest.mark.parametrize("count", [31, 32, 33, 500])
def test_as_many_blocks_as_there_are_unpack(count: int) -> None:
    assert unpacked(frame([block(b"%d," % n) for n in range(count)])) == b"".join(
        b"%d," % n for n in range(count)
    )


@pytest.mark.parametrize(
    "whole", [frame([block(TEXT)]), bytes(cramjam.lz4.compress(TEXT))], ids=["ours", "theirs"]
)
def test_a_frame_that_ends_too_soon_is_damaged(whole: bytes) -> None:
    end = whole.rindex(bytes(4)) + 4  # a checksum of all may follow
    for size in range(1, end):
        with pytest.raises(Damaged):
            unpacked(whole[:size])


@pytest.mark.parametrize(
    ("packed", "message"),
    [
        (b"", "no frame"),
        (frame([], PLAIN - VERSION), "no frame"),
        (frame([], code=3), "no frame"),
        (frame([], code=8), "no frame"),
        (frame([]) + b"rest of it", "no frame"),
        (frame([struct.pack("<I", 9)]), "ends too soon"),
    ],
)
def test_what_is_no_frame_is_damaged(packed: bytes, message: str) -> None:
    with pytest.raises(Damaged, match=message):
        unpacked(packed)
