"""Loading: committed files become rows under job ids that cannot run twice (PROTOCOL, Loading).

Each table walks through the same loop, driven by its state object alone. Every step re-reads the state, so that a
crash, a lost reply or a second loader leaves nothing to remember:

    parked            leave it
    flight            settle it: get the job; submit, wait, land, retry, isolate bad files, or give the id up (L3 to L5)
    files pending     mend the table, enter the batch as the flight (L2), go round
    nothing pending   drop backlog chunks that are loaded
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kbq_assets.core import loading
from kbq_assets.core.commits import Commit, StagedFile
from kbq_assets.core.errors import (
    JobAlreadyExists,
    JobFailed,
    KbqError,
    MissingState,
    NotFound,
    PreconditionFailed,
    StateError,
    TransientError,
    UnknownOutcome,
)
from kbq_assets.core.loading import Batch, Flight, LoadLimits, QuarantinedFile, TableState
from kbq_assets.core.names import TableReference, quarantine_path, schema_path, table_state_path
from kbq_assets.core.planning import BacklogChunk, superseded_done_files
from kbq_assets.core.tables import IncompatibleColumn, TableOptions, plan_table_change
from kbq_assets.pipelines import state
from kbq_assets.pipelines.done_files import list_done_files
from kbq_assets.pipelines.state import Versioned
from kbq_assets.ports.clock import Clock
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.warehouse import JobError, JobStatus, LoadJob, Warehouse

#: BigQuery guarantees a job's existence for 180 days; far before that, "not found" no longer means "not started" (L3).
MAX_FLIGHT_AGE_MS = 30 * 24 * 3600 * 1000
#: Transient job errors are retried this often in one run, and permanent ones that a probe does not confirm.
MAX_RETRIES = 3
#: A batch with more bad files than this is not a matter of single files: the table is parked.
MAX_BAD_FILES = 20


@dataclass(frozen=True)
class LoadPorts:
    """The world of a load."""

    store: ObjectStore
    warehouse: Warehouse
    clock: Clock
    new_uuid: Callable[[], str] = lambda: uuid.uuid4().hex[:16]


@dataclass(frozen=True)
class LoadOptions:
    """How a load run behaves. ``wait_seconds``: how long to poll running jobs; 0 leaves flights open (L8)."""

    table: TableOptions = field(default_factory=TableOptions)
    wait_seconds: float = 600.0
    poll_seconds: float = 2.0


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
class LoadReport:
    """What a load run did."""

    tables: tuple[TableReport, ...]
    seconds: float = 0.0

    @property
    def rows(self) -> int:
        """Rows this run loaded."""
        return sum(t.rows for t in self.tables)


def plan(store: ObjectStore, limits: LoadLimits | None = None) -> list[Batch]:
    """The next batch of every table, as `load` would submit it now. Changes nothing."""
    registry = state.table_registry(store)
    # Marks may be older than the files, never newer: a file that is loaded meanwhile is fenced by the swap (L2).
    states = state.read_table_states(store, registry)
    commits = [c.value for c in state.read_commits(store, state.topic_registry(store))]
    pending, given_up = state.by_table(commits), _given_up(commits)
    batches = []
    for table in sorted({*pending, *registry.tables}):
        current = states[table].value if table in states else TableState("")
        if current.parked is not None or current.flight is not None:
            continue
        files = [*pending.get(table, ()), *_backlog_files(store, table)]
        try:
            batch = loading.plan_batch(table, current, files, limits or LoadLimits(), given_up)
        except StateError:
            continue  # the load reports the table as failed; the others are planned
        if batch is not None:
            batches.append(batch)
    return batches


def tables_to_load(store: ObjectStore) -> list[TableReference]:
    """Tables with files in commits, and all tables ever loaded: any may have a flight or a backlog."""
    pending = state.by_table(c.value for c in state.read_commits(store, state.topic_registry(store)))
    registry = state.table_registry(store)
    return sorted({*pending, *registry.tables})


def load(
    ports: LoadPorts,
    options: LoadOptions | None = None,
    *,
    only: frozenset[TableReference] | None = None,
    on_table: Callable[[TableReport], None] = lambda report: None,
) -> LoadReport:
    """Load every table's pending files. One table's failure does not stop the others."""
    started = ports.clock.monotonic()
    reports = []
    for table in tables_to_load(ports.store):
        if only is None or table in only:
            reports.append(_load_table(ports, options or LoadOptions(), table))
            on_table(reports[-1])
    return LoadReport(tuple(reports), ports.clock.monotonic() - started)


def _load_table(ports: LoadPorts, options: LoadOptions, table: TableReference) -> TableReport:
    loader = _TableLoader(ports, options, table)
    try:
        while loader.step():
            pass
    except KbqError as error:
        return loader.report("failed", f"{type(error).__name__}: {error}", isinstance(error, TransientError))
    return loader.report()


def _backlog_files(store: ObjectStore, table: TableReference) -> list[StagedFile]:
    return [file for chunk in state.read_backlog(store, table) for file in chunk.value.files]


def _given_up(commits: Iterable[Commit]) -> frozenset[str]:
    return frozenset(path for commit in commits for path in commit.given_up)


class _TableLoader:
    """One table's loop. Each `step` reads the state and does one thing; False when there is nothing left to do."""

    def __init__(self, ports: LoadPorts, options: LoadOptions, table: TableReference) -> None:
        self._ports = ports
        self._options = options
        self._table = table
        self._deadline = ports.clock.monotonic() + options.wait_seconds
        self._retries = 0
        self._state = "idle"
        self._message = ""
        self._landed: list[Flight] = []

    def report(self, outcome: str = "", message: str = "", transient: bool = False) -> TableReport:
        """What happened so far."""
        return TableReport(
            self._table,
            outcome or self._state,
            sum(f.rows for f in self._landed),
            sum(len(f.files) for f in self._landed),
            tuple(f.job_id for f in self._landed),
            sum(len(f.quarantined) for f in self._landed),
            message or self._message,
            transient or self._state == "failed",
        )

    def step(self) -> bool:
        current = self._read_state()
        if current.value.parked is not None:
            self._state, self._message = (
                "parked",
                f"{current.value.parked.reason}: {current.value.parked.error}",
            )
            return False
        if current.value.flight is not None:
            return self._settle(current, current.value.flight)
        return self._take_off(current)

    def _read_state(self) -> Versioned[TableState]:
        store, path = self._ports.store, table_state_path(self._table)
        # The registry first: a table that is active by then has a state.
        is_active = str(self._table) in state.table_registry(store).active
        found = state.find(store, TableState, path)
        if is_active:
            if found is None:
                raise MissingState(
                    f"{path} is registered but missing", next_step="restore it from a backup (L6)"
                )
            return found
        return state.create_table_state(store, self._table, self._ports.new_uuid())

    # Planning and taking off ------------------------------------------------------------------------------------

    def _take_off(self, current: Versioned[TableState]) -> bool:
        store = self._ports.store
        commits, chunks = self._candidates()
        committed = state.by_table(commits).get(self._table, [])
        files = [*committed, *(file for chunk in chunks for file in chunk.value.files)]
        batch = loading.plan_batch(
            self._table, current.value, files, self._ports.warehouse.limits, _given_up(commits)
        )
        if batch is None:
            for chunk in chunks:
                store.delete(chunk.path)
            return False
        if not self._mend_table(current, batch):
            return True
        warehouse = self._ports.warehouse
        self._swap(current, loading.take_off(current.value, batch, warehouse.project, warehouse.location))
        return True

    def _candidates(self) -> tuple[list[Commit], list[Versioned[BacklogChunk]]]:
        """Commits first, then the backlog: a file moved between the two reads is then in the second (L1)."""
        store = self._ports.store
        commits = [c.value for c in state.read_commits(store, state.topic_registry(store))]
        return commits, state.read_backlog(store, self._table)

    def _mend_table(self, current: Versioned[TableState], batch: Batch) -> bool:
        """Create or alter the table before the load; park it when the schemas contradict each other."""
        warehouse = self._ports.warehouse
        schema = self._schema(batch.schema.fingerprint)
        try:
            change = plan_table_change(schema, warehouse.columns(self._table))
        except IncompatibleColumn as error:
            self._swap(current, loading.park(current.value, "incompatible_schema", error.message))
            return False
        if change.create:
            warehouse.create_table(self._table, change.columns, self._options.table)
        elif change:
            warehouse.update_columns(self._table, change.columns)
        return True

    def _schema(self, fingerprint: str) -> str:
        return self._ports.store.get(schema_path(fingerprint)).data.decode()

    # Settling a flight ------------------------------------------------------------------------------------------

    def _settle(self, current: Versioned[TableState], flight: Flight) -> bool:
        job = self._ports.warehouse.get_job(flight.job_id, flight.project, flight.location)
        if job is None:
            return self._submit(current, flight)
        if job.state != "DONE":
            return self._wait(job)
        if flight.burning and not job.source_uris:
            self._swap(current, loading.give_up(current.value))
            return True
        if set(job.source_uris) != set(self._uris(flight.files)):
            return self._park(current, "foreign_job", f"job {job.job_id} loads other files than its flight")
        if job.error is None:
            return self._land(current, job)
        return self._recover(current, flight, job.error)

    def _submit(self, current: Versioned[TableState], flight: Flight) -> bool:
        warehouse, age = self._ports.warehouse, self._ports.store.now_ms() - current.updated_ms
        try:
            if flight.burning:
                warehouse.burn_job(flight.job_id, flight.project, flight.location)
            elif age > MAX_FLIGHT_AGE_MS:
                # Whether it ever ran can no longer be told from "not found".
                days = age // 86_400_000
                return self._park(
                    current, "old_flight", f"job {flight.job_id} was planned {days} days ago, then lost"
                )
            else:
                warehouse.insert_job(self._job(flight, flight.files))
        except (JobAlreadyExists, UnknownOutcome):
            # The next step gets the job; not found means not started, and the same id is submitted again (L3).
            return self._try_again("the warehouse does not answer")
        except JobFailed as error:
            # Refused, not inserted: an earlier call of the same id may still arrive, so the id is burned first.
            self._message = error.message
            self._swap(current, loading.burn(current.value))
            return self._try_again(error.message)
        return True

    def _wait(self, job: JobStatus) -> bool:
        if self._ports.clock.monotonic() >= self._deadline:
            self._state, self._message = "waiting", f"job {job.job_id} is {job.state}"
            return False
        self._ports.clock.sleep(self._options.poll_seconds)
        return True

    def _land(self, current: Versioned[TableState], job: JobStatus) -> bool:
        flight = current.value.flight
        assert flight is not None
        if self._swap(current, loading.land(current.value, job.output_rows)):
            self._landed.append(flight)
            self._clean_up(flight)
        return True

    def _clean_up(self, flight: Flight) -> None:
        """Delete loaded files, then done files of which a higher one exists (L4). The sweep mends what fails here."""
        store = self._ports.store
        files = (*flight.files, *(q.file for q in flight.quarantined))
        store.delete_many([f.path for f in files])
        loaded = {f.done for f in files}
        names = list(list_done_files(store))
        superseded = superseded_done_files(names, frozenset(n for n in names if n not in loaded))
        store.delete_many([n.format() for n in superseded])

    def _recover(self, current: Versioned[TableState], flight: Flight, error: JobError) -> bool:
        """A job that ended with an error loaded nothing (L5)."""
        if error.transient:
            self._ports.clock.sleep(min(60.0, 2.0**self._retries))
            self._swap(current, loading.retry(current.value))
            return self._try_again(error.message)
        if missing := self._missing(flight):
            return self._replan(current, missing)
        bad = self._find_bad(flight)
        if not bad and current.value.failures < MAX_RETRIES:
            # The files load into a scratch table: perhaps the error has passed.
            self._swap(current, loading.retry(current.value))
            return True
        if not bad or len(bad) > MAX_BAD_FILES:
            found = f"{len(bad)} bad files" if bad else "no bad file found"
            failed = dataclasses.replace(current.value, flight=None)  # its id is DONE and loaded nothing
            self._swap(
                current, loading.park(failed, "load_failed", f"{error.reason}: {error.message} ({found})")
            )
            return True
        for quarantined in bad:
            self._ports.store.copy(quarantined.file.path, quarantine_path(quarantined.file.path))
        isolated = loading.isolate(current.value, bad)
        if self._swap(current, isolated) and isolated.flight is None:
            self._landed.append(Flight(flight.job_id, flight.project, flight.location, (), tuple(bad)))
            self._clean_up(Flight(flight.job_id, flight.project, flight.location, flight.files))
        return True

    def _missing(self, flight: Flight) -> list[str]:
        """Files of the flight that are not in the store any more."""
        paths = {file.path for file in flight.files}
        folders = {path.rpartition("/")[0] for path in paths}
        present = {entry.path for folder in folders for entry in self._ports.store.list(f"{folder}/")}
        return sorted(paths - present)

    def _replan(self, current: Versioned[TableState], missing: list[str]) -> bool:
        """The job failed for files that are gone: given up by a reset since the batch was planned, or lost."""
        commits = [
            c.value for c in state.read_commits(self._ports.store, state.topic_registry(self._ports.store))
        ]
        landed_nothing = dataclasses.replace(current.value, flight=None)  # its id is DONE, without a row
        if set(missing) <= _given_up(commits):
            self._swap(current, landed_nothing)
            return True
        parked = loading.park(
            landed_nothing, "missing_files", f"{len(missing)} staged files are gone: {missing[0]}"
        )
        self._swap(current, parked)
        return True

    def _find_bad(self, flight: Flight) -> list[QuarantinedFile]:
        """Name the files that do not load, by loading halves into a scratch table."""
        bad: list[QuarantinedFile] = []
        stack = [flight.files]
        while stack and len(bad) <= MAX_BAD_FILES:
            files = stack.pop()
            error = self._ports.warehouse.probe(self._job(flight, files))
            if error is None or error.transient:
                continue
            if len(files) == 1:
                bad.append(QuarantinedFile(files[0], f"{error.reason}: {error.message}"))
                continue
            half = len(files) // 2
            stack.extend((files[half:], files[:half]))
        return bad

    def _job(self, flight: Flight, files: tuple[StagedFile, ...]) -> LoadJob:
        schema = self._schema(files[0].fingerprint)
        return LoadJob(
            flight.job_id, flight.project, flight.location, self._table, self._uris(files), schema,
            self._options.table.labels,
        )  # fmt: skip

    def _uris(self, files: Iterable[StagedFile]) -> tuple[str, ...]:
        return tuple(self._ports.store.uri(f.path) for f in files)

    # Shared -----------------------------------------------------------------------------------------------------

    def _park(self, current: Versioned[TableState], reason: str, error: str) -> bool:
        self._swap(current, loading.park(current.value, reason, error))
        return True

    def _try_again(self, message: str) -> bool:
        self._retries += 1
        if self._retries <= MAX_RETRIES:
            return True
        self._state, self._message = "failed", f"{message}; the next run goes on"
        return False

    def _swap(self, current: Versioned[TableState], value: TableState) -> bool:
        """Swap the state. False when somebody else was faster or the outcome is unknown: the next step reads it."""
        try:
            state.swap(self._ports.store, current, value)
        except (PreconditionFailed, UnknownOutcome, NotFound):
            return False
        return True
