"""Writes backup files: compressed blocks of records as they came from Kafka, with a hash of the content."""

from __future__ import annotations

import hashlib
from typing import Final, TypeAlias

import google_crc32c
import numpy as np

from kbq_assets.core.backup.backup_names import FILE_HASH
from kbq_assets.core.config.backup import ZSTD_LEVEL
from kbq_assets.wire.backup import kernels
from kbq_assets.wire.backup.file_schema import SCHEMA
from kbq_assets.wire.chunk import UNREADABLE_HEADERS, Bytes, Chunk, Longs, Origins, Spans, encode_long
from kbq_assets.wire.files.codec import Codec
from kbq_assets.wire.files.container import ContainerWriter, FileFormat, Sink

#: Uncompressed bytes of a block. At this size, the data that zstandard searches stays in the fastest caches of a
#: processor, which saves a seventh of the time. Larger blocks do not compress better.
BLOCK_BYTES: Final = 128 * 1024
_UNKNOWN: Final = -1

_Parts: TypeAlias = tuple[tuple[Longs, ...], tuple[Longs, ...], tuple[Bytes, ...]]


def row_prefix(epoch: int, partition: int) -> Bytes:
    """The bytes at the start of every row of a file."""
    return np.frombuffer(bytearray(encode_long(epoch) + encode_long(partition)), np.uint8)


class BackupWriter:
    """Writes the records of one window to a sink. It holds one block and the largest record in memory."""

    def __init__(
        self,
        sink: Sink,
        epoch: int,
        partition: int,
        marker: bytes,
        codec: Codec = "zstandard",
        level: int = ZSTD_LEVEL,
    ) -> None:
        self._sink = _HashedSink(sink)
        self._container = ContainerWriter(self._sink, SCHEMA, FileFormat(marker, codec, BLOCK_BYTES, level))
        self._prefix = row_prefix(epoch, partition)
        self._block = np.empty(_room(0), np.uint8)
        self._used = self._rows_in_block = 0
        self.rows = 0
        self.raw_bytes = 0

    @property
    def bytes_written(self) -> int:
        """Bytes in the sink."""
        return self._container.bytes_written

    @property
    def crc32c(self) -> int:
        """The CRC32C checksum of the file so far."""
        return self._sink.crc32c

    @property
    def content(self) -> str:
        """The SHA-256 of the file so far, in the format of ``sha256sum``."""
        return FILE_HASH + self._sink.sha256.hexdigest()

    def add(self, chunk: Chunk) -> None:
        """Append a chunk's records. The chunk must have keys and headers."""
        numbers, spans, parts = _fields(chunk)
        row = 0
        while row < len(chunk):
            laid, self._used = kernels.lay_rows(
                numbers, spans, parts, self._prefix, row, self._block, self._used, BLOCK_BYTES
            )
            self._rows_in_block += laid - row
            if laid == row and self._used == 0:
                size = sum(int(e[row] - s[row]) for s, e in zip(spans[::2], spans[1::2], strict=True))
                self._block = np.empty(_room(size), np.uint8)
            elif laid < len(chunk) or self._used >= BLOCK_BYTES:
                self._flush()
            row = laid
        self.rows += len(chunk)

    def finish(self) -> None:
        """Write the last block. The owner of the sink closes it."""
        self._flush()

    def _flush(self) -> None:
        if self._rows_in_block:
            data = self._block[: self._used]
            self._container.write_block(data, self._rows_in_block)
            self.raw_bytes += self._used
        self._used = self._rows_in_block = 0
        if len(self._block) > _room(0):
            self._block = np.empty(_room(0), np.uint8)


def _room(size: int) -> int:
    return BLOCK_BYTES + BLOCK_BYTES // 4 + kernels.ROW_OVERHEAD + 64 + size


class _HashedSink:
    """Hashes the bytes of a file and passes them on. Hashing is fast here, because compressed bytes are few and still
    in the processor's cache."""

    def __init__(self, sink: Sink) -> None:
        self._write = sink.write
        self.sha256 = hashlib.sha256()
        self.crc32c = 0

    def write(self, data: bytes, /) -> None:
        """Write all of ``data`` or raise."""
        self.sha256.update(data)
        self.crc32c = google_crc32c.extend(self.crc32c, data)
        self._write(data)


def _fields(chunk: Chunk) -> _Parts:
    """The numbers of a chunk, the spans of its parts, and their buffers, as `lay_rows` takes them."""
    assert chunk.keys is not None and chunk.headers is not None, "a backup needs keys and headers"
    origins = chunk.origins() if chunk.origins is not None else None
    unknown = np.full(len(chunk), _UNKNOWN, np.int64)
    numbers = (
        chunk.offsets,
        chunk.timestamps,
        origins.timestamp_types if origins else unknown,
        origins.leader_epochs if origins else unknown,
    )
    headers = chunk.headers
    raw = _raw_headers(chunk.headers, origins) or Spans(chunk.buffer, unknown, unknown)
    if raw.buffer is not chunk.buffer:
        shown = raw.starts < 0
        headers = Spans(
            headers.buffer, np.where(shown, headers.starts, -1), np.where(shown, headers.ends, -1)
        )
    keys = chunk.keys
    spans = (
        *(keys.starts, keys.ends, chunk.starts, chunk.ends),
        *(headers.starts, headers.ends, raw.starts, raw.ends),
    )
    plain = tuple(map(_plain, numbers)), tuple(map(_plain, spans))
    return *plain, (chunk.buffer, keys.buffer, headers.buffer, raw.buffer)


def _plain(numbers: Longs) -> Longs:
    """The numbers as the one array type for which the kernel is compiled."""
    is_plain = numbers.flags.c_contiguous and numbers.flags.writeable
    return numbers if is_plain else numbers.copy()


def _raw_headers(headers: Spans, origins: Origins | None) -> Spans | None:
    """The headers that cannot be written as Avro, in Kafka's encoding. None if there are none, or if the reader does
    not provide them."""
    if origins is None or origins.raw_headers is None:
        return None
    sizes = headers.ends - headers.starts
    rows = [
        row
        for row in np.flatnonzero(sizes == len(UNREADABLE_HEADERS)).tolist()
        if headers.get(row) == UNREADABLE_HEADERS
    ]
    if not rows:
        return None
    found = {row: origins.raw_headers(row) for row in rows}
    return Spans.of([found.get(row) for row in range(len(headers))])
