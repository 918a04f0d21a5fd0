"""Totals stored in state objects for metrics, and histograms with fixed bounds.

A topic's totals change in the swap that publishes its windows, a table's in the swap that records its job. So crashes
neither lose nor double a count. All other totals are kept by runs, best effort (core/observation/run_totals.py).
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kbq_assets.core.protocol.codec import Stored

if TYPE_CHECKING:  # commits carry what is defined here
    from kbq_assets.core.protocol.commits import StagedFile, Window

#: Upper bounds in rows. The first seven are from Kafka BigQuery Express, whose batches are smaller than windows.
BATCH_ROWS: Final = (10, 100, 1_000, 5_000, 10_000, 25_000, 50_000, 100_000, 500_000, 1_000_000, 5_000_000)
#: Upper bounds in seconds. Those from 30 on are from Kafka BigQuery Express.
LATENCY_SECONDS: Final = (1, 5, 10, 30, 60, 120, 180, 240, 300, 600)
#: Upper bounds, in seconds, of the time from the log to staging or to the warehouse.
READY_SECONDS: Final = (10, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 21_600, 86_400)


@dataclass(frozen=True)
class Histogram(Stored):
    """Observations per bucket, and their sum. ``counts`` are not cumulative and end with the last nonempty bucket. The
    bucket after the last bound counts everything above it. The bounds are fixed, so they are not stored."""

    counts: tuple[int, ...] = ()
    sum: float = 0.0

    def observe(self, bounds: Sequence[int], values: Iterable[float]) -> Histogram:
        counts, total = list(self.counts), self.sum
        for value in values:
            bucket = bisect_left(bounds, value)
            counts += [0] * (bucket + 1 - len(counts))
            counts[bucket] += 1
            total = round(total + value, 3)
        return dataclasses.replace(self, counts=tuple(counts), sum=total)

    def __add__(self, other: Histogram) -> Histogram:
        short, long = sorted((self.counts, other.counts), key=len)
        padded = (*short, *[0] * (len(long) - len(short)))
        counts = tuple(a + b for a, b in zip(padded, long, strict=True))
        return dataclasses.replace(self, counts=counts, sum=round(self.sum + other.sum, 3))

    @property
    def count(self) -> int:
        return sum(self.counts)


@dataclass(frozen=True)
class WindowTotals(Stored):
    """Windows published since the commit was created, or since KBQ began to count them."""

    files: int = 0
    #: by dataset, before compression
    bytes: Mapping[str, int] = field(default_factory=dict)
    #: rows per nonempty window
    rows: Histogram = field(default_factory=Histogram)
    #: seconds from a window's first batch to its publication
    latency: Histogram = field(default_factory=Histogram)
    #: age of a window's oldest record at its publication
    staged: Histogram = field(default_factory=Histogram)
    #: the last publication, by a local clock
    last_ms: int = 0

    def published(self, windows: Collection[tuple[Window, float]], now_ms: int) -> WindowTotals:
        """The totals with more windows, each with the seconds since its first batch. Ages come from two clocks, so they
        may be negative; they count as 0 then."""
        if not windows:
            return self
        filled = [(window.files, seconds) for window, seconds in windows if window.files]
        sizes = dict(self.bytes)
        for file in (file for files, _ in filled for file in files):
            sizes[file.dataset] = sizes.get(file.dataset, 0) + file.raw_bytes
        return dataclasses.replace(
            self,
            files=self.files + sum(len(files) for files, _ in filled),
            bytes=sizes,
            rows=self.rows.observe(BATCH_ROWS, (sum(file.rows for file in files) for files, _ in filled)),
            latency=self.latency.observe(LATENCY_SECONDS, (seconds for _, seconds in filled)),
            staged=_with_ages(self.staged, (files for files, _ in filled), now_ms),
            last_ms=now_ms,
        )


@dataclass(frozen=True)
class JobTotals(Stored):
    """A table's jobs since its state was created, or since KBQ began to count them."""

    #: jobs that ended with an error
    failed: int = 0
    #: files loaded or quarantined
    files: int = 0
    #: age of a job's oldest record when the job was recorded as loaded
    loaded: Histogram = field(default_factory=Histogram)
    #: the last recorded success, by a local clock
    last_ms: int = 0

    def with_success(self, files: Sequence[StagedFile], set_aside: int, now_ms: int) -> JobTotals:
        """The totals with one more job that loaded ``files`` and quarantined ``set_aside`` files."""
        loaded = _with_ages(self.loaded, [files], now_ms)
        return dataclasses.replace(
            self, files=self.files + len(files) + set_aside, loaded=loaded, last_ms=now_ms
        )

    def with_failure(self) -> JobTotals:
        """The totals with one more job that ended with an error."""
        return dataclasses.replace(self, failed=self.failed + 1)


def _with_ages(ages: Histogram, groups: Iterable[Iterable[StagedFile]], now_ms: int) -> Histogram:
    """The histogram with the age of the oldest record of each group of files."""
    oldest = (min((file.oldest_ms for file in files if file.oldest_ms > 0), default=0) for files in groups)
    return ages.observe(READY_SECONDS, (max(0.0, (now_ms - first) / 1000) for first in oldest if first))
