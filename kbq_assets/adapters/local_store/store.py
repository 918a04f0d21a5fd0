"""The `ObjectStore` port over a directory. The package's docstring explains how it keeps the guarantees."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import quote

import google_crc32c

from kbq_assets.adapters.local_store.file_system import check_file_system, check_place
from kbq_assets.adapters.local_store.folders import Folders
from kbq_assets.adapters.local_store.listing import list_objects, list_paths
from kbq_assets.adapters.local_store.locks import PathLocks
from kbq_assets.adapters.local_store.temporary import Temporary, sweep
from kbq_assets.adapters.object_paths import check_path
from kbq_assets.core.errors import ConfigurationError, KbqError, NotFound, PreconditionFailed, Unavailable
from kbq_assets.ports.object_store import ObjectEntry, ObjectWriter, StoredFile, StoredObject
from kbq_assets.wire.files.checksum import ChecksumReader, crc32c_text

_NO_FILE: Final = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR})
_CONFIGURATION: Final = {
    errno.EACCES: "give this user read and write permission on the store's directory",
    errno.EPERM: "give this user read and write permission on the store's directory",
    errno.EROFS: "mount the store's file system for writing",
    errno.EXDEV: "keep the store's whole directory on one file system, without links to others",
    errno.ENOTDIR: "a path cannot be an object and a folder at once: remove the file at that path",
    errno.EISDIR: "a path cannot be an object and a folder at once: remove the folder at that path",
}
_UNAVAILABLE: Final = {
    errno.ENOSPC: "free space on the store's disk",
    errno.EDQUOT: "raise the quota, or free space on the store's disk",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.EIO: "check the disk",
    errno.ENOENT: "check the folder of KBQ_STAGING (kbq doctor), then try again",
}
TEMPORARY: Final = ".tmp"
LOCKS: Final = ".locks"
_READ_AGAIN: Final = "read it again"


class LocalObjectStore:
    """Objects below ``root``. The first write creates it. Reading needs no write permission. ``lock_seconds`` is the
    longest time that a swap or delete waits for its lock.

    ``durable=False`` omits all syncs to disk, for tests without power failures. Raises ConfigurationError for a file
    system that cannot keep the port's guarantees.
    """

    def __init__(self, root: Path, *, lock_seconds: float = 10.0, durable: bool = True) -> None:
        self._root = root.expanduser().resolve()
        self._prefix = f"{self._root}/"
        self._uri = self._root.as_uri()
        self._folders = Folders(str(self._root), durable)
        self._lock_seconds = lock_seconds
        #: whether `list` has every name, and links that lead to no file
        self.lists_every = False
        with writing("open", str(root)):
            check_place(self._root)

    @cached_property
    def _temporary(self) -> Path:
        """The folder of temporary files. Raises OSError, or ConfigurationError for an unsuitable file system."""
        folder = self._root / TEMPORARY
        folder.mkdir(parents=True, exist_ok=True)
        (self._root / LOCKS).mkdir(exist_ok=True)
        check_file_system(self._root, folder)
        return folder

    @cached_property
    def _locks(self) -> PathLocks:
        return PathLocks(self._temporary.with_name(LOCKS), self._lock_seconds)

    # Reading

    def get(self, path: str) -> StoredObject:
        with reading("get", path), open(self._file(path), "rb", buffering=0) as file:
            generation = os.fstat(file.fileno()).st_mtime_ns
            return StoredObject(file.readall(), generation, generation // 1_000_000)

    def open_read(self, path: str) -> BinaryIO:
        with reading("read", path):
            return open(self._file(path), "rb")

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectEntry]:
        with writing("list", prefix):
            _check_folder(prefix)
            yield from list_objects(self._prefix, prefix, start_after, self.lists_every)

    def paths(self, prefix: str, start_after: str = "") -> Iterator[str]:
        with writing("list", prefix):
            _check_folder(prefix)
            yield from list_paths(self._prefix, prefix, start_after)

    def checksums(self, prefix: str) -> Iterator[StoredFile]:
        """Size and CRC32C of the objects with a path prefix. Reads the files."""
        for entry in self.list(prefix):
            with (
                contextlib.suppress(NotFound),
                self.open_read(entry.path) as stream,
                reading("read", entry.path),
            ):
                yield StoredFile(entry.path, *ChecksumReader(stream).drain())

    def uri(self, path: str) -> str:
        """The object's ``file:///`` address; a folder's if ``path`` ends with '/'."""
        return f"{self._uri}/{quote(check_path(path.removesuffix('/')))}"

    def now_ms(self) -> int:
        """The file system's time, in ms since 1970; this machine's time if the directory is missing or read-only."""
        try:
            with reading("touch", TEMPORARY):
                os.stat(self._root)
            with writing("touch", TEMPORARY), Temporary(self._temporary) as temporary:
                return os.stat(temporary.path).st_mtime_ns // 1_000_000
        except (ConfigurationError, NotFound):  # a caller that cannot write decides nothing by this time
            return time.time_ns() // 1_000_000

    # Writing

    def create(self, path: str, data: bytes) -> int:
        file = self._file(path)
        with writing("create", path):
            if not data:
                generation = self._folders.new_file(file, self._temporary)
                if generation is None:
                    raise _taken(path, file)
                self._folders.sync("create", path, os.path.dirname(file))
                return generation
            if os.path.lexists(file):
                raise _taken(path, file)
            with Temporary(self._temporary) as temporary:
                temporary.write(data)
                return self._link(temporary, path, file)

    def create_empty(self, paths: Iterable[str]) -> Mapping[str, Exception]:
        """Create empty objects unless they exist, and return the failures by path. Syncs each folder once."""
        failures: dict[str, Exception] = {}
        folders: dict[str, list[str]] = defaultdict(list)
        for path in paths:
            try:
                file = self._file(path)
                with writing("create", path):
                    if self._folders.new_file(file, self._temporary) is None and not os.path.isfile(file):
                        raise _taken(path, file)
            except KbqError as error:
                failures[path] = error
            else:
                folders[os.path.dirname(path)].append(path)
        return {**failures, **self._folders.sync_each("create", folders)}

    def swap(self, path: str, data: bytes, generation: int) -> int:
        file = self._file(path)
        with writing("swap", path):
            _require_generation(path, file, generation)
            successor = max(time.time_ns(), generation + 1)
            with Temporary(self._temporary) as temporary:
                temporary.write(data)
                temporary.seal(successor, durable=self._folders.durable)
                with self._locks.holding(path):
                    _require_generation(path, file, generation)
                    os.rename(temporary.path, file)
            self._folders.sync("swap", path, os.path.dirname(file))
        return successor

    def copy(self, source: str, target: str) -> None:
        file = self._file(target)
        with self.open_read(source) as stream, writing("copy", target):
            if os.path.lexists(file):
                return
            with Temporary(self._temporary) as temporary:
                shutil.copyfileobj(stream, temporary)
                try:
                    self._link(temporary, target, file)
                except PreconditionFailed:
                    return

    def open_write(self, path: str) -> ObjectWriter:
        file = self._file(path)
        with writing("write", path):
            return _FileWriter(
                path, Temporary(self._temporary), lambda temporary: self._link(temporary, path, file)
            )

    def delete(self, path: str) -> None:
        for error in self.delete_many([path]).values():
            raise error

    def delete_many(self, paths: Iterable[str]) -> Mapping[str, Exception]:
        failures: dict[str, Exception] = {}
        folders: dict[str, list[str]] = defaultdict(list)
        for path in paths:
            try:
                file = self._file(path)
                with writing("delete", path), self._locks.holding(path), contextlib.suppress(*_NO_FILE):
                    os.unlink(file)
            except KbqError as error:
                failures[path] = error
            else:
                folders[os.path.dirname(path)].append(path)
        return {**failures, **self._folders.finish_deletions(folders)}

    def sweep_temporary(self) -> int:
        with writing("sweep", TEMPORARY):
            return sweep(self._temporary)

    # Below the port

    def _file(self, path: str) -> str:
        return self._prefix + check_path(path)

    def _link(self, temporary: Temporary, path: str, file: str) -> int:
        generation = time.time_ns()
        temporary.seal(generation, durable=self._folders.durable)
        folder = os.path.dirname(file)
        while True:
            try:
                self._folders.make(folder)
                os.link(temporary.path, file)
                break
            except FileExistsError as error:
                raise _taken(path, file) from error
            except FileNotFoundError:
                os.stat(temporary.path)
                # A deletion has just removed the empty folder: create it again.
        self._folders.sync("create", path, folder)
        return generation


class _FileWriter:
    """A file being streamed. ``link`` makes it visible."""

    def __init__(self, path: str, temporary: Temporary, link: Callable[[Temporary], int]) -> None:
        self._path = path
        self._temporary = temporary
        self._link = link
        self._size = 0
        self._crc32c = 0

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append bytes. Raises Unavailable if the disk is full."""
        whole = bytes(data)
        with writing("write", self._path):
            self._temporary.write(whole)
        self._crc32c = google_crc32c.extend(self._crc32c, whole)
        self._size += len(whole)
        return len(whole)

    def close(self) -> StoredFile:
        with writing("close", self._path), self._temporary:
            self._link(self._temporary)
        return StoredFile(self._path, self._size, crc32c_text(self._crc32c))

    def abort(self) -> None:
        self._temporary.discard()


