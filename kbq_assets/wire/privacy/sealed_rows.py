"""Sealed error rows of topics with personal data: value, key and headers as one sealed value.

The sealed bytes are three consecutive Avro values: value and key, each ``["null", "bytes"]``, and the headers as in the
error table. The context is the record's position, so a row cannot be passed off as another record's.
"""

from __future__ import annotations

from typing import NamedTuple

from kbq_assets.core.errors import EncodingError
from kbq_assets.wire.chunk import NO_HEADERS, Chunk, decode_headers, decode_long, encode_nullable_bytes
from kbq_assets.wire.privacy.sealing import OpeningKeys, SealKey


class OpenedRow(NamedTuple):
    """A record as it was produced."""

    value: bytes | None
    key: bytes | None
    headers: list[tuple[str, bytes | None]]


def seal_row(chunk: Chunk, row: int, key: SealKey, topic: str, partition: int) -> bytes:
    """The sealed value, key and headers of a record."""
    headers = chunk.header_bytes(row) or NO_HEADERS
    data = encode_nullable_bytes(chunk.value(row)) + encode_nullable_bytes(chunk.key(row)) + headers
    return key.seal(data, _context(topic, partition, int(chunk.offsets[row])))


def open_row(sealed: bytes, keys: OpeningKeys, topic: str, partition: int, offset: int) -> OpenedRow:
    """Open the value of an error row. Raises EncodingError."""
    data = keys.open(sealed, _context(topic, partition, offset))
    try:
        value, position = _nullable(data, 0)
        key, position = _nullable(data, position)
        return OpenedRow(value, key, decode_headers(data[position:]))
    except IndexError:
        raise EncodingError("it opens, but is not an error row") from None


def _context(topic: str, partition: int, offset: int) -> bytes:
    return f"error_row:{topic}:{partition}:{offset}".encode()


def _nullable(data: bytes, position: int) -> tuple[bytes | None, int]:
    branch, position = decode_long(data, position)
    if branch == 0:
        return None, position
    size, position = decode_long(data, position)
    return data[position : position + size], position + size
