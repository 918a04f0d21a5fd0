"""When a table's next load job may start (PROTOCOL L2).

BigQuery allows 1,500 load jobs per table and day, failed ones included: https://cloud.google.com/bigquery/quotas#load_jobs.
Half of them start as soon as there are files. The rest are spaced until the first half is older than a day, and files
wait in larger batches. A tenth is kept for retries.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kbq_assets.core.protocol.codec import Stored

_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS


@dataclass(frozen=True)
class JobCounts(Stored):
    """Jobs that a table submitted in the last day, per hour since 1970.

    All times are the store's, in ms since 1970. An hour counts until its last possible job is a day old.
    """

    hours: Mapping[int, int] = field(default_factory=dict)
    last_ms: int = 0

    def add(self, now_ms: int) -> JobCounts:
        """With one more job, and without hours older than a day."""
        hours = {hour: count for hour, count in self.hours.items() if _end_ms(hour) > now_ms}
        this = now_ms // _HOUR_MS
        return dataclasses.replace(self, hours={**hours, this: hours.get(this, 0) + 1}, last_ms=now_ms)

    def used(self, now_ms: int) -> int:
        """Jobs that count at ``now_ms``."""
        return sum(count for hour, count in self.hours.items() if _end_ms(hour) > now_ms)

    def below_ms(self, bound: int, now_ms: int) -> int:
        """The first time from ``now_ms`` on with fewer than ``bound`` jobs, if none is added."""
        used = self.used(now_ms)
        for hour in sorted(self.hours):
            if used < bound:
                break
            if _end_ms(hour) > now_ms:
                used, now_ms = used - self.hours[hour], _end_ms(hour)
        return now_ms


def next_job_ms(jobs: JobCounts, per_day: int, now_ms: int, *, retry: bool = False) -> int:
    """When a table's next job may start; ``now_ms`` or earlier means at once. 0 jobs ``per_day`` is no bound."""
    bound = per_day if retry else per_day - per_day // 10
    used, half = jobs.used(now_ms), per_day // 2
    if not per_day:
        return now_ms
    if used >= bound:
        return jobs.below_ms(bound, now_ms)
    if retry or used < half:
        return now_ms
    return jobs.last_ms + (jobs.below_ms(half, now_ms) - now_ms) // (bound - used)


def _end_ms(hour: int) -> int:
    """When the last job of an hour is a day old."""
    return (hour + 1) * _HOUR_MS + _DAY_MS
