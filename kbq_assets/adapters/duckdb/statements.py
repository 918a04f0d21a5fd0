"""Statements and ledgers in one DuckDB file (`ports.statements.Statements`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import duckdb

from kbq_assets.adapters.duckdb import load_jobs, schema
from kbq_assets.adapters.duckdb.types import duckdb_type, quoted
from kbq_assets.core.errors import ConfigurationError, JobFailed
from kbq_assets.core.loading.tables import Column
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.statements.dialects import DUCKDB, Dialect
from kbq_assets.core.statements.side_tables import SCRATCH_PREFIX, ledger_table
from kbq_assets.ports.statements import LedgerRow, StatementJob
from kbq_assets.ports.warehouse import JobError, JobStatus

#: Errors caused by the text or the rows: the same statement would fail again.
PERMANENT: Final = (
    duckdb.DataError,
    duckdb.IntegrityError,
    duckdb.ProgrammingError,
    duckdb.NotSupportedError,
)
#: Recorded in the job's row instead of files.
_SOURCE: Final = "(statement)"


class _Failed(Exception):
    """The statement failed and changed nothing."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class DuckDbStatements:
    """Runs statements on a warehouse's connections. ``writing`` opens a connection, ``reading`` runs a query or returns
    its default, and ``transaction`` runs a block as one transaction."""

    dialect: Dialect = DUCKDB

    def __init__(
        self,
        writing: Callable[[], AbstractContextManager[duckdb.DuckDBPyConnection]],
        reading: Callable[[Callable[[duckdb.DuckDBPyConnection], Any], Any], Any],
        transaction: Callable[[duckdb.DuckDBPyConnection, str], AbstractContextManager[None]],
    ) -> None:
        self._writing = writing
        self._reading = reading
        self._transaction = transaction

    def sql_name(self, table: TableReference) -> str:
        with self._writing() as connection:
            return schema.name_of(connection, table)

    def create_scratch(self, table: TableReference, columns: Iterable[Column]) -> None:
        wanted = tuple(columns)
        with self._writing() as connection, self._transaction(connection, str(table)):
            if schema.exists(connection, table):
                return
            schema.create(connection, table, wanted)
            name = schema.name_of(connection, table)
            for column in wanted:
                if column.mode == "REPEATED":  # as in the target, if a file lacks the column
                    connection.execute(
                        f"ALTER TABLE {name} ALTER COLUMN {quoted(column.name)} SET DEFAULT []"
                    )

    def drop_scratch(self, table: TableReference) -> None:
        """Drop a scratch table and the notes about it."""
        with self._writing() as connection, self._transaction(connection, str(table)):
            if not schema.exists(connection, table):
                return
            connection.execute(f"DROP TABLE {schema.name_of(connection, table)}")
            for noted in (load_jobs.TYPES, load_jobs.NOTES):
                connection.execute(
                    f'DELETE FROM {noted} WHERE dataset = ? AND "table" = ?', [table.dataset, table.table]
                )

    def scratch_tables(self, dataset: str) -> tuple[TableReference, ...]:

        def read(connection: duckdb.DuckDBPyConnection) -> tuple[TableReference, ...]:
            rows = connection.execute(
                "SELECT table_name FROM duckdb_tables() WHERE database_name = current_database()"
                " AND schema_name = ? AND starts_with(table_name, ?) ORDER BY 1",
                [dataset, SCRATCH_PREFIX],
            ).fetchall()
            return tuple(TableReference(dataset, name) for (name,) in rows)

        found: tuple[TableReference, ...] = self._reading(read, ())
        return found

    def open_ledger(self, target: TableReference) -> LedgerRow:
        with self._writing() as connection, self._transaction(connection, str(target)):
            ledger = ledger_table(target)
            if not schema.exists(connection, ledger):
                name = schema.name_of(connection, ledger)
                connection.execute(
                    f"CREATE TABLE {name} AS SELECT 0::BIGINT AS batch, FALSE AS skipped, '' AS digest"
                )
            return _ledger(connection, target)

    def read_ledger(self, target: TableReference) -> LedgerRow | None:

        def read(connection: duckdb.DuckDBPyConnection) -> LedgerRow | None:
            exists = schema.exists(connection, ledger_table(target))
            return _ledger(connection, target) if exists else None

        found: LedgerRow | None = self._reading(read, None)
        return found

    def skip(self, target: TableReference, batch: int, digest: str) -> LedgerRow | None:
        with self._writing() as connection, self._transaction(connection, str(target)):
            if not schema.exists(connection, ledger_table(target)):
                return None
            _raise_ledger(connection, target, LedgerRow(batch, True, digest))
            return _ledger(connection, target)

    def rows_of(self, sql: str, limit: int) -> list[str]:
        """The first rows of a query, on a connection that cannot write."""

        def read(connection: duckdb.DuckDBPyConnection) -> list[str]:
            try:
                statements = connection.extract_statements(sql)
                if [each.type for each in statements] != [duckdb.StatementType.SELECT]:
                    raise JobFailed("the text is not a single query", next_step="write one SELECT")
                found = connection.execute(statements[0])
                names = [column[0] for column in found.description or ()]
                return [_shown(names, row) for row in found.fetchmany(limit)]
            except PERMANENT as error:
                raise JobFailed(f"the query fails: {error}", next_step="correct the SQL") from error

        found: list[str] = self._reading(read, [])
        return found

    def insert(self, job: StatementJob) -> None:
        """Run a statement. If the text or the rows cause a failure, the job is DONE with an error. A full disk or a
        lock raises Unavailable and leaves the id free."""
        status = JobStatus(job.job_id, "DONE", (_SOURCE,), statement=job.digest)
        with self._writing() as connection:
            try:
                with self._transaction(connection, job.job_id):
                    load_jobs.record(connection, status, job.target)
                    _run(connection, job)
            except _Failed as error:
                failed = JobError(error.reason, str(error), transient=False)
                with self._transaction(connection, job.job_id):
                    load_jobs.record(
                        connection,
                        JobStatus(job.job_id, "DONE", (_SOURCE,), error=failed, statement=job.digest),
                        job.target,
                    )

    def bytes_billed(self, sql: str, project: str, location: str) -> int:
        """0, since nothing is billed. Raises JobFailed if DuckDB refuses the text."""
        with self._writing() as connection:
            try:
                for statement in connection.extract_statements(sql):
                    connection.execute(f"EXPLAIN {statement.query}")
            except PERMANENT as error:
                raise JobFailed(f"the statement is refused: {error}", next_step="correct the SQL") from error
        return 0

    def empty(self, columns: Iterable[Column]) -> str:
        values = (f"CAST(NULL AS {duckdb_type(c)}) AS {quoted(c.name)}" for c in columns)
        return f"(SELECT {', '.join(values)})"


