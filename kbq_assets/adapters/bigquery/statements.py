"""Statements and ledgers in BigQuery (`ports.statements.Statements`).

A statement is one multi-statement query job: https://cloud.google.com/bigquery/docs/transactions. An error rolls its
transaction back. After an error that follows the COMMIT, the job has failed but its changes stay, so only the ledger
decides (S2).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from google.cloud import bigquery

from kbq_assets.adapters.bigquery import load_jobs, schema
from kbq_assets.adapters.bigquery.insertions import TIMEOUT_SECONDS, JobKey, insert_query
from kbq_assets.adapters.bigquery.outcomes import calls, insertion
from kbq_assets.adapters.bigquery.queries import Query, name_of
from kbq_assets.adapters.bigquery.renaming import sql_type
from kbq_assets.adapters.bigquery.session import Session
from kbq_assets.core.errors import ConfigurationError, JobFailed, NotFound, Unavailable, UnknownOutcome
from kbq_assets.core.loading.tables import Column
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.statements.dialects import BIGQUERY, Dialect
from kbq_assets.core.statements.side_tables import SCRATCH_PREFIX, ledger_table
from kbq_assets.core.statements.sql_tokens import split
from kbq_assets.ports.statements import LedgerRow, StatementJob

#: Lifetime of a scratch table that is not dropped. A batch that waits longer is loaded again.
SCRATCH_LIFE: Final = timedelta(days=7)
#: The minimum billed for a query that reads a table: https://cloud.google.com/bigquery/pricing#on_demand_pricing
LEAST_BILLED: Final = 10 * 2**20


class BigQueryStatements:
    """Runs statements with a session's client."""

    dialect: Dialect = BIGQUERY

    def __init__(self, session: Session) -> None:
        self._session = session

    def sql_name(self, table: TableReference) -> str:
        return name_of(self._session.reference(table))

    def create_scratch(self, table: TableReference, columns: Iterable[Column]) -> None:
        """Create an empty scratch table, unless it exists. It has the target's policy tags, so it reveals no more than
        the target. The loader's account must then be allowed to read the protected columns."""
        fields = [schema.field_of(_shape(column)) for column in columns]
        scratch = bigquery.Table(self._session.reference(table), schema=schema.schema_fields(fields))
        scratch.expires = datetime.now(UTC) + SCRATCH_LIFE
        if self._session.encryption:
            scratch.encryption_configuration = self._session.encryption
        with calls(f"scratch table {table}", "bigquery.tables.create"):
            self._session.client.create_table(scratch, exists_ok=True, **self._session.repeated)

    def drop_scratch(self, table: TableReference) -> None:
        with calls(f"scratch table {table}", "bigquery.tables.delete"):
            self._session.client.delete_table(
                self._session.reference(table), not_found_ok=True, **self._session.repeated
            )

    def scratch_tables(self, dataset: str) -> tuple[TableReference, ...]:
        """All scratch tables in a dataset, sorted; none if it does not exist."""
        place = bigquery.DatasetReference(self._session.data_project, dataset)
        try:
            with calls(f"dataset {dataset}", "bigquery.tables.list"):
                names = [
                    item.table_id
                    for item in self._session.client.list_tables(place, **self._session.repeated)
                ]
        except NotFound:
            return ()
        return tuple(
            TableReference(dataset, name) for name in sorted(names) if name.startswith(SCRATCH_PREFIX)
        )

    def open_ledger(self, target: TableReference) -> LedgerRow:
        """The ledger of a target, created if needed. Table and row are created together, so only one of two concurrent
        creators succeeds."""
        if (found := self.read_ledger(target)) is not None:
            return found
        name = self.sql_name(ledger_table(target))
        create = f"CREATE TABLE IF NOT EXISTS {name} AS SELECT 0 AS batch, FALSE AS skipped, '' AS digest"
        self._session.query(f"the ledger of {target}", Query(create))
        created = self.read_ledger(target)
        assert created is not None
        return created

    def read_ledger(self, target: TableReference) -> LedgerRow | None:
        if self._session.find_table(ledger_table(target)) is None:
            return None
        sql = f"SELECT batch, skipped, digest FROM {self.sql_name(ledger_table(target))}"
        rows = self._session.query(f"the ledger of {target}", Query(sql))
        if len(rows) != 1:
            raise ConfigurationError(
                f"the ledger {ledger_table(target)} has {len(rows)} rows instead of one",
                next_step="docs/operations.md#a-ledger-differs",
            )
        return LedgerRow(*rows[0])

    def skip(self, target: TableReference, batch: int, digest: str) -> LedgerRow | None:
        if self._session.find_table(ledger_table(target)) is None:
            return None
        sql = _raised(self.sql_name(ledger_table(target)), LedgerRow(batch, True, digest))
        self._session.query(f"the ledger of {target}", Query(sql))
        return self.read_ledger(target)

    def rows_of(self, sql: str, limit: int) -> list[str]:
        """The first rows of a query. A dry run first checks that the text is a single query."""
        job = self._dry_run(sql, self._session.project, self._session.location)
        if job.statement_type != "SELECT":
            raise JobFailed("the text is not a single query", next_step="write one SELECT")
        with calls("the query of a gate", "bigquery.jobs.create and bigquery.tables.getData"):
            rows = self._session.client.query_and_wait(
                sql,
                job_config=self._session.query_config(labels={"kbq": "gate"}),
                project=self._session.project,
                location=self._session.location,
                max_results=limit,
            )
            return [", ".join(f"{name}={value}" for name, value in row.items()) for row in rows]

    def insert(self, job: StatementJob) -> None:
        """Send a statement once. Raises the errors in the table of outcomes."""
        text = transaction(self.sql_name(ledger_table(job.target)), job)
        # No encryption key here: a script has no result table, and its tables have their own keys.
        config = bigquery.QueryJobConfig(
            use_legacy_sql=False,
            labels={load_jobs.STATEMENT: job.digest},
            job_timeout_ms=load_jobs.JOB_TIMEOUT_MS,
        )
        key = JobKey(job.job_id, job.project, job.location)
        insert_query(self._session.client, f" of table {job.target}", text, key, config)

    def bytes_billed(self, sql: str, project: str, location: str) -> int:
        """The estimated bytes: the sum of one dry run per statement, each at least BigQuery's minimum. A dry run of the
        whole script would return no reliable number. Raises JobFailed if BigQuery refuses the text."""
        found = (self._dry_run(text, project, location) for text in split(sql, BIGQUERY))
        read = [int(job.total_bytes_processed or 0) for job in found]
        return sum(max(LEAST_BILLED, each) for each in read if each)

    def empty(self, columns: Iterable[Column]) -> str:
        values = (f"CAST(NULL AS {sql_type(c)}) AS {BIGQUERY.quoted(c.name)}" for c in columns)
        return f"(SELECT {', '.join(values)})"

    def _dry_run(self, sql: str, project: str, location: str) -> bigquery.QueryJob:
        config = bigquery.QueryJobConfig(use_legacy_sql=False, dry_run=True, use_query_cache=False)
        try:
            with insertion("the dry run"):
                return self._session.client.query(
                    sql, job_config=config, project=project, location=location, timeout=TIMEOUT_SECONDS
                )
        except UnknownOutcome as error:
            raise Unavailable(error.message, next_step="the next load tries again") from error


def transaction(ledger: str, job: StatementJob) -> str:
    """The text of a statement's job. It first advances the ledger from the previous batch, which must change one row
    (S1)."""
    return "\n".join(
        (
            "BEGIN TRANSACTION;",
            f"{_raised(ledger, LedgerRow(job.batch, False, job.digest))};",
            "IF @@row_count != 1 THEN",
            f"  RAISE USING MESSAGE = 'kbq: the ledger is not at batch {job.batch - 1}';",
            "END IF;",
            f"{job.sql.rstrip().rstrip(';')};",
            "COMMIT TRANSACTION;",
        )
    )


def _raised(ledger: str, wanted: LedgerRow) -> str:
    batch, skipped, digest = wanted
    return (
        f"UPDATE {ledger} SET batch = {batch}, skipped = {str(skipped).upper()}, digest = '{digest}'"
        f" WHERE batch = {batch - 1}"
    )


def _shape(column: Column) -> Column:
    """A column without its description."""
    return replace(column, description="", fields=tuple(map(_shape, column.fields)))
