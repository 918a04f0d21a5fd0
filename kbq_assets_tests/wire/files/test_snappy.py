"""What is compressed is what other programs read."""

from __future__ import annotations

import random

import cramjam
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.records import KINDS, RecordKind, avro_values
from kbq_assets.wire.files.snappy import Snappy

RNG = random.Random(3)
WORDS = [RNG.randbytes(RNG.randrange(1, 40)) for _ in range(200)]


def words(size: int) -> bytes:
    return b"".join(RNG.choices(WORDS, k=size // 20 + 1))[:size]


def read(compressed: memoryview) -> bytes:
    return bytes(cramjam.snappy.decompress_raw(bytes(compressed)))


@given(st.binary(max_size=400) | st.lists(st.sampled_from(WORDS[:20]), max_size=60).map(b"".join))
def test_every_short_block_is_read_back(data: bytes) -> None:
    assert read(Snappy()(data)) == data


@pytest.mark.parametrize(
    "size", [0, 1, 4, 15, 16, 17, 59, 60, 61, 255, 256, 257, 65_535, 65_536, 65_537, 300_000]
)
@pytest.mark.parametrize("make", [bytes, RNG.randbytes, words], ids=["zeros", "noise", "words"])
def test_blocks_of_every_size_are_read_back(make: object, size: int) -> None:
    data = make(size)  # type: ignore[operator]
    assert read(Snappy()(data)) == data


def test_a_compressor_is_used_again_for_larger_and_smaller_blocks() -> None:
    compress = Snappy()
    for size in (1_000, 400_000, 10, 262_144, 262_144):
        data = words(size)
        assert read(compress(np.frombuffer(bytearray(data), np.uint8))) == data


@pytest.mark.parametrize("distance", [1, 7, 8, 9, 2_047, 2_048, 40_000, 65_500])
@pytest.mark.parametrize("size", [4, 11, 12, 63, 64, 65, 67, 68, 128, 1_000])
def test_repetitions_of_every_distance_and_size_are_read_back(distance: int, size: int) -> None:
    data = (RNG.randbytes(distance) * (size // distance + 2))[: distance + size] + RNG.randbytes(50)
    assert read(Snappy()(data)) == data


def test_nothing_behind_the_block_is_read_into_it() -> None:
    data = words(5_000)
    whole = np.frombuffer(bytearray(data + data), np.uint8)
    assert read(Snappy()(whole[: len(data)])) == data


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_records_are_nearly_as_small_as_the_librarys(kind: RecordKind) -> None:
    data = b"".join(avro_values(kind, 2_000))
    assert len(Snappy()(data)) < 1.1 * len(cramjam.snappy.compress_raw(data))


def test_short_words_in_disorder_cost_half_as_much_again_at_most() -> None:
    data = words(262_144)
    assert len(Snappy()(data)) < 1.5 * len(cramjam.snappy.compress_raw(data))
