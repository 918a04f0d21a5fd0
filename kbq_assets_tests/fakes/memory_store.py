"""An object store in memory whose calls can fail in every way the port allows.

Threads may share it. Faults work as in `FakeWarehouse`: ``faults`` is asked before each call made through a view
that names its process. A late call waits in ``late`` until `deliver_late` applies it, if ever.
"""

from __future__ import annotations

import contextlib
import functools
import io
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import BinaryIO, TypeVar

import google_crc32c

from kbq_assets.adapters import object_paths
from kbq_assets.core.errors import (
    ConfigurationError,
    KbqError,
    NotFound,
    PreconditionFailed,
    Unavailable,
    UnknownOutcome,
)
from kbq_assets.ports.object_store import ObjectEntry, ObjectStore, ObjectWriter, StoredFile, StoredObject
from kbq_assets.wire.files.checksum import crc32c_text
from kbq_assets_tests.fakes.faults import Call, Crash, Outcome
from kbq_assets_tests.fakes.warehouse import LateCall

Result = TypeVar("Result")
_SCHEME = "memory:///"
#: Most paths are checked again and again.
check_path = functools.lru_cache(maxsize=16_384)(object_paths.check_path)


class FaultyMemoryStore:
    """The `ObjectStore` port in memory. Its own methods fail only while it is ``down``, to readers; those of a `view`
    ask ``faults`` first."""

    def __init__(self, faults: Callable[[Call], Outcome] | None = None) -> None:
        self.faults = faults
        self.down = False
        self.late: list[LateCall] = []
        self.objects: dict[str, StoredObject] = {}
        self.time_ms = 1_700_000_000_000
        self._generation = 0
        self._lock = threading.Lock()

    # The simulator's side

    def view(self, process: str) -> StoreView:
        """The store as one process sees it."""
        return StoreView(self, process)

    def deliver_late(self, index: int = 0) -> KbqError | None:
        """Apply a late call now. Returns its error, which its caller does not see any more."""
        try:
            self.late.pop(index).apply()
        except KbqError as error:
            return error
        return None

    def restore(self, other: FaultyMemoryStore) -> None:
        """Have the objects of another store, as they are now, and its time."""
        self.objects, self._generation, self.time_ms = dict(other.objects), other._generation, other.time_ms

    @staticmethod
    def path_of(uri: str) -> str:
        """The path of an address that `uri` gave out."""
        return uri.removeprefix(_SCHEME)

    def _check_up(self) -> None:
        if self.down:
            raise Unavailable("the store is down")

    # The port

    def get(self, path: str) -> StoredObject:
        self._check_up()
        found = self.objects.get(check_path(path))
        if found is None:
            raise NotFound(f"{path} does not exist")
        return found

    def create(self, path: str, data: bytes) -> int:
        with self._lock:
            if check_path(path) in self.objects:
                raise PreconditionFailed(f"{path} exists")
            return self._store(path, data)

    def swap(self, path: str, data: bytes, generation: int) -> int:
        with self._lock:
            found = self.objects.get(check_path(path))
            if found is None or found.generation != generation:
                raise PreconditionFailed(f"{path} has another generation than {generation}")
            return self._store(path, data)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectEntry]:
        self._check_up()
        with self._lock:
            listed = [(path, found) for path, found in self.objects.items() if path.startswith(prefix)]
        entries = (
            ObjectEntry(path, len(o.data), o.updated_ms, o.generation)
            for path, o in listed
            if path > start_after
        )
        return iter(sorted(entries, key=lambda entry: entry.path))

    def paths(self, prefix: str, start_after: str = "") -> Iterator[str]:
        return (entry.path for entry in self.list(prefix, start_after))

    def checksums(self, prefix: str) -> Iterator[StoredFile]:
        return (_stored(entry.path, self.objects[entry.path].data) for entry in self.list(prefix))

    def delete(self, path: str) -> None:
        with self._lock:
            self.objects.pop(check_path(path), None)

    def create_empty(self, paths: Iterable[str]) -> Mapping[str, Exception]:
        return create_each(self, paths)

    def delete_many(self, paths: Iterable[str]) -> Mapping[str, Exception]:
        return delete_each(self, paths)

    def copy(self, source: str, target: str) -> None:
        data = self.get(source).data
        with self._lock:
            if check_path(target) not in self.objects:
                self._store(target, data)

    def open_write(self, path: str) -> ObjectWriter:
        return _Writer(check_path(path), self.create)

    def open_read(self, path: str) -> BinaryIO:
        return io.BytesIO(self.get(path).data)

    def uri(self, path: str) -> str:
        return f"{_SCHEME}{check_path(path.removesuffix('/'))}"

    def now_ms(self) -> int:
        return self.time_ms

    def sweep_temporary(self) -> int:
        return 0

    def _store(self, path: str, data: bytes) -> int:
        self._generation += 1
        self.time_ms += 1
        self.objects[path] = StoredObject(bytes(data), self._generation, self.time_ms)
        return self._generation


