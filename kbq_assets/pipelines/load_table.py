"""One table's load: a loop that is driven by its state object alone (PROTOCOL, Loading).

Every step reads the state, so that a crash, a lost reply or a second loader leaves nothing to remember:

    parked            leave it
    flight            settle it: get the job; submit, wait, land, retry, isolate bad files, or give the id up (L3 to L5)
    files pending     mend the table, enter the batch as the flight (L2), go round
    nothing pending   drop backlog chunks that are loaded

A step that must wait gives the table's turn back: nothing here sleeps.
"""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from kbq_assets.core import loading
from kbq_assets.core.commits import StagedFile
from kbq_assets.core.errors import (
    JobAlreadyExists,
    JobFailed,
    KbqError,
    NotFound,
    PreconditionFailed,
    TransientError,
    UnknownOutcome,
)
from kbq_assets.core.loading import Batch, Flight, QuarantinedFile, TableState
from kbq_assets.core.names import TableReference, quarantine_path, schema_path, table_state_path
from kbq_assets.core.quota import next_job_ms
from kbq_assets.core.tables import IncompatibleColumn, TableOptions, clusterable, plan_table_change
from kbq_assets.pipelines import state
from kbq_assets.pipelines.bad_files import MAX_BAD_FILES, find_bad_files
from kbq_assets.pipelines.load_view import LoadView, missing_state
from kbq_assets.pipelines.state import Versioned
from kbq_assets.ports.clock import Clock
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.warehouse import JobError, JobStatus, LoadJob, Warehouse

#: BigQuery guarantees a job's existence for 180 days; far before that, "not found" no longer means "not started" (L3).
MAX_FLIGHT_AGE_MS: Final = 30 * 24 * 3600 * 1000
#: Transient job errors are retried this often in one run, and permanent ones that a probe does not confirm.
MAX_RETRIES: Final = 3


@dataclass(frozen=True)
class LoadPorts:
    """The world of a load."""

    store: ObjectStore
    warehouse: Warehouse
    clock: Clock
    new_uuid: Callable[[], str] = lambda: uuid.uuid4().hex[:16]


@dataclass(frozen=True)
class LoadOptions:
    """How a load run behaves.

    ``options`` are a table's, by the topics of the batch that creates it. ``wait_seconds``: how long to poll running
    jobs; 0 leaves flights open (L8). A job that has not ended ``stuck_seconds`` after its insertion is cancelled; 0
    never cancels. ``concurrency``: tables that are worked on at once, each by a thread; 1 needs none.
    """

    options: Callable[[TableReference, frozenset[str]], TableOptions] = lambda table, topics: TableOptions()
    wait_seconds: float = 600.0
    poll_seconds: float = 2.0
    stuck_seconds: float = 6 * 3600.0
    concurrency: int = 1


@dataclass(frozen=True)
class TableReport:
    """What a run did to one table. ``state`` is idle, waiting, parked or failed.

    ``transient``: it failed because something did not answer; the next run may succeed.
    """

    table: TableReference
    state: str
    rows: int = 0
    files: int = 0
    jobs: tuple[str, ...] = ()
    quarantined: int = 0
    message: str = ""
    transient: bool = False


@dataclass(frozen=True)
class Turn:
    """What a table does next: ``go_on`` at once, go on ``later``, plan from a newer ``view``, or ``end``."""

    kind: str
    seconds: float = 0.0


GO_ON, NEXT_VIEW, END = Turn("go_on"), Turn("view"), Turn("end")


