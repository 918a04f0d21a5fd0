"""Writes Avro object container files, block by block, into a sink.

A file's bytes depend only on its input: the sync marker is not random, and the order of maps is fixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from kbq_assets.core.avro.header import header_schema
from kbq_assets.core.config.backup import ZSTD_LEVEL
from kbq_assets.core.errors import EncoderMisuse
from kbq_assets.wire.chunk import encode_bytes, encode_long
from kbq_assets.wire.files.codec import Codec, compressor

MAGIC = b"Obj\x01"
SYNC_SIZE = 16
BLOCK_BYTES = 256 * 1024
"""Large enough to compress well, small enough for twenty open files."""


@dataclass(frozen=True, slots=True)
class FileFormat:
    """How to write container files. Only files of one window share a sync marker."""

    sync_marker: bytes
    codec: Codec = "snappy"
    #: Uncompressed size at which a block is written.
    block_bytes: int = BLOCK_BYTES
    #: The level of zstandard.
    level: int = ZSTD_LEVEL

    def __post_init__(self) -> None:
        if len(self.sync_marker) != SYNC_SIZE:
            raise EncoderMisuse(f"a sync marker has {SYNC_SIZE} bytes, not {len(self.sync_marker)}")


class Sink(Protocol):
    """A destination for a file's bytes. The writer never closes it; the code that opened it does."""

    def write(self, data: bytes, /) -> object:
        """Write all of ``data``, or raise."""
        ...


class ContainerWriter:
    """Writes one container file: the header immediately, then blocks."""

    def __init__(
        self,
        sink: Sink,
        schema_json: str,
        format_: FileFormat,
        extra_metadata: Mapping[str, bytes] | None = None,
    ) -> None:
        self._sink = sink
        self._sync_marker = format_.sync_marker
        self._compress = compressor(format_.codec, format_.level)
        self.bytes_written = 0
        self._write(header(schema_json, format_.codec, format_.sync_marker, extra_metadata or {}))

    def write_block(self, data: Any, count: int) -> None:
        """Compress and write ``count`` encoded records, a contiguous buffer of bytes."""
        compressed = self._compress(data)
        self._write(
            b"".join((encode_long(count), encode_long(len(compressed)), compressed, self._sync_marker))
        )

    def _write(self, data: bytes) -> None:
        self._sink.write(data)
        self.bytes_written += len(data)


def header(schema_json: str, codec: Codec, sync_marker: bytes, extra_metadata: Mapping[str, bytes]) -> bytes:
    """The bytes before the first block, with the parts of the schema that readers need (core/avro/header.py)."""
    entries = {
        "avro.schema": header_schema(schema_json).encode(),
        "avro.codec": codec.encode(),
        **dict(sorted(extra_metadata.items())),
    }
    return header_of(entries, sync_marker)


def header_of(entries: Mapping[str, bytes], sync_marker: bytes) -> bytes:
    """The bytes before the first block, with exactly these metadata entries."""
    pairs = b"".join(encode_bytes(key.encode()) + encode_bytes(value) for key, value in entries.items())
    return MAGIC + encode_long(len(entries)) + pairs + b"\x00" + sync_marker
