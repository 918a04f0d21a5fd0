"""Loads staged files into a table, in bounded batches, inside the caller's transaction."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import duckdb

from kbq_assets.adapters.duckdb.engines import is_interrupt
from kbq_assets.core.loading.tables import Column
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.wire.arrow.errors import LoadError
from kbq_assets.wire.arrow.staged import OpenUri, StagedBatch, StagedTables

#: Maximum number of files to name in an error if one of several files caused it.
_FILES_SHOWN: Final = 3

#: DuckDB's permanent errors, which the same files would cause again.
_PERMANENT: Final = (
    duckdb.DataError,
    duckdb.IntegrityError,
    duckdb.ProgrammingError,
    duckdb.NotSupportedError,
)


class StagedFileLoader:
    """Loads files into one table. ``target`` is its name in SQL. ``keep=False`` deletes each batch again."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        target: str,
        columns: Sequence[Column],
        open_uri: OpenUri,
        *,
        keep: bool = True,
    ) -> None:
        self._connection = connection
        self._target = target
        self._keep = keep
        self._staged = StagedTables(columns, open_uri)

    def load(self, uris: Iterable[str], files: Mapping[str, StagedFile] | None = None) -> int:
        """Append all records of all files, and return their number. The files must match the checksums in ``files``.

        Raises LoadError, OSError, duckdb.Error.
        """
        rows = 0
        for batch in self._staged.read(uris, files):
            self._insert(batch)
            rows += batch.table.num_rows
        return rows

    def _insert(self, batch: StagedBatch) -> None:
        self._connection.register("kbq_batch", batch.table)
        try:
            self._connection.execute(f"INSERT INTO {self._target} BY NAME SELECT * FROM kbq_batch")
            if not self._keep:
                self._connection.execute(f"TRUNCATE {self._target}")
        except _PERMANENT as error:
            if is_interrupt(error):
                raise
            raise LoadError(f"{_suspects(batch)}: {error}") from error
        finally:
            # A violated constraint aborts the transaction. Then DuckDB refuses this call too, and the next batch
            # replaces the registration.
            with contextlib.suppress(duckdb.TransactionException):
                self._connection.unregister("kbq_batch")


def _suspects(batch: StagedBatch) -> str:
    files = list(batch.rows)
    if len(files) == 1:
        return files[0]
    more = f" and {len(files) - _FILES_SHOWN} more" if len(files) > _FILES_SHOWN else ""
    return f"one of {', '.join(files[:_FILES_SHOWN])}{more}"
