"""A table's load state, and its transitions (PROTOCOL, Loading).

There is one object per table. Only the loader changes it, by compare-and-swap. Before a load job is submitted, the
state lists it as the job *in flight*, with an id that is never used again (L2).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from kbq_assets.core.errors_replay.intents import ReplayIntent
from kbq_assets.core.loading import completeness
from kbq_assets.core.loading.completeness import TableHours
from kbq_assets.core.loading.merging import MergedFile
from kbq_assets.core.loading.mismatches import RowMismatch, records_of, with_mismatch
from kbq_assets.core.loading.quota import JobCounts
from kbq_assets.core.loading.replacing import Replacing
from kbq_assets.core.loading.schema_changes import SchemaChange
from kbq_assets.core.ordering.table_order import TableOrder
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.totals import JobTotals
from kbq_assets.core.protocol.waits import ParkReason
from kbq_assets.core.statements.table_statements import BatchStatement, TableStatements, after_append


@dataclass(frozen=True)
class JobInFlight(codec.Stored):
    """The load job for which a table waits."""

    job_id: str
    #: where the job was submitted
    project: str
    location: str
    files: tuple[StagedFile, ...]
    #: bad files found by bisection; the swap that records the job's success quarantines them (L5)
    quarantined: tuple[QuarantinedFile, ...] = ()
    #: whether the id is to be given up, and so must be burned first (L3)
    burning: bool = False
    #: set for a table that statements change: the job fills a scratch table, or is the statement (S4)
    statement: BatchStatement | None = None
    #: merged copies that the warehouse reads instead of some files (L15)
    merged: tuple[MergedFile, ...] = ()

    @property
    def rows(self) -> int:
        return sum(f.rows for f in self.files)

    @property
    def sources(self) -> tuple[StagedFile, ...]:
        """The files that the warehouse reads, with merged copies in place of their parts (L15)."""
        parts = {place for each in self.merged for place in each.parts}
        rest = (file for place, file in enumerate(self.files) if place not in parts)
        return (*(each.file for each in self.merged), *rest)


@dataclass(frozen=True)
class QuarantinedFile(codec.Stored):
    """A file that the warehouse rejected, with its error. Its copy is in ``quarantine/``."""

    file: StagedFile
    error: str
    #: whether an operator put it back: the next job loads it, and the swap that records the job removes this record
    retry: bool = False
    #: whether an operator gave up its rows; its copy is deleted
    dropped: bool = False


@dataclass(frozen=True)
class Parked(codec.Stored):
    """The reason that a table waits for `kbq resume --table`."""

    reason: str
    error: str
    #: automatic retries that failed (core/extraction/restarts.py)
    tries: int = 0
    #: when the table was parked or the last retry failed, by the store's time
    last_ms: int = 0


@dataclass(frozen=True)
class Accepted(codec.Stored):
    """The losses of a table that an operator has accepted."""

    #: number of accepted mismatch records, from the first on
    mismatches: int = field(default=0, metadata=codec.stored_as("accepted_mismatches"))
    #: number of accepted bad files, from the first on
    quarantined: int = field(default=0, metadata=codec.stored_as("accepted_quarantined"))
    #: whether the next bad files may go to quarantine, however many
    loss: bool = field(default=False, metadata=codec.stored_as("accepts_loss"))
    #: rows lost with a table that is gone
    rows: int = field(default=0, metadata=codec.stored_as("given_up_rows"))


@dataclass(frozen=True)
class Failures(codec.Stored):
    """Consecutive failures."""

    #: jobs
    jobs: int = field(default=0, metadata=codec.stored_as("failures"))
    #: batches that lost files to quarantine and loaded none
    batches: int = field(default=0, metadata=codec.stored_as("lost_batches"))


@dataclass(frozen=True)
class JobTally(codec.Stored):
    """Counts of submitted and of ended jobs."""

    #: jobs of the last day, if the warehouse limits them
    submitted: JobCounts = field(default_factory=JobCounts, metadata=codec.stored_as("jobs"))
    ended: JobTotals = field(default_factory=JobTotals)


@dataclass(frozen=True)
class Definition(codec.Stored):
    """Facts about the table itself."""

    #: the schema change that is about to be made
    changing: SchemaChange | None = None
    #: recent schema changes
    changes: tuple[SchemaChange, ...] = ()
    #: whether the table has its staging area's id (core/loading/origins.py)
    labelled: bool = False
    #: its state for loading by statements
    statements: TableStatements = field(default_factory=TableStatements)
    #: the job of the last statement that parked the table; `kbq order skip` may give up its batch
    failed: JobInFlight | None = field(default=None, metadata=codec.stored_as("failed_statement"))
    #: the replay or erasure that is changing its rows
    replacing: Replacing | None = None
    #: for an error table of a lake: the replay of its rows that has not ended (ER7)
    replaying: ReplayIntent | None = None


@dataclass(frozen=True)
class TableState(codec.Stored):
    """`tables/<dataset>.<table>.json`."""

    uuid: str
    #: the number in the last job id; never reused
    sequence: int = 0
    #: offsets by `mark_key`: files up to a mark are loaded or quarantined
    marks: Mapping[str, int] = field(default_factory=dict)
    #: loaded rows by `rows_key`
    rows: Mapping[str, int] = field(default_factory=dict)
    in_flight: JobInFlight | None = field(default=None, metadata=codec.stored_as("flight"))
    parked: Parked | None = None
    #: the reason that the table was parked, from its retry until a job succeeds
    restarting: Parked | None = None
    quarantined: tuple[QuarantinedFile, ...] = ()
    mismatches: tuple[RowMismatch, ...] = ()
    accepted: Accepted = field(default_factory=Accepted, metadata=codec.INLINE)
    failed: Failures = field(default_factory=Failures, metadata=codec.INLINE)
    jobs: JobTally = field(default_factory=JobTally, metadata=codec.INLINE)
    #: the table's complete hours by business time
    hours: TableHours = field(default_factory=TableHours)
    definition: Definition = field(default_factory=Definition, metadata=codec.INLINE)
    #: for an ordered table: its batches, gates and holds
    order: TableOrder = field(default_factory=TableOrder)

    @property
    def stored_format(self) -> int:
        """Locks out older releases that would mishandle the state. They must not load an ordered table in any order, or
        a table with statements (S8), or one whose rows are being replaced (R3). They must not mistake a job that reads
        merged files for another program's (L15), or replace rows during a replay of a lake's error rows (ER7)."""
        if self.definition.replaying is not None:
            return codec.REPLAYING
        if self.in_flight is not None and self.in_flight.merged:
            return codec.MERGED
        is_special = (
            self.order != TableOrder() or self.has_statements or self.definition.replacing is not None
        )
        return codec.ORDERED if is_special else codec.FORMAT

    @property
    def has_statements(self) -> bool:
        """Whether statements change the table, or did. If so, its rows do not correspond one to one to its topics'
        records."""
        in_flight = self.in_flight.statement if self.in_flight else None
        return in_flight is not None or self.definition.statements != TableStatements()

    @property
    def new_mismatches(self) -> tuple[RowMismatch, ...]:
        """Mismatches that no operator has accepted."""
        return self.mismatches[self.accepted.mismatches :]

    @property
    def new_quarantined(self) -> tuple[QuarantinedFile, ...]:
        """Bad files that no operator has accepted. Their rows are not in a table, and were not given up."""
        return tuple(bad for bad in self.quarantined[self.accepted.quarantined :] if not bad.dropped)

    @property
    def retried(self) -> tuple[QuarantinedFile, ...]:
        """Files in quarantine that wait to be loaded after all."""
        return tuple(bad for bad in self.quarantined if bad.retry)

    def is_loaded(self, file: StagedFile) -> bool:
        """Whether the marks cover a file. Quarantined files are covered too."""
        return self.marks.get(mark_key(file), 0) >= file.until


def mark_key(file: StagedFile) -> str:
    """The key of a file's mark: topic, partition, epoch, schema id. Topic names have no '/'."""
    return file.name.mark_key


