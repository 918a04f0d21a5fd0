"""The `ObjectStore` port over a bucket. The package's docstring explains each response."""

from __future__ import annotations

import io
import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from typing import Any, BinaryIO, Final, cast
from weakref import WeakSet

import google_crc32c
import requests
from google.cloud.storage import Client

from kbq_assets.adapters.gcs.calls import PAUSES, Call, Calls, text, wait, written
from kbq_assets.adapters.gcs.download import (
    ObjectReader,
    header_ms,
    media_call,
    media_facts,
    require_checksum,
)
from kbq_assets.adapters.gcs.errors import Intent
from kbq_assets.adapters.gcs.listing import BucketFolder
from kbq_assets.adapters.gcs.upload import CHUNK_BYTES, UploadTarget, UploadWriter, chunk_size
from kbq_assets.adapters.google.auth import GoogleAccess, google_credentials
from kbq_assets.core.config.locations import parse_bucket
from kbq_assets.core.errors import (
    KbqError,
    NotFound,
    PreconditionFailed,
    TransientError,
    Unavailable,
    UnknownOutcome,
)
from kbq_assets.ports.object_store import ObjectEntry, ObjectWriter, StoredFile, StoredObject
from kbq_assets.wire.files.checksum import crc32c_text

#: Parallel deletions, since no request deletes many objects.
_AT_ONCE: Final = 16
_READ_BUFFER: Final = 1 << 20
_LISTED: Final = "items(name,size,updated,generation),nextPageToken"
_NAMES: Final = "items(name),nextPageToken"
_CHECKSUMS: Final = "items(name,size,crc32c),nextPageToken"
_WRITTEN: Final = "generation,size,crc32c"
#: Never the name of one of KBQ's objects, whose paths do not start with a dot.
_NO_OBJECT: Final = ".time"


_NOTHING: Final[Mapping[str, str]] = {}


def open_gcs_store(url: str, access: GoogleAccess, client: Client | None = None) -> GcsObjectStore:
    """The store at ``gs://bucket/prefix``, with ``client`` or a new client for ``access``. Sends nothing yet.

    Raises ConfigurationError.
    """
    place = parse_bucket(url)
    if client is None:
        options = {"api_endpoint": access.endpoint} if access.endpoint else None
        client = Client(project=None, credentials=google_credentials(access), client_options=options)
    return GcsObjectStore(
        client, place.name, place.prefix, kms_key=access.kms_key, storage_class=access.storage_class
    )


