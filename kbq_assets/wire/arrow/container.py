"""Reads the decompressed blocks of an Avro container file. A damaged file is an error of the load job."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final, get_args

import pyarrow as pa

from kbq_assets.wire.arrow.errors import BadFile
from kbq_assets.wire.files import read_container
from kbq_assets.wire.files.codec import BadBlock, Codec, decompress, unsnap
from kbq_assets.wire.files.read_container import DamagedFile, Header

_SNAPPY: Final = pa.Codec("snappy")
#: Snappy writes a block's size first, as a number of up to 32 bits. Three bytes expand to 64 at most.
_SIZE_BITS: Final = 28
_MOST_TIMES: Final = 22


@dataclass(frozen=True)
class Block:
    """A decompressed block with ``count`` records."""

    count: int
    data: bytes


def read_header(stream: BinaryIO) -> Header:
    """Read the header. Raises BadFile."""
    try:
        header = read_container.read_header(stream)
        json.loads(header.schema)
    except DamagedFile as error:
        raise BadFile(error.message) from error
    except (KeyError, ValueError) as error:
        raise BadFile(f"its header is damaged: {error}") from error
    if header.codec not in get_args(Codec):
        raise BadFile(f"its codec {header.codec!r} is not supported")
    return header


def read_blocks(stream: BinaryIO, header: Header) -> Iterator[Block]:
    """Read the blocks after the header, to the end of the file. Raises BadFile."""
    try:
        for count, data in read_container.read_blocks(stream, header):
            yield Block(count, _unpacked(header.codec, data))
    except DamagedFile as error:
        raise BadFile(error.message) from error
    except BadBlock as error:
        raise BadFile(error.message) from error


def _unpacked(codec: str, data: bytes) -> bytes:
    """The decompressed bytes of a block. Raises BadBlock."""
    if codec != "snappy":
        return bytes(decompress(codec, data))
    try:
        return unsnap(data, _unpack_snappy)
    except (zlib.error, OSError, ValueError, IndexError) as error:
        raise BadBlock(f"a block cannot be decompressed: {error}") from error


def _unpack_snappy(data: memoryview) -> bytes:
    """Decompress Snappy's raw format with Arrow, in a fifth of cramjam's time. Raises OSError, ValueError,
    IndexError."""
    size = shift = place = 0
    while data[place] >= 0x80 and shift < _SIZE_BITS:
        size |= (data[place] & 0x7F) << shift
        place, shift = place + 1, shift + 7
    size |= data[place] << shift
    if size > len(data) * _MOST_TIMES:
        raise ValueError("it claims more bytes than snappy can pack")
    unpacked: bytes = _SNAPPY.decompress(data, size, asbytes=True)
    return unpacked
