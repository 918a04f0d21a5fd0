"""The units of time that tables are partitioned by: `event_date` gives days and months, a time the hours."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kbq_assets.core.loading.batches import LoadLimits

HOUR, DAY, MONTH = "hour", "day", "month"
PARTITION_UNITS: Final = (HOUR, DAY, MONTH)
#: Business time, else Kafka's: the first of them that a table has gives its hours.
TIMES: Final = ("_event_time", "_kafka_timestamp")
_FIRST_OWN: Final = "_kafka_topic"
_HOURS_A_DAY: Final = 24


def time_column(names: Iterable[str]) -> str:
    """The column that tells a row's hour, "" for none. KBQ's columns follow a record's own, which may have such a name
    too."""
    ordered = [name.lower() for name in names]
    own = ordered[ordered.index(_FIRST_OWN) :] if _FIRST_OWN in ordered else ()
    return next((name for name in TIMES if name in own), "")


def limits_by(limits: LoadLimits, units: Iterable[str]) -> LoadLimits:
    """A warehouse's limits, counted in days: a day of a table by hours may change 24 partitions. A month counts as its
    days, which is more than it costs. A warehouse without daily quotas has no such limits."""
    if not limits.jobs_per_day or HOUR not in units:
        return limits
    return replace(
        limits,
        time_partitions=limits.time_partitions // _HOURS_A_DAY,
        changes_per_day=limits.changes_per_day // _HOURS_A_DAY,
        partitions=limits.partitions // _HOURS_A_DAY,
    )
