"""Decides which windows of a table with `order: hour` may become visible (PROTOCOL O8). Pure functions.

A window's hour is that of its highest business time. A window is released once all partitions have passed the previous
hours. Released windows are loaded hour by hour.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Final

from kbq_assets.core.loading.batches import WindowQueues
from kbq_assets.core.loading.completeness import HOUR_MS, SourcePartition, hour_text
from kbq_assets.core.protocol.commits import StagedFile

#: No window waits, because the progress of the partitions is unknown.
_ANY: Final = 2**63


@dataclass(frozen=True)
class Release:
    """The last ``hour`` whose windows may become visible. Windows beyond ``horizon`` come from a fast clock, so they
    have no hour and do not wait. ``why`` names the partition that holds back later hours.
    """

    hour: int = _ANY
    horizon: int = _ANY
    why: str = ""

    def hour_of(self, window: Iterable[StagedFile]) -> int:
        """The hour of a window's highest business time; 0 if it has none."""
        hour = max(file.events.newest_ms for file in window) // HOUR_MS
        return hour if hour <= self.horizon else 0

    def allows(self, window: Iterable[StagedFile]) -> bool:
        """Whether a window may become visible."""
        return self.hour_of(window) <= self.hour


ALL_HOURS: Final = Release()


def release_of(slowest: Iterable[SourcePartition], written_ms: int) -> Release:
    """The hours that the slowest partitions of a table's topics release. ``written_ms`` is when their commits were last
    written. If no topic has a watermark, nothing waits."""
    last = min(slowest, key=lambda each: (each.until, each.topic_partition), default=None)
    return Release(last.until, written_ms // HOUR_MS + 1, last.why) if last else ALL_HOURS


def released(queues: WindowQueues, release: Release) -> WindowQueues:
    """The windows of each partition before the first one that waits."""
    cut = {tp: list(takewhile(release.allows, windows)) for tp, windows in queues.items()}
    return {tp: windows for tp, windows in cut.items() if windows}


def of_first_hour(queues: WindowQueues, release: Release) -> WindowQueues:
    """The windows of the first hour, by partition. If a window of a later hour also has rows of an hour in the batch,
    the batch is extended to that window, so that they become visible together."""
    reach = {tp: list(accumulate(map(release.hour_of, windows), max)) for tp, windows in queues.items()}
    hour, wanted = -1, min(hours[0] for hours in reach.values())
    while hour != wanted:
        hour = wanted
        wanted = max((r for tp in queues for r, w in zip(reach[tp], queues[tp], strict=True) if _begins(w) < hour),
                     default=hour)  # fmt: skip
        wanted = max(wanted, hour)
    chosen = {tp: windows[: sum(each <= hour for each in reach[tp])] for tp, windows in queues.items()}
    return {tp: windows for tp, windows in chosen.items() if windows}


def late_rows(files: Iterable[StagedFile], until: int) -> int:
    """The number of rows of complete hours: those before ``until``."""
    return sum(rows for file in files for hour, rows in file.events.hours.items() if hour < until)


def why_waiting(queues: WindowQueues, release: Release) -> str:
    """The reason that no window may become visible, as text; "" if one may."""
    if not queues or released(queues, release):
        return ""
    first = min(release.hour_of(windows[0]) for windows in queues.values())
    return f"rows of {hour_text(first)} wait until all partitions have passed that time: {release.why}"


def _begins(window: Iterable[StagedFile]) -> int:
    """The first hour that a window lists rows of."""
    return min((hour for file in window for hour in file.events.hours), default=_ANY)
