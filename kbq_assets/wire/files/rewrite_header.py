"""A staged file under another schema: a new header, and the blocks as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, Final, cast

from kbq_assets.core.errors import EncodingError
from kbq_assets.wire.files.codec import Codec
from kbq_assets.wire.files.container import MAGIC, SYNC_SIZE, header

_PIECE: Final = 4 * 1024 * 1024


def reheaded(stream: BinaryIO, schema_json: str) -> Iterator[bytes]:
    """The bytes of a container file with this schema in its header. Raises EncodingError for what is no such file."""
    if _exactly(stream, len(MAGIC)) != MAGIC:
        raise _damaged()
    entries = {}
    while (count := _long(stream)) > 0:
        for _ in range(count):
            key = _exactly(stream, _long(stream)).decode("utf-8", "replace")
            entries[key] = _exactly(stream, _long(stream))
    codec = cast("Codec", entries.pop("avro.codec", b"null").decode("utf-8", "replace"))
    entries.pop("avro.schema", None)
    yield header(schema_json, codec, _exactly(stream, SYNC_SIZE), entries)
    while piece := stream.read(_PIECE):
        yield piece


def _long(stream: BinaryIO) -> int:
    """A length, or a count: KBQ writes none that is negative."""
    value = shift = 0
    while True:
        byte = _exactly(stream, 1)[0]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value >> 1
        shift += 7
        if shift > 63:
            raise _damaged()


def _exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise _damaged()
    return data


def _damaged() -> EncodingError:
    return EncodingError("a staged file has no header that can be read", next_step="restore it from a backup")
