"""Avro's block codecs: snappy (the default), deflate and null."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, get_args

import pyarrow

from kbq_assets.wire.errors import EncoderMisuse

try:
    from isal import isal_zlib
except ImportError:  # optional: 7 times as fast as zlib, a few per cent larger
    isal_zlib = None

Codec: TypeAlias = Literal["snappy", "deflate", "null"]
Compress: TypeAlias = Callable[[Any], bytes]
"""From a block's bytes (any contiguous buffer) to what stands in the file."""

_RAW_DEFLATE = -15  # window bits: Avro wants a deflate stream without zlib's header


def compressor(codec: Codec) -> Compress:
    """The function that compresses one block. Raises EncoderMisuse for an unknown codec."""
    if codec not in get_args(Codec):
        raise EncoderMisuse(f"unknown Avro codec {codec!r}: use one of {', '.join(get_args(Codec))}")
    return {"snappy": _snappy, "deflate": _deflate, "null": _null}[codec]


def _snappy(block: Any) -> bytes:
    compressed = pyarrow.compress(block, codec="snappy", asbytes=False)
    checksum = _crc32(block)
    return b"".join((compressed, checksum.to_bytes(4)))  # Avro appends the CRC of what was compressed


def _deflate(block: Any) -> bytes:
    if isal_zlib is not None:
        stream = isal_zlib.compressobj(1, isal_zlib.DEFLATED, _RAW_DEFLATE)
    else:
        stream = zlib.compressobj(1, zlib.DEFLATED, _RAW_DEFLATE)
    return bytes(stream.compress(block) + stream.flush())


def _null(block: Any) -> bytes:
    return bytes(block)


_crc32: Callable[[Any], int] = zlib.crc32 if isal_zlib is None else isal_zlib.crc32
