"""Calls that several modules share, each with its timeout and retries."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from google.api_core import exceptions as api
from google.cloud import bigquery
from google.cloud.bigquery.retry import DEFAULT_JOB_RETRY, DEFAULT_RETRY

from kbq_assets.adapters.bigquery import load_jobs
from kbq_assets.adapters.bigquery.insertions import TIMEOUT_SECONDS, JobKey, insert_load, insert_query
from kbq_assets.adapters.bigquery.outcomes import calls, reason_of
from kbq_assets.adapters.bigquery.queries import Query
from kbq_assets.core.errors import NotFound, Unavailable
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.ports.warehouse import JobStatus, LoadJob

#: Timeout of a whole query.
QUERY_SECONDS: Final = 600.0


class Session:
    """A client with the project and location of its jobs. ``patience_seconds`` limits the retries of repeatable calls.
    ``datasets`` is the datasets' project if it differs. ``kms_key`` encrypts what the session creates. Threads may
    share it."""

    def __init__(
        self,
        client: bigquery.Client,
        project: str,
        location: str,
        patience_seconds: float,
        datasets: str = "",
        kms_key: str = "",
    ) -> None:
        self.client = client
        self.project = project
        self.location = location
        self._datasets = datasets
        #: If None, the defaults of the dataset and the project apply.
        self.encryption = bigquery.EncryptionConfiguration(kms_key) if kms_key else None
        #: Arguments of all calls except the insertion of a job.
        self.repeated: dict[str, Any] = {
            "retry": DEFAULT_RETRY.with_timeout(patience_seconds),
            "timeout": TIMEOUT_SECONDS,
        }
        self._query_retry = DEFAULT_JOB_RETRY.with_timeout(patience_seconds)

    @property
    def data_project(self) -> str:
        return self._datasets or self.project

    def reference(self, table: TableReference, project: str = "") -> bigquery.TableReference:
        """A table in the client's form. A job's ``project`` applies unless datasets have a project of their own."""
        place = self._datasets or project or self.project
        return bigquery.DatasetReference(place, table.dataset).table(table.table)

    def query_config(self, **options: Any) -> bigquery.QueryJobConfig:
        """The configuration of a query. Its result is encrypted with the key too."""
        config = bigquery.QueryJobConfig(use_legacy_sql=False, **options)
        if self.encryption:
            config.destination_encryption_configuration = self.encryption
        return config

    def insert_load(self, job: LoadJob, target: bigquery.TableReference, timeout_ms: int) -> None:
        """Send a load once. Raises the errors in the table of outcomes."""
        key, config = (
            JobKey(job.job_id, job.project, job.location),
            load_jobs.load_configuration(job, timeout_ms),
        )
        insert_load(self.client, f" of table {job.table}", job.source_uris, target, key, config)

    def insert_burn(self, job_id: str, project: str, location: str) -> None:
        """Send a query that reads nothing, once. Raises the errors in the table of outcomes."""
        config = self.query_config(labels=dict(load_jobs.BURNED))
        key = JobKey(job_id, project, location)
        insert_query(self.client, f" of project {project}", load_jobs.BURN_SQL, key, config)

    def find_job(self, job_id: str, project: str, location: str) -> JobStatus | None:
        """A job's status; None if BigQuery has no such id in the location."""
        with calls(f"job {job_id}", "bigquery.jobs.get"):
            try:
                job = self.client.get_job(job_id, project, location, **self.repeated)
            except api.NotFound as error:
                # A "not found" may come from another server, such as a proxy.
                if reason_of(error) != "notFound":
                    raise Unavailable(
                        f"job {job_id}: the response is not BigQuery's: {error}",
                        next_step="check KBQ_BIGQUERY_ENDPOINT",
                    ) from error
                return None
        status = load_jobs.status_of(job_id, job)
        if load_jobs.is_script_of_files(job):
            return dataclasses.replace(status, changed_rows=self._fewest_changed(job_id, project, location))
        return status

    def _fewest_changed(self, script: str, project: str, location: str) -> int:
        """The smallest number of rows that any statement of a script changed; -1 if no statement changes rows."""
        with calls(f"statements of job {script}", "bigquery.jobs.list"):
            listed = self.client.list_jobs(project, parent_job=script, **self.repeated)
            ids = [each.job_id for each in listed if load_jobs.changes_rows(each)]
        # A list may omit statistics.
        found = [self.find_job(each, project, location) for each in ids]
        return min((each.changed_rows for each in found if each is not None), default=-1)

    def find_table(self, table: TableReference) -> bigquery.Table | None:
        try:
            with calls(f"table {table}", "bigquery.tables.get"):
                return self.client.get_table(self.reference(table), **self.repeated)
        except NotFound:
            return None

    def bytes_read(self, what: str, query: Query) -> int:
        """The bytes that a query would read, from a dry run."""
        parameters = list(query.parameters)
        config = self.query_config(query_parameters=parameters, dry_run=True, use_query_cache=False)
        with calls(what, "bigquery.jobs.create"):
            job = self.client.query(
                query.sql,
                job_config=config,
                project=self.project,
                location=self.location,
                job_retry=None,
                **self.repeated,
            )
        return int(job.total_bytes_processed or 0)

    def query(self, what: str, query: Query, *, is_script: bool = False) -> list[tuple[Any, ...]]:
        """All rows of a query. A script accepts no encryption key, because it has no result table."""
        config = self.query_config(query_parameters=list(query.parameters), labels={"kbq": "read"})
        if is_script:
            config.destination_encryption_configuration = None
            config.labels = {"kbq": "replay"}
        with calls(what, "bigquery.jobs.create and bigquery.tables.getData"):
            rows = self.client.query_and_wait(
                query.sql,
                job_config=config,
                project=self.project,
                location=self.location,
                api_timeout=TIMEOUT_SECONDS,
                wait_timeout=QUERY_SECONDS,
                retry=self.repeated["retry"],
                job_retry=self._query_retry,
            )
            return [tuple(row) for row in rows]
