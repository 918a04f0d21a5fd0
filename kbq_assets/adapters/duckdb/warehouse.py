"""The `Warehouse` port over one DuckDB file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import duckdb

from kbq_assets.adapters.duckdb import load_jobs, queries, schema
from kbq_assets.adapters.duckdb.comparison import compare
from kbq_assets.adapters.duckdb.database import (
    LOCK_TIMEOUT_SECONDS,
    DuckDbDatabase,
    storage_errors,
    transaction,
)
from kbq_assets.adapters.duckdb.erasure import DuckDbErasureTables
from kbq_assets.adapters.duckdb.errors_replay import DuckDbErrorReplays, counting
from kbq_assets.adapters.duckdb.load import StagedFileLoader
from kbq_assets.adapters.duckdb.notes import write_notes
from kbq_assets.adapters.duckdb.statements import DuckDbStatements
from kbq_assets.adapters.duckdb.types import definition
from kbq_assets.core.errors import ConfigurationError, JobFailed
from kbq_assets.core.loading.batches import LoadLimits
from kbq_assets.core.loading.table_notes import StoredTable, TableNotes
from kbq_assets.core.loading.tables import Column, TableOptions
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.ports.erasure import ErasureTables
from kbq_assets.ports.errors_replay import ErrorReplays, ErrorReplaySteps
from kbq_assets.ports.statements import Statements
from kbq_assets.ports.warehouse import (
    EVERYTHING,
    Comparable,
    DoubledOffset,
    ErrorQuery,
    ErrorRow,
    JobError,
    JobStatus,
    KafkaRange,
    LoadJob,
    OffsetSummary,
    RowComparison,
)
from kbq_assets.wire.arrow.errors import LoadError, MissingSource
from kbq_assets.wire.arrow.staged import OpenUri, open_file_uri

Result = TypeVar("Result")

LOCAL: Final = "local"


class DuckDbWarehouse:
    """A DuckDB file with BigQuery's load-job semantics.

    `insert_job` runs the load before it returns. The job's row and its data are written in one transaction. So whenever
    the process is killed, a job is either DONE or was never inserted. The file is opened for each call and closed
    afterwards. If another process holds the lock for ``lock_timeout_seconds``, Unavailable names it. ``open_uri`` opens
    source files.

    Memory: about 300 MB, plus what DuckDB keeps of a transaction until its commit. That is up to `MEMORY_LIMIT`, plus
    about 8 bytes per value beyond it. If memory is scarce, limit the size of jobs (`LoadLimits`).
    """

    project: str = LOCAL
    location: str = LOCAL
    #: DuckDB keeps a transaction in memory until its commit. 256 MB of Avro take about 2 GB.
    limits: LoadLimits = LoadLimits(
        bytes=256 * 1024 * 1024,
        jobs_per_day=0,
        known_days=0,
        changes_per_day=0,
        project_jobs_per_day=0,
        partitions=0,
        mixes_schemas=True,
    )
    verifies: bool = True
    compares: bool = True

    def __init__(
        self,
        path: Path,
        *,
        lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS,
        open_uri: OpenUri = open_file_uri,
    ) -> None:
        self.path = path
        self._database = DuckDbDatabase(path, lock_timeout_seconds)
        self.session = self._database.session
        self._writing = partial(load_jobs.writing, self._database)
        self.statements: Statements | None = DuckDbStatements(self._writing, self._read, transaction)
        self.errors_replay: ErrorReplays | ErrorReplaySteps | None = DuckDbErrorReplays(
            self._writing, transaction, open_uri
        )
        self.erasures: ErasureTables | None = DuckDbErasureTables(self._writing, transaction)
        self._open_uri = open_uri

    def insert_job(self, job: LoadJob) -> None:
        """Run a load job.

        If the files cause a failure, the job is DONE with an error. A full disk or a lock raises Unavailable and leaves
        the id free.
        """
        _check_place(job.project, job.location)
        with self._writing() as connection:
            try:
                with transaction(connection, job.job_id):
                    load_jobs.record(
                        connection, JobStatus(job.job_id, "DONE", job.source_uris), job.table, job.labels
                    )
                    rows = _load(connection, job, self._open_uri)
                    load_jobs.set_output_rows(connection, job.job_id, rows)
            except LoadError as error:
                failed = JobStatus(job.job_id, "DONE", job.source_uris, error=_job_error(error))
                with transaction(connection, job.job_id):
                    load_jobs.record(connection, failed, job.table, job.labels)

    def get_job(
        self, job_id: str, project: str, location: str, table: TableReference | None = None
    ) -> JobStatus | None:
        _check_place(project, location)
        return self._read(lambda connection: load_jobs.find(connection, job_id), None)

    def burn_job(self, job_id: str, project: str, location: str, table: TableReference | None = None) -> None:
        """Use up an id with a job that does nothing."""
        _check_place(project, location)
        with self._writing() as connection, transaction(connection, job_id):
            load_jobs.record(connection, JobStatus(job_id, "DONE", ()))

    def cancel_job(
        self, job_id: str, project: str, location: str, table: TableReference | None = None
    ) -> None:
        """Do nothing: a job ends before `insert_job` returns."""
        _check_place(project, location)

    def probe(self, job: LoadJob) -> JobError | None:
        """Load a job's files into a scratch table in memory. Reads only the table's columns from the warehouse."""
        columns = self.columns(job.table)
        if columns is None:
            # The files are not to blame, so none may go to quarantine.
            return dataclasses.replace(_job_error(_no_table(job.table)), transient=True)
        with storage_errors(), duckdb.connect(":memory:") as scratch:
            scratch.execute(f"CREATE TABLE scratch ({', '.join(map(definition, columns))})")
            try:
                StagedFileLoader(scratch, "scratch", columns, self._open_uri, keep=False).load(
                    job.source_uris, job.files
                )
            except LoadError as error:
                return _job_error(error)
        return None

    def compare(self, job: LoadJob, limit: int = 10, which: Comparable = EVERYTHING) -> RowComparison:

        def read(connection: duckdb.DuckDBPyConnection) -> RowComparison:
            try:
                return compare(connection, job, self._open_uri, limit, which)
            except LoadError as error:
                raise JobFailed(f"the files do not load into {job.table}: {error.message}") from error

        return self._read(read, RowComparison(0))

    def columns(self, table: TableReference) -> tuple[Column, ...] | None:
        """A table's columns; None if it does not exist. Nested fields are NULLABLE or REPEATED."""
        return self._read(lambda connection: schema.columns(connection, table), None)

    def find_table(self, table: TableReference) -> StoredTable | None:
        return self._read(lambda connection: schema.find(connection, table), None)

    def create_table(self, table: TableReference, columns: Iterable[Column], options: TableOptions) -> None:
        """Create a table and its schema. From ``options``, uses only the table's description and labels."""
        wanted = tuple(columns)
        with self._writing() as connection, transaction(connection, str(table)):
            if not schema.exists(connection, table):
                schema.create(connection, table, wanted)
                labels = {**options.labels, **options.notes.labels}
                write_notes(connection, table, wanted, dataclasses.replace(options.notes, labels=labels))

    def update_columns(
        self, table: TableReference, columns: Iterable[Column], notes: TableNotes | None = None
    ) -> None:
        """Add missing columns and nested fields, drop NOT NULL from columns now NULLABLE, and set descriptions."""
        wanted = tuple(columns)
        with self._writing() as connection, transaction(connection, str(table)):
            schema.update(connection, table, wanted)
            write_notes(connection, table, wanted, notes or TableNotes())

    def tables(self) -> tuple[TableReference, ...]:
        """All tables with Kafka positions, sorted."""
        return self._read(schema.kafka_tables, ())

    def positions(
        self, table: TableReference, range_: KafkaRange, offset: int | None = None
    ) -> Mapping[int, int]:
        """Rows per offset; empty if there is no such table."""

        def read(connection: duckdb.DuckDBPyConnection) -> Mapping[int, int]:
            if not schema.is_there(connection, table):
                return {}
            found = connection.sql(
                f"SELECT _kafka_offset, count(*) FROM {schema.name_of(connection, table)}"
                f" WHERE {counting(connection, table)}"
                " AND _kafka_topic = ? AND _kafka_partition = ? AND _kbq_epoch = ?"
                " AND (? IS NULL OR _kafka_offset = ?) GROUP BY 1 ORDER BY 1",
                params=[range_.topic, range_.partition, range_.epoch, offset, offset],
            ).to_arrow_table()
            return dict(zip(found[0].to_pylist(), found[1].to_pylist(), strict=True))

        return self._read(read, {})

    def kafka_ranges(self, table: TableReference) -> Mapping[KafkaRange, int]:
        """Rows per topic, partition and epoch; empty if there is no such table."""

        def read(connection: duckdb.DuckDBPyConnection) -> Mapping[KafkaRange, int]:
            if not schema.is_there(connection, table):
                return {}
            rows = connection.execute(
                "SELECT _kafka_topic, _kafka_partition, _kbq_epoch, count(*)"
                f" FROM {schema.name_of(connection, table)} WHERE {counting(connection, table)}"
                " GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"
            ).fetchall()
            return {KafkaRange(topic, partition, epoch): count for topic, partition, epoch, count in rows}

        return self._read(read, {})

    def kafka_summary(
        self, table: TableReference, since: date | None = None
    ) -> Mapping[KafkaRange, OffsetSummary]:
        """Rows, distinct offsets and their bounds per topic, partition and epoch."""
        return self._read(lambda connection: queries.kafka_summary(connection, table, since), {})

    def doubled_offsets(
        self, tables: Sequence[TableReference], since: date | None = None, limit: int = 10
    ) -> tuple[DoubledOffset, ...]:
        return self._read(lambda c: queries.doubled_offsets(c, tables, since, limit), ())

    def error_rows(self, table: TableReference, query: ErrorQuery) -> tuple[ErrorRow, ...]:
        """Rows of an error table, newest first; () if there is no such table."""
        return self._read(lambda connection: queries.read_error_rows(connection, table, query), ())

    @contextmanager
    def connect_readonly(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A read-only connection for queries, after waiting for the lock. It blocks loads, so keep it short.

        Raises NotFound if nothing was ever loaded, or Unavailable.
        """
        with self._database.reading() as connection:
            yield connection

    def _read(self, query: Callable[[duckdb.DuckDBPyConnection], Result], default: Result) -> Result:
        """Run a query, or return ``default`` if there is no file yet."""
        if not self.path.exists():
            return default
        with storage_errors(), self._database.reading() as connection:
            return query(connection)


def _load(connection: duckdb.DuckDBPyConnection, job: LoadJob, open_uri: OpenUri) -> int:
    """Load a job's files into its table, and return the number of rows. Raises LoadError."""
    columns = schema.columns(connection, job.table)
    if columns is None:
        raise _no_table(job.table)
    target = schema.name_of(connection, job.table)
    if job.replace:
        connection.execute(f"DELETE FROM {target}")
    return StagedFileLoader(connection, target, columns, open_uri).load(job.source_uris, job.files)


def _check_place(project: str, location: str) -> None:
    """Raise ConfigurationError for a job submitted to another warehouse, which must not count as never inserted."""
    if (project, location) != (LOCAL, LOCAL):
        raise ConfigurationError(
            f"a job of project {project!r}, location {location!r} is not in a local warehouse",
            next_step="set KBQ_WAREHOUSE to the job's warehouse until no job is open",
        )


def _no_table(table: TableReference) -> MissingSource:
    return MissingSource(f"table {table} does not exist", next_step="create it first")


def _job_error(error: LoadError) -> JobError:
    return JobError(error.reason, error.message, transient=False)
