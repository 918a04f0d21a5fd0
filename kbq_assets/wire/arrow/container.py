"""The blocks of an Avro container file, decompressed. A damaged file is the load job's error."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, Final

import cramjam

from kbq_assets.wire.arrow.errors import BadFile
from kbq_assets.wire.files import read_container
from kbq_assets.wire.files.read_container import DamagedFile, Header


@dataclass(frozen=True)
class Block:
    """``count`` records, decompressed."""

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
    if header.codec not in _DECOMPRESS:
        raise BadFile(f"its codec {header.codec!r} is not supported")
    return header


def read_blocks(stream: BinaryIO, header: Header) -> Iterator[Block]:
    """Read the blocks after the header, to the end of the file. Raises BadFile."""
    try:
        for count, data in read_container.read_blocks(stream, header):
            yield Block(count, _DECOMPRESS[header.codec](data))
    except DamagedFile as error:
        raise BadFile(error.message) from error
    except (zlib.error, cramjam.DecompressionError) as error:
        raise BadFile(f"a block cannot be decompressed: {error}") from error


def _inflate(data: bytes) -> bytes:
    inflater = zlib.decompressobj(wbits=-15)
    out = inflater.decompress(data)
    if not inflater.eof:
        raise zlib.error("the deflate stream does not end")
    return out


def _unsnap(data: bytes) -> bytes:
    out = bytes(cramjam.snappy.decompress_raw(data[:-4]))
    if zlib.crc32(out) != int.from_bytes(data[-4:], "big"):
        raise zlib.error("the checksum does not match")
    return out


_DECOMPRESS: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "null": bytes,
    "deflate": _inflate,
    "snappy": _unsnap,
}
