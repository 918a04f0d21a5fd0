"""Drops what a lake's table need not keep: rows by age, then old snapshots and orphans (PROTOCOL C8)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kbq_assets.core.compaction.expiry import ExpiryPlan, plan_expiry
from kbq_assets.core.errors import KbqError, TransientError
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.pipelines.compaction.table import existing_view
from kbq_assets.ports.compaction import Compaction, Tidied

#: Attempts to drop rows from a table that changes meanwhile. Then the next run continues.
_ATTEMPTS: Final = 20


@dataclass(frozen=True)
class ExpiryReport:
    """The rows and files dropped from a table. ``message`` is the reason for stopping early; ``transient``: whether the
    next run may continue."""

    table: TableReference
    rows: int = 0
    files: int = 0
    tidied: Tidied = field(default_factory=Tidied)
    message: str = ""
    transient: bool = False


def expire_table(compaction: Compaction, table: TableReference, days: int, now_ms: int) -> ExpiryReport:
    """Drop a table's old rows, snapshots and orphans. An error is in the report."""
    dropped = ExpiryPlan(table, days)
    try:
        dropped = _drop(compaction, table, days, now_ms)
        tidied = compaction.tidy(table)
    except KbqError as error:
        is_transient = isinstance(error, TransientError)
        return ExpiryReport(table, dropped.rows, len(dropped.paths), Tidied(), str(error), is_transient)
    return ExpiryReport(table, dropped.rows, len(dropped.paths), tidied)


def _drop(compaction: Compaction, table: TableReference, days: int, now_ms: int) -> ExpiryPlan:
    for _ in range(_ATTEMPTS):
        view = existing_view(compaction, table)
        plan = plan_expiry(view, days, now_ms)
        if not plan.paths or compaction.drop_files(view, plan.paths):
            return plan
    raise TransientError(
        f"{table} changed {_ATTEMPTS} times while its old rows were dropped",
        next_step="the next run continues",
    )
