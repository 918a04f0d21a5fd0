"""Decides when a table's next load job may start (PROTOCOL L2).

BigQuery allows 1,500 load jobs per table and day, including failed ones, which together may change 30,000 partitions,
and 100,000 load jobs per project and day: https://cloud.google.com/bigquery/quotas#load_jobs, #partitioned_tables. KBQ
uses the first half of a quota without delay. It spaces the rest evenly until the first half is older than a day, so
batches get larger. A tenth is reserved for retries.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from kbq_assets.core.protocol.codec import Stored

_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS


@dataclass(frozen=True)
class JobCounts(Stored):
    """A table's jobs of the last day, and the partitions that they changed, by hour since 1970. All times are the
    store's, in ms since 1970. An hour counts until its last possible job is a day old. ``days`` are all partitions ever
    written to the table, as ranges from a first day to the day after the last.
    """

    hours: Mapping[int, int] = field(default_factory=dict)
    last_ms: int = 0
    changes: Mapping[int, int] = field(default_factory=dict)
    days: Mapping[int, int] = field(default_factory=dict)

    def add(self, now_ms: int, changes: int = 0, days: Collection[int] = ()) -> JobCounts:
        """The counts with one more job and the number of partitions that it ``changes``. Drops hours older than a
        day."""
        return dataclasses.replace(
            self,
            hours=_plus(self.hours, 1, now_ms),
            last_ms=now_ms,
            changes=_plus(self.changes, changes, now_ms) if changes else self.changes,
            days=_ranges(self.days, days),
        )

    def used(self, now_ms: int) -> int:
        """Number of jobs that count at ``now_ms``."""
        return _used(self.hours, now_ms)

    def changed(self, now_ms: int) -> int:
        """Number of partition changes that count at ``now_ms``."""
        return _used(self.changes, now_ms)

    @property
    def partitions(self) -> int:
        """Number of partitions ever written to the table, including expired ones."""
        return sum(end - first for first, end in self.days.items())


def next_job_ms(jobs: JobCounts, per_day: int, now_ms: int, *, retry: bool = False) -> int:
    """When a table's next job may start; ``now_ms`` or earlier means now. ``per_day`` is the limit of jobs, 0 for
    none."""
    return _next_ms(jobs.hours, jobs.last_ms, 1, per_day, now_ms, retry)


def next_change_ms(jobs: JobCounts, wanted: int, per_day: int, now_ms: int, *, retry: bool = False) -> int:
    """When a job that changes ``wanted`` partitions may start; otherwise as `next_job_ms`."""
    return _next_ms(jobs.changes, jobs.last_ms, wanted, per_day, now_ms, retry)


def share_of(per_table: int, per_project: int, tables: int) -> int:
    """A table's jobs per day: its own quota, or its share of the project's if that is less."""
    return min(per_table, per_project // max(1, tables)) if per_project else per_table


def _next_ms(
    counts: Mapping[int, int], last_ms: int, wanted: int, per_day: int, now_ms: int, retry: bool
) -> int:
    bound = per_day if retry else per_day - per_day // 10
    used, half = _used(counts, now_ms), per_day // 2
    if not per_day or not wanted:
        return now_ms
    if used + wanted > bound:
        return _free_ms(counts, bound - wanted, now_ms)
    if retry or used + wanted <= half:
        return now_ms
    return last_ms + (_free_ms(counts, half - 1, now_ms) - now_ms) * wanted // (bound - used)


def _free_ms(counts: Mapping[int, int], most: int, now_ms: int) -> int:
    """The first time from ``now_ms`` on at which at most ``most`` count, if none are added."""
    used = _used(counts, now_ms)
    for hour in sorted(counts):
        if used <= most:
            break
        if _end_ms(hour) > now_ms:
            used, now_ms = used - counts[hour], _end_ms(hour)
    return now_ms


def _used(counts: Mapping[int, int], now_ms: int) -> int:
    return sum(count for hour, count in counts.items() if _end_ms(hour) > now_ms)


def _plus(counts: Mapping[int, int], more: int, now_ms: int) -> Mapping[int, int]:
    kept, this = {hour: n for hour, n in counts.items() if _end_ms(hour) > now_ms}, now_ms // _HOUR_MS
    return {**kept, this: kept.get(this, 0) + more}


def _ranges(known: Mapping[int, int], days: Collection[int]) -> Mapping[int, int]:
    """The ranges with these days added. Adjacent ranges are merged."""
    spans = sorted([*known.items(), *((day, day + 1) for day in days)])
    merged: dict[int, int] = {}
    first = end = None
    for begin, until in spans:
        if first is None or end is None or begin > end:
            first, end = begin, until
        merged[first] = end = max(end, until)
    return merged


def _end_ms(hour: int) -> int:
    """When the last possible job of an hour is a day old."""
    return (hour + 1) * _HOUR_MS + _DAY_MS
