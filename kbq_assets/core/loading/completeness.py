"""Which hours of a table are complete, by business time (docs/completeness.md). Pure.

Hours are numbers: whole hours since 1970, UTC. An hour is complete when every partition that feeds the table has passed
its end by the topic's safety threshold, and everything staged for it is loaded, or given up by an operator. Once
complete, it stays so: rows that come later are counted as late, in the swap that records that they are loaded.
"""

from __future__ import annotations

import dataclasses
import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.protocol.watermarks import Watermark

HOUR_MS: Final = 3_600_000
#: Hours with rows that a table's state lists, two weeks: so many before the first that is not complete, and from there
#: on as many of the next and as many of the last. Producers may write of any century, and a table may stand for long.
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
#: Of `_kbq_completeness`. Neither `table` nor `rows` may be a column's name everywhere.
HOUR_SCHEMA: Final = json.dumps(
    {"type": "record", "name": "hour", "fields": [{"name": n, "type": t} for n, t in _FIELDS.items()]}
)


@dataclass(frozen=True)
class TableHours:
    """What is known of a table's hours, in its state. ``rows`` are those loaded, ``late`` those that were loaded into
    hours already complete. ``completed``: hours below the key were complete by that time (ms, the store's clock).

    Hours below ``until`` are complete, 0 while none is known to be. ``older_rows`` and ``older_late`` are of hours
    that are listed no more, or never were. ``unlisted`` are ranges of hours beyond ``until`` of which rows were added
    up: each one's first hour, and the one after its last. They are not listed when their time comes.
    """

    until: int = 0
    rows: Mapping[int, int] = field(default_factory=dict)
    late: Mapping[int, int] = field(default_factory=dict)
    completed: Mapping[int, int] = field(default_factory=dict)
    older_rows: int = 0
    older_late: int = 0
    unlisted: Mapping[int, int] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def late_rows(self) -> int:
        """All rows that came after their hour was complete."""
        return self.older_late + sum(self.late.values())

    @property
    def first(self) -> int:
        """From here on hours without rows are listed, too."""
        return max(min(self.completed, default=self.until), self.until - KEPT_HOURS)

    def lists(self, hour: int) -> bool:
        """Whether all that is known of an hour's rows is counted for it."""
        return not any(first <= hour < end for first, end in self.unlisted.items())

    def completed_ms(self, hour: int) -> int | None:
        """When an hour was found complete; None while it is not."""
        return next((at for until, at in sorted(self.completed.items()) if hour < until), None)


def with_rows(hours: TableHours, files: Iterable[StagedFile]) -> TableHours:
    """After files are loaded: the batch's rows per hour, late where the hour was complete."""
    files = list(files)
    landed: Counter[int] = Counter()
    for file in files:
        landed.update(file.event_hours)
    unlisted = sum(file.rows for file in files) - landed.total()
    if not files:
        return hours
    late = {hour: rows for hour, rows in landed.items() if hour < hours.until}
    return _bounded(
        dataclasses.replace(
            hours,
            rows=_sum(hours.rows, landed),
            late=_sum(hours.late, late),
            older_rows=hours.older_rows + unlisted,
        )
    )


def advance(hours: TableHours, until: int, now_ms: int) -> TableHours:
    """Hours below ``until`` are complete now. Never goes back."""
    if until <= hours.until:
        return hours
    kept = sorted({**hours.completed, until: now_ms}.items())[-KEPT_HOURS:]
    return dataclasses.replace(hours, until=until, completed=dict(kept))


def _sum(left: Mapping[int, int], right: Mapping[int, int]) -> dict[int, int]:
    return {hour: left.get(hour, 0) + right.get(hour, 0) for hour in sorted({**left, **right})}


def _bounded(hours: TableHours) -> TableHours:
    """The latest hours before ``until``, the first and the last from there on, and the sums of the others: an hour of
    which a row was added up is never listed again, as its count would be too low."""
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
    """One range more, or one that covers those between the same listed hours. Hours that are dropped before ``until``
    need none: `KEPT_HOURS` listed ones are after them, and so far back no hour without rows is shown."""
    low, high = above[KEPT_HOURS - 1], above[-KEPT_HOURS]
    inside = {first: end for first, end in unlisted.items() if low < first < high}
    others = {first: end for first, end in unlisted.items() if first not in inside}
    return {**others, min([middle[0], *inside]): max([middle[-1] + 1, *inside.values()])}