class GcsObjectStore:
    """Objects below ``prefix`` of a bucket. Threads may share it; each process opens its own.

    ``pauses`` are those of `Calls`; a failed swap calls ``pause`` with the first. ``chunk_bytes`` is the size of a
    writer's buffer, a multiple of 256 KiB. ``kms_key`` encrypts new objects, and streamed objects get
    ``storage_class``; "" leaves both to the bucket's settings.
    """

    def __init__(
        self,
        client: Client,
        bucket: str,
        prefix: str = "",
        *,
        pauses: Sequence[float] = PAUSES,
        chunk_bytes: int = CHUNK_BYTES,
        pause: Callable[[float], None] = wait,
        kms_key: str = "",
        storage_class: str = "",
    ) -> None:
        self._calls = Calls(client, pauses)
        self._folder = BucketFolder(bucket, f"{prefix}/" if prefix else "")
        self._chunk_bytes = chunk_bytes
        self._pause = pause
        self._kms_key = kms_key
        self._class = {"storageClass": storage_class} if storage_class else {}
        self._encryption = {"kmsKeyName": kms_key} if kms_key else {}
        self._writers: WeakSet[UploadWriter] = WeakSet()
        #: whether `list` has every name
        self.lists_every = False

    # Reading

    def get(self, path: str) -> StoredObject:
        intent = self._intent("get", path, "storage.objects.get")

        def read(response: requests.Response) -> StoredObject:
            facts = media_facts(intent, response)
            require_checksum(intent, facts.crc32c, google_crc32c.value(response.content))
            return StoredObject(response.content, facts.generation, facts.updated_ms)

        return self._calls.send(media_call(intent, self._url(path)), read)

    def open_read(self, path: str) -> BinaryIO:
        """A stream of one generation of an object, even if it is replaced meanwhile. Raises NotFound, Unavailable."""
        intent = self._intent("read", path, "storage.objects.get")
        return cast(
            BinaryIO, io.BufferedReader(ObjectReader(self._calls, intent, self._url(path)), _READ_BUFFER)
        )

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectEntry]:
        return self._folder.items(self._calls, prefix, start_after, _LISTED, _entry, self.lists_every)

    def paths(self, prefix: str, start_after: str = "") -> Iterator[str]:
        return self._folder.items(self._calls, prefix, start_after, _NAMES, lambda path, _: path)

    def checksums(self, prefix: str) -> Iterator[StoredFile]:
        """Size and CRC32C of the objects with a path prefix, as Cloud Storage lists them."""
        return self._folder.items(self._calls, prefix, "", _CHECKSUMS, _stored)

    def uri(self, path: str) -> str:
        """The object's ``gs://`` address; a folder's if ``path`` ends with '/'."""
        return self._folder.uri(path)

    def now_ms(self) -> int:
        """Cloud Storage's time, in ms since 1970. Each call queries the service; the local clock is not used."""
        intent = Intent("ask the time of", f"gs://{self._folder.bucket}", "storage.objects.get")
        url = self._calls.object_url(self._folder.bucket, self._folder.prefix + _NO_OBJECT)
        # Every response has the time, even a 404.
        call = Call(intent, "GET", url, {"fields": "name"}, accepts=frozenset({401, 403, 404}))
        return self._calls.send(call, lambda response: header_ms(intent, response, "date"))

    # Writing

    def create(self, path: str, data: bytes) -> int:
        if data:
            return int(self._put("create", path, data, 0)["generation"])
        return int(self._put_new("create", path, data)["generation"])

    def create_empty(self, paths: Iterable[str]) -> Mapping[str, Exception]:

        def create(path: str) -> None:
            with suppress(PreconditionFailed):
                self.create(path, b"")

        return _each(create, paths)

    def swap(self, path: str, data: bytes, generation: int) -> int:
        if generation <= 0:
            # Cloud Storage uses generation 0 for an object that does not exist.
            raise PreconditionFailed(f"{path} has no generation {generation}", next_step="read it again")
        try:
            return int(self._put("swap", path, data, generation)["generation"])
        except (PreconditionFailed, UnknownOutcome):
            # Callers read the object and swap again. Cloud Storage accepts about one change per second and object.
            self._pause(next(iter(self._calls.pauses), 0.0))
            raise

    def copy(self, source: str, target: str) -> None:
        intent = self._intent("copy", source, "storage.objects.get and storage.objects.create", changes=True)
        to = self._calls.object_url(self._folder.bucket, self._folder.name(target)).removeprefix(
            self._calls.endpoint
        )
        url = f"{self._url(source)}/rewriteTo{to.removeprefix('/storage/v1')}"
        parameters: dict[str, str | int] = {"ifGenerationMatch": 0, "fields": "done,rewriteToken"}
        if self._kms_key:
            parameters["destinationKmsKeyName"] = self._kms_key
        try:
            while token := self._calls.parsed(Call(intent, "POST", url, parameters), _rest_of_copy):
                parameters["rewriteToken"] = token
        except PreconditionFailed:
            return

    def open_write(self, path: str) -> ObjectWriter:
        def put(path: str, data: bytes) -> StoredFile:
            answer = self._put_new("write", path, data, self._class)
            return StoredFile(path, int(answer["size"]), answer["crc32c"])

        intent = self._intent("write", path, "storage.objects.create", changes=True)
        url = self._calls.bucket_url(self._folder.bucket, "/upload")
        target = UploadTarget(path, self._folder.name(path), intent, url, self._encryption, self._class)
        # A closed writer may count until it is collected, so chunks may be smaller than necessary.
        writer = UploadWriter(
            self._calls, target, put, lambda: chunk_size(self._chunk_bytes, len(self._writers))
        )
        self._writers.add(writer)
        return writer

    def delete(self, path: str) -> None:
        intent = self._intent("delete", path, "storage.objects.delete", changes=True)
        try:
            self._calls.send(Call(intent, "DELETE", self._url(path)), lambda _: None)
        except NotFound:
            return

    def delete_many(self, paths: Iterable[str]) -> Mapping[str, Exception]:
        return _each(self.delete, paths)

    def sweep_temporary(self) -> int:
        """Do nothing: Cloud Storage deletes an abandoned upload after a week."""
        return 0

    # Below the port

    def _url(self, path: str) -> str:
        return self._calls.object_url(self._folder.bucket, self._folder.name(path))

    def _intent(self, operation: str, path: str, permission: str, *, changes: bool = False) -> Intent:
        return Intent(operation, self.uri(path), permission, changes)

    def _put_new(
        self, operation: str, path: str, data: bytes, more: Mapping[str, str] = _NOTHING
    ) -> Mapping[str, Any]:
        """Write an object that nobody else writes with other bytes. If the outcome is unknown, its checksum decides."""
        try:
            return self._put(operation, path, data, 0, more)
        except UnknownOutcome as unknown:
            intent = self._intent("check", path, "storage.objects.get")
            call = Call(intent, "GET", self._url(path), {"fields": _WRITTEN})
            try:
                found = self._calls.json(call)
            except (NotFound, TransientError):
                raise unknown from None
            if found.get("crc32c") != crc32c_text(google_crc32c.value(data)):
                raise
            return found

    def _put(
        self, operation: str, path: str, data: bytes, generation: int, more: Mapping[str, str] = _NOTHING
    ) -> dict[str, Any]:
        """Write an object in one request with its checksum, so that Cloud Storage refuses damaged bytes."""
        permission = "storage.objects.create" + (" and storage.objects.delete" if generation else "")
        intent = self._intent(operation, path, permission, changes=True)
        metadata = {"name": self._folder.name(path), "crc32c": crc32c_text(google_crc32c.value(data)), **more}
        boundary = secrets.token_hex(16)
        call = Call(
            intent,
            "POST",
            f"{self._calls.bucket_url(self._folder.bucket, '/upload')}/o",
            {
                "uploadType": "multipart",
                "ifGenerationMatch": generation,
                "fields": _WRITTEN,
                **self._encryption,
            },
            {"Content-Type": f"multipart/related; boundary={boundary}"},
            _multipart(boundary, metadata, data),
            once=True,
        )
        return self._calls.send(call, lambda response: written(intent, response))


