"""The limit of bytes that a table's statements may be billed per day (PROTOCOL S9)."""

from __future__ import annotations

from typing import Final

from kbq_assets.core.errors import JobFailed
from kbq_assets.core.loading.table_state import JobInFlight, TableState
from kbq_assets.core.statements.table_statements import excess
from kbq_assets.pipelines.loading.table_run import TableRun
from kbq_assets.pipelines.statements.statement_job import statement_job

_DAY_MS: Final = 24 * 3_600_000


def today(run: TableRun) -> int:
    """The current day (UTC, since 1970), by the store's time."""
    return run.ports.store.now_ms() // _DAY_MS


def over_limit(run: TableRun, state: TableState, entry: JobInFlight) -> str:
    """The reason why the statement of a loaded batch must wait; "" if it may run. Takes a dry run if there is a
    limit."""
    statements, limit = run.ports.warehouse.statements, run.table_options(entry.files).bytes_per_day
    if not limit or statements is None:
        return ""
    job = statement_job(statements, run.table, entry)
    try:
        wanted = statements.bytes_billed(job.sql, job.project, job.location)
    except JobFailed:
        return ""  # the statement will fail too: nothing is billed, and that failure should be reported
    why = excess(wanted, state.definition.statements.billed_on(today(run)), limit)
    return why and f"batch {job.batch}: {why}"
