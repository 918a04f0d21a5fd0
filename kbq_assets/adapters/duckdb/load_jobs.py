"""The table of load jobs, ``_kbq.kbq_jobs``. A job is one row, written in the same transaction as its data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import duckdb

from kbq_assets.adapters.duckdb.database import DuckDbDatabase, storage_errors
from kbq_assets.core.errors import JobAlreadyExists
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.ports.warehouse import JobError, JobStatus

SCHEMA: Final = "_kbq"
JOBS: Final = f"{SCHEMA}.kbq_jobs"
TYPES: Final = f"{SCHEMA}.kbq_types"
NOTES: Final = f"{SCHEMA}.kbq_notes"

_TABLES: Final = f"""
CREATE SCHEMA IF NOT EXISTS {SCHEMA};
CREATE TABLE IF NOT EXISTS {JOBS} (
    job_id VARCHAR PRIMARY KEY,
    state VARCHAR NOT NULL,
    "table" VARCHAR,
    source_uris VARCHAR[] NOT NULL,
    output_rows BIGINT NOT NULL,
    error_reason VARCHAR,
    error_message VARCHAR,
    error_transient BOOLEAN,
    labels JSON NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT current_timestamp
);
CREATE TABLE IF NOT EXISTS {TYPES} (
    dataset VARCHAR,
    "table" VARCHAR,
    path VARCHAR,
    type VARCHAR NOT NULL,
    PRIMARY KEY (dataset, "table", path)
);
CREATE TABLE IF NOT EXISTS {NOTES} (
    dataset VARCHAR,
    "table" VARCHAR,
    path VARCHAR,
    kind VARCHAR,
    text VARCHAR NOT NULL,
    PRIMARY KEY (dataset, "table", path, kind)
);
"""


@contextmanager
def writing(database: DuckDbDatabase) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection for writing to a database in which KBQ's own tables exist."""
    with storage_errors(), database.writing() as connection:
        create_tables(connection)
        yield connection


def create_tables(connection: duckdb.DuckDBPyConnection) -> None:
    """Create KBQ's own tables unless they exist."""
    connection.execute(_TABLES)


def find(connection: duckdb.DuckDBPyConnection, job_id: str) -> JobStatus | None:
    """A job's status; None if there is no such job, or no table of jobs yet."""
    try:
        rows = connection.execute(
            "SELECT state, source_uris, output_rows, error_reason, error_message, error_transient,"
            " labels->>'statement'"
            f" FROM {JOBS} WHERE job_id = ?",
            [job_id],
        ).fetchall()
    except duckdb.CatalogException:
        return None
    if not rows:
        return None
    [(state, uris, output_rows, reason, message, transient, statement)] = rows
    error = None if reason is None else JobError(reason, message, transient)
    return JobStatus(job_id, state, tuple(uris), output_rows, error, statement=statement or "")


def record(
    connection: duckdb.DuckDBPyConnection,
    status: JobStatus,
    table: TableReference | None = None,
    labels: Mapping[str, str] | None = None,
) -> None:
    """Write a job's row. Raises JobAlreadyExists."""
    error = status.error
    values = [
        status.job_id,
        status.state,
        None if table is None else str(table),
        list(status.source_uris),
        status.output_rows,
        error and error.reason,
        error and error.message,
        error and error.transient,
        json.dumps({**(labels or {}), **({"statement": status.statement} if status.statement else {})}),
    ]
    try:
        connection.execute(
            f'INSERT INTO {JOBS} (job_id, state, "table", source_uris, output_rows, error_reason,'
            " error_message, error_transient, labels) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            values,
        )
    except duckdb.ConstraintException as conflict:
        raise JobAlreadyExists(
            f"job {status.job_id} exists", next_step="get the job and compare its files"
        ) from conflict


def set_output_rows(connection: duckdb.DuckDBPyConnection, job_id: str, rows: int) -> None:
    """Set the number of rows of a loaded job, in its transaction."""
    connection.execute(f"UPDATE {JOBS} SET output_rows = ? WHERE job_id = ?", [rows, job_id])
