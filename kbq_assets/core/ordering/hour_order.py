"""Which windows of a table with `order: hour` may become visible (PROTOCOL O8). Pure.

A window has the hour of its highest business time. It is released when every partition has passed the hours before
that one. Released windows are loaded hour by hour.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Final

from kbq_assets.core.loading.batches import WindowQueues
from kbq_assets.core.loading.completeness import HOUR_MS, SourcePartition, hour_text
from kbq_assets.core.protocol.commits import StagedFile

#: No window waits: nothing says how far the partitions are.
_ANY: Final = 2**63


@dataclass(frozen=True)
class Release:
    """Up to which hour windows may become visible.

    Windows beyond ``horizon`` come from a clock that is ahead: they have no hour, and wait for none. ``why`` names the
    partition that holds later hours back.
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
    """The hours that the slowest partitions of a table's topics release; ``written_ms`` is when their commits were
    written last. A table whose topics have no watermark waits for nothing."""
    last = min(slowest, key=lambda each: (each.until, each.topic_partition), default=None)
    return Release(last.until, written_ms // HOUR_MS + 1, last.why) if last else ALL_HOURS


def released(queues: WindowQueues, release: Release) -> WindowQueues:
    """Per partition the windows before the first one that waits."""
    cut = {tp: list(takewhile(release.allows, windows)) for tp, windows in queues.items()}
    return {tp: windows for tp, windows in cut.items() if windows}


def of_first_hour(queues: WindowQueues, release: Release) -> WindowQueues:
    """Per partition the windows of the first hour. A window that also has rows of an earlier hour, or follows a later
    window and has some, becomes visible together with that hour: the batch reaches up to it."""
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
    """How many rows are of hours before ``until``, from which on a table is not complete."""
    return sum(rows for file in files for hour, rows in file.events.hours.items() if hour < until)


def why_waiting(queues: WindowQueues, release: Release) -> str:
    """Why no window may become visible, as text; "" if one may."""
    if not queues or released(queues, release):
        return ""
    first = min(release.hour_of(windows[0]) for windows in queues.values())
    return f"rows of {hour_text(first)} wait until all partitions have passed that time: {release.why}"


def _begins(window: Iterable[StagedFile]) -> int:
    """The first hour that a window lists rows of."""
    return min((hour for file in window for hour in file.events.hours), default=_ANY)