def _check_folder(prefix: str) -> None:
    if folder := prefix.rpartition("/")[0]:
        check_path(folder)


def _require_generation(path: str, file: str, generation: int) -> None:
    try:
        found = os.stat(file).st_mtime_ns
    except (FileNotFoundError, NotADirectoryError) as error:
        raise PreconditionFailed(f"{path} is gone", next_step=_READ_AGAIN) from error
    if found != generation:
        raise PreconditionFailed(f"{path} has generation {found}, not {generation}", next_step=_READ_AGAIN)


def _taken(path: str, file: str) -> OSError | PreconditionFailed:
    if os.path.isdir(file) or not os.path.lexists(file):
        return IsADirectoryError(errno.EISDIR, f"a folder has the name of {path}")
    return PreconditionFailed(f"{path} exists", next_step=_READ_AGAIN)


@contextlib.contextmanager
def reading(operation: str, path: str) -> Iterator[None]:
    """Translate errors of reading an object to NotFound, ConfigurationError or Unavailable."""
    try:
        yield
    except OSError as error:
        if error.errno in _ABSENT:
            raise NotFound(f"{path} does not exist", next_step="list its folder") from error
        raise _translated(operation, path, error) from error


@contextlib.contextmanager
def writing(operation: str, path: str) -> Iterator[None]:
    """Translate errors of writing an object to ConfigurationError or Unavailable."""
    try:
        yield
    except OSError as error:
        raise _translated(operation, path, error) from error


def _translated(operation: str, path: str, error: OSError) -> KbqError:
    message = f"{operation} {path}: {error.strerror}"
    if error.errno in _CONFIGURATION:
        return ConfigurationError(message, next_step=_CONFIGURATION[error.errno])
    return Unavailable(message, next_step=_UNAVAILABLE.get(error.errno or 0, "try again"))
