"""Files with rows of only one hour of business time (PROTOCOL O8), for topics with `order: hour`.

A window's hour is the highest that its unit has reached. The window ends before the first record of a later hour. Rows
of other hours, such as late rows, go to separate files, one per hour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kbq_assets.core.topics.ordering_options import LATE_SUFFIX
from kbq_assets.wire.chunk import Chunk, Longs
from kbq_assets.wire.files.window import Route
from kbq_assets.wire.records.event_time import HOUR_MICROS, event_times, kafka_times
from kbq_assets.wire.records.staged_schema import BodyKind
from kbq_assets.wire.records.verdicts import Captures

#: Most hours of a window with separate files. Rows of further hours share a file per table and schema, because every
#: open file takes memory and becomes an object, and producers may send any times.
MOST_HOURS: Final = 16
#: The key of the file for further hours.
OTHERS: Final = -(2**62)


class RouteRows(NamedTuple):
    """Good records of one chunk for one table and schema."""

    route: Route
    schema_id: int
    rows: Longs
    captures: Captures


@dataclass
class UnitHours:
    """The highest hour since 1970 that a unit has reached. Times are capped by the Kafka time, and records after
    ``horizon`` do not count, so a fast clock has no effect."""

    highest: int = 0
    horizon: int = 2**62
    #: the first hour whose rows a table accepts; rows of earlier hours go to its table of late rows
    late_before: Callable[[str], int] = lambda table: 0


@dataclass
class WindowHours:
    """Divides the rows of one window by their hours."""

    unit: UnitHours
    _own: dict[int, int] = field(default_factory=dict)

    def later(self, chunk: Chunk, parts: list[RouteRows], *, is_new: bool) -> int | None:
        """The first record of the chunk that belongs to the next window; None if there is none. If the window
        ``is_new`` (has no rows), its first row may set its hour."""
        rows = np.concatenate([part.rows for part in parts])
        order = np.argsort(rows)
        reached = np.concatenate([self._reached(chunk, part) for part in parts])[order]
        highest = self.unit.highest
        beyond = np.flatnonzero(reached > highest)
        if len(beyond) and is_new and not (reached[: beyond[0]] > 0).any():
            highest = int(reached[beyond[0]])
            beyond = np.flatnonzero(reached > highest)
        if len(beyond):
            return int(rows[order][beyond[0]])
        self.unit.highest = highest
        return None

    def divide(self, chunk: Chunk, parts: list[RouteRows]) -> Iterator[tuple[int, RouteRows]]:
        """The rows of all tables by the hour of their file."""
        hours = [_times(chunk, part)[0] // HOUR_MICROS for part in parts]
        self._own.setdefault(self.unit.highest, self.unit.highest)
        self._meet(np.concatenate(hours), np.concatenate([part.rows for part in parts]))
        for part, of_rows in zip(parts, hours, strict=True):
            is_late = of_rows < self.unit.late_before(part.route.table)
            late = replace(part.route, table=part.route.table + LATE_SUFFIX)
            for route, chosen in ((part.route, ~is_late), (late, is_late)):
                if chosen.all():
                    yield from self._by_file(part._replace(route=route), of_rows)
                elif chosen.any():
                    yield from self._by_file(_picked(part._replace(route=route), chosen), of_rows[chosen])

    def _by_file(self, part: RouteRows, hours: Longs) -> Iterator[tuple[int, RouteRows]]:
        """The rows of one table by the hour of their file."""
        found = np.unique(hours)
        files = np.array([self._own.get(hour, OTHERS) for hour in found.tolist()])
        if len(found) == 1:
            yield int(files[0]), part
            return
        file_of = files[np.searchsorted(found, hours)]
        for hour in np.unique(file_of).tolist():
            yield hour, _picked(part, file_of == hour)

    def _meet(self, hours: Longs, rows: Longs) -> None:
        """Assign files to new hours, in the order of their first records."""
        hours = hours[np.argsort(rows)]
        found, first = np.unique(hours, return_index=True)
        for hour in found[np.argsort(first)].tolist():
            if len(self._own) < MOST_HOURS:
                self._own.setdefault(hour, hour)

    def _reached(self, chunk: Chunk, part: RouteRows) -> Longs:
        """The hour up to which each record advances the window; -1 for records that do not count."""
        times, has_fallbacks = _times(chunk, part)
        known = kafka_times(chunk.timestamps[part.rows])
        reached = np.where(known > 0, np.minimum(times, known), times) // HOUR_MICROS
        idle = reached > self.unit.horizon
        if has_fallbacks:  # rows without a business time have the Kafka time
            idle |= times == known
        if part.route.schema.event_time and part.route.schema.body is BodyKind.EMPTY:
            idle[:] = True
        return np.where(idle, -1, reached)


def _picked(part: RouteRows, chosen: NDArray[np.bool_]) -> RouteRows:
    return part._replace(rows=part.rows[chosen], captures=part.captures.take(chosen))


def _times(chunk: Chunk, part: RouteRows) -> tuple[Longs, bool]:
    """The rows' business times, and whether some are Kafka times because the row has none."""
    schema = part.route.schema
    found = event_times(chunk, part.rows, part.captures, schema.event_unit, schema.metadata.bounds)
    if len(found.times):
        return found.times, found.fallbacks > 0
    return kafka_times(chunk.timestamps[part.rows]), False
