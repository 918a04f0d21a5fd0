"""Locks between processes. The kernel drops a lock when its holder dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kbq_assets.core.errors import Unavailable

#: Number of locks that all paths share. So deleted objects leave no lock files, and no lock file is ever removed.
_STRIPES: Final = 64
_LONGEST_PAUSE_SECONDS: Final = 0.02
_HELD_LOCKS: Final = Path("/proc/locks")


class PathLocks:
    """A lock for each path. It is held only for a check and a rename, so for microseconds, even for large objects."""

    def __init__(self, folder: Path, wait_seconds: float) -> None:
        self._folder = folder
        self._wait_seconds = wait_seconds

    @contextlib.contextmanager
    def holding(self, path: str) -> Iterator[None]:
        """Hold the lock of ``path``. Raises Unavailable if another process holds it for too long."""
        file = self._folder / f"{zlib.crc32(path.encode()) % _STRIPES:02}"
        descriptor = os.open(file, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        try:
            self._acquire(descriptor, path)
            try:
                yield
            finally:
                # A child forked meanwhile inherits the descriptor, so closing it here would not release the lock.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        finally:
            os.close(descriptor)

    def _acquire(self, descriptor: int, path: str) -> None:
        deadline, pause = time.monotonic() + self._wait_seconds, 0.0005
        while not try_lock(descriptor):
            if time.monotonic() > deadline:
                holder = holder_of(descriptor)
                raise Unavailable(
                    f"{path}: its lock has been held for {self._wait_seconds:g} s by process {holder}",
                    next_step=f"if that process is stopped, continue or kill it: ps {holder}",
                )
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file unless another process holds its lock. ``shared`` locks do not exclude each other."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def holder_of(descriptor: int) -> str:
    """The id of a process that holds a file's lock; "unknown" if the system does not tell.

    Reads proc(5)'s locks: '9: FLOCK ADVISORY WRITE 123 08:01:77 …'.
    """
    inode = str(os.fstat(descriptor).st_ino)
    with contextlib.suppress(OSError):
        for line in _HELD_LOCKS.read_text(encoding="utf-8").splitlines():
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == inode:
                return fields[4]
    return "unknown"