def _shown(names: Sequence[str], row: Sequence[Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in zip(names, row, strict=True))


def _ledger(connection: duckdb.DuckDBPyConnection, target: TableReference) -> LedgerRow:
    name = schema.name_of(connection, ledger_table(target))
    rows = connection.execute(f"SELECT batch, skipped, digest FROM {name}").fetchall()
    if len(rows) != 1:
        raise ConfigurationError(
            f"the ledger {ledger_table(target)} has {len(rows)} rows instead of one",
            next_step="docs/operations.md#a-ledger-differs",
        )
    return LedgerRow(*rows[0])


def _raise_ledger(connection: duckdb.DuckDBPyConnection, target: TableReference, wanted: LedgerRow) -> bool:
    """Advance the ledger from the previous batch (S1). Returns False if it was not at that batch."""
    name = schema.name_of(connection, ledger_table(target))
    [(changed,)] = connection.execute(
        f"UPDATE {name} SET batch = ?, skipped = ?, digest = ? WHERE batch = ?", [*wanted, wanted.batch - 1]
    ).fetchall()
    return bool(changed == 1)


def _run(connection: duckdb.DuckDBPyConnection, job: StatementJob) -> None:
    try:
        if not _raise_ledger(connection, job.target, LedgerRow(job.batch, False, job.digest)):
            raise _Failed("ledger", f"the ledger of {job.target} is not at batch {job.batch - 1}")
        connection.execute(job.sql)
    except PERMANENT as error:
        missing = isinstance(error, duckdb.CatalogException)
        raise _Failed("notFound" if missing else "invalidQuery", str(error)) from error
