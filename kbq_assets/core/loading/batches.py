"""Chooses the files of a table's next load job (PROTOCOL L1): one schema, and a prefix of windows per partition."""

from __future__ import annotations

import dataclasses
import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from kbq_assets.core.errors import StateError
from kbq_assets.core.loading.quota import JobCounts, next_change_ms, next_job_ms, share_of
from kbq_assets.core.loading.table_state import TableState, mark_key
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import TableReference

#: Windows by partition, in order; each is a list of files in offset order.
WindowQueues: TypeAlias = Mapping[Any, Sequence[list[StagedFile]]]


@dataclass(frozen=True)
class LoadLimits:
    """Limits of a job (``files``, ``bytes``, ``time_partitions``), of a table and of a project. Daily limits include
    failed jobs; 0 means no limit.

    ``changes_per_day`` limits the partitions that a table's jobs change, ``partitions`` all that a table may have. If
    ``mixes_schemas``, a job takes files of several schemas. For ``known_days`` after a job's insertion, "not found"
    means that the job did not start (0: forever); BigQuery keeps jobs for 180 days. Defaults are BigQuery's:
    https://cloud.google.com/bigquery/quotas#load_jobs.
    """

    files: int = 10_000
    bytes: int = 15 * 10**12
    time_partitions: int = 4_000
    jobs_per_day: int = 1_500
    known_days: int = 30
    changes_per_day: int = 30_000
    project_jobs_per_day: int = 100_000
    partitions: int = 10_000
    mixes_schemas: bool = False


def changed_partitions(files: Iterable[StagedFile], limits: LoadLimits) -> tuple[int, frozenset[int]]:
    """An upper bound on the number of partitions that a job of these files changes, and the known partitions. A file
    with too many dates to list counts as many partitions as a job may change."""
    files = list(files)
    days = frozenset(day for file in files for day in file.dates)
    unlisted = sum(limits.time_partitions for file in files if file.rows and not file.dates)
    return len(days) + unlisted, days


class QuotaWait(NamedTuple):
    """When the daily quotas allow a table's next job, and the reason for the wait as text."""

    until_ms: int
    text: str


def job_wait(
    jobs: JobCounts,
    files: Iterable[StagedFile],
    limits: LoadLimits,
    now_ms: int,
    tables: int,
    *,
    retry: bool = False,
) -> QuotaWait | None:
    """The wait before a job of these files (L2); None if it may start now. ``tables`` is the number of tables that
    share the project's jobs."""
    wanted, _ = changed_partitions(files, limits)
    per_day = share_of(limits.jobs_per_day, limits.project_jobs_per_day, tables)
    due_job = next_job_ms(jobs, per_day, now_ms, retry=retry)
    due_change = next_change_ms(jobs, wanted, limits.changes_per_day, now_ms, retry=retry)
    due = max(due_job, due_change)
    if due <= now_ms:
        return None
    used, unit = (jobs.used(now_ms), f"{per_day} jobs used")
    if due_change > due_job:
        used, unit = jobs.changed(now_ms), f"{limits.changes_per_day} changes of partitions used"
    return QuotaWait(
        due, f"{used} of {unit} in 24 hours, the next in {counted(-(-(due - now_ms) // 60_000), 'minute')}"
    )


class SchemaKey(NamedTuple):
    """One schema (PROTOCOL, Objects): the writer's id and the staged schema's fingerprint."""

    schema_id: int
    fingerprint: str


@dataclass(frozen=True)
class LoadBatch:
    """Files of one schema for one job: for each partition, a prefix of the windows with that schema (L1)."""

    table: TableReference
    schema: SchemaKey
    files: tuple[StagedFile, ...]
    #: whether an operator brought the files back from quarantine
    retried: bool = False

    @property
    def rows(self) -> int:
        return sum(f.rows for f in self.files)

    @property
    def bytes(self) -> int:
        return sum(f.bytes for f in self.files)


def pending_files(state: TableState, files: Iterable[StagedFile]) -> list[StagedFile]:
    """Files beyond the table's marks. A file listed by both commit and backlog (E7) counts once. So does a file
    together with its replacement (L14)."""
    latest: dict[Hashable, StagedFile] = {}
    for file in files:
        known = latest.get(identity(file))
        if known is None or known.restaged < file.restaged:
            latest[identity(file)] = file
    return [file for file in latest.values() if not state.is_loaded(file)]


def identity(file: StagedFile) -> Hashable:
    """The parts of a file's name that all attempts for one range share, as in marks."""
    return mark_key(file), file.table, file.name.first_offset


def blocked_files(
    state: TableState, files: Iterable[StagedFile], given_up: frozenset[str], blocked: Collection[str]
) -> list[StagedFile]:
    """Pending files of blocked topics (L9)."""
    pending = pending_files(state, (f for f in files if f.path not in given_up))
    return [f for f in pending if f.name.topic_partition.topic in blocked]


