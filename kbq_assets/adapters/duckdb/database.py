"""Opens the DuckDB file per call, or once for the calls of a session, and closes it afterwards.

DuckDB locks the whole file: a writer excludes all other processes, including readers, and readers exclude writers. If
the lock is held, KBQ waits with growing pauses, then reports the process that holds it. Within a process, one
connection is open at a time, because DuckDB refuses a reader while there is a writer.

DuckDB 2.0 reads a file's header before it locks the file, and never again. If a process opens the file just as another
one closes it, it continues from the older state, and the other's commits are lost. So KBQ's processes exclude each
other with their own lock, which they take before DuckDB opens the file (ADR 9).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import duckdb

from kbq_assets.adapters.duckdb import engines
from kbq_assets.adapters.local_store.locks import holder_of, try_lock
from kbq_assets.core.errors import (
    ConfigurationError,
    CorruptState,
    KbqError,
    NotFound,
    Unavailable,
    UnknownOutcome,
    UnsupportedFormat,
)

_log = logging.getLogger(__name__)

LOCK_TIMEOUT_SECONDS: Final = 60.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.1
#: After this time, a session closes the file briefly between two of its parts, so that waiting processes get the lock.
_MOST_SECONDS_OPEN, _SECONDS_CLOSED = 1.0, 0.05
_SECONDS_BETWEEN_NOTES: Final = 10.0
_HOLDER = re.compile(r"\(PID (\d+)\)")
#: Errors that do not pass on their own.
_FORBIDDEN: Final = (errno.EACCES, errno.EPERM, errno.EROFS)
_PERMISSION: Final = "give this user read and write permission on the file and its folder"

_in_process: dict[Path, threading.RLock] = {}
_in_process_guard = threading.Lock()


class _ThreadSession(threading.local):
    """The session of a thread. ``open`` closes its connection; it is None outside of sessions."""

    def __init__(self) -> None:
        self.open: contextlib.ExitStack | None = None
        self.connection: duckdb.DuckDBPyConnection | None = None
        self.opened_at = 0.0


class DuckDbDatabase:
    """A DuckDB file. A call waits for its lock for up to ``lock_timeout_seconds``."""

    def __init__(self, path: Path, lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS) -> None:
        self.path = path.absolute()
        self._timeout = lock_timeout_seconds
        self._session = _ThreadSession()

    @contextmanager
    def session(self) -> Iterator[None]:
        """Within the block, this thread's calls share an exclusive connection, which the first call opens: opening a
        file takes longer the more tables it has. After an error, the next call opens a new connection.

        A nested session is a part of the outer one. If a second has passed at the end of a part, the file is closed
        briefly so that other processes can open it.
        """
        session = self._session
        if session.open is not None:
            yield
            if session.connection and time.monotonic() - session.opened_at >= _MOST_SECONDS_OPEN:
                session.connection = None
                with storage_errors():
                    session.open.close()
                time.sleep(_SECONDS_CLOSED)
            return
        session.open = contextlib.ExitStack()
        try:
            yield
        finally:
            opened, session.open, session.connection = session.open, None, None
            with storage_errors():
                opened.close()

    @contextmanager
    def writing(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """An exclusive connection. Creates a missing file. Raises Unavailable."""
        if not self.path.exists():
            self._create()
        with engines.interruptible(), self._opened(read_only=False) as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A read-only connection; other processes may read too. Raises NotFound if the file is missing, Unavailable."""
        if not self.path.exists():
            raise NotFound(f"there is no warehouse {self.path}", next_step="load something first: `kbq load`")
        with engines.interruptible(), self._opened(read_only=True) as connection:
            yield connection

    def _create(self) -> None:
        """Create the file atomically: a killed DuckDB would leave a file that cannot be opened."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_name(f".{self.path.name}.{os.getpid()}-{threading.get_ident()}.new")
        fresh.unlink(missing_ok=True)
        engines.attach(fresh, read_only=False).close()
        try:
            os.link(fresh, self.path)
        except FileExistsError:
            pass  # another process was first
        finally:
            fresh.unlink()

    @contextmanager
    def _opened(self, read_only: bool) -> Iterator[duckdb.DuckDBPyConnection]:
        session = self._session
        if session.open is None:
            with self._fresh(read_only) as connection:
                yield connection
            return
        if session.connection is None:
            session.connection = session.open.enter_context(self._fresh(read_only=False))
            session.opened_at = time.monotonic()
        try:
            yield session.connection
        except BaseException:
            session.connection = None
            session.open.close()
            raise

    @contextmanager
    def _fresh(self, read_only: bool) -> Iterator[duckdb.DuckDBPyConnection]:
        wait = _Wait(self.path, self._timeout)
        gate = _gate(self.path)
        if not gate.acquire(timeout=self._timeout):
            raise _locked(self.path, str(os.getpid()), self._timeout)
        try:
            with self._locked(read_only, wait):
                file = self._attach(read_only, wait)
                try:
                    yield file.connection
                finally:
                    file.close()
        finally:
            gate.release()

    @contextmanager
    def _locked(self, read_only: bool, wait: _Wait) -> Iterator[None]:
        """Hold KBQ's lock of the file from before DuckDB opens it until after DuckDB has closed it.

        DuckDB's lock is of another kind: a process loses it when it closes any descriptor of the file. So this
        descriptor is closed last.
        """
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise _cannot_open(self.path, error) from error
        try:
            while not try_lock(descriptor, shared=read_only):
                wait.on(holder_of(descriptor))
            yield
        finally:
            # A child forked meanwhile inherits the descriptor, so closing it here would not release the lock.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def _attach(self, read_only: bool, wait: _Wait) -> engines.AttachedFile:
        """Open the file. Waits if a process other than KBQ's holds DuckDB's lock."""
        while True:
            try:
                return engines.attach(self.path, read_only)
            except duckdb.Error as error:
                holder = _holder(error)
                if holder is None:
                    raise _open_error(self.path, error) from error
            wait.on(holder)


class _Wait:
    """Waits for the locks of a file, for up to ``seconds`` in total."""

    def __init__(self, path: Path, seconds: float) -> None:
        self._path, self._seconds = path, seconds
        self._started, self._pause, self._noted = time.monotonic(), _FIRST_PAUSE, -_SECONDS_BETWEEN_NOTES

    def on(self, holder: str) -> None:
        """Pause because a process holds a lock. Raises Unavailable when the time is over."""
        now, deadline = time.monotonic(), self._started + self._seconds
        if now >= deadline:
            raise _locked(self._path, holder, self._seconds)
        if now - self._started > 1 and now - self._noted >= _SECONDS_BETWEEN_NOTES:
            self._noted = now
            _log.info("waiting for the lock of %s, held by process %s", self._path, holder)
        time.sleep(min(self._pause, deadline - now))
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)


@contextmanager
def transaction(connection: duckdb.DuckDBPyConnection, what: str) -> Iterator[None]:
    """Run a block as one transaction. Raises UnknownOutcome if the commit fails.

    Conflicts cannot occur, because the file was locked before the transaction began.
    """
    connection.execute("BEGIN")
    try:
        yield
    except BaseException:
        with contextlib.suppress(duckdb.Error):
            connection.execute("ROLLBACK")
        raise
    try:
        connection.execute("COMMIT")
    except duckdb.Error as error:
        raise UnknownOutcome(
            f"{what}: the commit failed: {error}",
            next_step="check the disk; the next run checks the job",
        ) from error


@contextmanager
def storage_errors() -> Iterator[None]:
    """Translate errors from DuckDB and the disk to KBQ's errors."""
    try:
        yield
    except (duckdb.ProgrammingError, duckdb.IntegrityError, duckdb.NotSupportedError) as error:
        raise ConfigurationError(
            f"the local warehouse refuses this: {error}",
            next_step="check for manual changes to the file",
        ) from error
    except (duckdb.Error, OSError, MemoryError) as error:
        if _is_damage(error):
            raise CorruptState(
                f"the local warehouse is damaged: {error}", next_step="restore the file from a backup"
            ) from error
        if _is_forbidden(error):
            raise ConfigurationError(f"the local warehouse failed: {error}", next_step=_PERMISSION) from error
        raise Unavailable(
            f"the local warehouse failed: {error}",
            next_step="check disk space and permissions, then run again",
        ) from error


