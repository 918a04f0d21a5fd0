"""The warehouse port on BigQuery."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from google.api_core import exceptions as api
from google.cloud import bigquery
from google.cloud.bigquery.retry import DEFAULT_JOB_RETRY, DEFAULT_RETRY

from kbq_assets.adapters.bigquery import jobs, queries, schema
from kbq_assets.adapters.bigquery.outcomes import calls, insertion, reason_of
from kbq_assets.adapters.clock import SystemClock
from kbq_assets.core.errors import (
    ConfigurationError,
    InvalidName,
    JobFailed,
    KbqError,
    NotFound,
    Unavailable,
    UnknownOutcome,
)
from kbq_assets.core.loading import LoadLimits
from kbq_assets.core.names import TableReference
from kbq_assets.core.tables import Column, TableOptions
from kbq_assets.ports.clock import Clock
from kbq_assets.ports.warehouse import (
    DoubledOffset,
    ErrorQuery,
    ErrorRow,
    JobError,
    JobStatus,
    KafkaRange,
    LoadJob,
    OffsetSummary,
)

#: Of one HTTP request. BigQuery answers within seconds; a job with 10,000 URIs needs a little longer.
TIMEOUT_SECONDS: Final = 60.0
#: Of a query, from its submission to its last row but one page.
QUERY_SECONDS: Final = 600.0
#: Of a probe's job. Its scratch table lives longer, so that a file is not blamed for a table that is gone.
PROBE_SECONDS: Final = 1800.0
SCRATCH_LIFE: Final = timedelta(hours=1)
#: A change of a table is tried anew when somebody else was faster.
_UPDATES: Final = 5
_LISTING_THREADS: Final = 8
#: No retry by the client. Its type hints forget that it may be None.
_ONCE: Final[Any] = None


class BigQueryWarehouse:
    """BigQuery, where jobs of ``project`` run in ``location``, and datasets are created.

    One job holds what `LoadLimits` say by default: 10,000 URIs and 15 TB. Calls that may be repeated are, for
    ``patience_seconds``; a job's insertion is sent once. Threads may share it.
    """

    limits: LoadLimits = LoadLimits()

    def __init__(
        self,
        client: bigquery.Client,
        project: str,
        location: str,
        *,
        clock: Clock | None = None,
        patience_seconds: float = 60.0,
        poll_seconds: float = 2.0,
    ) -> None:
        self.project = project
        self.location = location
        self._client = client
        self._clock = clock or SystemClock()
        self._retry = DEFAULT_RETRY.with_timeout(patience_seconds)
        self._query_retry = DEFAULT_JOB_RETRY.with_timeout(patience_seconds)
        self._poll_seconds = poll_seconds

    # Jobs -------------------------------------------------------------------------------------------------------

    def insert_job(self, job: LoadJob) -> None:
        """Submit a load. Its outcomes are those of the table in `outcomes`."""
        self._insert(job, self._reference(job.table, job.project))

    def get_job(self, job_id: str, project: str, location: str) -> JobStatus | None:
        """A job's status, None when BigQuery has no such id in that place."""
        with calls(f"job {job_id}", "bigquery.jobs.get"):
            try:
                job = self._client.get_job(
                    job_id, project, location, retry=self._retry, timeout=TIMEOUT_SECONDS
                )
            except api.NotFound as error:
                # Another server's "not found" is not BigQuery's.
                if reason_of(error) != "notFound":
                    raise Unavailable(
                        f"job {job_id}: an answer that is not BigQuery's: {error}",
                        next_step="check KBQ_BIGQUERY_ENDPOINT",
                    ) from error
                return None
        return jobs.status_of(job_id, job)

    def burn_job(self, job_id: str, project: str, location: str) -> None:
        """Use an id up with a query that reads nothing and costs nothing."""
        config = bigquery.QueryJobConfig(labels=dict(jobs.BURNED), use_legacy_sql=False)
        try:
            with insertion(f"job {job_id} of project {project}"):
                self._client.query(
                    jobs.BURN_SQL,
                    job_config=config,
                    job_id=job_id,
                    project=project,
                    location=location,
                    retry=_ONCE,
                    job_retry=None,
                    timeout=TIMEOUT_SECONDS,
                )
        except JobFailed as error:
            raise ConfigurationError(error.message, next_step=error.next_step) from error

    def cancel_job(self, job_id: str, project: str, location: str) -> None:
        """Ask a job to stop. One that is not there, or has ended, is left alone."""
        with contextlib.suppress(NotFound), calls(f"job {job_id}", "bigquery.jobs.update"):
            self._client.cancel_job(job_id, project, location, retry=self._retry, timeout=TIMEOUT_SECONDS)

    def probe(self, job: LoadJob) -> JobError | None:
        """Load the files into a scratch table of the real one's shape, in its dataset.

        A crash leaves the scratch table for an hour. Only an error that speaks against the files is permanent.
        """
        real = self._find_table(job.table)
        if real is None:
            return JobError("notFound", f"table {job.table} does not exist", transient=True)
        scratch = self._create_scratch(job.table, real)
        try:
            error = self._load_scratch(job, scratch)
        finally:
            # It expires by itself.
            with contextlib.suppress(KbqError), calls(f"table {scratch}", "bigquery.tables.delete"):
                self._client.delete_table(
                    scratch, retry=self._retry, timeout=TIMEOUT_SECONDS, not_found_ok=True
                )
        return jobs.probe_error(error) if error else None

    # Tables -----------------------------------------------------------------------------------------------------

    def columns(self, table: TableReference) -> tuple[Column, ...] | None:
        """A table's columns, None when it does not exist."""
        found = self._find_table(table)
        return None if found is None else tuple(map(schema.column_of, schema.api_fields(found.schema)))

    def create_table(self, table: TableReference, columns: Iterable[Column], options: TableOptions) -> None:
        """Create a table, partitioned by day, and its dataset in this warehouse's location."""
        new = schema.new_table(self._reference(table), tuple(columns), options)
        self._create_dataset(table.dataset)
        with calls(f"table {table}", "bigquery.tables.create"):
            self._client.create_table(new, exists_ok=True, retry=self._retry, timeout=TIMEOUT_SECONDS)

    def update_columns(self, table: TableReference, columns: Iterable[Column]) -> None:
        """Add and relax, by the etag that was read with the columns, so that nobody's change is overwritten."""
        wanted = tuple(columns)
        for _ in range(_UPDATES):
            found = self._find_table(table)
            if found is None:
                raise NotFound(f"table {table} does not exist", next_step="run the load again: it creates it")
            if self._update(found, wanted):
                return
        raise Unavailable(
            f"table {table}: others change it all the time",
            next_step="see who does; the next run tries again",
        )

    def tables(self) -> tuple[TableReference, ...]:
        """All tables with positions in datasets of this location.

        One query of INFORMATION_SCHEMA per dataset: of its columns and kinds, without a request per table. By dataset
        and not by region, which would need permissions on the whole project.
        """
        with calls(f"project {self.project}", "bigquery.datasets.get"):
            listed = list(
                self._client.list_datasets(self.project, retry=self._retry, timeout=TIMEOUT_SECONDS)
            )
        names = [item.dataset_id for item in listed if self._is_here(item)]
        with ThreadPoolExecutor(_LISTING_THREADS, "kbq-tables") as pool:
            found = [table for tables in pool.map(self._tables_of, names) for table in tables]
        return tuple(sorted(found))

    # Rows -------------------------------------------------------------------------------------------------------

    def positions(self, table: TableReference, range_: KafkaRange) -> Mapping[int, int]:
        """Rows per offset; empty when there is no such table."""
        if (found := self._find_table(table)) is None:
            return {}
        return {offset: rows for offset, rows in self._query(str(table), queries.positions(found, range_))}

    def kafka_ranges(self, table: TableReference) -> Mapping[KafkaRange, int]:
        """Rows per topic, partition and epoch; empty when there is no such table."""
        if (found := self._find_table(table)) is None:
            return {}
        return {KafkaRange(*key): rows for *key, rows in self._query(str(table), queries.kafka_ranges(found))}

    def kafka_summary(
        self, table: TableReference, since: date | None = None
    ) -> Mapping[KafkaRange, OffsetSummary]:
        """Rows, distinct offsets and their bounds per topic, partition and epoch."""
        if (found := self._find_table(table)) is None:
            return {}
        rows = self._query(str(table), queries.kafka_summary(found, since))
        return {KafkaRange(*row[:3]): OffsetSummary(*row[3:]) for row in rows}

    def doubled_offsets(
        self, tables: Sequence[TableReference], since: date | None = None, limit: int = 10
    ) -> tuple[DoubledOffset, ...]:
        """The lowest offsets with several rows, per topic, partition and epoch."""
        names = tuple(dict.fromkeys(tables))
        with ThreadPoolExecutor(_LISTING_THREADS, "kbq-tables") as pool:
            found = dict(zip(names, pool.map(self._find_table, names), strict=True))
        existing = {name: table for name, table in found.items() if table is not None}
        if not existing:
            return ()
        rows = self._query("doubled offsets", queries.doubled_offsets(list(existing.values()), since, limit))
        sources = list(existing)
        return tuple(
            DoubledOffset(KafkaRange(*row[:3]), row[3], tuple(sorted(sources[number] for number in row[4])))
            for row in rows
        )

    def error_rows(self, table: TableReference, query: ErrorQuery) -> tuple[ErrorRow, ...]:
        """Rows of an error table, the newest first; () when there is no such table."""
        if (found := self._find_table(table)) is None:
            return ()
        return tuple(map(queries.error_row, self._query(str(table), queries.error_rows(found, query))))

    # Shared -----------------------------------------------------------------------------------------------------

    def _insert(
        self, job: LoadJob, target: bigquery.TableReference, timeout_ms: int = jobs.JOB_TIMEOUT_MS
    ) -> None:
        config = jobs.load_configuration(job, timeout_ms)
        with insertion(f"job {job.job_id} of table {job.table}"):
            self._client.load_table_from_uri(
                list(job.source_uris),
                target,
                job_id=job.job_id,
                project=job.project,
                location=job.location,
                job_config=config,
                retry=_ONCE,
                timeout=TIMEOUT_SECONDS,
            )

    def _create_scratch(self, name: TableReference, real: bigquery.Table) -> bigquery.TableReference:
        reference = bigquery.DatasetReference(self.project, name.dataset).table(
            f"{queries.PROBE_PREFIX}{uuid.uuid4().hex}"
        )
        fields = schema.schema_fields(map(schema.shape, schema.api_fields(real.schema)))
        scratch = bigquery.Table(reference, schema=fields)
        scratch.time_partitioning = real.time_partitioning
        scratch.range_partitioning = real.range_partitioning
        scratch.expires = datetime.now(UTC) + SCRATCH_LIFE
        with calls(f"scratch table {reference}", "bigquery.tables.create"):
            self._client.create_table(scratch, exists_ok=True, retry=self._retry, timeout=TIMEOUT_SECONDS)
        return reference

    def _load_scratch(self, job: LoadJob, scratch: bigquery.TableReference) -> JobError | None:
        """Load and wait. The id begins unlike those of tables, ``kbq-<uuid>-<sequence>``."""
        probe = LoadJob(
            f"kbq-probe-{uuid.uuid4().hex}",
            self.project, self.location, job.table, job.source_uris, job.schema, job.labels,
        )  # fmt: skip
        try:
            self._insert(probe, scratch, round(PROBE_SECONDS * 1000))
        except JobFailed as error:
            return JobError("refused", error.message, transient=True)
        except UnknownOutcome as error:
            # If it starts later, it finds no table.
            raise Unavailable(error.message, next_step="the next run probes again") from error
        return self._wait(probe.job_id).error

    def _wait(self, job_id: str) -> JobStatus:
        deadline = self._clock.monotonic() + PROBE_SECONDS
        while self._clock.monotonic() < deadline:
            status = self.get_job(job_id, self.project, self.location)
            if status is not None and status.state == "DONE":
                return status
            self._clock.sleep(self._poll_seconds)
        self.cancel_job(job_id, self.project, self.location)
        raise Unavailable(
            f"job {job_id} does not end in {PROBE_SECONDS:.0f} s", next_step="the next run probes again"
        )

    def _find_table(self, table: TableReference) -> bigquery.Table | None:
        try:
            with calls(f"table {table}", "bigquery.tables.get"):
                return self._client.get_table(
                    self._reference(table), retry=self._retry, timeout=TIMEOUT_SECONDS
                )
        except NotFound:
            return None

    def _create_dataset(self, name: str) -> None:
        """Create a dataset, unless it is there. One elsewhere would refuse every job."""
        reference = bigquery.DatasetReference(self.project, name)
        dataset = bigquery.Dataset(reference)
        dataset.location = self.location
        try:
            with calls(f"dataset {name}", "bigquery.datasets.get"):
                dataset = self._client.get_dataset(reference, retry=self._retry, timeout=TIMEOUT_SECONDS)
        except NotFound:
            with calls(f"dataset {name}", "bigquery.datasets.create"):
                dataset = self._client.create_dataset(
                    dataset, exists_ok=True, retry=self._retry, timeout=TIMEOUT_SECONDS
                )
        if not self._is_here(dataset):
            raise ConfigurationError(
                f"dataset {name} is in {dataset.location}, the warehouse in {self.location}",
                next_step=f"KBQ_WAREHOUSE=bigquery://{self.project}?location={dataset.location}, or another dataset",
            )

    def _is_here(self, dataset: Any) -> bool:
        """Whether a dataset, or one of a listing, is in this warehouse's location."""
        location = str(getattr(dataset, "location", None) or dataset._properties.get("location", ""))
        return location.lower() == self.location.lower()

    def _update(self, table: bigquery.Table, wanted: Iterable[Column]) -> bool:
        """Change a table's fields. False when it was changed since it was read."""
        before = schema.api_fields(table.schema)
        after = schema.updated(before, wanted)
        if after == before:
            return True
        table.schema = schema.schema_fields(after)
        try:
            with calls(f"table {table.dataset_id}.{table.table_id}", "bigquery.tables.update"):
                try:
                    self._client.update_table(table, ["schema"], retry=self._retry, timeout=TIMEOUT_SECONDS)
                except api.PreconditionFailed:
                    return False
        except NotFound:
            return False
        return True

    def _tables_of(self, dataset: str) -> list[TableReference]:
        """Tables with positions of a dataset. One that is gone, or may not be read, has none of ours."""
        try:
            rows = self._query(f"dataset {dataset}", queries.kafka_tables(self.project, dataset))
        except (NotFound, ConfigurationError):
            return []
        found = []
        for (name,) in rows:
            with contextlib.suppress(InvalidName):  # another's
                if not name.startswith(queries.PROBE_PREFIX):
                    found.append(TableReference(dataset, name))
        return found

    def _query(self, what: str, query: queries.Query) -> list[Any]:
        config = bigquery.QueryJobConfig(
            query_parameters=list(query.parameters), labels={"kbq": "read"}, use_legacy_sql=False
        )
        with calls(what, "bigquery.jobs.create and bigquery.tables.getData"):
            rows = self._client.query_and_wait(
                query.sql,
                job_config=config,
                project=self.project,
                location=self.location,
                api_timeout=TIMEOUT_SECONDS,
                wait_timeout=QUERY_SECONDS,
                retry=self._retry,
                job_retry=self._query_retry,
            )
            return [tuple(row) for row in rows]

    def _reference(self, table: TableReference, project: str = "") -> bigquery.TableReference:
        return bigquery.DatasetReference(project or self.project, table.dataset).table(table.table)