def _each(call: Callable[[str], None], paths: Iterable[str]) -> Mapping[str, Exception]:
    """Make a call for each path, some in parallel, and return the failures by path. If `_AT_ONCE` calls in a row get no
    answer, the others are not made: each would take minutes."""
    silent: list[TransientError] = []

    def failure(path: str) -> KbqError | None:
        if len(last := silent[-_AT_ONCE:]) == _AT_ONCE:
            return Unavailable(f"{path} was not tried: {last[-1].message}", next_step=last[-1].next_step)
        try:
            call(path)
        except TransientError as error:
            silent.append(error)
            return error
        except KbqError as error:
            silent.clear()
            return error
        silent.clear()
        return None

    wanted = list(paths)
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        failures = zip(wanted, threads.map(failure, wanted), strict=True)
        return {path: error for path, error in failures if error is not None}


def _multipart(boundary: str, metadata: Mapping[str, str], data: bytes) -> bytes:
    head = (
        f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{json.dumps(metadata)}\r\n"
        f"--{boundary}\r\nContent-Type: application/octet-stream\r\n\r\n"
    )
    return b"".join((head.encode(), data, f"\r\n--{boundary}--\r\n".encode()))


def _whole_seconds_ms(time: str) -> int:
    """Example: ``2026-11-21T14:30:30.510346Z``."""
    return int(datetime.fromisoformat(f"{time[:19]}+00:00").timestamp()) * 1000


def _rest_of_copy(answer: Mapping[str, Any]) -> str:
    """The token that continues a copy; "" if it is done."""
    return "" if answer.get("done") is True else text(answer["rewriteToken"])


def _stored(path: str, item: Mapping[str, str]) -> StoredFile:
    return StoredFile(path, int(item["size"]), text(item.get("crc32c", "")))


def _entry(path: str, item: Mapping[str, str]) -> ObjectEntry:
    return ObjectEntry(path, int(item["size"]), _whole_seconds_ms(item["updated"]), int(item["generation"]))
