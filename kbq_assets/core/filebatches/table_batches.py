"""The state of a table prefix (its applied, in-flight and failed batches), and its transitions (PROTOCOL F2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from kbq_assets.core.errors import Refused
from kbq_assets.core.protocol.archives import DECISIONS, ArchiveRule
from kbq_assets.core.protocol.codec import INLINE, Stored

#: Most applied batches in a state before some are archived.
APPLIED: Final = ArchiveRule(1000, 500)
#: Most tries of a batch whose jobs fail with transient errors, and the first pause between them; pauses double.
MOST_TRIES: Final = 5
FIRST_PAUSE_MS: Final = 10_000
_MOST_TEXT: Final = 1000
_STATUS: Final = "kbq files status"


@dataclass(frozen=True)
class BatchFile(Stored):
    """A file of a batch, by its path below the batch's directory."""

    name: str
    size: int
    generation: int


@dataclass(frozen=True)
class FileTarget(Stored):
    """The table of a job. ``decorator`` is a partition, "" for the whole table. ``project`` is set if it is not the
    warehouse's."""

    dataset: str
    table: str
    decorator: str = ""
    project: str = ""

    def __str__(self) -> str:
        name = f"{self.dataset}.{self.table}{self.decorator}"
        return f"{self.project}.{name}" if self.project else name


@dataclass(frozen=True)
class JobEnd(Stored):
    """Whether a job's id is being burned. After that, the batch fails with ``error``, or is pending again if there is
    none (F4)."""

    burning: bool = False
    error: str = ""


@dataclass(frozen=True)
class JobBegin(Stored):
    """When a job was entered, and the number of this try."""

    entered_ms: int = 0
    tries: int = 1


@dataclass(frozen=True)
class BatchInFlight(Stored):
    """A batch that was entered, with everything that its job needs, so a second submission is the same job (F3)."""

    path: str
    generation: int
    job_id: str
    project: str
    location: str
    target: FileTarget
    files: tuple[BatchFile, ...]
    #: BigQuery's keys for a load job or, with a statement, for an external table
    config: Mapping[str, Any] = field(default_factory=dict)
    sql: str = ""
    #: whether a statement that changes no row fails
    fail_on_zero: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    ordered: bool = False
    begin: JobBegin = field(default_factory=JobBegin, metadata=INLINE)
    end: JobEnd = field(default_factory=JobEnd, metadata=INLINE)
    #: names and patterns that match the files, if there are more than a job may list
    patterns: tuple[str, ...] = ()

    @property
    def file_paths(self) -> tuple[str, ...]:
        return tuple(f"{self.path}/{each.name}" if self.path else each.name for each in self.files)


@dataclass(frozen=True)
class SettledBatch(Stored):
    """A batch that was applied, or that an operator skipped for a ``reason``."""

    path: str
    generation: int
    at_ms: int
    job_id: str = ""
    rows: int = 0
    files: int = 0
    skipped: str = ""


@dataclass(frozen=True)
class FailedFileBatch(Stored):
    """A batch that could not be applied. KBQ retries it from ``retry_at_ms`` on; 0: it waits for an operator."""

    path: str
    generation: int
    error: str
    job_id: str = ""
    at_ms: int = 0
    ordered: bool = False
    tries: int = 1
    retry_at_ms: int = 0
    #: whether its pointer in `_backlog/` and its `_bqlock` are written; `_BACKFILL` had generation ``backfill`` then
    #: (F9)
    shown: bool = False
    backfill: int = 0


@dataclass(frozen=True)
class FileDecision(Stored):
    """An operator's decision about a batch, and its reason."""

    at_ms: int
    action: str
    batch: str
    reason: str = ""
    by: str = ""


@dataclass(frozen=True)
class SettledChunk(Stored):
    """An archive of applied batches."""

    batches: tuple[SettledBatch, ...]


