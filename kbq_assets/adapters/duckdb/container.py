"""Avro container files, block by block. Strict: a file that is cut short is never taken for a short file."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, Final

import cramjam

from kbq_assets.adapters.duckdb.errors import BadFile

_MAGIC: Final = b"Obj\x01"
_SYNC_BYTES: Final = 16
#: A larger block, or header entry, is taken for a corrupt length. Ours are some 256 KiB.
_MAX_BLOCK: Final = 1 << 30


@dataclass(frozen=True)
class Header:
    """The header of a container file. ``schema`` is the writer's, as JSON text."""

    schema: str
    codec: str
    sync_marker: bytes


@dataclass(frozen=True)
class Block:
    """``count`` records, decompressed."""

    count: int
    data: bytes


def read_header(stream: BinaryIO) -> Header:
    """Read the header. Raises BadFile."""
    if stream.read(len(_MAGIC)) != _MAGIC:
        raise BadFile("it is not an Avro container file")
    entries = _read_metadata(stream)
    try:
        schema = entries["avro.schema"].decode()
        json.loads(schema)
        codec = entries.get("avro.codec", b"null").decode("ascii")
    except (KeyError, ValueError) as error:
        raise BadFile(f"its header is damaged: {error}") from error
    if codec not in _DECOMPRESS:
        raise BadFile(f"its codec {codec!r} is not supported")
    return Header(schema, codec, _exactly(stream, _SYNC_BYTES))


def read_blocks(stream: BinaryIO, header: Header) -> Iterator[Block]:
    """Read the blocks after the header, to the end of the file. Raises BadFile."""
    while first := stream.read(1):
        count, size = _read_long(stream, first), _read_long(stream)
        if count < 0 or not 0 <= size <= _MAX_BLOCK:
            raise BadFile(f"a block claims {count} records in {size} bytes")
        data = _exactly(stream, size)
        if _exactly(stream, _SYNC_BYTES) != header.sync_marker:
            raise BadFile("a block does not end with the file's sync marker")
        try:
            yield Block(count, _DECOMPRESS[header.codec](data))
        except (zlib.error, cramjam.DecompressionError) as error:
            raise BadFile(f"a block cannot be decompressed: {error}") from error


def _read_metadata(stream: BinaryIO) -> dict[str, bytes]:
    entries: dict[str, bytes] = {}
    while count := _read_long(stream):
        if count < 0:
            _read_long(stream)  # the size in bytes follows a negative count
        for _ in range(abs(count)):
            key = _read_bytes(stream)
            entries[key.decode("utf-8", "replace")] = _read_bytes(stream)
    return entries


def _read_bytes(stream: BinaryIO) -> bytes:
    size = _read_long(stream)
    if not 0 <= size <= _MAX_BLOCK:
        raise BadFile(f"its header claims an entry of {size} bytes")
    return _exactly(stream, size)


def _read_long(stream: BinaryIO, first: bytes = b"") -> int:
    """A zigzag varint."""
    value = shift = 0
    while shift < 70:
        byte = (first or _exactly(stream, 1))[0]
        first = b""
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1)
        shift += 7
    raise BadFile("a length is longer than 64 bits")


def _exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise BadFile("it is cut short")
    return data


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
