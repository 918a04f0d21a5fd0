"""Avro's block codecs: snappy (the default), deflate and null."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, TypeAlias, get_args

from kbq_assets.core.errors import EncoderMisuse
from kbq_assets.wire.files.snappy import Snappy

_isal: Any = None
with suppress(ImportError):  # 5 to 7 times as fast as zlib
    from isal import isal_zlib

    _isal = isal_zlib

Codec: TypeAlias = Literal["snappy", "deflate", "null"]
Compress: TypeAlias = Callable[[Any], bytes]
"""From a block's bytes (any contiguous buffer) to its bytes in the file."""

_RAW_DEFLATE = -15  # window bits: Avro's deflate stream has no zlib header


def compressor(codec: Codec) -> Compress:
    """The function that compresses one block. Raises EncoderMisuse for an unknown codec."""
    if codec not in get_args(Codec):
        raise EncoderMisuse(f"unknown Avro codec {codec!r}: use one of {', '.join(get_args(Codec))}")
    return {"snappy": _snappy(), "deflate": _deflate, "null": _null}[codec]


def _snappy() -> Compress:
    compress = Snappy()

    def with_checksum(block: Any) -> bytes:
        # Avro appends the CRC of the uncompressed bytes.
        return b"".join((compress(block), _crc32(block).to_bytes(4)))

    return with_checksum


def _deflate(block: Any) -> bytes:
    library = _isal or zlib
    stream = library.compressobj(1, library.DEFLATED, _RAW_DEFLATE)
    return bytes(stream.compress(block) + stream.flush())


def _null(block: Any) -> bytes:
    return bytes(block)


_crc32: Callable[[Any], int] = (_isal or zlib).crc32