def rows_key(file: StagedFile) -> str:
    """The key of loaded rows: topic, partition, epoch."""
    name = file.name
    return f"{name.topic_partition.topic}/{name.topic_partition.partition}/{name.epoch}"


def begin_job(
    state: TableState,
    files: tuple[StagedFile, ...],
    project: str,
    location: str,
    statement: BatchStatement | None = None,
    merged: tuple[MergedFile, ...] = (),
) -> TableState:
    """Enter a batch as the job in flight, with a new id (L2). With ``statement``, the job fills a scratch table
    (S3)."""
    job = JobInFlight("", project, location, files, statement=statement, merged=merged)
    return under_new_id(state, job)


def count_failure(state: TableState) -> TableState:
    """Count the job in flight as failed, in the same swap that decides about its files (L5)."""
    return dataclasses.replace(
        state, jobs=dataclasses.replace(state.jobs, ended=state.jobs.ended.with_failure())
    )


def count_success(state: TableState, in_flight: JobInFlight, now_ms: int) -> TableState:
    """Count the files that a job loaded and quarantined, in the same swap that records the job (L4)."""
    ended = state.jobs.ended.with_success(in_flight.files, len(in_flight.quarantined), now_ms)
    return dataclasses.replace(state, jobs=dataclasses.replace(state.jobs, ended=ended))


