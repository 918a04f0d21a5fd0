"""One table prefix in a run: settle its jobs in flight, enter ready batches, submit jobs (PROTOCOL F3 to F5)."""

from __future__ import annotations

import contextlib
import hashlib
import re
from enum import Enum, auto
from typing import Final

from kbq_assets.core.errors import InvalidName, JobAlreadyExists, JobFailed, Unavailable, UnknownOutcome
from kbq_assets.core.filebatches import table_batches
from kbq_assets.core.filebatches.config import FileBatchConfig
from kbq_assets.core.filebatches.discovery import BACKFILL, ListedObject
from kbq_assets.core.filebatches.patterns import MOST_FILES, patterns_of
from kbq_assets.core.filebatches.planning import BatchState, PlannedBatch
from kbq_assets.core.filebatches.table_batches import (
    BatchFile,
    BatchInFlight,
    FileTableState,
    FileTarget,
    JobBegin,
    SettledBatch,
    job_id_of,
)
from kbq_assets.pipelines.filebatches.ports import FilePorts
from kbq_assets.pipelines.filebatches.source_objects import BatchObjects
from kbq_assets.pipelines.filebatches.states import FileStates
from kbq_assets.pipelines.filebatches.view import FilesView, PrefixView, plan_prefix
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.ports.file_loads import FileJob
from kbq_assets.ports.warehouse import JobStatus

_DAY_MS: Final = 24 * 3600 * 1000
_NOT_IN_ID: Final = re.compile(r"[^0-9A-Za-z_-]+")
_NOT_IN_LABEL: Final = re.compile(r"[^0-9a-z_-]+")


class PrefixStep(Enum):
    """The result of a step of a table prefix."""

    PROGRESS = auto()  # take the next step at once
    WAITS = auto()  # waits for a job
    IDLE = auto()  # nothing to do in this view


