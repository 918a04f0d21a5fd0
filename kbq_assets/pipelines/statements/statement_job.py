"""The job of a statement that a table's state lists."""

from __future__ import annotations

from kbq_assets.core.loading.table_state import JobInFlight
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.statements.table_statements import digest_of
from kbq_assets.ports.statements import StatementJob, Statements


def statement_job(statements: Statements, table: TableReference, entry: JobInFlight) -> StatementJob:
    """The job of a statement in flight or a failed one. Its digest is unique, even if the same rows are loaded
    again."""
    assert entry.statement is not None
    sql = entry.statement.sql(statements.sql_name(entry.statement.scratch(table, entry.job_id)))
    number = entry.statement.number
    return StatementJob(entry.job_id, entry.project, entry.location, table, number, sql, digest_of(sql))
