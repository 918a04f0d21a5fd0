"""The days that a lake's tables are compacted by, as partitions of assets."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Final

import dagster as dg

#: Earlier days have no partition here; the job compacts them too.
DAYS: Final = dg.DailyPartitionsDefinition("2015-01-01", end_offset=2)
_EPOCH: Final = date(1970, 1, 1)


def day_of(partition: str) -> int:
    """Days since 1970 of a partition."""
    return (date.fromisoformat(partition) - _EPOCH).days


def partition_of(day: int) -> str | None:
    """The partition of a day; None for one that has none."""
    found = _EPOCH + timedelta(day)
    return found.isoformat() if DAYS.start.date() <= found <= datetime.now(UTC).date() else None
