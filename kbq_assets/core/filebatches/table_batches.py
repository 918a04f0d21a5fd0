"""The state of a table prefix: which batches are applied, in flight or failed (PROTOCOL F2), and what changes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from kbq_assets.core.errors import Refused
from kbq_assets.core.protocol.archives import DECISIONS, ArchiveRule
from kbq_assets.core.protocol.codec import INLINE, Stored

#: Applied batches that a state lists.
APPLIED: Final = ArchiveRule(1000, 500)
#: Tries of a batch whose jobs fail for passing reasons, and the pause before the next, which doubles.
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
    """The table of a job. ``decorator`` is a partition, "" for the whole table; ``project`` another one than the
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
    """Whether a job's id is being used up. Then the batch fails with ``error``, or is pending again if none (F4)."""

    burning: bool = False
    error: str = ""


@dataclass(frozen=True)
class JobBegin(Stored):
    """When a job was entered, and which try of its batch it is."""

    entered_ms: int = 0
    tries: int = 1


@dataclass(frozen=True)
class BatchInFlight(Stored):
    """A batch that was entered, with all that its job needs: a second submission is the same job (F3)."""

    path: str
    generation: int
    job_id: str
    project: str
    location: str
    target: FileTarget
    files: tuple[BatchFile, ...]
    #: BigQuery's keys of a load job, or those of an external table if there is a statement
    config: Mapping[str, Any] = field(default_factory=dict)
    sql: str = ""
    #: a statement that changes no row has failed
    fail_on_zero: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    ordered: bool = False
    begin: JobBegin = field(default_factory=JobBegin, metadata=INLINE)
    end: JobEnd = field(default_factory=JobEnd, metadata=INLINE)
    #: in place of files beyond a job's limit: names and patterns that match them
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
    """A batch that could not be applied. ``retry_at_ms``: KBQ retries it from then on; 0: it waits for an
    operator."""

    path: str
    generation: int
    error: str
    job_id: str = ""
    at_ms: int = 0
    ordered: bool = False
    tries: int = 1
    retry_at_ms: int = 0
    #: its pointer in `_backlog/` and `_bqlock` are written; `_BACKFILL` had the generation ``backfill`` then (F9)
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
    """One table prefix. Job ids have ``uuid`` and a sequence number that is never used again."""

    prefix: str
    uuid: str
    sequence: int = 0
    in_flight: tuple[BatchInFlight, ...] = ()
    failed: tuple[FailedFileBatch, ...] = ()
    #: the newest last; older ones are in archives
    applied: tuple[SettledBatch, ...] = ()
    #: how many applied batches, and how many decisions, are in archives
    archived: int = 0
    decided: int = 0
    #: path and generation of batches that an operator wants to be applied, whatever a rule says
    wanted: Mapping[str, int] = field(default_factory=dict)
    #: the greatest path of an ordered batch that was settled
    last_ordered: str = ""
    #: the generation of `_BACKFILL` when the last ordered batch was entered
    backfill: int = 0
    #: the last ordered batch waits for its validation
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
        """The applied batches to archive before the next swap; empty while they fit."""
        return APPLIED.full_chunk(self.applied)

    def decision_chunk(self) -> tuple[FileDecision, ...]:
        """The decisions to archive before the next swap; empty while they fit."""
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
    """The id of a job. ``name`` makes it easy to find among the project's jobs."""
    return f"kbq-{name}-{uuid}-{number}" if name else f"kbq-{uuid}-{number}"


def enter(state: FileTableState, running: BatchInFlight, backfill: int) -> FileTableState:
    """Intent first: enter a batch before its job is submitted (F3)."""
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
    """The job ended without an error (F5). ``validates``: the next ordered batch waits for a validation."""
    done = SettledBatch(running.path, running.generation, now_ms, running.job_id, rows, len(running.files))
    settled = _settled(_without(state, running), done, running.ordered)
    validating = state.validating or (validates and running.ordered)
    return dataclasses.replace(settled, rows=settled.rows + rows, validating=validating)


def fail(
    state: FileTableState, running: BatchInFlight, error: str, now_ms: int, *, transient: bool = False
) -> FileTableState:
    """The job ended with an error, so nothing of the batch was applied. A transient error is tried again."""
    again = transient and running.begin.tries < MOST_TRIES
    failed = FailedFileBatch(
        running.path,
        running.generation,
        error[:_MOST_TEXT],
        running.job_id,
        now_ms,
        running.ordered,
        running.begin.tries,
        now_ms + FIRST_PAUSE_MS * 2 ** (running.begin.tries - 1) if again else 0,
    )
    return dataclasses.replace(_without(state, running), failed=(*state.failed, failed))


def burn(state: FileTableState, running: BatchInFlight, error: str = "") -> FileTableState:
    """Give the job's id up: a late submission must fail before the batch is decided about (F4)."""
    burning = dataclasses.replace(running, end=JobEnd(True, error[:_MOST_TEXT]))
    entries = (burning if each.job_id == running.job_id else each for each in state.in_flight)
    return dataclasses.replace(state, in_flight=tuple(entries))


def give_up(state: FileTableState, running: BatchInFlight, now_ms: int) -> FileTableState:
    """The id is burned, so nothing was or will be applied: the batch fails, or is pending again (F4)."""
    return fail(state, running, running.end.error, now_ms) if running.end.error else _without(state, running)


def retry(state: FileTableState, path: str, generation: int, entry: FileDecision) -> FileTableState:
    """Apply a batch that failed, or that a rule keeps back, with the files that it has then. Raises Refused."""
    _refuse_in_flight(state, path)
    wanted = {**state.wanted, path: generation}
    failed = tuple(each for each in state.failed if each.path != path)
    return _decided(dataclasses.replace(state, wanted=wanted, failed=failed), entry)


def again(state: FileTableState, batches: Mapping[str, int], entry: FileDecision) -> FileTableState:
    """Apply settled batches again, by path and generation. Raises Refused if one is being applied."""
    for path in batches:
        _refuse_in_flight(state, path)
    failed = tuple(each for each in state.failed if each.path not in batches)
    return _decided(dataclasses.replace(state, wanted={**state.wanted, **batches}, failed=failed), entry)


def skip(
    state: FileTableState, path: str, generation: int, ordered: bool, entry: FileDecision
) -> FileTableState:
    """Go on without a batch, whose rows an operator applied by hand or gives up. Raises Refused."""
    _refuse_in_flight(state, path)
    skipped = SettledBatch(path, generation, entry.at_ms, skipped=entry.reason)
    failed = tuple(each for each in state.failed if each.path != path)
    wanted = {each: number for each, number in state.wanted.items() if each != path}
    changed = dataclasses.replace(state, failed=failed, wanted=wanted)
    return _decided(_settled(changed, skipped, ordered), entry)


def mark_shown(state: FileTableState, path: str, backfill: int) -> FileTableState:
    """The views of a failed batch are written (F9)."""
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