@dataclass(frozen=True)
class Feeder:
    """A partition that feeds a table. ``safety_ms`` is its topic's threshold; ``written_ms`` when its mark was written,
    by the store. ``problem``: why it does not go on, "" if it does."""

    topic_partition: TopicPartition
    watermark: Watermark = field(default_factory=Watermark)
    safety_ms: int = 900_000
    written_ms: int = 0
    problem: str = ""

    @property
    def passed_ms(self) -> int:
        """The business time that it has passed."""
        return self.watermark.passed_ms(self.safety_ms, self.written_ms)

    @property
    def until(self) -> int:
        """Hours below this one are complete as far as this partition is concerned."""
        return max(0, (self.passed_ms - self.safety_ms) // HOUR_MS)

    @property
    def why(self) -> str:
        """Why later hours are not complete."""
        passed = (
            f"has passed {moment(self.passed_ms)}" if self.passed_ms > 0 else "was not read to its end yet"
        )
        return f"{self.topic_partition} {passed}{f': {self.problem}' if self.problem else ''}"


@dataclass(frozen=True)
class Verdict:
    """Hours of a table below ``until`` are complete. ``held_by`` holds back the next: a partition, or `staged files`,
    or `quarantined files`; ``why`` says it in words."""

    table: TableReference
    until: int
    held_by: str = ""
    why: str = ""


def judge(
    table: TableReference,
    hours: TableHours,
    slowest: Iterable[Feeder],
    waiting: Iterable[StagedFile],
    blocked: str = "",
    refused: Iterable[StagedFile] = (),
) -> Verdict:
    """How far a table is complete. ``slowest`` is the slowest partition of each topic that feeds it, ``waiting`` what
    is staged and not loaded, ``refused`` what no load job accepts and no operator gave up; ``blocked`` says why
    nothing can be told now, a parked table for instance.

    Files with rows of complete hours alone hold nothing back: these rows are late whatever comes.
    """
    feeders = list(slowest)
    if blocked or not feeders:
        why = blocked or "nothing that is extracted feeds it"
        return Verdict(table, hours.until, "" if blocked else "nobody", why)
    feeder = min(feeders, key=lambda f: (f.until, not f.problem, f.topic_partition))
    missing = _first_missing(waiting, hours.until), _first_missing(refused, hours.until)
    (first, many), held_by = min(zip(missing, ("staged files", "quarantined files"), strict=True))
    if first >= feeder.until:
        return Verdict(table, max(hours.until, feeder.until), str(feeder.topic_partition), feeder.why)
    rows = f"the first with rows of {moment(first * HOUR_MS)}"
    why = f"{many} staged files are not loaded, {rows}"
    if held_by == "quarantined files":
        why = f"{many} files are in quarantine, {rows}; to go on without them: kbq resume --table {table}"
    return Verdict(table, max(hours.until, first), held_by, why)


def slowest_of(feeders: Iterable[Feeder]) -> Feeder | None:
    """The partition that holds its topic back; of equals one with a problem, then the first."""
    return min(feeders, key=lambda f: (f.until, not f.problem, f.topic_partition), default=None)


def _first_missing(files: Iterable[StagedFile], until: int) -> tuple[int, int]:
    """The first hour, not complete yet, that files may have rows of, and how many files have such rows."""
    held = [file for file in files if _last_hour(file) >= until]
    return min((_first_hour(file, until) for file in held), default=_NEVER), len(held)


def _first_hour(file: StagedFile, until: int) -> int:
    """The first hour, not complete yet, that a file may have rows of."""
    if sum(file.event_hours.values()) < file.rows:  # some rows are of hours it does not list
        return max(until, min(file.dates, default=0) * 24)
    return min(hour for hour in file.event_hours if hour >= until)


def _last_hour(file: StagedFile) -> int:
    if sum(file.event_hours.values()) < file.rows:
        if not file.dates:
            return _NEVER  # it may have rows of any date
        return max((*file.event_hours, *((day + 1) * 24 - 1 for day in file.dates)))
    return max(file.event_hours, default=-1)


class HourRow(NamedTuple):
    """A row of `_kbq_completeness`."""

    table: str
    hour: int
    complete: bool
    completed_ms: int | None
    rows: int
    late: int


def hour_rows(table: TableReference, hours: TableHours) -> Iterator[HourRow]:
    """A table's hours in order: those with rows, and complete ones without, as far back as hours are listed. Not those
    of which rows were added up."""
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
    """The time at which an hour begins, "" for 0."""
    return moment(hour * HOUR_MS) if hour else ""
