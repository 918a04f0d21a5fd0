"""One table's load: a loop that is driven by its state object alone (PROTOCOL, Loading).

Every step reads the state, so that a crash, a lost reply or a second loader leaves nothing to remember:

    parked            leave it, or try it again when its pause is over
    flight            settle it: get the job; submit, wait, land, retry, isolate bad files, or give the id up (L3 to L5)
    files pending     mend the table, enter the batch as the flight (L2), go round
    nothing pending   drop backlog chunks that are loaded

A step that must wait gives the table's turn back: nothing here sleeps.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable
from typing import Final

from kbq_assets.core.errors import (
    JobAlreadyExists,
    JobFailed,
    KbqError,
    NotFound,
    PreconditionFailed,
    TransientError,
    UnknownOutcome,
)
from kbq_assets.core.extraction.restarts import parking_restarts
from kbq_assets.core.loading import table_state as loading
from kbq_assets.core.loading.quota import next_job_ms
from kbq_assets.core.loading.schema_changes import note_change, settle_change
from kbq_assets.core.loading.table_notes import StoredTable, needs_notes
from kbq_assets.core.loading.table_notes import noted as with_notes
from kbq_assets.core.loading.table_state import JobInFlight, LoadBatch, Parked, QuarantinedFile, TableState
from kbq_assets.core.loading.tables import (
    Column,
    IncompatibleColumn,
    TableChange,
    TableOptions,
    clusterable,
    columns_of,
)
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import TableReference, quarantine_path, schema_path, table_state_path
from kbq_assets.pipelines.loading.bad_files import MAX_BAD_FILES, find_bad_files
from kbq_assets.pipelines.loading.ports import (
    END,
    GO_ON,
    NEXT_VIEW,
    LoadOptions,
    LoadPorts,
    TableReport,
    Turn,
    held_by,
    topics_of,
)
from kbq_assets.pipelines.loading.restaging import Fit, fit, is_copy
from kbq_assets.pipelines.loading.view import LoadView, missing_state
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.evolutions import places
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.ports.warehouse import JobError, JobStatus, LoadJob

#: BigQuery guarantees a job's existence for 180 days; far before that, "not found" no longer means "not started" (L3).
MAX_FLIGHT_AGE_MS: Final = 30 * 24 * 3600 * 1000
#: Transient job errors are retried this often in one run, and permanent ones that a probe does not confirm.
MAX_RETRIES: Final = 3


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
        self.landed: list[JobInFlight] = []
        self._columns: tuple[Column, ...] = ()

    def report(self) -> TableReport:
        """What happened so far."""
        return dataclasses.replace(
            self._outcome,
            rows=sum(f.rows for f in self.landed),
            files=sum(len(f.files) for f in self.landed),
            bytes=sum(file.bytes for f in self.landed for file in f.files),
            oldest_ms=min((file.oldest_ms for f in self.landed for file in f.files), default=0),
            columns=self._columns,
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
            return self._leave_or_restart(view, current, current.value.parked)
        if current.value.in_flight is not None:
            return self._settle(current, current.value.in_flight)
        return self._begin_job(view, current) if is_new else NEXT_VIEW

    def _leave_or_restart(self, view: LoadView, current: Versioned[TableState], parked: Parked) -> Turn:
        """A parked table stays so until its pause is over. Then it flies again, from the next view."""
        due = parking_restarts(parked, self._ports.store.now_ms)
        if not (due and self._options.restarts(topics_of(view.files(self._table)))):
            return self._end("parked", f"{parked.reason}: {parked.error}")
        self._swap(current, loading.restart(current.value))
        return GO_ON

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

    def _begin_job(self, view: LoadView, current: Versioned[TableState]) -> Turn:
        warehouse, files = self._ports.warehouse, view.files(self._table)
        batch = loading.plan_batch(
            self._table, current.value, files, warehouse.limits, view.given_up, view.holds
        )
        if batch is None and (held := loading.held_files(current.value, files, view.given_up, view.holds)):
            return self._end("held", held_by(held, view.holds))
        if batch is None:
            for path in view.backlog.get(str(self._table), ()):
                self._ports.store.delete(path)
            if current.value.restarting is not None:
                self._swap(current, loading.end_restart(current.value))
            return END
        if (wait := self._quota_wait(current.value)) is not None:
            return wait
        if (found := self._mend_table(current, batch)) is not None:
            mended, batch = found
            flying = loading.begin_job(
                self._settled(mended.value), batch, warehouse.project, warehouse.location
            )
            self._swap(mended, self._counted(flying))
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
        if flying.in_flight is None or not self._ports.warehouse.limits.jobs_per_day:
            return flying
        return loading.count_job(flying, self._ports.store.now_ms())

    def _settled(self, current: TableState) -> TableState:
        """A state whose table is as it was noted that it would be."""
        return settle_change(current, self._ports.store.now_ms()) if current.changing else current

    def _mend_table(
        self, current: Versioned[TableState], batch: LoadBatch
    ) -> tuple[Versioned[TableState], LoadBatch] | None:
        """Note what is to be done, then create or alter the table before the load; return the state with the note, and
        the batch as the table takes it. None where it was parked, since the schemas contradict each other, or somebody
        else was faster."""
        stored = self._ports.warehouse.find_table(self._table)
        try:
            fitted = self._fit(batch, stored)
        except IncompatibleColumn as error:
            self._park(current, "incompatible_schema", error.message)
            return None
        noted = self._noted(current, note_change(current.value, fitted.change, batch.schema.schema_id))
        if noted is None:
            return None
        columns, options = columns_of(fitted.schema), self._table_options(batch.files)
        self._columns = self._change(fitted.change, stored, columns, options)
        return noted, fitted.batch

    def _fit(self, batch: LoadBatch, stored: StoredTable | None) -> Fit:
        return fit(
            self._ports.store,
            batch,
            stored.columns if stored else None,
            beside=lambda: places(self._options.topics(topics_of(batch.files)).values()),
            attempt=self._ports.new_uuid(),
        )

    def _change(
        self,
        change: TableChange,
        stored: StoredTable | None,
        staged: tuple[Column, ...],
        options: TableOptions,
    ) -> tuple[Column, ...]:
        """Create, alter or describe the table, and return its columns. No call where it is as it should be."""
        warehouse, columns = self._ports.warehouse, with_notes(change.columns, staged, options.notes)
        if stored is None:
            warehouse.create_table(self._table, columns, clusterable(options, columns))
        elif change or columns != stored.columns or needs_notes(stored, options.notes):
            warehouse.update_columns(self._table, columns, options.notes)
        return columns

    def _noted(self, current: Versioned[TableState], value: TableState) -> Versioned[TableState] | None:
        try:
            return state.swap(self._ports.store, current, value)
        except (PreconditionFailed, UnknownOutcome, NotFound):
            return None

    def _table_options(self, files: Iterable[StagedFile]) -> TableOptions:
        return self._options.options(self._table, topics_of(files))

    def _schema(self, fingerprint: str) -> str:
        return self._ports.store.get(schema_path(fingerprint)).data.decode()

    # Settling a flight ------------------------------------------------------------------------------------------

    def _settle(self, current: Versioned[TableState], in_flight: JobInFlight) -> Turn:
        job = self._ports.warehouse.get_job(in_flight.job_id, in_flight.project, in_flight.location)
        if job is None:
            return self._submit(current, in_flight)
        if job.state != "DONE":
            return self._wait(job, in_flight)
        if in_flight.burning and not job.source_uris:
            self._swap(current, loading.give_up(current.value))
            return GO_ON
        if set(job.source_uris) != set(self._uris(in_flight.files)):
            return self._park(current, "foreign_job", f"job {job.job_id} loads other files than its flight")
        if job.error is None:
            return self._land(current, job)
        return self._recover(current, in_flight, job.error)

    def _submit(self, current: Versioned[TableState], in_flight: JobInFlight) -> Turn:
        warehouse, age = self._ports.warehouse, self._ports.store.now_ms() - current.updated_ms
        try:
            if in_flight.burning:
                warehouse.burn_job(in_flight.job_id, in_flight.project, in_flight.location)
            elif age > MAX_FLIGHT_AGE_MS:
                # Whether it ever ran can no longer be told from "not found".
                planned = f"planned {age // 86_400_000} days ago, then lost"
                return self._park(current, "old_flight", f"job {in_flight.job_id} was {planned}")
            else:
                warehouse.insert_job(self._job(in_flight, in_flight.files))
        except (JobAlreadyExists, UnknownOutcome):
            # The next step gets the job; not found means not started, and the same id is submitted again (L3).
            return self._try_again("the warehouse does not answer")
        except JobFailed as error:
            # Refused, not inserted: an earlier call of the same id may still arrive, so the id is burned first.
            self._swap(current, loading.burn(current.value))
            return self._try_again(error.message)
        return GO_ON

    def _wait(self, job: JobStatus, in_flight: JobInFlight) -> Turn:
        stuck = self._cancel_stuck(job, in_flight)
        if self._ports.clock.monotonic() >= self._deadline:
            return self._end("waiting", f"job {job.job_id} is {job.state}{stuck}")
        return Turn("later", self._options.poll_seconds)

    def _cancel_stuck(self, job: JobStatus, in_flight: JobInFlight) -> str:
        """Cancel a job that does not end, once a run. What it ends with decides (L5)."""
        age = (self._ports.store.now_ms() - job.created_ms) / 1000 if job.created_ms else 0.0
        if not 0 < self._options.stuck_seconds < age:
            return ""
        if self._cancelled != job.job_id:
            self._cancelled = job.job_id
            with contextlib.suppress(UnknownOutcome):  # it is asked again in the next run
                self._ports.warehouse.cancel_job(in_flight.job_id, in_flight.project, in_flight.location)
        stuck = f"{age / 3600:.1f} hours after it was inserted: cancelled"
        self._outcome = TableReport(self._table, "idle", message=f"job {job.job_id} was {job.state} {stuck}")
        return f", {stuck}"

    def _land(self, current: Versioned[TableState], job: JobStatus) -> Turn:
        in_flight = current.value.in_flight
        assert in_flight is not None
        landed = loading.land(current.value, job.output_rows)
        if self._swap(current, loading.with_landing(landed, in_flight, self._ports.clock.now_ms())):
            self._finish(in_flight)
        return GO_ON

    def _finish(self, in_flight: JobInFlight) -> None:
        """Delete loaded files (L4). The sweep mends what fails here."""
        self.landed.append(in_flight)
        self._ports.store.delete_many(
            [file.path for file in (*in_flight.files, *(q.file for q in in_flight.quarantined))]
        )

    def _recover(self, current: Versioned[TableState], in_flight: JobInFlight, error: JobError) -> Turn:
        """A job that ended with an error loaded nothing (L5)."""
        if (wait := self._quota_wait(current.value, retry=True)) is not None:
            return wait
        current = dataclasses.replace(current, value=loading.with_failure(current.value))
        if error.transient:
            return self._retry(current, error)
        if missing := self._missing(in_flight):
            return self._replan(current, missing)
        bad = find_bad_files(
            self._ports.warehouse, in_flight.files, lambda files: self._job(in_flight, files)
        )
        if not bad and current.value.failures < MAX_RETRIES:
            # The files load into a scratch table: perhaps the error has passed.
            self._swap(current, self._counted(loading.retry(current.value)))
            return GO_ON
        if not bad or len(bad) > MAX_BAD_FILES:
            found = f"{len(bad)} bad files" if bad else "no bad file found"
            failed = dataclasses.replace(current.value, in_flight=None)  # its id is DONE and loaded nothing
            why, now_ms = f"{error.reason}: {error.message} ({found})", self._ports.store.now_ms()
            self._swap(current, loading.park(failed, "load_failed", why, now_ms))
            return GO_ON
        return self._isolate(current, in_flight, bad)

    def _retry(self, current: Versioned[TableState], error: JobError) -> Turn:
        """The same files under a new id, after a while."""
        self._swap(current, self._counted(loading.retry(current.value)))
        turn, pause = self._try_again(error.message), min(60.0, 2.0 ** (self._retries - 1))
        return Turn("later", pause) if turn is GO_ON else turn

    def _isolate(
        self, current: Versioned[TableState], in_flight: JobInFlight, bad: list[QuarantinedFile]
    ) -> Turn:
        """Keep copies of bad files; the rest flies again, and takes them out of the table's way (L5)."""
        for quarantined in bad:
            self._ports.store.copy(quarantined.file.path, quarantine_path(quarantined.file.path))
        isolated = self._counted(loading.isolate(current.value, bad))
        nothing = dataclasses.replace(in_flight, files=(), quarantined=(*in_flight.quarantined, *bad))
        if isolated.in_flight is None:
            isolated = loading.with_landing(isolated, nothing, self._ports.clock.now_ms())
        if self._swap(current, isolated) and isolated.in_flight is None:
            self._finish(nothing)
        return GO_ON

    def _missing(self, in_flight: JobInFlight) -> list[str]:
        """Files of the flight that are not in the store any more."""
        paths = {file.path for file in in_flight.files}
        folders = sorted({path.rpartition("/")[0] for path in paths})
        listings = state.parallel(lambda folder: list(self._ports.store.list(f"{folder}/")), folders)
        return sorted(paths - {entry.path for listing in listings for entry in listing})

    def _replan(self, current: Versioned[TableState], missing: list[str]) -> Turn:
        """The job failed for files that are gone: given up by a reset since the batch was planned, or lost."""
        store = self._ports.store
        commits = state.read_commits(store, state.topic_registry(store))
        landed_nothing = dataclasses.replace(current.value, in_flight=None)  # its id is DONE, without a row
        lost = {path for path in missing if not is_copy(path)}
        if lost <= {path for commit in commits for path in commit.value.given_up}:
            self._swap(current, landed_nothing)
            return GO_ON
        gone = f"{len(missing)} staged files are gone: {missing[0]}"
        self._swap(current, loading.park(landed_nothing, "missing_files", gone))
        return GO_ON

    def _job(self, in_flight: JobInFlight, files: tuple[StagedFile, ...]) -> LoadJob:
        schema, labels = self._schema(files[0].fingerprint), self._table_options(files).labels
        return LoadJob(
            in_flight.job_id,
            in_flight.project,
            in_flight.location,
            self._table,
            self._uris(files),
            schema,
            labels,
        )

    def _uris(self, files: Iterable[StagedFile]) -> tuple[str, ...]:
        return tuple(self._ports.store.uri(f.path) for f in files)

    # Shared -----------------------------------------------------------------------------------------------------

    def _park(self, current: Versioned[TableState], reason: str, error: str) -> Turn:
        self._swap(current, loading.park(current.value, reason, error, self._ports.store.now_ms()))
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
