"""Loads staged files into a table, in bounded batches, inside the caller's transaction."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import duckdb
import pyarrow as pa

from kbq_assets.core.loading.tables import Column
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.wire.arrow.errors import LoadError
from kbq_assets.wire.arrow.staged import OpenUri, StagedTables

#: Rows, or bytes of Arrow, inserted at once.
_INSERT_ROWS, _INSERT_BYTES = 50_000, 64 << 20
#: Maximum files named in an error that one of several files caused.
_FILES_SHOWN: Final = 3

#: DuckDB's permanent errors: the same files would cause them again.
_PERMANENT: Final = (
    duckdb.DataError,
    duckdb.IntegrityError,
    duckdb.ProgrammingError,
    duckdb.NotSupportedError,
)


class StagedFileLoader:
    """Loads files into one table. ``target`` is its name in SQL; ``keep=False`` drops every batch again."""

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
        self._schema = ""
        self._waiting: list[pa.Table] = []
        #: rows and bytes that wait: counted up, since a batch may have thousands of small files
        self._rows = self._size = 0
        self._waiting_files: dict[str, None] = {}

    def load(self, uris: Iterable[str], files: Mapping[str, StagedFile] | None = None) -> int:
        """Append all records of all files; return their number. The bytes must be those that ``files`` lists.

        Raises LoadError, OSError, duckdb.Error.
        """
        rows = 0
        for uri in uris:
            for schema, table in self._staged.read(uri, (files or {}).get(uri)):
                rows += table.num_rows
                self._add(uri, schema, table)
        self._flush()
        return rows

    def _add(self, uri: str, schema: str, table: pa.Table) -> None:
        """Collect small files into one insert, since each insert costs milliseconds, whatever its size."""
        if schema != self._schema:
            self._flush()
            self._schema = schema
        self._waiting.append(table)
        self._waiting_files[uri] = None
        self._rows += table.num_rows
        self._size += table.nbytes
        if self._rows >= _INSERT_ROWS or self._size >= _INSERT_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._insert(pa.concat_tables(self._waiting))
        self._waiting.clear()
        self._waiting_files.clear()
        self._rows = self._size = 0

    def _insert(self, batch: pa.Table) -> None:
        self._connection.register("kbq_batch", batch)
        try:
            self._connection.execute(f"INSERT INTO {self._target} BY NAME SELECT * FROM kbq_batch")
            if not self._keep:
                self._connection.execute(f"TRUNCATE {self._target}")
        except _PERMANENT as error:
            raise LoadError(f"{self._suspects()}: {error}") from error
        finally:
            # A violated constraint aborts the transaction: DuckDB then refuses this too, and the next batch's
            # registration replaces it.
            with contextlib.suppress(duckdb.TransactionException):
                self._connection.unregister("kbq_batch")

    def _suspects(self) -> str:
        files = list(self._waiting_files)
        if len(files) == 1:
            return files[0]
        more = f" and {len(files) - _FILES_SHOWN} more" if len(files) > _FILES_SHOWN else ""
        return f"one of {', '.join(files[:_FILES_SHOWN])}{more}"