@dataclass(frozen=True)
class DecisionChunk(Stored):
    """An archive of decisions."""

    decisions: tuple[FileDecision, ...]


@dataclass(frozen=True)
class FileTableState(Stored):
    """The state of one table prefix. Job ids consist of ``uuid`` and a sequence number that is never used again."""

    prefix: str
    uuid: str
    sequence: int = 0
    in_flight: tuple[BatchInFlight, ...] = ()
    failed: tuple[FailedFileBatch, ...] = ()
    #: newest last; older ones are in archives
    applied: tuple[SettledBatch, ...] = ()
    #: number of applied batches in archives; ``decided``: number of decisions in archives
    archived: int = 0
    decided: int = 0
    #: generations by path of batches that an operator wants applied, whatever the rules are
    wanted: Mapping[str, int] = field(default_factory=dict)
    #: the highest path of a settled ordered batch
    last_ordered: str = ""
    #: the generation of `_BACKFILL` when the last ordered batch was entered
    backfill: int = 0
    #: whether the last ordered batch waits for its validation
    validating: bool = False
    rows: int = 0
    decisions: tuple[FileDecision, ...] = ()

    def running_batch(self, path: str) -> BatchInFlight | None:
        return next((each for each in self.in_flight if each.path == path), None)

    def failure_of(self, path: str) -> FailedFileBatch | None:
        return next((each for each in self.failed if each.path == path), None)

    @property
    def next_number(self) -> int:
        return self.sequence + 1

    def applied_chunk(self) -> tuple[SettledBatch, ...]:
        """The applied batches to archive before the next swap; empty while all fit."""
        return APPLIED.full_chunk(self.applied)

    def decision_chunk(self) -> tuple[FileDecision, ...]:
        """The decisions to archive before the next swap; empty while all fit."""
        return DECISIONS.full_chunk(self.decisions)

    def without_chunks(self) -> FileTableState:
        """The state after its chunks were archived."""
        applied, decisions = len(self.applied_chunk()), len(self.decision_chunk())
        return dataclasses.replace(
            self,
            applied=self.applied[applied:],
            archived=self.archived + applied,
            decisions=self.decisions[decisions:],
            decided=self.decided + decisions,
        )


Change: TypeAlias = Callable[["FileTableState"], "FileTableState"]


def job_id_of(uuid: str, number: int, name: str = "") -> str:
    """The id of a job. ``name`` makes the job easy to find in the project."""
    return f"kbq-{name}-{uuid}-{number}" if name else f"kbq-{uuid}-{number}"


def enter(state: FileTableState, running: BatchInFlight, backfill: int) -> FileTableState:
    """Enter a batch before its job is submitted (F3)."""
    wanted = {path: generation for path, generation in state.wanted.items() if path != running.path}
    entered = dataclasses.replace(
        state,
        sequence=state.next_number,
        in_flight=(*state.in_flight, running),
        failed=tuple(each for each in state.failed if each.path != running.path),
        wanted=wanted,
    )
    if running.ordered:
        return dataclasses.replace(entered, backfill=backfill, validating=False)
    return entered


def settle(
    state: FileTableState, running: BatchInFlight, rows: int, now_ms: int, *, validates: bool
) -> FileTableState:
    """Record that the job succeeded (F5). With ``validates``, the next ordered batch waits for a validation."""
    done = SettledBatch(running.path, running.generation, now_ms, running.job_id, rows, len(running.files))
    settled = _settled(_without(state, running), done, running.ordered)
    validating = state.validating or (validates and running.ordered)
    return dataclasses.replace(settled, rows=settled.rows + rows, validating=validating)