def count_job(state: TableState, now_ms: int, changes: int = 0, days: Collection[int] = ()) -> TableState:
    """Count the job in flight and the partitions that it changes toward the daily quotas, in the same swap that enters
    the job (L2)."""
    submitted = state.jobs.submitted.add(now_ms, changes, days)
    return dataclasses.replace(state, jobs=dataclasses.replace(state.jobs, submitted=submitted))


def retry(state: TableState) -> TableState:
    """Enter the same files with a new id, after a transient job error (L5)."""
    assert state.in_flight is not None
    failed = dataclasses.replace(state.failed, jobs=state.failed.jobs + 1)
    return dataclasses.replace(under_new_id(state, state.in_flight), failed=failed)


def isolate(state: TableState, bad: Sequence[QuarantinedFile]) -> TableState:
    """Enter the job again without the bad files that bisection found, with a new id. If no file is left, record the job
    as ended (L5). Merged copies may have rows of bad files, so the job reads the original files (L15)."""
    assert state.in_flight is not None
    paths = {q.file.path for q in bad}
    good = tuple(f for f in state.in_flight.files if f.path not in paths)
    in_flight = dataclasses.replace(
        state.in_flight, files=good, quarantined=(*state.in_flight.quarantined, *bad), merged=()
    )
    if not good:
        return record_success(dataclasses.replace(state, in_flight=in_flight), 0)
    return under_new_id(state, in_flight)


def under_new_id(state: TableState, in_flight: JobInFlight) -> TableState:
    """Enter a job as the one in flight, with a new id."""
    in_flight = dataclasses.replace(in_flight, job_id=next_job_id(state))
    return dataclasses.replace(state, sequence=state.sequence + 1, in_flight=in_flight)


def next_job_id(state: TableState) -> str:
    return f"kbq-{state.uuid}-{state.sequence + 1}"


def record_success(state: TableState, output_rows: int) -> TableState:
    """Record the job in flight as loaded: marks, rows, hours and quarantine change in one swap (L4)."""
    in_flight = state.in_flight
    assert in_flight is not None
    marks, rows = dict(state.marks), dict(state.rows)
    for file in (*in_flight.files, *(q.file for q in in_flight.quarantined)):
        marks[mark_key(file)] = max(marks.get(mark_key(file), 0), file.until)
    for file in in_flight.files:
        rows[rows_key(file)] = rows.get(rows_key(file), 0) + file.rows
    mismatches, seen = state.mismatches, state.accepted.mismatches
    if output_rows != in_flight.rows:
        differing = RowMismatch(in_flight.job_id, in_flight.rows, output_rows)
        mismatches, seen = with_mismatch(mismatches, seen, differing)
    settled, loaded = _without_settled(state, in_flight), bool(in_flight.files)
    loss = state.accepted.loss and not loaded
    return dataclasses.replace(
        settled,
        marks=marks,
        rows=rows,
        in_flight=None,
        mismatches=mismatches,
        failed=dataclasses.replace(state.failed, jobs=0, batches=0 if loaded else state.failed.batches + 1),
        accepted=dataclasses.replace(settled.accepted, mismatches=seen, loss=loss),
        restarting=None,
        hours=completeness.with_rows(state.hours, in_flight.files),
        order=state.order.with_settled() if state.order.rule.by else state.order,
        definition=state.definition if in_flight.statement else _appended(state.definition, in_flight),
    )


