"""A stream that computes the size and CRC32C of the data read through it."""

from __future__ import annotations

import base64
import io
from typing import Any, BinaryIO, Final, cast

import google_crc32c

_BUFFER: Final = 1 << 20


class ChecksumReader(io.RawIOBase):
    """Reads another stream. Use `buffered` to read it, and `drain` to read the rest."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self._stream = stream
        self._crc32c = 0
        self.size = 0

    def readable(self) -> bool:
        """Always True (see io.IOBase)."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer; returns the number of bytes, 0 at the end."""
        data = self._take(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read_all(self, size: int) -> bytes:
        """Read ``size`` bytes, fewer at the end."""
        data = self._take(size)
        while len(data) < size and (more := self._take(size - len(data))):
            data += more
        return data

    def buffered(self) -> BinaryIO:
        """A buffered stream to read from."""
        return cast(BinaryIO, io.BufferedReader(self, _BUFFER))

    def drain(self) -> tuple[int, str]:
        """Read the rest; returns size and CRC32C of the whole stream, as in `StoredFile`."""
        while self._take(_BUFFER):
            pass
        return self.size, crc32c_text(self._crc32c)

    def _take(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._crc32c = google_crc32c.extend(self._crc32c, data)
        self.size += len(data)
        return data


def checksum_of(data: bytes) -> tuple[int, str]:
    """Size and CRC32C of bytes, as in `StoredFile`."""
    return len(data), crc32c_text(google_crc32c.value(data))


def crc32c_text(value: int) -> str:
    """A CRC32C in Cloud Storage's format: base64, big-endian."""
    return base64.b64encode(value.to_bytes(4, "big")).decode()
