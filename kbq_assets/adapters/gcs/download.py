"""Downloads: headers of an object, and streams that survive a lost connection."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Any, Final

import google_crc32c
import requests

from kbq_assets.adapters.gcs.calls import Call, Calls, wait
from kbq_assets.adapters.gcs.errors import NO_ANSWER, Intent, interruption
from kbq_assets.core.errors import PreconditionFailed

_CRC32C: Final = re.compile(r"crc32c=([A-Za-z0-9+/=]+)")


@dataclass(frozen=True)
class MediaFacts:
    """The generation that a download returns, with the checksum of the whole object."""

    generation: int
    updated_ms: int
    crc32c: int


def media_call(intent: Intent, url: str) -> Call:
    """A download of the stored bytes, without decompression."""
    return Call(intent, "GET", url, {"alt": "media"}, {"Accept-Encoding": "identity"})


def media_facts(intent: Intent, response: requests.Response) -> MediaFacts:
    """The facts in the headers of a download. Raises Unavailable if the headers are not Cloud Storage's."""
    try:
        generation = int(response.headers["x-goog-generation"])
        crc32c = base64.b64decode(_CRC32C.findall(response.headers["x-goog-hash"])[0])
    except (LookupError, ValueError):
        raise intent.unsettled("the response has no generation or no checksum") from None
    return MediaFacts(generation, header_ms(intent, response, "last-modified"), int.from_bytes(crc32c, "big"))


def header_ms(intent: Intent, response: requests.Response, name: str) -> int:
    """The time in a header, in ms since 1970. Headers have whole seconds."""
    try:
        return int(parsedate_to_datetime(response.headers[name]).timestamp()) * 1000
    except (LookupError, ValueError):
        raise intent.unsettled(f"the response's header {name} is not a time") from None


def require_checksum(intent: Intent, expected: int, found: int) -> None:
    """Raise Unavailable if the bytes were damaged in transit."""
    if found != expected:
        raise intent.unsettled(f"its bytes have checksum {found:08x}, not {expected:08x}")


class ObjectReader(io.RawIOBase):
    """The bytes of one generation. Resumes after a lost connection, up to a few times without progress."""

    def __init__(self, calls: Calls, intent: Intent, url: str) -> None:
        super().__init__()
        self._calls, self._intent = calls, intent
        self._call = replace(media_call(intent, url), stream=True)
        self._position = self._crc32c = 0
        self._response = calls.send(self._call, lambda response: response)
        self._facts = media_facts(intent, self._response)

    def readable(self) -> bool:
        """Always True (io.IOBase)."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer. Returns 0 at the end, after verifying the checksum. Raises Unavailable."""
        data = self._read(len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        self._crc32c = google_crc32c.extend(self._crc32c, data)
        if not data and len(buffer):
            require_checksum(self._intent, self._facts.crc32c, self._crc32c)
        return len(data)

    def close(self) -> None:
        if "_response" in self.__dict__:  # Python closes a file also if its constructor failed
            self._response.close()
        super().close()

    def _read(self, size: int) -> bytes:
        for pause in (*self._calls.pauses, None):
            try:
                data: bytes = self._response.raw.read(size, decode_content=False)
                return data
            except NO_ANSWER as error:
                if pause is None:
                    raise interruption(self._intent, error) from None
                wait(pause)
                self._resume()
        raise AssertionError("the last pause is None")

    def _resume(self) -> None:
        """Request the rest of the same generation."""
        self._response.close()
        rest = replace(
            self._call,
            params={**self._call.params, "ifGenerationMatch": self._facts.generation},
            headers={**self._call.headers, "Range": f"bytes={self._position}-"},
        )
        try:
            self._response = self._calls.send(rest, lambda response: response)
        except PreconditionFailed:
            raise self._intent.unsettled("it was replaced during the read") from None
