"""Joins container files: copies their stored blocks below one header, with one sync marker."""

from __future__ import annotations

import io
from collections.abc import Iterator

from kbq_assets.wire.chunk import encode_long
from kbq_assets.wire.files.container import header_of
from kbq_assets.wire.files.read_container import Header, read_blocks, read_header


def header_in(data: bytes) -> Header:
    """The header of a file. Raises DamagedFile."""
    return read_header(io.BytesIO(data))


def beginning(header: Header) -> bytes:
    """The bytes before the first block of a file with this header."""
    return header_of(header.entries, header.sync_marker)


def blocks(data: bytes, marker: bytes) -> Iterator[bytes]:
    """The blocks of a file, each followed by this sync marker. Raises DamagedFile."""
    stream = io.BytesIO(data)
    for count, block in read_blocks(stream, read_header(stream)):
        yield b"".join((encode_long(count), encode_long(len(block)), block, marker))
