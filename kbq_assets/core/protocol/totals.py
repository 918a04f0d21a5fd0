"""What is counted beside the data: histograms with fixed bounds, and the totals that state objects carry.

Totals of a topic change in the swap that publishes its windows, those of a table in the swap that records its job:
exact whatever crashes, and never twice. What no such swap knows is kept by runs, best effort
(core/observation/run_totals.py).
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:  # commits carry what is defined here
    from kbq_assets.core.protocol.commits import StagedFile, Window

#: Upper bounds in rows. The first seven are Kafka BigQuery Express's; its batches are smaller than windows.
BATCH_ROWS: Final = (10, 100, 1_000, 5_000, 10_000, 25_000, 50_000, 100_000, 500_000, 1_000_000, 5_000_000)
#: Upper bounds in seconds. From 30 on they are Kafka BigQuery Express's.
LATENCY_SECONDS: Final = (1, 5, 10, 30, 60, 120, 180, 240, 300, 600)
#: Upper bounds in seconds of the way from the log to the staging area or to the warehouse.
READY_SECONDS: Final = (10, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 21_600, 86_400)


@dataclass(frozen=True)
class Histogram:
    """Observations per bucket, and their sum. ``counts`` are not cumulative; buckets at the end without any are left
    out, the one after the last bound holds what is above it. The bounds stand beside it, and never change."""

    counts: tuple[int, ...] = ()
    sum: float = 0.0

    def observe(self, bounds: Sequence[int], value: float) -> Histogram:
        """One more observation."""
        bucket = bisect_left(bounds, value)
        counts = [*self.counts, *[0] * (bucket + 1 - len(self.counts))]
        counts[bucket] += 1
        return Histogram(tuple(counts), round(self.sum + value, 3))

    def __add__(self, other: Histogram) -> Histogram:
        short, long = sorted((self.counts, other.counts), key=len)
        padded = (*short, *[0] * (len(long) - len(short)))
        return Histogram(
            tuple(a + b for a, b in zip(padded, long, strict=True)), round(self.sum + other.sum, 3)
        )

    @property
    def count(self) -> int:
        """All observations."""
        return sum(self.counts)


@dataclass(frozen=True)
class WindowTotals:
    """What a commit published since it was created, or since this version: ``files``, their ``bytes`` per dataset
    before compression, and of each window with rows how many they were, how long it took from its first batch to its
    publication, and how old its oldest record was then. ``last_ms`` is the last publication, by a local clock."""

    files: int = 0
    bytes: Mapping[str, int] = field(default_factory=dict)
    rows: Histogram = field(default_factory=Histogram)
    latency: Histogram = field(default_factory=Histogram)
    staged: Histogram = field(default_factory=Histogram)
    last_ms: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)

    def published(self, window: Window, seconds: float, now_ms: int) -> WindowTotals:
        """With one more window. Its age is by two clocks: never below 0."""
        if not window.files:
            return dataclasses.replace(self, last_ms=now_ms)
        sizes = dict(self.bytes)
        for file in window.files:
            sizes[file.table.dataset] = sizes.get(file.table.dataset, 0) + file.raw_bytes
        return dataclasses.replace(
            self,
            files=self.files + len(window.files),
            bytes=sizes,
            rows=self.rows.observe(BATCH_ROWS, sum(file.rows for file in window.files)),
            latency=self.latency.observe(LATENCY_SECONDS, seconds),
            staged=_with_age(self.staged, window.files, now_ms),
            last_ms=now_ms,
        )


@dataclass(frozen=True)
class JobTotals:
    """What became of a table's jobs since its state was created, or since this version: those that ended with an error,
    ``files`` that were loaded or set aside, and how old the oldest record of a job was when it was recorded as loaded.
    ``last_ms`` is when that last happened, by a local clock."""

    failed: int = 0
    files: int = 0
    loaded: Histogram = field(default_factory=Histogram)
    last_ms: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)

    def with_success(self, files: Sequence[StagedFile], set_aside: int, now_ms: int) -> JobTotals:
        """With one more job that loaded ``files``, while others were set aside."""
        loaded = _with_age(self.loaded, files, now_ms)
        return dataclasses.replace(
            self, files=self.files + len(files) + set_aside, loaded=loaded, last_ms=now_ms
        )

    def with_failure(self) -> JobTotals:
        """With one more job that ended with an error."""
        return dataclasses.replace(self, failed=self.failed + 1)


def _with_age(ages: Histogram, files: Iterable[StagedFile], now_ms: int) -> Histogram:
    oldest = min((file.oldest_ms for file in files if file.oldest_ms > 0), default=0)
    return ages.observe(READY_SECONDS, max(0.0, (now_ms - oldest) / 1000)) if oldest else ages
