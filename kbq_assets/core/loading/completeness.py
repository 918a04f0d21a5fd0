"""Decides which hours of a table are complete, by business time (docs/completeness.md). Pure functions.

Hours are numbers: whole hours since 1970, UTC. An hour is complete once every source partition of the table has passed
its end by the topic's safety threshold, and every row staged for it is loaded or given up by an operator. It stays
complete: rows loaded later count as late, in the swap that records them as loaded.
"""

from __future__ import annotations

import dataclasses
import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, NamedTuple

from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.codec import Stored
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.protocol.watermarks import Watermark

HOUR_MS: Final = 3_600_000
#: Most hours with rows in a table's state (two weeks): this many before the first incomplete hour, and both the first
#: and the last this many from there on. The limit is needed because producers may write any date, and a table may be
#: parked for long.
KEPT_HOURS: Final = 336

#: Beyond every hour.
_NEVER: Final = 2**63

_TIME: Final = {"type": "long", "logicalType": "timestamp-micros"}
_FIELDS: Final = {
    "table_name": "string",
    "hour": _TIME,
    "complete": "boolean",
    "completed_at": ["null", _TIME],
    "row_count": "long",
    "late_rows": "long",
}
#: Schema of `_kbq_completeness`. `table` and `rows` are reserved words in some warehouses.
HOUR_SCHEMA: Final = json.dumps(
    {"type": "record", "name": "hour", "fields": [{"name": n, "type": t} for n, t in _FIELDS.items()]}
)


@dataclass(frozen=True)
class TableHours(Stored):
    """A table's hours, in its state."""

    #: hours below this are complete; 0 if none is known
    until: int = 0
    #: loaded rows by hour
    rows: Mapping[int, int] = field(default_factory=dict)
    #: rows loaded into hours that were already complete
    late: Mapping[int, int] = field(default_factory=dict)
    #: when (ms, the store's time) the hours below each key became complete
    completed: Mapping[int, int] = field(default_factory=dict)
    #: rows and late rows of hours that are not listed
    older_rows: int = 0
    older_late: int = 0
    #: ranges of folded hours beyond ``until``: first hour to the hour after the last; they are never listed again
    unlisted: Mapping[int, int] = field(default_factory=dict)

    @property
    def late_rows(self) -> int:
        """All rows that were loaded after their hour was complete."""
        return self.older_late + sum(self.late.values())

    @property
    def first(self) -> int:
        """The hour from which on hours without rows are listed too."""
        return max(min(self.completed, default=self.until), self.until - KEPT_HOURS)

    def lists(self, hour: int) -> bool:
        """Whether an hour's own count is known, because it was never folded."""
        return not any(first <= hour < end for first, end in self.unlisted.items())

    def completed_ms(self, hour: int) -> int | None:
        """When an hour became complete; None if it is not."""
        return next((at for until, at in sorted(self.completed.items()) if hour < until), None)


def with_rows(hours: TableHours, files: Iterable[StagedFile]) -> TableHours:
    """The hours after a batch of files was loaded. Rows in complete hours also count as late."""
    files = list(files)
    loaded: Counter[int] = Counter()
    for file in files:
        loaded.update(file.events.hours)
    # A file rewritten without erased rows still counts them in its hours, because their hours are not known (X3).
    unlisted = sum(max(0, file.rows - sum(file.events.hours.values())) for file in files)
    if not files:
        return hours
    late = {hour: rows for hour, rows in loaded.items() if hour < hours.until}
    return _bounded(
        dataclasses.replace(
            hours,
            rows=_sum(hours.rows, loaded),
            late=_sum(hours.late, late),
            older_rows=hours.older_rows + unlisted,
        )
    )


def advance(hours: TableHours, until: int, now_ms: int) -> TableHours:
    """Mark the hours below ``until`` as complete. Never moves backward."""
    if until <= hours.until:
        return hours
    kept = sorted({**hours.completed, until: now_ms}.items())[-KEPT_HOURS:]
    return dataclasses.replace(hours, until=until, completed=dict(kept))


def _sum(left: Mapping[int, int], right: Mapping[int, int]) -> dict[int, int]:
    return {hour: left.get(hour, 0) + right.get(hour, 0) for hour in sorted({**left, **right})}


def _bounded(hours: TableHours) -> TableHours:
    """Keep `KEPT_HOURS` before ``until``, plus the first and the last `KEPT_HOURS` after it; fold the rest into totals.

    A folded hour is never listed again, because its count would be too low.
    """
    listed = [hour for hour in sorted(hours.rows) if hours.lists(hour)]
    split = bisect_left(listed, hours.until)
    below, above = listed[:split], listed[split:]
    middle = above[KEPT_HOURS:-KEPT_HOURS]
    kept = {*below[-KEPT_HOURS:], *above}.difference(middle)
    dropped = hours.rows.keys() - kept
    if not dropped:
        return hours
    return dataclasses.replace(
        hours,
        rows={hour: rows for hour, rows in hours.rows.items() if hour in kept},
        late={hour: rows for hour, rows in hours.late.items() if hour in kept},
        older_rows=hours.older_rows + sum(hours.rows[hour] for hour in dropped),
        older_late=hours.older_late + sum(hours.late.get(hour, 0) for hour in dropped),
        unlisted=_with_middle(hours.unlisted, middle, above) if middle else hours.unlisted,
    )


