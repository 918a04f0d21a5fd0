"""Chooses data files of a lake's table whose rows are all too old to keep (PROTOCOL C8). Pure function."""

from __future__ import annotations

from dataclasses import dataclass

from kbq_assets.core.compaction.model import DAY_MS, LakeView
from kbq_assets.core.protocol.names import TableReference


@dataclass(frozen=True)
class ExpiryPlan:
    """Files to drop from a table that keeps ``days`` days; 0 keeps all."""

    table: TableReference
    days: int
    paths: tuple[str, ...] = ()
    rows: int = 0
    bytes: int = 0


def plan_expiry(view: LakeView, days: int, now_ms: int) -> ExpiryPlan:
    """Plan to drop the files of days that ended ``days`` days ago or earlier. A file without a day is kept, because its
    rows may be of any day."""
    today = now_ms // DAY_MS
    old = [file for file in view.files if days and file.day is not None and file.day + days < today]
    paths = tuple(file.path for file in old)
    return ExpiryPlan(view.table, days, paths, sum(f.rows for f in old), sum(f.bytes for f in old))
