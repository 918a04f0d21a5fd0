"""Detects tables that drop rows by age although their options keep them.

BigQuery gives new tables the default expirations of their dataset. If a row belongs to an expired partition, a load job
drops it and succeeds.
"""

from __future__ import annotations

from typing import Final

from kbq_assets.core.errors import WrongOptions
from kbq_assets.core.loading.table_notes import StoredTable
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.names import TableReference

_DAY_MS: Final = 86_400_000


def drops_rows(stored: StoredTable, expiry_days: int) -> str:
    """How a table drops rows that ``expiry_days`` (0: no expiry) would keep; "" if it does not."""
    if stored.expires:
        return "the table as a whole expires"
    kept = stored.partition_expiry_ms
    if not kept or (expiry_days and kept >= expiry_days * _DAY_MS):
        return ""
    wanted = counted(expiry_days, "day") if expiry_days else "without an end"
    kept_days = counted(kept / _DAY_MS, "day")
    return f"its partitions expire after {kept_days}, but partition_expiry_days keeps them {wanted}"


def require_rows_kept(table: TableReference, stored: StoredTable | None, expiry_days: int) -> None:
    """Raise WrongOptions for a table that would drop rows, because a load would succeed without them."""
    if stored is not None and (why := drops_rows(stored, expiry_days)):
        raise WrongOptions(
            f"table {table}: {why}: it would drop loaded rows, so nothing is loaded",
            next_step=_next_step(str(table), stored),
        )


def _next_step(place: str, stored: StoredTable) -> str:
    """How an operator keeps the rows, or accepts that they are dropped."""
    option = "expiration_timestamp" if stored.expires else "partition_expiration_days"
    keep = f"bq query --use_legacy_sql=false 'ALTER TABLE `{place}` SET OPTIONS ({option}=NULL)'"
    if stored.expires:
        return f"{keep} (refused in a project without billing), then resume the table"
    days = max(1, stored.partition_expiry_ms // _DAY_MS)
    return f"{keep}, or agree by partition_expiry_days={days} on the topic; then resume the table"
