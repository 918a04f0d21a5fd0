"""DuckDB engines, which stay alive when a file is closed.

Starting an engine takes 20 ms of CPU time, and its first catalog look-up another 20 ms. Attaching a file to a running
engine takes 3 ms.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import duckdb

from kbq_assets.adapters.duckdb.types import literal, quoted

#: Limit of DuckDB's own memory, in its syntax.
MEMORY_LIMIT: Final = "1GB"
#: The usual number of files open at once.
_MOST_IDLE: Final = 2
#: What DuckDB says after a KeyboardInterrupt. Values of records appear only in other messages.
_INTERRUPTED: Final = re.compile(
    r"Query interrupted$|Invalid Input Error: reading [\w ]+ registered as '\w+'[^:]*failed: .*KeyboardInterrupt",
    re.DOTALL,
)
#: The name of an engine's own in-memory database. No attached file can have this name.
_OWN_NAME: Final = "memory"


class AttachedFile:
    """A file that is attached to its own engine. ``connection`` reads and writes it."""

    def __init__(self, engine: duckdb.DuckDBPyConnection, path: Path, read_only: bool) -> None:
        self._engine = engine
        self._spilled_into = Path(f"{path}.tmp")
        self._name = _attach(engine, path, read_only)
        self.connection = engine.cursor()
        self.connection.execute("SET TimeZone = 'UTC'")
        self.connection.execute(f"USE {quoted(self._name)}")

    def close(self) -> None:
        """Roll back an open transaction, write the log into the file, and unlock it.

        The engine also ends if it cannot be reused: it failed, or it spilled to a folder that it keeps in use.
        """
        self.connection.close()
        reusable = False
        try:
            with contextlib.suppress(duckdb.Error):
                self._engine.execute(f"DETACH {quoted(self._name)}")
                reusable = not self._spilled_into.exists()
        finally:
            if reusable:
                _give_back(self._engine)
            else:
                self._engine.close()


def attach(path: Path, read_only: bool) -> AttachedFile:
    """Open a file. Creates a missing one unless ``read_only``. Raises the errors of `duckdb.connect`."""
    engine = _take()
    try:
        engine.execute(f"SET temp_directory = {literal(f'{path}.tmp')}")
        return AttachedFile(engine, path, read_only)
    except BaseException:
        engine.close()
        raise


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt again where DuckDB has made another error of it."""
    try:
        yield
    except (RuntimeError, duckdb.Error) as error:
        if is_interrupt(error):
            raise KeyboardInterrupt from error
        raise


def is_interrupt(error: Exception) -> bool:
    """Whether DuckDB caught a KeyboardInterrupt: in a query, or while it called Python for a registered table."""
    return isinstance(error, duckdb.InterruptException) or _INTERRUPTED.match(str(error)) is not None


@contextmanager
def none_idle() -> Iterator[None]:
    """Within the block, use only engines started in it. Engines from the block are not used after it."""
    _end_idle()
    try:
        yield
    finally:
        _end_idle()


def _attach(engine: duckdb.DuckDBPyConnection, path: Path, read_only: bool) -> str:
    """Attach a file under DuckDB's default name, which users' statements may use."""
    name = f" AS {_OWN_NAME}_db" if path.stem.lower() == _OWN_NAME else ""
    mode = " (READ_ONLY)" if read_only else ""
    engine.execute(f"ATTACH {literal(str(path))}{name}{mode}")
    [(found,)] = engine.execute(
        "SELECT database_name FROM duckdb_databases() WHERE path IS NOT NULL"
    ).fetchall()
    return str(found)


_idle: list[duckdb.DuckDBPyConnection] = []
_guard = threading.Lock()


def _take() -> duckdb.DuckDBPyConnection:
    with _guard:
        if _idle:
            return _idle.pop()
    return duckdb.connect(config={"memory_limit": MEMORY_LIMIT})


def _give_back(engine: duckdb.DuckDBPyConnection) -> None:
    with _guard:
        if len(_idle) < _MOST_IDLE:
            _idle.append(engine)
            return
    engine.close()


def _end_idle() -> None:
    with _guard:
        ended, _idle[:] = list(_idle), []
    for engine in ended:
        engine.close()


# The threads of an engine do not survive a fork.
os.register_at_fork(before=_end_idle)