class _Writer:
    """Collects an object's bytes; `close` creates it."""

    def __init__(self, path: str, create: Callable[[str, bytes], int]) -> None:
        self._path = path
        self._create = create
        self._data = bytearray()

    def write(self, data: bytes | bytearray | memoryview) -> int:
        self._data += data
        return len(data)

    def close(self) -> StoredFile:
        self._create(self._path, bytes(self._data))
        return _stored(self._path, bytes(self._data))

    def abort(self) -> None:
        self._data.clear()


class StoreView:
    """One process's store: every call carries its name, and can fail."""

    def __init__(self, store: FaultyMemoryStore, process: str) -> None:
        self._store = store
        self._process = process

    def get(self, path: str) -> StoredObject:
        return self._read("get", path, lambda: self._store.get(path))

    def create(self, path: str, data: bytes) -> int:
        return self._write("create", path, lambda: self._store.create(path, data))

    def swap(self, path: str, data: bytes, generation: int) -> int:
        return self._write("swap", path, lambda: self._store.swap(path, data, generation))

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectEntry]:
        return self._read("list", prefix, lambda: self._store.list(prefix, start_after))

    def paths(self, prefix: str, start_after: str = "") -> Iterator[str]:
        return self._read("list", prefix, lambda: self._store.paths(prefix, start_after))

    def checksums(self, prefix: str) -> Iterator[StoredFile]:
        return self._read("checksums", prefix, lambda: self._store.checksums(prefix))

    def delete(self, path: str) -> None:
        self._write("delete", path, lambda: self._store.delete(path))

    def create_empty(self, paths: Iterable[str]) -> Mapping[str, Exception]:
        return create_each(self, paths)

    def delete_many(self, paths: Iterable[str]) -> Mapping[str, Exception]:
        return delete_each(self, paths)

    def copy(self, source: str, target: str) -> None:
        self._write("copy", target, lambda: self._store.copy(source, target))

    def open_write(self, path: str) -> ObjectWriter:
        return _Writer(
            check_path(path), lambda p, data: self._write("close", p, lambda: self._store.create(p, data))
        )

    def open_read(self, path: str) -> BinaryIO:
        return self._read("open_read", path, lambda: self._store.open_read(path))

    def uri(self, path: str) -> str:
        return self._store.uri(path)

    def now_ms(self) -> int:
        return self._store.now_ms()

    def sweep_temporary(self) -> int:
        return 0

    def _outcome(self, operation: str, path: str, writes: bool) -> tuple[Call, Outcome]:
        call = Call(self._process, operation, path, writes)
        return call, self._store.faults(call) if self._store.faults else Outcome.OK

    def _read(self, operation: str, path: str, apply: Callable[[], Result]) -> Result:
        _, outcome = self._outcome(operation, path, writes=False)
        if outcome in _CRASHES:
            raise Crash(f"{self._process} dies in {operation} {path}")
        if outcome is Outcome.REFUSED:
            raise _refusal(operation, path)
        if outcome is not Outcome.OK:
            raise Unavailable(f"{operation} {path}: no answer", next_step="try again")
        return apply()

    def _write(self, operation: str, path: str, apply: Callable[[], Result]) -> Result:
        call, outcome = self._outcome(operation, path, writes=True)
        if outcome is Outcome.UNAVAILABLE:
            raise Unavailable(f"{operation} {path}: refused", next_step="try again")
        if outcome is Outcome.REFUSED:
            raise _refusal(operation, path)
        if outcome is Outcome.CRASH_BEFORE:
            raise Crash(f"{self._process} dies before {operation} {path}")
        if outcome in (Outcome.LATE, Outcome.CRASH_LATE):
            self._store.late.append(LateCall(call, lambda: _discard(apply)))
        elif outcome is Outcome.OK:
            return apply()
        elif outcome is Outcome.OWN_RETRY:
            apply()
            return apply()
        else:
            _ignore_errors(apply)
        if outcome in _CRASHES:
            raise Crash(f"{self._process} dies in {operation} {path}")
        raise UnknownOutcome(f"{operation} {path}: no answer", next_step="read again")


_CRASHES = (Outcome.CRASH_BEFORE, Outcome.CRASH_AFTER, Outcome.CRASH_LATE)


def create_each(store: ObjectStore, paths: Iterable[str]) -> Mapping[str, Exception]:
    def create(path: str) -> None:
        with contextlib.suppress(PreconditionFailed):
            store.create(path, b"")

    return _failures(create, paths)


def delete_each(store: ObjectStore, paths: Iterable[str]) -> Mapping[str, Exception]:
    return _failures(store.delete, paths)


def _failures(call: Callable[[str], None], paths: Iterable[str]) -> Mapping[str, Exception]:
    failures: dict[str, Exception] = {}
    for path in paths:
        try:
            call(path)
        except KbqError as error:
            failures[path] = error
    return failures


@functools.lru_cache(maxsize=4096)
def _stored(path: str, data: bytes) -> StoredFile:
    return StoredFile(path, len(data), crc32c_text(google_crc32c.value(data)))


def _refusal(operation: str, path: str) -> KbqError:
    return ConfigurationError(f"{operation} {path}: 403", next_step=f"grant {operation} on {path}")


def _discard(apply: Callable[[], object]) -> None:
    apply()


def _ignore_errors(apply: Callable[[], object]) -> None:
    try:
        apply()
    except KbqError:
        return
