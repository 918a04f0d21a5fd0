"""Streams an object in chunks through one of Cloud Storage's upload sessions.

A session's URL is a secret, because anyone who has it can write the object. No message shows it.
https://cloud.google.com/storage/docs/performing-resumable-uploads
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import google_crc32c
import requests

from kbq_assets.adapters.gcs.calls import Call, Calls, document, wait
from kbq_assets.adapters.gcs.errors import Intent
from kbq_assets.core.errors import KbqError, NotFound, TransientError, Unavailable, UnknownOutcome
from kbq_assets.ports.object_store import StoredFile
from kbq_assets.wire.files.checksum import crc32c_text

#: The size of every chunk but the last must be a multiple of this.
STEP: Final = 256 << 10
#: Bytes that are sent at once, and buffered until the session has received them.
CHUNK_BYTES: Final = 16 * STEP
#: Bytes that all open writers of a store may buffer together. With many writers, chunks are smaller.
ALL_BYTES: Final = 8 * CHUNK_BYTES
_INCOMPLETE: Final = 308
#: The session no longer exists. Cloud Storage returns 499 for a canceled one.
_OVER: Final = frozenset({404, 410, 499})
_KEPT: Final = re.compile(r"bytes=0-(\d+)")


@dataclass(frozen=True)
class UploadTarget:
    """An object to write: its path, its name in the bucket, the bucket's upload URL, parameters and metadata."""

    path: str
    name: str
    intent: Intent
    url: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)


