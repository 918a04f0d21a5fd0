"""Counts a file's rows per hour of their business times."""

from __future__ import annotations

from typing import Any

import numpy as np

from kbq_assets.core.protocol.commits import MOST_DATES, MOST_HOURS
from kbq_assets.wire.chunk import END_OF_TIME, Longs
from kbq_assets.wire.jit import kernel
from kbq_assets.wire.records.event_time import HOUR_MICROS, NO_TIME, kafka_times

_HOURS_A_DAY = 24
_HOUR_MILLIS = 3_600_000
#: If a chunk's times span at most this many hours, its rows are counted in an array.
_DENSE_HOURS = 4_096
#: Hours counted while a file is written, keeping those with the most rows. There may temporarily be twice as many.
_COUNTED_HOURS = 4 * MOST_HOURS


class HourCounter:
    """The rows of one file per hour, its days, and its newest time. Memory is bounded whatever the times are."""

    def __init__(self) -> None:
        self._days: set[int] = set()
        self._is_scattered = False
        self._hours: dict[int, int] = {}
        self._newest = NO_TIME

    def add(self, times: Longs, newest: int | None = None) -> None:
        """Count rows by their times. ``newest`` is the chunk's newest time, None for the highest of ``times``. Most
        chunks are within one hour, and need no work per row."""
        if not len(times):
            return
        highest = int(times.max())
        self._newest = max(self._newest, highest if newest is None else newest)
        first, last = int(times.min()) // HOUR_MICROS, highest // HOUR_MICROS
        if first == last:
            self._count(first, len(times))
        elif last - first < _DENSE_HOURS:
            counts = np.zeros(last - first + 1, np.int64)
            _count_hours(times, first, counts)
            there = np.flatnonzero(counts)
            for index, rows in zip(there.tolist(), counts[there].tolist(), strict=True):
                self._count(first + index, rows)
        else:
            found, rows_of = np.unique(times // HOUR_MICROS, return_counts=True)
            for start in range(0, len(found), _COUNTED_HOURS):
                part = slice(start, start + _COUNTED_HOURS)
                for hour, rows in zip(found[part].tolist(), rows_of[part].tolist(), strict=True):
                    self._count(hour, rows)
                self._forget()
        self._forget()

    def add_kafka(self, timestamps: Longs) -> None:
        """Count rows by Kafka's timestamps."""
        if not len(timestamps):
            return
        oldest, newest = int(timestamps.min()), int(timestamps.max())
        hour = oldest // _HOUR_MILLIS
        if hour == newest // _HOUR_MILLIS and oldest >= 0 and newest < END_OF_TIME:
            self._newest = max(self._newest, newest * 1000)
            self._count(hour, len(timestamps))
            self._forget()
        else:
            self.add(kafka_times(timestamps))

    @property
    def days(self) -> frozenset[int]:
        """The days since 1970 with rows; empty if there are more than `MOST_DATES`."""
        return frozenset() if self._is_scattered else frozenset(self._days)

    @property
    def hours(self) -> dict[int, int]:
        """Rows by hour since 1970, for the `MOST_HOURS` hours with the most rows, ascending."""
        return dict(sorted(_largest(self._hours, MOST_HOURS).items()))

    @property
    def newest_ms(self) -> int:
        """The newest time in milliseconds, 0 if there is none."""
        return 0 if self._newest == NO_TIME else self._newest // 1000

    def _count(self, hour: int, rows: int) -> None:
        self._hours[hour] = self._hours.get(hour, 0) + rows
        self._days.add(hour // _HOURS_A_DAY)

    def _forget(self) -> None:
        """If there are too many days or hours, stop listing days, and drop the hours with the fewest rows."""
        if self._is_scattered or len(self._days) > MOST_DATES:
            self._is_scattered = True
            self._days.clear()
        if len(self._hours) > 2 * _COUNTED_HOURS:
            self._hours = _largest(self._hours, _COUNTED_HOURS)


def _largest(hours: dict[int, int], most: int) -> dict[int, int]:
    if len(hours) <= most:
        return hours
    return dict(sorted(hours.items(), key=lambda item: (item[1], item[0]))[-most:])


@kernel
def _count_hours(times: Any, first: int, counts: Any) -> None:
    for k in range(len(times)):
        counts[times[k] // HOUR_MICROS - first] += 1
