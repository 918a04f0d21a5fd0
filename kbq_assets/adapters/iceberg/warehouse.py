"""The `Warehouse` port over an Iceberg catalog."""

from __future__ import annotations

import contextlib
import copy
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import date
from typing import Any, Final

from pyiceberg.exceptions import TableAlreadyExistsError
from pyiceberg.table import Table

from kbq_assets.adapters.iceberg import queries, schema
from kbq_assets.adapters.iceberg.commits import commit_job, tag_complete
from kbq_assets.adapters.iceberg.compaction import LakeCompaction
from kbq_assets.adapters.iceberg.erasure import LakeErasureTables
from kbq_assets.adapters.iceberg.errors_replay import LakeErrorReplays
from kbq_assets.adapters.iceberg.job_records import JobRecord
from kbq_assets.adapters.iceberg.lake import IcebergLake, lake_errors
from kbq_assets.adapters.iceberg.load_jobs import LakeJobs, record_of
from kbq_assets.adapters.iceberg.tasks import LargeJobs, job_writer
from kbq_assets.adapters.iceberg.writer import ParquetWriter
from kbq_assets.core.errors import (
    ConfigurationError,
    JobFailed,
    NotFound,
)
from kbq_assets.core.loading.batches import LoadLimits
from kbq_assets.core.loading.table_notes import StoredTable, TableNotes
from kbq_assets.core.loading.tables import Column, TableOptions
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.ports.compaction import Compaction
from kbq_assets.ports.erasure import ErasureTables
from kbq_assets.ports.errors_replay import ErrorReplays, ErrorReplaySteps
from kbq_assets.ports.load_tasks import RunTasks
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
from kbq_assets.wire.arrow.errors import LoadError
from kbq_assets.wire.arrow.staged import OpenUri, open_file_uri

LOCAL: Final = "local"
#: Most bytes of a job whose files are written in tasks.
_TASKS_BYTES: Final = 4 << 30
#: Prefixes of the sources of jobs that read no staged files.
_NOT_FILES: Final = ("erase:", "replay:")