def _gate(path: Path) -> threading.RLock:
    with _in_process_guard:
        return _in_process.setdefault(path.resolve(), threading.RLock())


def _holder(error: duckdb.Error) -> str | None:
    """The process that holds the lock; None for other errors."""
    if "Could not set lock on file" not in str(error):
        return None
    found = _HOLDER.search(str(error))
    return found.group(1) if found else "unknown"


def _locked(path: Path, holder: str, seconds: float) -> Unavailable:
    return Unavailable(
        f"the warehouse {path} is locked by process {holder}, for more than {seconds:g} s",
        next_step=f"stop the process that uses it (`ps -p {holder}`) or wait; the next run retries",
    )


def _open_error(path: Path, error: duckdb.Error) -> KbqError:
    text = str(error)
    if "version number" in text:
        return UnsupportedFormat(
            f"the warehouse {path} has another storage version: {text}",
            next_step="use the DuckDB version that wrote it",
        )
    if "not a valid DuckDB database" in text or _is_damage(error):
        return CorruptState(
            f"the warehouse {path} cannot be read: {text}", next_step="restore it from a backup"
        )
    return _cannot_open(path, error)


def _is_damage(error: BaseException) -> bool:
    """Whether the file's bytes are damaged: a checksum differs, or the file is too short."""
    is_short = isinstance(error, duckdb.IOException) and "Could not read enough bytes" in str(error)
    return (
        is_short or isinstance(error, duckdb.SerializationException) or "Corrupt database file" in str(error)
    )


def _is_forbidden(error: BaseException) -> bool:
    """Whether this user may not read or write the file. DuckDB's errors have only the system's text."""
    if isinstance(error, duckdb.IOException):
        return any(str(error).endswith(os.strerror(number)) for number in _FORBIDDEN)
    return isinstance(error, OSError) and error.errno in _FORBIDDEN


def _cannot_open(path: Path, error: Exception) -> KbqError:
    message = f"the warehouse {path} cannot be opened: {error}"
    if _is_forbidden(error):
        return ConfigurationError(message, next_step=_PERMISSION)
    return Unavailable(message, next_step="fix the cause and try again")
