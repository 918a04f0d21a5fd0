"""Avro's block codecs: snappy (the default), deflate and null. zstandard is only for backups, because BigQuery cannot
load it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, Literal, TypeAlias, get_args

import cramjam
import numpy as np
import zstandard

from kbq_assets.core.config.backup import ZSTD_LEVEL
from kbq_assets.core.errors import EncoderMisuse, EncodingError
from kbq_assets.wire.chunk import Bytes
from kbq_assets.wire.files.snappy import Snappy

_isal: Any = None
with suppress(ImportError):  # 5 to 7 times as fast as zlib
    from isal import isal_zlib

    _isal = isal_zlib

Codec: TypeAlias = Literal["snappy", "deflate", "null", "zstandard"]
Compress: TypeAlias = Callable[[Any], bytes | memoryview]
"""Compresses a block's bytes (any contiguous buffer). The result is valid until the next call."""

Unpack: TypeAlias = Callable[[Any, Bytes], int]
"""Decompresses a block into an array; returns the number of bytes, -1 if they do not fit."""

_RAW_DEFLATE = -15  # window bits: Avro's deflate stream has no zlib header


def compressor(codec: Codec, level: int = ZSTD_LEVEL) -> Compress:
    """A function that compresses a block, for one file and thread at a time. ``level`` is zstandard's. Raises
    EncoderMisuse for an unknown codec."""
    if codec not in get_args(Codec):
        raise EncoderMisuse(f"unknown Avro codec {codec!r}: use one of {', '.join(get_args(Codec))}")
    if codec == "zstandard":
        return _zstd(level)
    return {"snappy": _snappy(), "deflate": _deflate, "null": _null}[codec]


def _snappy() -> Compress:
    compress = Snappy()

    # Avro appends the CRC of the uncompressed bytes.
    return lambda block: compress(block, _crc32(block).to_bytes(4))


def _deflate(block: Any) -> bytes:
    library = _isal or zlib
    stream = library.compressobj(1, library.DEFLATED, _RAW_DEFLATE)
    return bytes(stream.compress(block) + stream.flush())


def _zstd(level: int) -> Compress:
    # It reuses its memory for the next block, so it is a quarter faster than cramjam, which does not.
    return zstandard.ZstdCompressor(level=level).compress


def _null(block: Any) -> bytes:
    return bytes(block)


_crc32: Callable[[Any], int] = (_isal or zlib).crc32


class BadBlock(EncodingError):
    """A block that cannot be decompressed."""


def decompress(codec: str, block: bytes) -> Any:
    """The decompressed bytes of a block, as a buffer. Raises BadBlock if it is damaged."""
    try:
        return _DECOMPRESS[codec](block)
    except (zlib.error, cramjam.DecompressionError) as error:
        raise BadBlock(f"a block cannot be decompressed: {error}") from error


def unpacker(codec: str) -> Unpack:
    """A function that decompresses the blocks of a file into an array, for one thread at a time. It returns the number
    of a block's bytes, -1 if they do not fit, and raises BadBlock for a damaged block."""
    if codec == "zstandard":
        return _zstd_unpacker()
    return lambda block, room: _laid(decompress(codec, block), room)


def _zstd_unpacker() -> Unpack:
    # It reuses its memory for the next block, so it is a sixth faster than cramjam, which does not.
    unpack = zstandard.ZstdDecompressor().decompress

    def into(block: Any, room: Bytes) -> int:
        # It trusts the size that a block states. If the block is damaged, too large or without a size, use the other
        # decompressor.
        with suppress(zstandard.ZstdError):
            if 0 <= zstandard.frame_content_size(block) <= len(room):
                return _laid(unpack(block, allow_extra_data=False), room)
        return _laid(decompress("zstandard", block), room)

    return into


def _laid(data: Any, room: Bytes) -> int:
    if len(data) > len(room):
        return -1
    room[: len(data)] = np.frombuffer(data, np.uint8)
    return len(data)


def _inflate(data: bytes) -> bytes:
    inflater = zlib.decompressobj(wbits=_RAW_DEFLATE)
    out = inflater.decompress(data)
    if not inflater.eof:
        raise zlib.error("the deflate stream does not end")
    return out


def unsnap(data: bytes, unpack: Callable[[Any], Any] = cramjam.snappy.decompress_raw) -> bytes:
    """The decompressed bytes of a block in Avro's snappy; ``unpack`` decompresses the raw format. Raises zlib.error if
    the checksum does not match."""
    out = bytes(unpack(memoryview(data)[:-4]))
    if _crc32(out) != int.from_bytes(data[-4:], "big"):
        raise zlib.error("the checksum does not match")
    return out


_DECOMPRESS: Final[Mapping[str, Callable[[bytes], Any]]] = {
    "null": bytes,
    "deflate": _inflate,
    "snappy": unsnap,
    "zstandard": cramjam.zstd.decompress,
}