class PrefixRun:
    """One table prefix in one view. A conflict ends it: then a new view is needed (F2)."""

    def __init__(self, ports: FilePorts, states: FileStates, view: FilesView, table: PrefixView) -> None:
        self._ports = ports
        self._states = states
        self._view = view
        self._table = table
        self._current: Versioned[FileTableState] | None = table.state
        self.done: list[SettledBatch] = []

    @property
    def state(self) -> FileTableState | None:
        """The state that this run last read or wrote."""
        return self._current.value if self._current else None

    def step(self) -> PrefixStep:
        """Settle the jobs in flight, then enter the batches that are ready. Raises KbqError: the prefix waits for the
        next view."""
        if self._table.error is not None:
            raise self._table.error
        if self._current is None:
            if not self._table.pending:
                return PrefixStep.IDLE
            self._current = self._states.register(self._table.prefix, self._ports.new_uuid())
        settled = [self._settle(running) for running in self._current.value.in_flight]
        entered = [self._enter(planned) for planned in self._planned() if planned.state is BatchState.READY]
        if any([*settled, *entered]):
            return PrefixStep.PROGRESS
        return PrefixStep.WAITS if self._current.value.in_flight else PrefixStep.IDLE

    def _planned(self) -> list[PlannedBatch]:
        return plan_prefix(self._ports, self._view, self._table, self._now)

    @property
    def _now(self) -> FileTableState:
        assert self._current is not None
        return self._current.value

    def _swap(self, value: FileTableState) -> None:
        assert self._current is not None
        self._current = self._states.swap(self._current, value)

    # Entering

    def _enter(self, planned: PlannedBatch) -> bool:
        batch, config = self._table.found(planned.path), self._table.configs.get(planned.path)
        objects = self._ports.source.files(batch, self._view.listing) if batch else None
        if batch is None or config is None or objects is None:
            return False  # there is another batch by now: the next view decides
        running, files = self._entry(planned, config, objects), objects.files
        entered = table_batches.enter(
            self._now, running, self._view.listing.sign(self._table.prefix, BACKFILL)
        )
        if problem := self._problem(running, files):
            self._swap(table_batches.fail(entered, running, problem, self._ports.store.now_ms()))
            return True
        self._swap(entered)
        self._submit_unchanged(running)
        return True

    def _entry(self, planned: PlannedBatch, config: FileBatchConfig, objects: BatchObjects) -> BatchInFlight:
        ports, state, to = self._ports, self._now, config.destination
        target = FileTarget(to.table.dataset, to.table.table, to.decorator, to.project)
        own = len(planned.path) + 1 if planned.path else 0
        failed = state.failure_of(planned.path)
        labels = {"kbq": "files"}
        if to.batch_id:
            labels["batch-id"] = _NOT_IN_LABEL.sub("_", to.batch_id.lower())[:63]
        return BatchInFlight(
            path=planned.path,
            generation=planned.generation,
            job_id=job_id_of(state.uuid, state.next_number, _job_name(config)),
            project=ports.warehouse.project,
            location=ports.warehouse.location,
            target=target,
            files=tuple(BatchFile(each.path[own:], each.size, each.generation) for each in objects.files),
            config=config.external if config.sql else config.load,
            sql=config.sql,
            fail_on_zero=bool(config.sql) and ports.settings.fail_on_zero,
            labels=labels,
            ordered=planned.ordered,
            begin=JobBegin(ports.store.now_ms(), failed.tries + 1 if failed and failed.retry_at_ms else 1),
            patterns=self._patterns(objects, own),
        )

    def _patterns(self, objects: BatchObjects, own: int) -> tuple[str, ...]:
        """A few patterns that match exactly the files, if the files are too many to name; empty if there are none."""
        most = self._ports.warehouse.limits.files
        if not most < len(objects.files) <= MOST_FILES:
            return ()
        return patterns_of(
            [each.path[own:] for each in objects.files], [path[own:] for path in objects.others], most
        )

    def _problem(self, running: BatchInFlight, files: tuple[ListedObject, ...]) -> str:
        try:
            self._job(running)
        except InvalidName as error:
            return f"{error.message}: rename it; {error.next_step}"
        limits, size = self._ports.warehouse.limits, sum(each.size for each in files)
        if not files:
            return "the batch has no files: upload them, then kbq files retry"
        way_on = (
            f"put its files into several directories, each with its own {self._ports.source.success},"
            " then kbq files skip this batch"
        )
        if len(files) > limits.files and not running.patterns:
            most = MOST_FILES if len(files) > MOST_FILES else limits.files
            why = "" if most == MOST_FILES else " or patterns that match only them"
            return f"the batch has {len(files):,} files, but a job takes at most {most:,}{why}: {way_on}"
        # A local warehouse's limit is only for jobs that KBQ forms itself. It reads a batch of any size.
        if limits.partitions and size > limits.bytes:
            return f"the batch has {size:,} bytes, but a job takes at most {limits.bytes:,}: {way_on}"
        return ""

    # Jobs

    def _settle(self, running: BatchInFlight) -> bool:
        """Take a job in flight one step further. Returns whether anything changed."""
        ports, now_ms = self._ports, self._ports.store.now_ms()
        job = ports.warehouse.get_job(running.job_id, running.project, running.location)
        if job is None:
            return self._lost(running, now_ms)
        if job.state != "DONE":
            return False
        if not job.source_uris and not job.statement:
            self._swap(table_batches.give_up(self._now, running, now_ms))  # the id is burned
        elif not self._is_own(job, running):
            why = f"foreign_job: {job.job_id} is not the job that the state lists; kbq files retry uses another id"
            self._swap(table_batches.fail(self._now, running, why, now_ms))
        elif running.fail_on_zero and job.changed_rows == 0 and job.error is None:
            why = (
                "a statement changed no row (KBQ_FILES_FAIL_ON_ZERO_DML_ROWS_AFFECTED), but the changes of the file's"
                " other statements stay: skip the batch, or make sure that a retry may repeat them"
            )
            self._swap(table_batches.fail(self._now, running, why, now_ms))
        elif job.error is not None:
            why, transient = f"{job.error.reason}: {job.error.message}", job.error.transient
            self._swap(table_batches.fail(self._now, running, why, now_ms, transient=transient))
        else:
            validates = ports.settings.wait_for_validation
            self._swap(table_batches.settle(self._now, running, job.output_rows, now_ms, validates=validates))
            self.done.append(self._now.applied[-1])
        return True

    def _is_own(self, job: JobStatus, running: BatchInFlight) -> bool:
        if running.sql:
            return job.statement == digest_of(running)
        return sorted(job.source_uris) == sorted(self._job(running).source_uris)

    def _lost(self, running: BatchInFlight, now_ms: int) -> bool:
        """Handle a job id that the warehouse does not know: it never started, or is burned now (F4). Returns whether
        the state changed; a submitted job shows at the next poll."""
        warehouse = self._ports.warehouse
        if running.end.burning:
            with contextlib.suppress(JobAlreadyExists):
                warehouse.burn_job(running.job_id, running.project, running.location)
            return False
        days = warehouse.limits.known_days
        if 0 < days * _DAY_MS < now_ms - running.begin.entered_ms:
            why = (
                f"old_job: {running.job_id} was entered over {days} days ago, so it is unknown whether it ran"
            )
            self._swap(table_batches.fail(self._now, running, why, now_ms))
            return True
        return self._submit_unchanged(running)

    def _submit_unchanged(self, running: BatchInFlight) -> bool:
        """Submit a job. If an object of the batch was replaced or deleted since the listing, give the job's id up
        instead. Returns whether the state changed."""
        folder, success = running.path, self._ports.source.success
        wanted = {f"{folder}/{success}" if folder else success: running.generation}
        wanted |= {
            path: each.generation for path, each in zip(running.file_paths, running.files, strict=True)
        }
        if self._ports.source.current(folder, wanted) != wanted:
            self._swap(table_batches.burn(self._now, running))
            return True
        self._submit(running)
        return False

    def _submit(self, running: BatchInFlight) -> None:
        try:
            self._ports.loads.insert(self._job(running))
        except JobAlreadyExists:
            return  # the next step gets the job
        except UnknownOutcome as error:
            raise Unavailable(error.message, next_step="the next run gets the job") from error
        except JobFailed as error:
            self._swap(table_batches.burn(self._now, running, error.message))

    def _job(self, running: BatchInFlight) -> FileJob:
        store = self._ports.source.store
        uris = {
            store.uri(path): each.size for path, each in zip(running.file_paths, running.files, strict=True)
        }
        return FileJob(
            job_id=running.job_id,
            project=running.project,
            location=running.location,
            target=running.target,
            sizes=uris,
            config=running.config,
            sql=running.sql,
            digest=digest_of(running) if running.sql else "",
            fail_on_zero=running.fail_on_zero,
            labels=running.labels,
            patterns=tuple(
                store.uri(f"{running.path}/{each}" if running.path else each) for each in running.patterns
            ),
        )


def digest_of(running: BatchInFlight) -> str:
    """The digest of a statement's text and files. It must fit into a BigQuery label, which has at most 63
    characters."""
    text = "\n".join((running.sql, running.path, *(f"{e.name} {e.generation}" for e in running.files)))
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def _job_name(config: FileBatchConfig) -> str:
    """Source, table and partition, like job names in Google's tool for a `dataSourceName`; "" without one."""
    if not config.data_source:
        return ""
    to = config.destination
    digits = to.decorator.removeprefix("$")
    parts = [digits[:4], *(digits[place : place + 2] for place in range(4, len(digits), 2))]
    names = [config.data_source, to.table.dataset, to.table.table, *filter(None, parts)]
    return "-".join(_NOT_IN_ID.sub("_", name.replace("-", "_")) for name in names)[:900]
