"""The `Warehouse` port over BigQuery."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from datetime import date

from google.cloud import bigquery

from kbq_assets.adapters.bigquery import catalog, load_jobs, probe, queries, schema
from kbq_assets.adapters.bigquery.erasure import BigQueryErasureTables
from kbq_assets.adapters.bigquery.errors_replay import BigQueryErrorReplays
from kbq_assets.adapters.bigquery.outcomes import calls
from kbq_assets.adapters.bigquery.replay import BigQueryReplayTables
from kbq_assets.adapters.bigquery.session import Session
from kbq_assets.adapters.bigquery.statements import BigQueryStatements
from kbq_assets.adapters.clock import SystemClock
from kbq_assets.core.errors import ConfigurationError, JobFailed, NotFound
from kbq_assets.core.loading.batches import LoadLimits
from kbq_assets.core.loading.table_notes import StoredTable, TableNotes
from kbq_assets.core.loading.tables import Column, TableOptions
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.ports.clock import Clock
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


class BigQueryWarehouse:
    """BigQuery: ``project`` runs the jobs, and ``location`` is where jobs run and datasets are created.

    The default `LoadLimits` are BigQuery's limits for one job. Repeatable calls are retried for ``patience_seconds``. A
    job's insertion is sent once. ``datasets`` is the datasets' project; "" means ``project``. ``kms_key`` encrypts
    everything that the warehouse creates. Threads may share it.
    """

    session = nullcontext
    limits: LoadLimits = LoadLimits()
    verifies: bool = False
    compares: bool = True

    def __init__(
        self,
        client: bigquery.Client,
        project: str,
        location: str,
        *,
        clock: Clock | None = None,
        patience_seconds: float = 60.0,
        datasets: str = "",
        kms_key: str = "",
    ) -> None:
        self.project = project
        self.location = location
        self._session = Session(client, project, location, patience_seconds, datasets, kms_key)
        self._clock = clock or SystemClock()
        self.statements: Statements | None = BigQueryStatements(self._session)
        self.errors_replay: ErrorReplays | ErrorReplaySteps | None = BigQueryErrorReplays(
            self._session, clock or SystemClock()
        )
        self.erasures: ErasureTables | None = BigQueryErasureTables(self._session)
        self.replays = BigQueryReplayTables(self._session)

    # Jobs -------------------------------------------------------------------------------------------------------

    def insert_job(self, job: LoadJob) -> None:
        """Submit a load. Raises the errors in the table in `outcomes`."""
        self._session.insert_load(
            job, self._session.reference(job.table, job.project), load_jobs.JOB_TIMEOUT_MS
        )

    def get_job(
        self, job_id: str, project: str, location: str, table: TableReference | None = None
    ) -> JobStatus | None:
        """A job's status; None if BigQuery has no such id in the location."""
        found = self._session.find_job(job_id, project, location)
        return found and self.replays.settled(found)

    def burn_job(self, job_id: str, project: str, location: str, table: TableReference | None = None) -> None:
        """Use up an id with a free query that reads nothing."""
        try:
            self._session.insert_burn(job_id, project, location)
        except JobFailed as error:
            # Another id would fail too.
            raise ConfigurationError(error.message, next_step=error.next_step) from error

    def cancel_job(
        self, job_id: str, project: str, location: str, table: TableReference | None = None
    ) -> None:
        with contextlib.suppress(NotFound), calls(f"job {job_id}", "bigquery.jobs.update"):
            self._session.client.cancel_job(job_id, project, location, **self._session.repeated)

    def compare(self, job: LoadJob, limit: int = 10, which: Comparable = EVERYTHING) -> RowComparison:
        """Compare a job's files with the table's rows. The query reads all columns of the partitions of the files'
        dates."""
        return probe.compare(self._session, self._clock, job, limit, which)

    def probe(self, job: LoadJob) -> JobError | None:
        """Load the files into a scratch table with the same columns, in the same dataset.

        After a crash, the scratch table remains for an hour. Only an error that blames the files is permanent.
        """
        return probe.probe(self._session, self._clock, job)

    # Tables -----------------------------------------------------------------------------------------------------

    def columns(self, table: TableReference) -> tuple[Column, ...] | None:
        found = self.find_table(table)
        return None if found is None else found.columns

    def find_table(self, table: TableReference) -> StoredTable | None:
        if (found := self._session.find_table(table)) is None:
            return None
        return schema.stored_table(found)

    def create_table(self, table: TableReference, columns: Iterable[Column], options: TableOptions) -> None:
        """Create a table with the options' partitioning, and its dataset in this warehouse's location."""
        catalog.create(self._session, table, tuple(columns), options)

    def update_columns(
        self, table: TableReference, columns: Iterable[Column], notes: TableNotes | None = None
    ) -> None:
        """Add, relax and describe columns. The table's etag prevents overwriting a concurrent change."""
        catalog.update(self._session, table, tuple(columns), notes or TableNotes())

    def tables(self) -> tuple[TableReference, ...]:
        """All tables with positions in datasets of this location, sorted."""
        return catalog.with_positions(self._session)

    # Rows -------------------------------------------------------------------------------------------------------

    def positions(
        self, table: TableReference, range_: KafkaRange, offset: int | None = None
    ) -> Mapping[int, int]:
        """Rows per offset; empty if there is no such table."""
        if (found := self._session.find_table(table)) is None:
            return {}
        rows = self._session.query(str(table), queries.positions(found, range_, offset))
        return {offset: count for offset, count in rows}

    def kafka_ranges(self, table: TableReference) -> Mapping[KafkaRange, int]:
        """Rows per topic, partition and epoch; empty if there is no such table."""
        if (found := self._session.find_table(table)) is None:
            return {}
        rows = self._session.query(str(table), queries.kafka_ranges(found))
        return {KafkaRange(*row[:3]): row[3] for row in rows}

    def kafka_summary(
        self, table: TableReference, since: date | None = None
    ) -> Mapping[KafkaRange, OffsetSummary]:
        """Rows, distinct offsets and their bounds per topic, partition and epoch."""
        if (found := self._session.find_table(table)) is None:
            return {}
        rows = self._session.query(str(table), queries.kafka_summary(found, since))
        return {KafkaRange(*row[:3]): OffsetSummary(*row[3:]) for row in rows}

    def doubled_offsets(
        self, tables: Sequence[TableReference], since: date | None = None, limit: int = 10
    ) -> tuple[DoubledOffset, ...]:
        existing = catalog.find_all(self._session, tables)
        if not existing:
            return ()
        query = queries.doubled_offsets(list(existing.values()), since, limit)
        names = list(existing)
        return tuple(
            DoubledOffset(KafkaRange(*row[:3]), row[3], tuple(sorted(names[number] for number in row[4])))
            for row in self._session.query("doubled offsets", query)
        )

    def error_rows(self, table: TableReference, query: ErrorQuery) -> tuple[ErrorRow, ...]:
        """Rows of an error table, newest first; () if there is no such table."""
        if (found := self._session.find_table(table)) is None:
            return ()
        rows = self._session.query(str(table), queries.error_rows(found, query))
        return tuple(map(queries.error_row, rows))
