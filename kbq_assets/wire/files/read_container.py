"""Reads Avro object container files: the header, then the stored blocks. A truncated file is an error, not a short
file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from kbq_assets.core.errors import EncodingError
from kbq_assets.core.plurals import counted
from kbq_assets.wire.chunk import decode_long
from kbq_assets.wire.files.container import MAGIC, SYNC_SIZE

#: A larger block or header entry means a corrupt length. Blocks of staged files have about 256 KiB.
_MAX_BLOCK: Final = 1 << 30
_LONGEST: Final = 10


class Readable(Protocol):
    """A stream of a file's bytes."""

    def read(self, size: int, /) -> bytes:
        """Read ``size`` bytes, fewer at the end."""
        ...


class DamagedFile(EncodingError):
    """The bytes are not an intact Avro container file."""


@dataclass(frozen=True)
class Header:
    """The header of a container file. ``entries`` are its metadata, including schema and codec."""

    entries: Mapping[str, bytes]
    sync_marker: bytes

    @property
    def schema(self) -> str:
        """The writer's schema, as JSON text. Raises KeyError or UnicodeDecodeError for a damaged header."""
        return self.entries["avro.schema"].decode()

    @property
    def codec(self) -> str:
        """The name of the blocks' codec."""
        return self.entries.get("avro.codec", b"null").decode("utf-8", "replace")


def read_header(stream: Readable) -> Header:
    """Read the header. Raises DamagedFile."""
    if stream.read(len(MAGIC)) != MAGIC:
        raise _damaged("it is not an Avro container file")
    entries: dict[str, bytes] = {}
    while count := _read_long(stream):
        if count < 0:
            _read_long(stream)  # the size in bytes follows a negative count
        for _ in range(abs(count)):
            key = _read_bytes(stream)
            entries[key.decode("utf-8", "replace")] = _read_bytes(stream)
    return Header(entries, _exactly(stream, SYNC_SIZE))


def read_blocks(stream: Readable, header: Header) -> Iterator[tuple[int, bytes]]:
    """The number of records and the compressed bytes of each block, to the end of the file. Raises DamagedFile."""
    while first := stream.read(1):
        count, size = _read_long(stream, first), _read_long(stream)
        if count < 0 or not 0 <= size <= _MAX_BLOCK:
            raise _damaged(f"a block claims {counted(count, 'record')} in {size} bytes")
        data = _exactly(stream, size)
        if _exactly(stream, SYNC_SIZE) != header.sync_marker:
            raise _damaged("a block does not end with the file's sync marker")
        yield count, data


def _read_bytes(stream: Readable) -> bytes:
    size = _read_long(stream)
    if not 0 <= size <= _MAX_BLOCK:
        raise _damaged(f"its header claims an entry of {size} bytes")
    return _exactly(stream, size)


def _read_long(stream: Readable, first: bytes = b"") -> int:
    encoded = first or _exactly(stream, 1)
    while encoded[-1] >= 0x80:
        if len(encoded) == _LONGEST:
            raise _damaged("a length is longer than 64 bits")
        encoded += _exactly(stream, 1)
    return decode_long(encoded, 0)[0]


def _exactly(stream: Readable, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise _damaged("it is cut short")
    return data


def _damaged(problem: str) -> DamagedFile:
    return DamagedFile(problem, next_step="restore the file from a backup")
