"""Packed batches of gzip, snappy and zstd: the room that they announce, and contents that are refused."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable

import cramjam
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.adapters.kafka.fetch import codecs
from kbq_assets.adapters.kafka.fetch.errors import Damaged
from kbq_assets.wire.chunk import Bytes
from kbq_assets_tests.adapters.kafka.fetch.wires import PACK, as_bytes

MOST = 2**24
#: RFC 8878: a frame's descriptor, and a block's kind.
SINGLE_SEGMENT, CHECKSUM = 32, 4
RAW, REPEATED, PACKED, RESERVED = range(4)


def room(codec: int, packed: bytes, most: int = MOST) -> int:
    return codecs.room(codec, as_bytes(packed), most)


def unpacked(codec: int, packed: bytes) -> bytes:
    data = as_bytes(packed)
    out: Bytes = np.zeros(codecs.room(codec, data, MOST), np.uint8)
    return out[: codecs.unpack(codec, data, out)].tobytes()


@pytest.mark.parametrize("name", PACK)
@given(plain=st.binary(max_size=300), repeats=st.sampled_from([1, 2, 500]))
@settings(max_examples=25)
def test_the_room_is_enough_for_whatever_was_packed(name: str, plain: bytes, repeats: int) -> None:
    codec, pack = PACK[name]
    assert unpacked(codec, bytes(pack(plain * repeats))) == plain * repeats


@pytest.mark.parametrize("name", [name for name in PACK if name != "none"])
def test_what_ends_too_soon_is_damaged_or_the_beginning(name: str) -> None:
    codec, pack = PACK[name]
    plain = bytes(range(256)) * 3
    packed = bytes(pack(plain))
    for end in range(1, len(packed)):
        try:
            found = unpacked(codec, packed[:end])
        except Damaged as damaged:
            assert str(damaged).startswith(f"{codecs.NAMES[codec]}: ")
        else:
            # lz4's last checksum may be missing, and snappy-java's framing has no end mark.
            assert found == (b"" if name == "xerial" else plain)


@pytest.mark.parametrize("codec", range(5))
@given(noise=st.binary(max_size=60))
@settings(max_examples=60)
def test_noise_is_damaged_or_fits_into_its_room(codec: int, noise: bytes) -> None:
    data = as_bytes(noise)
    try:
        size = codecs.room(codec, data, MOST)
        if size <= MOST:
            out: Bytes = np.zeros(size, np.uint8)
            assert codecs.unpack(codec, data, out) <= size
    except Damaged:
        pass


@pytest.mark.parametrize("codec", [-1, 5, 6, 7])
def test_a_codec_that_kafka_does_not_have_is_damage(codec: int) -> None:
    with pytest.raises(Damaged, match=f"codec {codec}"):
        room(codec, b"x")


class TestGzip:
    def test_a_member_says_its_size_and_is_not_unpacked_for_it(self) -> None:
        packed = bytearray(gzip.compress(b"x" * 1000))
        packed[20:-4] = bytes(len(packed) - 24)
        assert room(codecs.GZIP, bytes(packed)) == 1000

    @pytest.mark.parametrize("said", [0, 99, 101, 2**20], ids=str)
    def test_another_size_than_the_trailer_says_is_damage(self, said: int) -> None:
        packed = gzip.compress(b"x" * 100)[:-4] + struct.pack("<I", said)
        with pytest.raises(Damaged, match="gzip: "):
            unpacked(codecs.GZIP, packed)

    def test_a_wrong_checksum_is_damage(self) -> None:
        packed = bytearray(gzip.compress(b"x" * 100))
        packed[-5] ^= 1
        with pytest.raises(Damaged, match="gzip: "):
            unpacked(codecs.GZIP, bytes(packed))

    def test_several_members_stop_at_the_first_byte_over_the_limit(self) -> None:
        packed = gzip.compress(bytes(10_000)) * 3
        assert room(codecs.GZIP, packed, 30_000) == 30_000
        assert room(codecs.GZIP, packed, 29_999) == 30_000
        assert room(codecs.GZIP, packed, 12_345) == 12_346

    def test_several_members_have_no_more_than_their_room(self) -> None:
        data = as_bytes(gzip.compress(bytes(100)) * 2)
        for size in (0, 99, 100, 199, 201):
            with pytest.raises(Damaged, match="its size differs from its trailer"):
                codecs.unpack(codecs.GZIP, data, np.zeros(size, np.uint8))

    @pytest.mark.parametrize("rest", [b"\0" * 20, b"rest of it, which is no member", b"\x1f\x8b\x08"])
    def test_bytes_after_the_last_member_are_damage(self, rest: bytes) -> None:
        with pytest.raises(Damaged):
            unpacked(codecs.GZIP, gzip.compress(b"x" * 100) + rest)


class TestSnappy:
    @staticmethod
    def framed(*blocks: bytes) -> bytes:
        head = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
        return head + b"".join(struct.pack(">i", len(block)) + block for block in blocks)

    @staticmethod
    def block(plain: bytes) -> bytes:
        return bytes(cramjam.snappy.compress_raw(plain))

    @pytest.mark.parametrize("plains", [(), (b"",), (b"a",), (b"ab", b"", b"cde" * 99)], ids=str)
    def test_java_blocks_are_joined(self, plains: tuple[bytes, ...]) -> None:
        packed = self.framed(*map(self.block, plains))
        assert unpacked(codecs.SNAPPY, packed) == b"".join(plains)

    @pytest.mark.parametrize("size", [0, -1, -(2**31), 4, 2**31 - 1], ids=str)
    def test_a_block_whose_size_cannot_be_is_damage(self, size: int) -> None:
        packed = self.framed() + struct.pack(">i", size) + self.block(b"a")
        with pytest.raises(Damaged, match="ends too soon" if size != 4 else "snappy: "):
            unpacked(codecs.SNAPPY, packed)

    def test_a_block_may_claim_more_than_fits_and_gets_no_memory(self) -> None:
        claims_four_gigabytes = b"\xff\xff\xff\xff\x0f"
        assert room(codecs.SNAPPY, claims_four_gigabytes) == 2**32 - 1
        assert room(codecs.SNAPPY, self.framed(claims_four_gigabytes, claims_four_gigabytes)) == 2**33 - 2

    def test_a_block_of_another_size_than_it_says_is_damage(self) -> None:
        with pytest.raises(Damaged, match="snappy: "):
            unpacked(codecs.SNAPPY, b"\x05" + self.block(b"abc")[1:])


class TestZstd:
    @staticmethod
    def frame(*blocks: tuple[int, int, bytes], descriptor: int = 0, magic: int = 0xFD2FB528) -> bytes:
        """A frame of blocks: kind, size, bytes. Its header is zeros, as long as the descriptor says."""
        window = 0 if descriptor & SINGLE_SEGMENT else 1
        content = (1 - window, 2, 4, 8)[descriptor >> 6]
        head = struct.pack("<IB", magic, descriptor) + bytes(window + (0, 1, 2, 4)[descriptor & 3] + content)
        heads = [size << 3 | kind << 1 | (n == len(blocks) - 1) for n, (kind, size, _) in enumerate(blocks)]
        parts = (struct.pack("<I", h)[:3] + block[2] for h, block in zip(heads, blocks, strict=True))
        return head + b"".join(parts) + b"csum" * bool(descriptor & CHECKSUM)

    @pytest.mark.parametrize(
        "descriptor",
        [a | b | c | d for a in range(4) for b in (0, 4) for c in (0, 32) for d in (0, 64, 128, 192)],
    )
    def test_the_room_is_that_of_the_blocks_behind_any_header(self, descriptor: int) -> None:
        one = self.frame(
            (RAW, 5, b"12345"), (REPEATED, 1000, b"x"), (PACKED, 3, b"abc"), descriptor=descriptor
        )
        assert room(codecs.ZSTD, one) == 5 + 1000 + 128 * 1024
        assert room(codecs.ZSTD, one + one) == 2 * room(codecs.ZSTD, one)

    @pytest.mark.parametrize("level", [1, 9])
    @pytest.mark.parametrize("size", [0, 1, 255, 256, 65_791, 65_792, 128 * 1024, 128 * 1024 + 1, 400_000])
    def test_frames_of_the_real_library_fit(self, size: int, level: int) -> None:
        plain = (b"some text, %d; " % size * (size // 10 + 1))[:size]
        packed = bytes(cramjam.zstd.compress(plain, level))
        assert unpacked(codecs.ZSTD, packed) == plain
        assert room(codecs.ZSTD, packed) < len(plain) + 128 * 1024 + 1

    @pytest.mark.parametrize(
        "packed",
        [
            b"",
            b"\x28\xb5\x2f",
            frame((RAW, 0, b""), magic=0x184D2A50),
            frame((RAW, 0, b"")) + b"\0\0\0\0\0",
            frame((RAW, 0, b""))[:-1],
            frame((RAW, 4, b"abc")),
        ],
        ids=["empty", "three bytes", "a skippable frame", "no second frame", "half a head", "a short block"],
    )
    def test_what_is_no_frame_is_damaged(self, packed: bytes) -> None:
        if packed:
            with pytest.raises(Damaged, match="zstd: "):
                unpacked(codecs.ZSTD, packed)
        else:
            assert room(codecs.ZSTD, packed) == 0


def test_each_codec_has_its_name() -> None:
    by_number: dict[int, Callable[[bytes], bytes]] = {number: pack for number, pack in PACK.values()}
    assert {codecs.NAMES[number] for number in by_number} == set(codecs.NAMES)


def test_a_second_member_that_is_cut_is_damage_at_any_byte() -> None:
    first, second = gzip.compress(b"x" * 100), gzip.compress(b"y" * 100)
    for end in range(11, len(second)):
        with pytest.raises(Damaged, match="gzip: "):
            unpacked(codecs.GZIP, first + second[:end])
