"""A table's load state, and the decisions of the loader (PROTOCOL, Loading).

The state is one object per table, changed by compare-and-swap, by the loader alone. A load job is entered into it as
the *flight* before it is submitted, under an id that is never used again (L2).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kbq_assets.core.loading import completeness
from kbq_assets.core.loading.completeness import TableHours
from kbq_assets.core.loading.quota import JobCounts
from kbq_assets.core.loading.schema_changes import SchemaChange
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.totals import JobTotals


@dataclass(frozen=True)
class JobInFlight:
    """The job a table waits for. ``location`` and ``project`` are where it was submitted.

    ``quarantined`` are bad files found by bisection; they leave the flight for the error area in the swap that
    records its success (L5). ``burning``: the id is to be given up and must first be burned (L3).
    """

    job_id: str
    project: str
    location: str
    files: tuple[StagedFile, ...]
    quarantined: tuple[QuarantinedFile, ...] = ()
    burning: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Rows the job must load."""
        return sum(f.rows for f in self.files)


@dataclass(frozen=True)
class QuarantinedFile:
    """A file that no load job accepts, with the warehouse's error. Its copy is in ``quarantine/``."""

    file: StagedFile
    error: str


@dataclass(frozen=True)
class Parked:
    """Why a table waits. The command that goes on is `kbq resume --table`.

    ``tries`` failed since it was parked; the last, or the parking itself, was at ``last_ms`` by the store's time
    (core/extraction/restarts.py).
    """

    reason: str
    error: str
    tries: int = 0
    last_ms: int = 0


@dataclass(frozen=True)
class RowMismatch:
    """A job whose output rows differ from its batch's (L4): loaded, never loaded again, raised as a failed check."""

    job_id: str
    expected: int
    actual: int