class IcebergWarehouse:
    """Tables of an Iceberg catalog, with BigQuery's load-job semantics.

    `insert_job` writes the job's Parquet files and commits them before it returns. Files, job id and outcome are in one
    snapshot. If the job's table does not exist, the job is recorded in its dataset's properties.
    """

    project: str = LOCAL
    session = nullcontext
    location: str = LOCAL
    limits: LoadLimits = LoadLimits(
        bytes=1024 * 1024 * 1024,
        time_partitions=400,
        jobs_per_day=0,
        known_days=0,
        changes_per_day=0,
        project_jobs_per_day=0,
        partitions=0,
    )
    verifies: bool = True
    compares: bool = True
    statements: Statements | None = None

    def __init__(
        self, name: str, properties: Mapping[str, Any], *, open_uri: OpenUri = open_file_uri
    ) -> None:
        self.lake = IcebergLake(name, properties)
        self._jobs = LakeJobs(self.lake)
        self._open_uri = open_uri
        self.compaction: Compaction = LakeCompaction(self.lake)
        self.erasures: ErasureTables | None = LakeErasureTables(self.lake, self._jobs)
        self.errors_replay: ErrorReplays | ErrorReplaySteps | None = LakeErrorReplays(
            self.lake, self._jobs, open_uri
        )
        self._tasks: LargeJobs | None = None

    def by_tasks(self, run: RunTasks, from_bytes: int) -> IcebergWarehouse:
        other = copy.copy(self)
        other._tasks = LargeJobs(run, from_bytes)
        other.limits = replace(self.limits, bytes=_TASKS_BYTES)
        return other

    def insert_job(self, job: LoadJob) -> None:
        """Run a load job. If the files cause a failure, the job is DONE with an error."""
        _check_place(job.project, job.location)
        self._jobs.insert(
            job, lambda table, token: job_writer(table, job, token, self._open_uri, self._tasks)
        )

    def get_job(
        self, job_id: str, project: str, location: str, table: TableReference | None = None
    ) -> JobStatus | None:
        _check_place(project, location)
        with lake_errors(f"job {job_id}"):
            for reference in (table,) if table else tuple(_kafka_tables(self.lake)):
                if (found := self._jobs.find(reference, job_id)) is not None:
                    return _status(*found)
        return None

    def burn_job(self, job_id: str, project: str, location: str, table: TableReference | None = None) -> None:
        """Use up an id with an empty snapshot."""
        _check_place(project, location)
        if table is None:
            raise ConfigurationError(f"job {job_id} has no table", next_step="name the job's table")
        with lake_errors(f"job {job_id}"):
            stored, record = self._jobs.free_table(table, job_id), record_of(job_id, uuid.uuid4().hex[:12])
            if stored is None:
                self._jobs.note_in_dataset(table, record)
            else:
                commit_job(stored, record)

    def cancel_job(
        self, job_id: str, project: str, location: str, table: TableReference | None = None
    ) -> None:
        """Do nothing: a job ends before `insert_job` returns."""
        _check_place(project, location)

    def probe(self, job: LoadJob) -> JobError | None:
        """Read a job's files with the table's columns. Writes nothing."""
        with lake_errors(f"a probe of {job.table}"):
            table = self.lake.table(job.table)
            if table is None:
                # The files are not to blame, so none may go to quarantine.
                return JobError("notFound", f"table {job.table} does not exist", transient=True)
            try:
                ParquetWriter(table, job, "", self._open_uri).check()
            except LoadError as error:
                return JobError(error.reason, error.message, transient=False)
        return None

    def compare(self, job: LoadJob, limit: int = 10, which: Comparable = EVERYTHING) -> RowComparison:
        from kbq_assets.adapters.duckdb.comparison import compare_tables  # not for workers

        with self._reading(job.table) as table:
            if table is None:
                return RowComparison(0)
            try:
                files = ParquetWriter(table, job, "", self._open_uri).read()
            except LoadError as error:
                raise JobFailed(f"the files do not load into {job.table}: {error.message}") from error
            rows = queries.rows_of_others(table, files)
            return compare_tables(files, rows, schema.columns_in(table), limit, which)

    def columns(self, table: TableReference) -> tuple[Column, ...] | None:
        """A table's columns; None if it does not exist. Nested fields are NULLABLE or REPEATED."""
        with lake_errors(str(table)):
            stored = self.lake.table(table)
            return None if stored is None else schema.columns_in(stored)

    def find_table(self, table: TableReference) -> StoredTable | None:
        with lake_errors(str(table)):
            stored = self.lake.table(table)
            return None if stored is None else schema.stored_table(stored)

    def create_table(self, table: TableReference, columns: Iterable[Column], options: TableOptions) -> None:
        """Create a table. By default it is partitioned by schema version, day and hour, and sorted by its clustering
        columns."""
        wanted = tuple(columns)
        with lake_errors(str(table)), contextlib.suppress(TableAlreadyExistsError):
            self.lake.create_namespace(table.dataset)
            new = schema.new_schema(wanted)
            self.lake.catalog.create_table(
                (table.dataset, table.table),
                new,
                partition_spec=schema.new_spec(new, options),
                sort_order=schema.new_order(new, options),
                properties=schema.new_properties(wanted, options),
            )

    def update_columns(
        self, table: TableReference, columns: Iterable[Column], notes: TableNotes | None = None
    ) -> None:
        """Add missing columns and nested fields, relax columns that are now NULLABLE, and update descriptions."""
        with lake_errors(str(table)):
            stored = self.lake.table(table)
            if stored is None:
                raise NotFound(f"table {table} does not exist", next_step="create it first")
            schema.update(stored, columns, notes or TableNotes())

    def tables(self) -> tuple[TableReference, ...]:
        """All tables with Kafka positions, sorted."""
        with lake_errors("the list of tables"):
            return tuple(sorted(_kafka_tables(self.lake)))

    def positions(
        self, table: TableReference, range_: KafkaRange, offset: int | None = None
    ) -> Mapping[int, int]:
        """Rows per offset; empty if there is no such table."""
        with self._reading(table) as stored:
            return {} if stored is None else queries.positions(stored, range_, offset)

    def kafka_ranges(self, table: TableReference) -> Mapping[KafkaRange, int]:
        """Rows per topic, partition and epoch; empty if there is no such table."""
        with self._reading(table) as stored:
            return {} if stored is None else queries.rows_per_range(stored)

    def kafka_summary(
        self, table: TableReference, since: date | None = None
    ) -> Mapping[KafkaRange, OffsetSummary]:
        """Rows, distinct offsets and their bounds per topic, partition and epoch."""
        with self._reading(table) as stored:
            return {} if stored is None else queries.summaries(stored, since)

    def doubled_offsets(
        self, tables: Sequence[TableReference], since: date | None = None, limit: int = 10
    ) -> tuple[DoubledOffset, ...]:
        with lake_errors("a query"):
            found = {reference: self.lake.table(reference) for reference in dict.fromkeys(tables)}
            return queries.doubled({r: t for r, t in found.items() if t is not None}, since, limit)

    def error_rows(self, table: TableReference, query: ErrorQuery) -> tuple[ErrorRow, ...]:
        """Rows of an error table, newest first; () if there is no such table."""
        with self._reading(table) as stored:
            return () if stored is None else queries.error_rows(stored, query)

    def mark_complete(self, table: TableReference, until_hour: int) -> bool:
        """Move the tag `complete_until` to the table's current snapshot."""
        with self._reading(table) as stored:
            return stored is not None and tag_complete(stored, until_hour)

    @contextmanager
    def _reading(self, table: TableReference) -> Iterator[Table | None]:
        with lake_errors(str(table)):
            yield self.lake.table(table)


def _kafka_tables(lake: IcebergLake) -> Iterator[TableReference]:
    for namespace in lake.catalog.list_namespaces():
        for reference in lake.references(namespace):
            stored = lake.own_table(reference)
            if stored is not None and schema.has_positions(stored):
                yield reference


def _status(record: JobRecord, table: Table | None) -> JobStatus:
    uris: tuple[str, ...] = ()
    if record.sources.startswith(_NOT_FILES):
        uris = (record.sources,)
    elif record.sources and table is not None:
        with table.io.new_input(record.sources).open() as stream:
            uris = tuple(json.loads(stream.read()))
    elif record.sources or record.reason:
        uris = ("(no files)",)
    return JobStatus(record.job_id, "DONE", uris, record.rows, record.error, record.at_ms)


def _check_place(project: str, location: str) -> None:
    """Raise ConfigurationError for a job submitted to another warehouse, which must not count as never inserted."""
    if (project, location) != (LOCAL, LOCAL):
        raise ConfigurationError(
            f"a job of project {project!r}, location {location!r} is not in an Iceberg warehouse",
            next_step="set KBQ_WAREHOUSE to the job's warehouse until no job is open",
        )