class TableLoader:
    """One table's loop within a run."""

    def __init__(
        self, ports: LoadPorts, options: LoadOptions, table: TableReference, deadline: float
    ) -> None:
        self._ports = ports
        self._options = options
        self._table = table
        self._deadline = deadline
        self._view: LoadView | None = None
        self._retries = 0
        self._cancelled = ""
        self._outcome = TableReport(table, "idle")
        self.landed: list[Flight] = []

    def report(self) -> TableReport:
        """What happened so far."""
        return dataclasses.replace(
            self._outcome,
            rows=sum(f.rows for f in self.landed),
            files=sum(len(f.files) for f in self.landed),
            jobs=tuple(f.job_id for f in self.landed),
            quarantined=sum(len(f.quarantined) for f in self.landed),
        )

    def advance(self, view: LoadView) -> Turn:
        """Go as far as is possible without waiting. An error ends this table's run, and no other's."""
        try:
            while (turn := self._step(view)) is GO_ON:
                pass
        except KbqError as error:
            turn = self.fail(error)
        return turn

    def fail(self, error: KbqError) -> Turn:
        """End with an error."""
        return self._end("failed", f"{type(error).__name__}: {error}", isinstance(error, TransientError))

    def _end(self, outcome: str, message: str, transient: bool = False) -> Turn:
        self._outcome = TableReport(self._table, outcome, message=message, transient=transient)
        return END

    def _step(self, view: LoadView) -> Turn:
        # A view's state was read before its commits, and may be planned from with them, once (L1).
        is_new, self._view = view is not self._view, view
        current = self._state_in(view) if is_new else self._read_state()
        if current.value.parked is not None:
            return self._end("parked", f"{current.value.parked.reason}: {current.value.parked.error}")
        if current.value.flight is not None:
            return self._settle(current, current.value.flight)
        return self._take_off(view, current) if is_new else NEXT_VIEW

    def _state_in(self, view: LoadView) -> Versioned[TableState]:
        found = view.states[self._table]
        if isinstance(found, KbqError):
            raise found
        return found

    def _read_state(self) -> Versioned[TableState]:
        try:
            return state.read(self._ports.store, TableState, table_state_path(self._table))
        except NotFound:
            raise missing_state(self._table) from None

    # Planning and taking off ------------------------------------------------------------------------------------

    def _take_off(self, view: LoadView, current: Versioned[TableState]) -> Turn:
        warehouse, files = self._ports.warehouse, view.files(self._table)
        batch = loading.plan_batch(self._table, current.value, files, warehouse.limits, view.given_up)
        if batch is None:
            for path in view.backlog.get(str(self._table), ()):
                self._ports.store.delete(path)
            return END
        if (wait := self._quota_wait(current.value)) is not None:
            return wait
        if self._mend_table(current, batch):
            flying = loading.take_off(current.value, batch, warehouse.project, warehouse.location)
            self._swap(current, self._counted(flying))
        return GO_ON

    def _quota_wait(self, current: TableState, *, retry: bool = False) -> Turn | None:
        """End this run's part where the daily quota does not allow a job now."""
        per_day = self._ports.warehouse.limits.jobs_per_day
        now_ms = self._ports.store.now_ms() if per_day else 0
        due_ms = next_job_ms(current.jobs, per_day, now_ms, retry=retry)
        if due_ms <= now_ms:
            return None
        used, minutes = current.jobs.used(now_ms), -(-(due_ms - now_ms) // 60_000)
        return self._end(
            "waiting", f"{used} of {per_day} jobs used in 24 hours, the next in {minutes} minutes"
        )

    def _counted(self, flying: TableState) -> TableState:
        """A state with a new flight, counted where there is a quota (L2)."""
        if flying.flight is None or not self._ports.warehouse.limits.jobs_per_day:
            return flying
        return loading.count_job(flying, self._ports.store.now_ms())

    def _mend_table(self, current: Versioned[TableState], batch: Batch) -> bool:
        """Create or alter the table before the load; park it when the schemas contradict each other."""
        warehouse = self._ports.warehouse
        schema = self._schema(batch.schema.fingerprint)
        try:
            change = plan_table_change(schema, warehouse.columns(self._table))
        except IncompatibleColumn as error:
            self._park(current, "incompatible_schema", error.message)
            return False
        if change.create:
            options = self._table_options(batch.files)
            warehouse.create_table(self._table, change.columns, clusterable(options, change.columns))
        elif change:
            warehouse.update_columns(self._table, change.columns)
        return True

    def _table_options(self, files: Iterable[StagedFile]) -> TableOptions:
        return self._options.options(self._table, frozenset(f.name.topic_partition.topic for f in files))

    def _schema(self, fingerprint: str) -> str:
        return self._ports.store.get(schema_path(fingerprint)).data.decode()

    # Settling a flight ------------------------------------------------------------------------------------------

    def _settle(self, current: Versioned[TableState], flight: Flight) -> Turn:
        job = self._ports.warehouse.get_job(flight.job_id, flight.project, flight.location)
        if job is None:
            return self._submit(current, flight)
        if job.state != "DONE":
            return self._wait(job, flight)
        if flight.burning and not job.source_uris:
            self._swap(current, loading.give_up(current.value))
            return GO_ON
        if set(job.source_uris) != set(self._uris(flight.files)):
            return self._park(current, "foreign_job", f"job {job.job_id} loads other files than its flight")
        if job.error is None:
            return self._land(current, job)
        return self._recover(current, flight, job.error)

    def _submit(self, current: Versioned[TableState], flight: Flight) -> Turn:
        warehouse, age = self._ports.warehouse, self._ports.store.now_ms() - current.updated_ms
        try:
            if flight.burning:
                warehouse.burn_job(flight.job_id, flight.project, flight.location)
            elif age > MAX_FLIGHT_AGE_MS:
                # Whether it ever ran can no longer be told from "not found".
                planned = f"planned {age // 86_400_000} days ago, then lost"
                return self._park(current, "old_flight", f"job {flight.job_id} was {planned}")
            else:
                warehouse.insert_job(self._job(flight, flight.files))
        except (JobAlreadyExists, UnknownOutcome):
            # The next step gets the job; not found means not started, and the same id is submitted again (L3).
            return self._try_again("the warehouse does not answer")
        except JobFailed as error:
            # Refused, not inserted: an earlier call of the same id may still arrive, so the id is burned first.
            self._swap(current, loading.burn(current.value))
            return self._try_again(error.message)
        return GO_ON

    def _wait(self, job: JobStatus, flight: Flight) -> Turn:
        stuck = self._cancel_stuck(job, flight)
        if self._ports.clock.monotonic() >= self._deadline:
            return self._end("waiting", f"job {job.job_id} is {job.state}{stuck}")
        return Turn("later", self._options.poll_seconds)

    def _cancel_stuck(self, job: JobStatus, flight: Flight) -> str:
        """Cancel a job that does not end, once a run. What it ends with decides (L5)."""
        age = (self._ports.store.now_ms() - job.created_ms) / 1000 if job.created_ms else 0.0
        if not 0 < self._options.stuck_seconds < age:
            return ""
        if self._cancelled != job.job_id:
            self._cancelled = job.job_id
            with contextlib.suppress(UnknownOutcome):  # it is asked again in the next run
                self._ports.warehouse.cancel_job(flight.job_id, flight.project, flight.location)
        stuck = f"{age / 3600:.1f} hours after it was inserted: cancelled"
        self._outcome = TableReport(self._table, "idle", message=f"job {job.job_id} was {job.state} {stuck}")
        return f", {stuck}"

    def _land(self, current: Versioned[TableState], job: JobStatus) -> Turn:
        landed = loading.land(current.value, job.output_rows)
        if self._swap(current, landed) and current.value.flight is not None:
            self._finish(current.value.flight)
        return GO_ON

    def _finish(self, flight: Flight) -> None:
        """Delete loaded files (L4). The sweep mends what fails here."""
        self.landed.append(flight)
        self._ports.store.delete_many(
            [file.path for file in (*flight.files, *(q.file for q in flight.quarantined))]
        )

    def _recover(self, current: Versioned[TableState], flight: Flight, error: JobError) -> Turn:
        """A job that ended with an error loaded nothing (L5)."""
        if (wait := self._quota_wait(current.value, retry=True)) is not None:
            return wait
        if error.transient:
            return self._retry(current, error)
        if missing := self._missing(flight):
            return self._replan(current, missing)
        bad = find_bad_files(self._ports.warehouse, flight.files, lambda files: self._job(flight, files))
        if not bad and current.value.failures < MAX_RETRIES:
            # The files load into a scratch table: perhaps the error has passed.
            self._swap(current, self._counted(loading.retry(current.value)))
            return GO_ON
        if not bad or len(bad) > MAX_BAD_FILES:
            found = f"{len(bad)} bad files" if bad else "no bad file found"
            failed = dataclasses.replace(current.value, flight=None)  # its id is DONE and loaded nothing
            self._swap(
                current, loading.park(failed, "load_failed", f"{error.reason}: {error.message} ({found})")
            )
            return GO_ON
        return self._isolate(current, flight, bad)

    def _retry(self, current: Versioned[TableState], error: JobError) -> Turn:
        """The same files under a new id, after a while."""
        self._swap(current, self._counted(loading.retry(current.value)))
        turn, pause = self._try_again(error.message), min(60.0, 2.0 ** (self._retries - 1))
        return Turn("later", pause) if turn is GO_ON else turn

    def _isolate(self, current: Versioned[TableState], flight: Flight, bad: list[QuarantinedFile]) -> Turn:
        """Keep copies of bad files; the rest flies again, and takes them out of the table's way (L5)."""
        for quarantined in bad:
            self._ports.store.copy(quarantined.file.path, quarantine_path(quarantined.file.path))
        isolated = self._counted(loading.isolate(current.value, bad))
        if self._swap(current, isolated) and isolated.flight is None:
            self._finish(dataclasses.replace(flight, files=(), quarantined=(*flight.quarantined, *bad)))
        return GO_ON

    def _missing(self, flight: Flight) -> list[str]:
        """Files of the flight that are not in the store any more."""
        paths = {file.path for file in flight.files}
        folders = {path.rpartition("/")[0] for path in paths}
        listings = state.parallel(lambda folder: list(self._ports.store.list(f"{folder}/")), folders)
        return sorted(paths - {entry.path for listing in listings for entry in listing})

    def _replan(self, current: Versioned[TableState], missing: list[str]) -> Turn:
        """The job failed for files that are gone: given up by a reset since the batch was planned, or lost."""
        store = self._ports.store
        commits = state.read_commits(store, state.topic_registry(store))
        landed_nothing = dataclasses.replace(current.value, flight=None)  # its id is DONE, without a row
        if set(missing) <= {path for commit in commits for path in commit.value.given_up}:
            self._swap(current, landed_nothing)
            return GO_ON
        gone = f"{len(missing)} staged files are gone: {missing[0]}"
        self._swap(current, loading.park(landed_nothing, "missing_files", gone))
        return GO_ON

    def _job(self, flight: Flight, files: tuple[StagedFile, ...]) -> LoadJob:
        schema, labels = self._schema(files[0].fingerprint), self._table_options(files).labels
        return LoadJob(
            flight.job_id, flight.project, flight.location, self._table, self._uris(files), schema, labels
        )

    def _uris(self, files: Iterable[StagedFile]) -> tuple[str, ...]:
        return tuple(self._ports.store.uri(f.path) for f in files)

    # Shared -----------------------------------------------------------------------------------------------------

    def _park(self, current: Versioned[TableState], reason: str, error: str) -> Turn:
        self._swap(current, loading.park(current.value, reason, error))
        return GO_ON

    def _try_again(self, message: str) -> Turn:
        self._retries += 1
        if self._retries <= MAX_RETRIES:
            return GO_ON
        return self._end("failed", f"{message}; the next run goes on", transient=True)

    def _swap(self, current: Versioned[TableState], value: TableState) -> bool:
        """Swap the state. False when somebody else was faster or the outcome is unknown: the next step reads it."""
        try:
            state.swap(self._ports.store, current, value)
        except (PreconditionFailed, UnknownOutcome, NotFound):
            return False
        return True
