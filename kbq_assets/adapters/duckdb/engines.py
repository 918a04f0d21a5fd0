"""DuckDB's engines, which stay when a file is closed.

An engine takes 20 ms of processor time to start, and 20 more for its first look into a catalog. To attach a file to
one that runs takes 3.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import duckdb

from kbq_assets.adapters.duckdb.types import literal, quoted

#: Of DuckDB's own memory, in its syntax.
MEMORY_LIMIT: Final = "1GB"
#: As many files as are usually open at once.
_MOST_IDLE: Final = 2
#: The name of an engine's own database, which no file can have.
_OWN_NAME: Final = "memory"


class AttachedFile:
    """A file that is open on an engine of its own. ``connection`` reads and writes it."""

    def __init__(self, engine: duckdb.DuckDBPyConnection, path: Path, read_only: bool) -> None:
        self._engine = engine
        self._spilled_into = Path(f"{path}.tmp")
        self._name = _attach(engine, path, read_only)
        self.connection = engine.cursor()
        self.connection.execute("SET TimeZone = 'UTC'")
        self.connection.execute(f"USE {quoted(self._name)}")

    def close(self) -> None:
        """Roll an open transaction back, write the log into the file, and unlock it.

        The engine ends too if it cannot go on: it failed, or it spilled into a folder that it keeps for itself.
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
    """Open a file; create a missing one, unless ``read_only``. Raises what `duckdb.connect` raises."""
    engine = _take()
    try:
        engine.execute(f"SET temp_directory = {literal(f'{path}.tmp')}")
        return AttachedFile(engine, path, read_only)
    except BaseException:
        engine.close()
        raise


@contextmanager
def none_idle() -> Iterator[None]:
    """Engines that were started before the block do not serve it, nor do those of the block serve what follows."""
    _end_idle()
    try:
        yield
    finally:
        _end_idle()


def _attach(engine: duckdb.DuckDBPyConnection, path: Path, read_only: bool) -> str:
    """Attach a file under the name that DuckDB gives it, which statements of people may use."""
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


# A forked process has no threads of its engines.
os.register_at_fork(before=_end_idle)
