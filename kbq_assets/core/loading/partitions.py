"""Time units of table partitions: days and months by `event_date`, hours by a time column."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kbq_assets.core.loading.batches import LoadLimits

HOUR, DAY, MONTH = "hour", "day", "month"
PARTITION_UNITS: Final = (HOUR, DAY, MONTH)
#: The business time, else Kafka's time. The first of them that a table has determines its hours.
TIMES: Final = ("_event_time", "_kafka_timestamp")
_FIRST_OWN: Final = "_kafka_topic"
_HOURS_A_DAY: Final = 24


def time_column(names: Iterable[str]) -> str:
    """The column that determines a row's hour, "" if there is none. KBQ's columns come after the record's, which may
    have the same name."""
    ordered = [name.lower() for name in names]
    own = ordered[ordered.index(_FIRST_OWN) :] if _FIRST_OWN in ordered else ()
    return next((name for name in TIMES if name in own), "")


def limits_by(limits: LoadLimits, units: Iterable[str]) -> LoadLimits:
    """A warehouse's limits, counted in days: a day of an hourly table may change 24 partitions. A month counts as its
    days, more than it really uses. Warehouses without daily quotas have no such limits."""
    if not limits.jobs_per_day or HOUR not in units:
        return limits
    return replace(
        limits,
        time_partitions=limits.time_partitions // _HOURS_A_DAY,
        changes_per_day=limits.changes_per_day // _HOURS_A_DAY,
        partitions=limits.partitions // _HOURS_A_DAY,
    )