def fail(
    state: FileTableState, running: BatchInFlight, error: str, now_ms: int, *, transient: bool = False
) -> FileTableState:
    """Record that the job failed, so nothing of the batch was applied. A transient error is retried."""
    again = transient and running.begin.tries < MOST_TRIES
    failed = FailedFileBatch(
        path=running.path,
        generation=running.generation,
        error=error[:_MOST_TEXT],
        job_id=running.job_id,
        at_ms=now_ms,
        ordered=running.ordered,
        tries=running.begin.tries,
        retry_at_ms=now_ms + FIRST_PAUSE_MS * 2 ** (running.begin.tries - 1) if again else 0,
    )
    return dataclasses.replace(_without(state, running), failed=(*state.failed, failed))


def burn(state: FileTableState, running: BatchInFlight, error: str = "") -> FileTableState:
    """Mark the job's id to be burned: a late submission must be impossible before anything else happens to the batch
    (F4)."""
    burning = dataclasses.replace(running, end=JobEnd(True, error[:_MOST_TEXT]))
    entries = (burning if each.job_id == running.job_id else each for each in state.in_flight)
    return dataclasses.replace(state, in_flight=tuple(entries))


def give_up(state: FileTableState, running: BatchInFlight, now_ms: int) -> FileTableState:
    """Drop a job whose id is burned, so nothing was or will be applied. The batch fails, or is pending again (F4)."""
    return fail(state, running, running.end.error, now_ms) if running.end.error else _without(state, running)


def retry(state: FileTableState, path: str, generation: int, entry: FileDecision) -> FileTableState:
    """Make a batch that failed, or that a rule holds back, be applied with its current files. Raises Refused if it is
    in flight."""
    _refuse_in_flight(state, path)
    wanted = {**state.wanted, path: generation}
    failed = tuple(each for each in state.failed if each.path != path)
    return _decided(dataclasses.replace(state, wanted=wanted, failed=failed), entry)


def again(state: FileTableState, batches: Mapping[str, int], entry: FileDecision) -> FileTableState:
    """Make settled batches be applied again, by path and generation. Raises Refused if one is in flight."""
    for path in batches:
        _refuse_in_flight(state, path)
    failed = tuple(each for each in state.failed if each.path not in batches)
    return _decided(dataclasses.replace(state, wanted={**state.wanted, **batches}, failed=failed), entry)


def skip(
    state: FileTableState, path: str, generation: int, ordered: bool, entry: FileDecision
) -> FileTableState:
    """Continue without a batch whose rows an operator applied by hand or gives up. Raises Refused if it is in
    flight."""
    _refuse_in_flight(state, path)
    skipped = SettledBatch(path, generation, entry.at_ms, skipped=entry.reason)
    failed = tuple(each for each in state.failed if each.path != path)
    wanted = {each: number for each, number in state.wanted.items() if each != path}
    changed = dataclasses.replace(state, failed=failed, wanted=wanted)
    return _decided(_settled(changed, skipped, ordered), entry)


def mark_shown(state: FileTableState, path: str, backfill: int) -> FileTableState:
    """Record that the views of a failed batch are written (F9)."""
    failed = tuple(
        dataclasses.replace(each, shown=True, backfill=backfill) if each.path == path else each
        for each in state.failed
    )
    return dataclasses.replace(state, failed=failed)


def _refuse_in_flight(state: FileTableState, path: str) -> None:
    if (running := state.running_batch(path)) is not None:
        raise Refused(f"job {running.job_id} is applying {path}", next_step=f"wait for it: {_STATUS}")


def _without(state: FileTableState, running: BatchInFlight) -> FileTableState:
    left = tuple(each for each in state.in_flight if each.job_id != running.job_id)
    return dataclasses.replace(state, in_flight=left)


def _settled(state: FileTableState, done: SettledBatch, ordered: bool) -> FileTableState:
    last = max(state.last_ordered, done.path) if ordered else state.last_ordered
    return dataclasses.replace(state, applied=(*state.applied, done), last_ordered=last)


def _decided(state: FileTableState, entry: FileDecision) -> FileTableState:
    return dataclasses.replace(state, decisions=(*state.decisions, entry))