@dataclass(frozen=True)
class TableState:
    """`tables/<dataset>.<table>.json`. ``marks`` map `mark_key` to the position up to which files are loaded.

    ``restarting`` is why the table was parked that is being tried again, until a job lands.
    ``rows`` are rows loaded per ``topic/partition/epoch``. ``jobs`` are counted where the warehouse has a daily quota.
    ``hours`` say how far it is complete by business time (core/loading/completeness.py).
    An operator has seen the first ``accepted_mismatches`` of the ``mismatches``, and the first ``accepted_quarantined``
    of the ``quarantined``. ``changing`` is about to be done to the table, ``changes`` were done lately
    (core/loading/schema_changes.py).
    """

    uuid: str
    sequence: int = 0
    marks: Mapping[str, int] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    in_flight: JobInFlight | None = field(default=None, metadata=codec.stored_as("flight"))
    parked: Parked | None = None
    restarting: Parked | None = None
    quarantined: tuple[QuarantinedFile, ...] = ()
    mismatches: tuple[RowMismatch, ...] = ()
    accepted_mismatches: int = 0
    accepted_quarantined: int = 0
    failures: int = 0
    jobs: JobCounts = field(default_factory=JobCounts)
    hours: TableHours = field(default_factory=TableHours)
    ended: JobTotals = field(default_factory=JobTotals)
    changing: SchemaChange | None = None
    changes: tuple[SchemaChange, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def new_mismatches(self) -> tuple[RowMismatch, ...]:
        """Those that no operator has seen."""
        return self.mismatches[self.accepted_mismatches :]

    @property
    def new_quarantined(self) -> tuple[QuarantinedFile, ...]:
        """Those that no operator has seen: their rows are in no table, and nobody gave them up."""
        return self.quarantined[self.accepted_quarantined :]

    def is_loaded(self, file: StagedFile) -> bool:
        """Whether the marks cover a file (or it was quarantined, which moves the mark too)."""
        return self.marks.get(mark_key(file), 0) >= file.until


@dataclass(frozen=True)
class TableRegistry:
    """`tables/_tables.json`: which table states exist (L6), and the uuid of each.

    The uuid is chosen here, before the state is created: a late create can then revive no state under another one,
    whose job ids would not collide with those that ran.
    """

    active: Mapping[str, str] = field(default_factory=dict)
    creating: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tables(self) -> list[TableReference]:
        """All registered tables, in order."""
        return sorted(map(TableReference.parse, {**self.active, **self.creating}))

    def announce(self, table: TableReference, uuid: str) -> TableRegistry:
        """Note that a table's state is about to be created."""
        if str(table) in self.active or str(table) in self.creating:
            return self
        return dataclasses.replace(self, creating={**self.creating, str(table): uuid})

    def activate(self, table: TableReference) -> TableRegistry:
        """Note that a table's state exists: from now on a missing object is an error."""
        if str(table) in self.active:
            return self
        creating = dict(self.creating)
        uuid = creating.pop(str(table))
        return dataclasses.replace(self, active={**self.active, str(table): uuid}, creating=creating)


def mark_key(file: StagedFile) -> str:
    """The key of a file's mark: topic, partition, epoch, schema id. '/' is in no topic name."""
    name = file.name
    return f"{name.topic_partition.topic}/{name.topic_partition.partition}/{name.epoch}/{name.schema_id}"


def rows_key(file: StagedFile) -> str:
    """The key of loaded rows: topic, partition, epoch."""
    name = file.name
    return f"{name.topic_partition.topic}/{name.topic_partition.partition}/{name.epoch}"


def begin_job(state: TableState, files: tuple[StagedFile, ...], project: str, location: str) -> TableState:
    """Enter a batch as the flight under a fresh job id (L2)."""
    return _under_new_id(state, JobInFlight("", project, location, files))


def count_failure(state: TableState) -> TableState:
    """Count the flight's job as failed, in the swap that says what becomes of its files (L5)."""
    return dataclasses.replace(state, ended=state.ended.with_failure())


def count_success(state: TableState, in_flight: JobInFlight, now_ms: int) -> TableState:
    """Count what a flight loaded and set aside, in the swap that records it (L4)."""
    return dataclasses.replace(
        state, ended=state.ended.with_success(in_flight.files, len(in_flight.quarantined), now_ms)
    )


def count_job(state: TableState, now_ms: int) -> TableState:
    """Count the flight's job against the daily quota, in the swap that enters it (L2)."""
    return dataclasses.replace(state, jobs=state.jobs.add(now_ms))


def retry(state: TableState) -> TableState:
    """After a transient job error: the same files under a new id (L5)."""
    assert state.in_flight is not None
    return dataclasses.replace(_under_new_id(state, state.in_flight), failures=state.failures + 1)


def isolate(state: TableState, bad: Sequence[QuarantinedFile]) -> TableState:
    """After bisection: the flight without its bad files, under a new id; nothing left means it has landed (L5)."""
    assert state.in_flight is not None
    paths = {q.file.path for q in bad}
    good = tuple(f for f in state.in_flight.files if f.path not in paths)
    in_flight = dataclasses.replace(
        state.in_flight, files=good, quarantined=(*state.in_flight.quarantined, *bad)
    )
    if not good:
        return record_success(dataclasses.replace(state, in_flight=in_flight), 0)
    return _under_new_id(state, in_flight)


def _under_new_id(state: TableState, in_flight: JobInFlight) -> TableState:
    sequence = state.sequence + 1
    in_flight = dataclasses.replace(in_flight, job_id=f"kbq-{state.uuid}-{sequence}")
    return dataclasses.replace(state, sequence=sequence, in_flight=in_flight)


def record_success(state: TableState, output_rows: int) -> TableState:
    """Record a successful flight: marks, rows, hours and quarantine move in one swap (L4)."""
    in_flight = state.in_flight
    assert in_flight is not None
    marks, rows = dict(state.marks), dict(state.rows)
    for file in (*in_flight.files, *(q.file for q in in_flight.quarantined)):
        marks[mark_key(file)] = max(marks.get(mark_key(file), 0), file.until)
    for file in in_flight.files:
        rows[rows_key(file)] = rows.get(rows_key(file), 0) + file.rows
    mismatch = (
        () if output_rows == in_flight.rows else (RowMismatch(in_flight.job_id, in_flight.rows, output_rows),)
    )
    return dataclasses.replace(
        state,
        marks=marks,
        rows=rows,
        in_flight=None,
        quarantined=(*state.quarantined, *in_flight.quarantined),
        mismatches=(*state.mismatches, *mismatch),
        failures=0,
        restarting=None,
        hours=completeness.with_rows(state.hours, in_flight.files),
    )


def park(state: TableState, reason: str, error: str, now_ms: int = 0) -> TableState:
    """Stop loading a table until `kbq resume --table`, or until it is tried again; ``now_ms`` is the store's time.

    A flight stays: its id may have run (L3).
    """
    tries = state.restarting.tries + 1 if state.restarting else 0
    return dataclasses.replace(state, parked=Parked(reason, error, tries, now_ms), restarting=None)


def restart(state: TableState) -> TableState:
    """Try a parked table again. Its failures stay: one more job decides, not a run's worth of them."""
    return dataclasses.replace(state, parked=None, restarting=state.parked)


def end_restart(state: TableState) -> TableState:
    """Forget why the table was parked: nothing of what failed is left."""
    return dataclasses.replace(state, restarting=None)


def burn(state: TableState) -> TableState:
    """Mark the flight's id as one to give up (L3)."""
    assert state.in_flight is not None
    return dataclasses.replace(state, in_flight=dataclasses.replace(state.in_flight, burning=True))


def give_up(state: TableState) -> TableState:
    """Drop a flight whose id can no longer be inserted: its files are pending again."""
    return dataclasses.replace(state, in_flight=None)


def accept(state: TableState, mismatches: int, quarantined: int = 0) -> TableState:
    """Note that an operator has seen the first of a table's mismatches, and of its quarantined files."""
    return dataclasses.replace(
        state,
        accepted_mismatches=max(state.accepted_mismatches, mismatches),
        accepted_quarantined=max(state.accepted_quarantined, quarantined),
    )


def unpark(state: TableState) -> TableState:
    """Let a parked table go on."""
    return dataclasses.replace(state, parked=None, restarting=None, failures=0)
