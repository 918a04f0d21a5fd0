"""Merges backup files: copies their stored blocks under one header and sync marker (PROTOCOL B10)."""

from __future__ import annotations

import hashlib

import google_crc32c

from kbq_assets.core.backup.backup_names import FILE_HASH
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.wire.chunk import encode_long
from kbq_assets.wire.files.checksum import crc32c_text
from kbq_assets.wire.files.container import Sink, header_of
from kbq_assets.wire.files.read_container import DamagedFile, Header, Readable, read_blocks, read_header


class OtherHeader(Exception):
    """Raised for a file whose header, for example its codec, differs from that of the files before it."""


class BlockMerger:
    """Writes the blocks of files to a sink without decoding them. Each file is checked against its entry."""

    def __init__(self, sink: Sink, marker: bytes) -> None:
        self._sink = sink
        self._marker = marker
        self._header: Header | None = None
        self._written = _Sums()

    @property
    def size(self) -> int:
        """Bytes in the sink."""
        return self._written.size

    @property
    def crc32c(self) -> str:
        """The checksum of the file so far, in the format of object stores."""
        return self._written.crc32c

    @property
    def content(self) -> str:
        """The hash of the file so far, in the format of a commit."""
        return self._written.content

    def add(self, stream: Readable, file: StagedFile) -> None:
        """Append a file. Raises DamagedFile and OtherHeader; the sink may then have a part of the file."""
        source = _Summed(stream)
        header = read_header(source)
        if self._header is None:
            self._header = header
            self._write(header_of(header.entries, self._marker))
        elif header.entries != self._header.entries:
            raise OtherHeader
        rows = 0
        for count, block in read_blocks(source, header):
            rows += count
            self._write(b"".join((encode_long(count), encode_long(len(block)), block, self._marker)))
        found, wanted = source.sums, (file.bytes, file.crc32c, file.content, file.rows)
        if (found.size, found.crc32c, found.content, rows) != wanted:
            raise DamagedFile(f"it has {found.size} bytes with hash {found.content}, not what was committed")

    def _write(self, data: bytes) -> None:
        self._sink.write(data)
        self._written.add(data)


class _Sums:
    """The size and checksums of bytes."""

    def __init__(self) -> None:
        self.size = 0
        self._sha256 = hashlib.sha256()
        self._crc = 0

    def add(self, data: bytes) -> None:
        self.size += len(data)
        self._sha256.update(data)
        self._crc = google_crc32c.extend(self._crc, data)

    @property
    def crc32c(self) -> str:
        return crc32c_text(self._crc)

    @property
    def content(self) -> str:
        return FILE_HASH + self._sha256.hexdigest()


class _Summed:
    """A file whose bytes are counted and hashed as they are read."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self.sums = _Sums()

    def read(self, size: int, /) -> bytes:
        """Read up to ``size`` bytes; fewer at the end."""
        data = self._stream.read(size)
        self.sums.add(data)
        return data