def _appended(definition: Definition, job: JobInFlight) -> Definition:
    """The definition after a job appended its files. A failed statement over one of these files can no longer be
    retried or skipped."""
    if not job.files:
        return definition
    loaded, failed = {identity_of(file) for file in job.files}, definition.failed
    if failed is not None and not loaded.isdisjoint(map(identity_of, failed.files)):
        failed = None
    return dataclasses.replace(definition, failed=failed, statements=after_append(definition.statements))


def _without_settled(state: TableState, in_flight: JobInFlight) -> TableState:
    """The state with a job's bad files in quarantine, and without records of retried files that the job settled."""
    settled = {identity_of(file) for file in (*in_flight.files, *(q.file for q in in_flight.quarantined))}
    kept = [not (bad.retry and identity_of(bad.file) in settled) for bad in state.quarantined]
    return dataclasses.replace(
        state,
        quarantined=(*itertools.compress(state.quarantined, kept), *in_flight.quarantined),
        accepted=dataclasses.replace(state.accepted, quarantined=sum(kept[: state.accepted.quarantined])),
    )


def identity_of(file: StagedFile) -> tuple[str, int]:
    """The parts of a file's name that all its copies share (E11, L14)."""
    return mark_key(file), file.name.first_offset


def park(state: TableState, reason: ParkReason, error: str, now_ms: int = 0) -> TableState:
    """Stop loading a table until `kbq resume --table` or an automatic retry. ``now_ms`` is the store's time. Keeps the
    job in flight, because its id may have run (L3).
    """
    tries = state.restarting.tries + 1 if state.restarting else 0
    return dataclasses.replace(state, parked=Parked(str(reason), error, tries, now_ms), restarting=None)


def restart(state: TableState) -> TableState:
    """Retry a parked table. Keeps its count of failures, so a single job decides."""
    return dataclasses.replace(state, parked=None, restarting=state.parked)


def end_restart(state: TableState) -> TableState:
    """Drop the reason that the table was parked, because none of the failed files is left."""
    return dataclasses.replace(state, restarting=None)


def burn(state: TableState) -> TableState:
    """Mark the id of the job in flight to be given up (L3)."""
    assert state.in_flight is not None
    return dataclasses.replace(state, in_flight=dataclasses.replace(state.in_flight, burning=True))


def give_up(state: TableState) -> TableState:
    """Drop the job in flight, whose id is burned or whose job failed. Its files are pending again."""
    return dataclasses.replace(state, in_flight=None)


def accept(state: TableState, mismatches: int, quarantined: int = 0) -> TableState:
    """Record that an operator accepted the first ``mismatches`` jobs with mismatches and the first ``quarantined``
    files."""
    accepted = dataclasses.replace(
        state.accepted,
        mismatches=max(state.accepted.mismatches, records_of(state.mismatches, mismatches)),
        quarantined=max(state.accepted.quarantined, quarantined),
    )
    return dataclasses.replace(state, accepted=accepted)


def give_up_rows(state: TableState) -> TableState:
    """Continue without the rows of a table that is gone (L12), unless the table was resumed meanwhile."""
    if state.parked is None or state.parked.reason != ParkReason.TABLE_GONE:
        return state
    accepted = dataclasses.replace(state.accepted, rows=sum(state.rows.values()))
    return unpark(dataclasses.replace(state, accepted=accepted))


def unpark(state: TableState, *, accepts_loss: bool = False) -> TableState:
    """Resume a parked table. With ``accepts_loss``, its next bad files may go to quarantine, however many. If a foreign
    job took the id, the files of the job in flight are pending again (L3).
    """
    is_foreign = state.parked is not None and state.parked.reason == ParkReason.FOREIGN_JOB
    in_flight = None if is_foreign else state.in_flight
    accepted = dataclasses.replace(state.accepted, loss=accepts_loss or state.accepted.loss)
    failed = dataclasses.replace(state.failed, jobs=0)
    return dataclasses.replace(
        state, parked=None, restarting=None, failed=failed, in_flight=in_flight, accepted=accepted
    )
