"""Files being written: invisible to readers, and swept once their writer is dead.

A writer holds an advisory lock on its file while it lives. The kernel drops the lock when the process dies, even if
several containers with their own process ids share the directory. So a sweep need not guess from ages or ids whether a
writer is alive.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from types import TracebackType
from typing import Self

from kbq_assets.adapters.local_store.locks import try_lock


class Temporary:
    """A file being written in ``folder``. As a context manager it discards the file at the end, unless it is linked."""

    def __init__(self, folder: Path) -> None:
        self.path, self._descriptor = _open_locked(folder)
        self._open = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    def seal(self, generation: int, *, durable: bool) -> None:
        """Set the finished file's generation, and wait until file and generation are on disk."""
        os.utime(self._descriptor, ns=(generation, generation))
        if durable:
            os.fsync(self._descriptor)

    def discard(self) -> None:
        """Remove the temporary name. A linked file keeps its other name. Never raises, and may be called again."""
        if not self._open:
            return
        self._open = False
        # Remove the name first: without the lock, a sweep would assume that this writer is dead.
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        with contextlib.suppress(OSError):
            os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()


def sweep(folder: Path) -> int:
    """Remove the files of dead writers, and return their number."""
    with os.scandir(folder) as entries:
        return sum(_remove_unlocked(entry.path) for entry in entries)


def _open_locked(folder: Path) -> tuple[str, int]:
    while True:
        # The process id is only for people. The name must be lower case for `check_file_system`.
        path = os.path.join(folder, f"by-{os.getpid()}-{secrets.token_hex(8)}")
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o666)
        # If a sweep runs between the two calls, try another name.
        if try_lock(descriptor) and os.fstat(descriptor).st_nlink:
            return path, descriptor
        os.close(descriptor)


def _remove_unlocked(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        if not try_lock(descriptor):
            return False
        os.unlink(path)
    except FileNotFoundError:
        return False  # its writer, or another sweep, was first
    finally:
        os.close(descriptor)
    return True