def _with_middle(unlisted: Mapping[int, int], middle: list[int], above: list[int]) -> dict[int, int]:
    """Add the range of folded hours, or extend the range between the same listed hours.

    Hours folded before ``until`` need no range: `KEPT_HOURS` listed hours follow them, and hours that far back are
    shown only if they have rows.
    """
    low, high = above[KEPT_HOURS - 1], above[-KEPT_HOURS]
    inside = {first: end for first, end in unlisted.items() if low < first < high}
    others = {first: end for first, end in unlisted.items() if first not in inside}
    return {**others, min([middle[0], *inside]): max([middle[-1] + 1, *inside.values()])}


@dataclass(frozen=True)
class SourcePartition:
    """A Kafka partition whose records go to a table."""

    topic_partition: TopicPartition
    watermark: Watermark = field(default_factory=Watermark)
    #: the topic's safety threshold
    safety_ms: int = 900_000
    #: when the watermark was written, by the store
    written_ms: int = 0
    #: the reason that extraction does not continue, "" if it does
    problem: str = ""

    @property
    def passed_ms(self) -> int:
        """The business time that the partition has passed."""
        return self.watermark.passed_ms(self.safety_ms, self.written_ms)

    @property
    def until(self) -> int:
        """Hours below this one are complete in this partition."""
        return max(0, (self.passed_ms - self.safety_ms) // HOUR_MS)

    @property
    def why(self) -> str:
        """The reason that later hours are not complete, as text."""
        passed = (
            f"has passed {moment(self.passed_ms)}" if self.passed_ms > 0 else "is not read to its end yet"
        )
        return f"{self.topic_partition} {passed}{f': {self.problem}' if self.problem else ''}"


@dataclass(frozen=True)
class Verdict:
    """The time up to which a table is complete, and the cause that delays its next hour."""

    table: TableReference
    #: hours below this are complete
    until: int
    #: a partition, `staged files`, `quarantined files` or `nobody`
    held_by: str = ""
    #: the reason as text
    why: str = ""


def judge(
    table: TableReference,
    hours: TableHours,
    slowest: Iterable[SourcePartition],
    waiting: Iterable[StagedFile],
    blocked: str = "",
    refused: Iterable[StagedFile] = (),
) -> Verdict:
    """The time up to which a table is complete.

    ``slowest`` is the slowest partition of each of its topics. ``waiting`` are staged files that are not loaded,
    ``refused`` those that the warehouse rejected and no operator gave up. ``blocked`` is the reason that nothing is
    known now, such as a parked table. Files with only rows of complete hours delay nothing: their rows are late in any
    case.
    """
    partitions = list(slowest)
    if blocked or not partitions:
        why = blocked or "no extracted topic has records for it"
        return Verdict(table, hours.until, "" if blocked else "nobody", why)
    partition = min(partitions, key=lambda f: (f.until, not f.problem, f.topic_partition))
    missing = _first_missing(waiting, hours.until), _first_missing(refused, hours.until)
    (first, many), held_by = min(zip(missing, ("staged files", "quarantined files"), strict=True))
    if first >= partition.until:
        return Verdict(
            table, max(hours.until, partition.until), str(partition.topic_partition), partition.why
        )
    rows = f"the first with rows of {moment(first * HOUR_MS)}"
    why = f"{counted(many, 'staged file is', 'staged files are')} not loaded, {rows}"
    if held_by == "quarantined files":
        why = f"{counted(many, 'file is', 'files are')} in quarantine, {rows}"
        why += f"; to continue without such files: kbq resume --table {table}"
    return Verdict(table, max(hours.until, first), held_by, why)


def slowest_of(partitions: Iterable[SourcePartition]) -> SourcePartition | None:
    """The partition that delays its topic; on a tie one with a problem, then the first."""
    return min(partitions, key=lambda f: (f.until, not f.problem, f.topic_partition), default=None)


def _first_missing(files: Iterable[StagedFile], until: int) -> tuple[int, int]:
    """The first incomplete hour that files may have rows of, and the number of files that may have rows of incomplete
    hours."""
    found = [file for file in files if _last_hour(file) >= until]
    return min((_first_hour(file, until) for file in found), default=_NEVER), len(found)


def _first_hour(file: StagedFile, until: int) -> int:
    """The first incomplete hour that a file may have rows of."""
    if sum(file.events.hours.values()) < file.rows:  # it does not list the hours of some rows
        return max(until, min(file.dates, default=0) * 24)
    return min(hour for hour in file.events.hours if hour >= until)


def _last_hour(file: StagedFile) -> int:
    if sum(file.events.hours.values()) < file.rows:
        if not file.dates:
            return _NEVER  # it may have rows of any date
        return max((*file.events.hours, *((day + 1) * 24 - 1 for day in file.dates)))
    return max(file.events.hours, default=-1)


class HourRow(NamedTuple):
    """A row of `_kbq_completeness`."""

    table: str
    hour: int
    complete: bool
    completed_ms: int | None
    rows: int
    late: int


def hour_rows(table: TableReference, hours: TableHours) -> Iterator[HourRow]:
    """A table's listed hours in order: those with rows, and complete ones without rows. Leaves out folded hours."""
    steps = sorted(hours.completed.items())
    known = {*hours.rows, *(hour for hour in range(hours.first, hours.until) if hours.lists(hour))}
    for hour in sorted(known):
        while steps and steps[0][0] <= hour:
            steps.pop(0)
        rows, late = hours.rows.get(hour, 0), hours.late.get(hour, 0)
        complete = hour < hours.until
        yield HourRow(table.table, hour, complete, steps[0][1] if complete and steps else None, rows, late)


def moment(ms: int) -> str:
    """A time to the minute. Example: ``2026-01-31 10:00``."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def hour_text(hour: int) -> str:
    """The beginning of an hour as text; "" for 0."""
    return moment(hour * HOUR_MS) if hour else ""
