"""Checksums of what is read: of every byte, however it is read, and as Cloud Storage prints them."""

from __future__ import annotations

import io

import google_crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.wire.files.checksum import ChecksumReader, checksum_of, crc32c_text


class Dripping(io.BytesIO):
    """Returns fewer bytes than it is asked for, as a socket does."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(min(3, size) if size and size > 0 else size)


@pytest.mark.parametrize(
    ("data", "text"),
    [(b"", "AAAAAA=="), (b"123456789", "4waSgw=="), (b"a", "wdBDMA==")],
    ids=["empty", "the check value E3069283", "a letter"],
)
def test_a_checksum_is_base64_of_four_bytes(data: bytes, text: str) -> None:
    assert checksum_of(data) == (len(data), text)
    assert crc32c_text(google_crc32c.value(data)) == text


@given(data=st.binary(max_size=300), sizes=st.lists(st.integers(0, 100), max_size=6))
@settings(max_examples=60)
def test_whatever_is_read_in_whichever_parts_counts_once(data: bytes, sizes: list[int]) -> None:
    reader = ChecksumReader(Dripping(data))
    parts = [reader.read_all(size) for size in sizes]
    assert b"".join(parts) == data[: sum(sizes)]
    assert reader.size == len(b"".join(parts))
    assert reader.drain() == checksum_of(data)


@pytest.mark.parametrize("kind", [io.BytesIO, Dripping])
@pytest.mark.parametrize("size", [0, 1, 8_191, 8_193])
def test_a_buffered_reader_counts_what_it_passes_on(kind: type[io.BytesIO], size: int) -> None:
    data = bytes(range(256)) * 40
    reader = ChecksumReader(kind(data[:size]))
    buffered = reader.buffered()
    assert reader.readable()
    assert buffered.read() == data[:size]
    assert reader.drain() == checksum_of(data[:size])
    assert reader.drain() == checksum_of(data[:size]), "the end stays the end"


@pytest.mark.parametrize("size", [0, 5, 9, 10])
def test_a_file_that_ends_too_soon_gives_what_it_has(size: int) -> None:
    reader = ChecksumReader(Dripping(b"nine byte"))
    assert reader.read_all(size) == b"nine byte"[:size]
    assert reader.read_all(0) == b""