def chunk_size(most: int, writers: int) -> int:
    """The chunk size in bytes for a number of open writers, at most ``most``."""
    return min(most, max(STEP, ALL_BYTES // max(1, writers) // STEP * STEP))


class UploadWriter:
    """The `ObjectWriter` port. ``put`` writes an object that fits into one chunk with a single request. ``chunk_bytes``
    returns the current chunk size, which changes as other writers open and close."""

    def __init__(
        self,
        calls: Calls,
        target: UploadTarget,
        put: Callable[[str, bytes], StoredFile],
        chunk_bytes: Callable[[], int],
    ) -> None:
        self._calls, self._target, self._put = calls, target, put
        self._chunk_bytes = chunk_bytes
        self._buffer = bytearray()
        self._crc32c = 0
        self._session: _UploadSession | None = None

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append bytes. Raises Unavailable, and PreconditionFailed if the path already exists."""
        view = memoryview(data).cast("B")
        most = self._chunk_bytes()
        for start in range(0, len(view), most):
            self._append(bytes(view[start : start + most]), most)
        return len(view)

    def close(self) -> StoredFile:
        if self._session is None:
            stored = self._put(self._target.path, bytes(self._buffer))
        else:
            answer = self._session.finish(bytes(self._buffer), crc32c_text(self._crc32c))
            stored = StoredFile(self._target.path, int(answer.get("size", -1)), answer.get("crc32c", ""))
        self._session = None
        self._require_own(stored)
        return stored

    def abort(self) -> None:
        self._buffer.clear()
        if self._session is not None:
            self._session.cancel()
            self._session = None

    def _append(self, piece: bytes, most: int) -> None:
        """Buffer bytes, and send full chunks. The newest bytes stay buffered, so that the last chunk, which makes the
        object visible, is never empty."""
        self._crc32c = google_crc32c.extend(self._crc32c, piece)
        room = max(0, most - len(self._buffer))
        self._buffer += piece[:room]
        if len(piece) > room:
            self._session = self._session or _UploadSession(self._calls, self._target)
            whole = len(self._buffer) // STEP * STEP
            self._session.send(bytes(self._buffer[:whole]))
            self._buffer[:whole] = b""
            self._buffer += piece[room:]

    def _require_own(self, stored: StoredFile) -> None:
        checksum = crc32c_text(self._crc32c)
        if stored.crc32c != checksum:
            raise Unavailable(
                f"{self._target.intent}: stored with checksum {stored.crc32c}, not {checksum}",
                next_step="the next run writes it again; clean-up deletes this file, which is never loaded",
            )


class _UploadSession:
    """An upload session, and the number of bytes that it has received."""

    def __init__(self, calls: Calls, target: UploadTarget) -> None:
        self._calls, self._intent = calls, target.intent
        self._kept = 0
        self._checksum: dict[str, str] = {}
        self._url = self._start(target)

    def send(self, chunk: bytes) -> None:
        """Send bytes to the session. Nothing becomes visible yet. Raises Unavailable."""
        self._deliver(chunk, None)

    def finish(self, chunk: bytes, crc32c: str) -> Mapping[str, Any]:
        """Send the last bytes, which makes the object visible, and return its metadata. The service refuses damaged
        bytes."""
        self._checksum = {"X-Goog-Hash": f"crc32c={crc32c}"}
        return self._deliver(chunk, self._kept + len(chunk))

    def cancel(self) -> None:
        """Cancel the session. Never raises."""
        with contextlib.suppress(KbqError):
            self._calls.attempt(Call(self._intent, "DELETE", self._url, accepts=_OVER))

    def _start(self, target: UploadTarget) -> str:
        # A lost session is harmless: starting one changes nothing, so it may be retried.
        intent = replace(target.intent, changes=False)

        def location(response: requests.Response) -> str:
            if not response.headers.get("location"):
                raise intent.unsettled("the response names no upload session")
            return str(response.headers["location"])

        call = Call(
            intent,
            "POST",
            f"{target.url}/o",
            {"uploadType": "resumable", "ifGenerationMatch": 0, **target.parameters},
            {"Content-Type": "application/json; charset=UTF-8"},
            json.dumps(
                {"name": target.name, "contentType": "application/octet-stream", **target.metadata}
            ).encode(),
        )
        return self._calls.send(call, location)

    def _deliver(self, chunk: bytes, total: int | None) -> Mapping[str, Any]:
        """Send a chunk. After a failure, first ask the session how much it has received. The last chunk returns the
        object's metadata.

        Only the last chunk, which has a ``total``, makes the object visible, so only it can have an unknown outcome.
        """
        first, failure = self._kept, None
        for pause in (*self._calls.pauses, None):
            try:
                done = None if failure is None else self._exchange(b"", total)
                while done is None and (total is not None or self._kept < first + len(chunk)):
                    done = self._progress(chunk[self._kept - first :], total)
                return done or {}
            except NotFound:
                raise failure if isinstance(failure, UnknownOutcome) else self._over() from None
            except TransientError as error:
                failure = failure if isinstance(failure, UnknownOutcome) else error
                if pause is None:
                    raise failure from None
                wait(pause)
        raise AssertionError("the last pause is None")

    def _progress(self, rest: bytes, total: int | None) -> Mapping[str, Any] | None:
        before = self._kept
        done = self._exchange(rest, total)
        if done is None and self._kept == before:
            raise self._intent_for(total).unsettled("the upload session accepts no more bytes")
        return done

    def _exchange(self, rest: bytes, total: int | None) -> Mapping[str, Any] | None:
        """Send bytes, or none to query the session. Returns the finished object's metadata, or None while bytes are
        missing."""
        intent = self._intent_for(total)
        span = f"{self._kept}-{self._kept + len(rest) - 1}" if rest else "*"
        headers = {"Content-Range": f"bytes {span}/{'*' if total is None else total}"}
        if rest:
            headers |= self._checksum
        call = Call(intent, "PUT", self._url, headers=headers, body=rest, accepts=_OVER | {_INCOMPLETE})
        response = self._calls.attempt(call)
        if response.status_code in _OVER:
            raise NotFound(f"{intent}: its upload session is over")
        if response.status_code != _INCOMPLETE:
            return document(intent, response)
        kept = _KEPT.fullmatch(response.headers.get("range", ""))
        # The count must not decrease: this process no longer has the earlier bytes.
        self._kept = max(self._kept, int(kept[1]) + 1 if kept else 0)
        return None

    def _intent_for(self, total: int | None) -> Intent:
        return replace(self._intent, changes=total is not None)

    def _over(self) -> Unavailable:
        return Unavailable(
            f"{self._intent}: its upload session is over, nothing was written",
            next_step="the next run writes it again",
        )