def refuse_cut(state: TableState, file: StagedFile) -> None:
    """Raise StateError if a table's mark lies inside a file."""
    mark = state.marks.get(mark_key(file), 0)
    if mark > file.name.first_offset:
        raise StateError(
            f"{file.path} has positions below and above its table's mark {mark}",
            next_step="commit and table state contradict each other: was one of them restored from a backup?",
        )


def plan_batch(
    table: TableReference,
    state: TableState,
    files: Iterable[StagedFile],
    limits: LoadLimits,
    given_up: frozenset[str] = frozenset(),
    blocked: Collection[str] = (),
) -> LoadBatch | None:
    """The next job's files (L1); None if no files are pending, or all of them wait for a check. The schema with the
    oldest pending window goes first, or the lowest id on a tie. ``given_up`` are paths that a reset dropped. Files of
    ``blocked`` topics wait (L9). Raises StateError if a mark lies inside a file, because a load would duplicate part of
    it.
    """
    retried = [bad.file for bad in state.retried if bad.file.name.topic_partition.topic not in blocked]
    if retried:
        return retried_batch(table, retried, limits)
    by_schema: dict[int, list[StagedFile]] = defaultdict(list)
    for file in pending_files(state, (f for f in files if f.path not in given_up)):
        if file.name.topic_partition.topic not in blocked:
            refuse_cut(state, file)
            by_schema[file.name.schema_id].append(file)
    if not by_schema:
        return None
    schema_id = min(by_schema, key=lambda s: (min(f.oldest_ms for f in by_schema[s]), s))
    return _batch_of(table, by_schema[schema_id], limits)


def retried_batch(table: TableReference, files: list[StagedFile], limits: LoadLimits) -> LoadBatch:
    """Files of one schema that an operator brings back from quarantine, where marks are already beyond them (L13)."""
    schema = SchemaKey(files[0].name.schema_id, files[0].fingerprint)
    of_schema = [f for f in files if (f.name.schema_id, f.fingerprint) == schema]
    return dataclasses.replace(_batch_of(table, of_schema, limits), retried=True)


def _batch_of(table: TableReference, files: list[StagedFile], limits: LoadLimits) -> LoadBatch:
    queues = windows_by_partition(files)
    oldest = min(queues.values(), key=lambda windows: windows[0][0].oldest_ms)[0][0]
    schema = SchemaKey(oldest.name.schema_id, oldest.fingerprint)
    windows = merged(queues, lambda window: window[0].fingerprint == schema.fingerprint)
    chosen = fitting(windows, limits, limits.bytes)
    return LoadBatch(table, schema, _within_dates(chosen, limits.time_partitions))


def _within_dates(files: tuple[StagedFile, ...], most: int) -> tuple[StagedFile, ...]:
    """The files; or the first files of a window that has too many dates for one job. Each of its files loads alone, so
    the search for bad files would find none. Files of hours have a mark in common (O8), so they stay together."""
    dates = set[int]()
    for count, file in enumerate(files):
        dates.update(file.dates)
        if count and len(dates) > most and files[count - 1].until <= file.name.first_offset:
            return files[:count]
    return files


def fitting(
    windows: Iterable[list[StagedFile]], limits: LoadLimits, most_bytes: int
) -> tuple[StagedFile, ...]:
    """The files of the first windows that fit in one job, at least one window."""
    chosen: list[StagedFile] = []
    size, dates, is_scattered = 0, set[int](), False
    for window in windows:
        size += sum(f.bytes for f in window)
        dates.update(*(f.dates for f in window))
        is_scattered = is_scattered or not all(f.dates for f in window)  # too many dates to list
        too_much = (
            len(chosen) + len(window) > limits.files
            or size > most_bytes
            or len(dates) > limits.time_partitions
            or is_scattered
        )
        if chosen and too_much:
            break
        chosen.extend(window)
    return tuple(chosen)


def windows_by_partition(files: list[StagedFile]) -> WindowQueues:
    """Windows in order per partition; each is a list of files in offset order."""
    ordered = sorted(
        files, key=lambda f: (f.name.topic_partition, f.name.epoch, f.window, f.name.first_offset)
    )
    queues: dict[Any, list[list[StagedFile]]] = defaultdict(list)
    last = None
    for file in ordered:
        window = (file.name.topic_partition, file.name.epoch, file.window)
        if window != last:
            queues[file.name.topic_partition].append([])
        queues[file.name.topic_partition][-1].append(file)
        last = window
    return queues


def merged(queues: WindowQueues, is_chosen: Callable[[list[StagedFile]], bool]) -> Iterable[list[StagedFile]]:
    """Chosen windows, oldest first across partitions and in order within each. Takes a prefix of each queue."""

    def head(partition: Any, index: int) -> tuple[int, Any, int] | None:
        queue = queues[partition]
        if index == len(queue) or not is_chosen(queue[index]):
            return None
        return (queue[index][0].oldest_ms, partition, index)

    heap = [entry for entry in (head(partition, 0) for partition in queues) if entry]
    heapq.heapify(heap)
    while heap:
        _, partition, index = heapq.heappop(heap)
        yield queues[partition][index]
        if following := head(partition, index + 1):
            heapq.heappush(heap, following)
