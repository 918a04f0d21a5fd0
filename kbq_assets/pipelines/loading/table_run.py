"""Context shared by the steps of one table's load: ports, deadline, retries, results."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Final

from kbq_assets.core.errors import KbqError, NotFound, PreconditionFailed, UnknownOutcome, may_pass
from kbq_assets.core.loading import table_state
from kbq_assets.core.loading.batches import LoadLimits, changed_partitions, job_wait
from kbq_assets.core.loading.file_warehouses import is_done_with
from kbq_assets.core.loading.partitions import limits_by
from kbq_assets.core.loading.quota import JobCounts
from kbq_assets.core.loading.table_state import JobInFlight, TableState
from kbq_assets.core.loading.tables import Column, TableOptions
from kbq_assets.core.ordering import transitions
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import TableReference, table_state_path
from kbq_assets.core.protocol.waits import ParkReason
from kbq_assets.pipelines.loading.ports import (
    CONTINUE,
    END,
    LoadOptions,
    LoadPorts,
    TableReport,
    Turn,
    topics_of,
)
from kbq_assets.pipelines.loading.stored_schemas import read_schema
from kbq_assets.pipelines.loading.view import missing_state
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.pipelines.protocol.warehouse_store import WarehouseStore, warehouse_of
from kbq_assets.ports.warehouse import LoadJob

#: Retries per run after a transient job error, or after a permanent one that no bad file explains.
MAX_RETRIES: Final = 3


class TableRun:
    """One table in one load run. Its steps change the table's state, or end the table's part of the run."""

    def __init__(
        self, ports: LoadPorts, options: LoadOptions, table: TableReference, deadline: float
    ) -> None:
        self.ports = ports
        self.options = options
        self.table = table
        self.deadline = deadline
        self.loaded: list[JobInFlight] = []
        #: files that no warehouse needs any more
        self.finished: list[StagedFile] = []
        self.columns: tuple[Column, ...] = ()
        self.cancelled_job = ""
        self.retries = 0
        self._outcome = TableReport(table, "idle")

    def report(self) -> TableReport:
        return dataclasses.replace(
            self._outcome,
            rows=sum(job.rows for job in self.loaded),
            files=sum(len(job.files) for job in self.loaded),
            bytes=sum(file.bytes for job in self.loaded for file in job.files),
            oldest_ms=min((file.oldest_ms for job in self.loaded for file in job.files), default=0),
            columns=self.columns,
            jobs=tuple(job.job_id for job in self.loaded),
            quarantined=sum(len(job.quarantined) for job in self.loaded),
        )

    # How a step ends ----------------------------------------------------------------------------------------------

    def end(
        self, outcome: str, message: str, transient: bool = False, commands: tuple[str, ...] = ()
    ) -> Turn:
        """End the table's part of the run. ``commands`` resume the table."""
        self.note(outcome, message, transient, commands)
        return END

    def note(
        self, outcome: str, message: str, transient: bool = False, commands: tuple[str, ...] = ()
    ) -> None:
        self._outcome = TableReport(
            self.table, outcome, message=message, commands=commands, transient=transient
        )

    def fail(self, error: KbqError) -> Turn:
        return self.end("failed", f"{type(error).__name__}: {error}", may_pass(error))

    def park(self, current: Versioned[TableState], reason: ParkReason, error: str) -> Turn:
        """Park the table; the next step reports it."""
        self.swap(current, table_state.park(current.value, reason, error, self.ports.store.now_ms()))
        return CONTINUE

    def fail_batch(
        self, current: Versioned[TableState], reason: ParkReason, error: str, files: Iterable[StagedFile]
    ) -> Turn:
        """Park the table for a batch that cannot be loaded."""
        now_ms = self.ports.store.now_ms()
        self.swap(current, transitions.fail_batch(current.value, reason, error, tuple(files), now_ms))
        return CONTINUE

    def try_again(self, message: str, transient: bool = True) -> Turn:
        """Continue, or end the table's part after `MAX_RETRIES`. ``transient`` is False if only a person can help."""
        self.retries += 1
        if self.retries <= MAX_RETRIES:
            return CONTINUE
        return self.end("failed", f"{message}; the next run continues", transient)

    # The table's state --------------------------------------------------------------------------------------------

    def read_state(self) -> Versioned[TableState]:
        """The state as it is now. Raises MissingState."""
        try:
            return state.read(self.ports.store, TableState, table_state_path(self.table))
        except NotFound:
            raise missing_state(self.table) from None

    def without_needed(self, files: Iterable[StagedFile]) -> list[StagedFile]:
        """The loaded files that no other warehouse needs, by the current states (W4)."""
        files, own = list(files), warehouse_of(self.ports.store)
        others = sorted({name for file in files for name in file.wanted_by} - {own})
        states = {name: self._state_in(name) for name in others}
        return [f for f in files if all(is_done_with(states[n], f) for n in f.wanted_by if n != own)]

    def _state_in(self, warehouse: str) -> TableState:
        """The table's state in another warehouse; an empty one if it cannot be read now."""
        store, path = WarehouseStore.of(self.ports.store, warehouse), table_state_path(self.table)
        try:
            found = state.find(store, TableState, path)
        except KbqError:
            found = None
        return found.value if found else TableState("")

    def swap(self, current: Versioned[TableState], value: TableState) -> Versioned[TableState] | None:
        """The state after a swap. None if another loader was faster or the outcome is unknown: read the state again."""
        try:
            return state.swap(self.ports.store, current, value)
        except (PreconditionFailed, UnknownOutcome, NotFound):
            return None

    def count_job(self, submitted: TableState) -> TableState:
        """The state, with the job in flight counted if the warehouse limits jobs per day (L2)."""
        if submitted.in_flight is None or not self.ports.warehouse.limits.jobs_per_day:
            return submitted
        limits = self.limits(submitted.in_flight.files)
        changes = changed_partitions(submitted.in_flight.files, limits)
        return table_state.count_job(submitted, self.ports.store.now_ms(), *changes)

    def quota_wait(
        self, jobs: JobCounts, files: Iterable[StagedFile], tables: int = 1, *, retry: bool = False
    ) -> Turn | None:
        """End the table's part if a daily quota allows no job of these files now; otherwise return None. ``tables``
        share the project's quota."""
        files, limits = list(files), self.ports.warehouse.limits
        if not limits.jobs_per_day:
            return None
        wait = job_wait(jobs, files, self.limits(files), self.ports.store.now_ms(), tables, retry=retry)
        return self.end("waiting", wait.text) if wait else None

    # Load jobs ----------------------------------------------------------------------------------------------------

    def load_job(self, in_flight: JobInFlight, files: tuple[StagedFile, ...]) -> LoadJob:
        """The warehouse's job for some of a job's files. They share one schema."""
        return LoadJob(
            in_flight.job_id,
            in_flight.project,
            in_flight.location,
            self._loaded_table(in_flight),
            self.uris(files),
            read_schema(self.ports.store, files[0]),
            self.table_options(in_flight.files).labels,
            files={self.ports.store.uri(file.path): file for file in files},
        )

    def create_scratch(self, in_flight: JobInFlight) -> None:
        """Create the scratch table of a load job that has a statement (S3). Raises Unavailable."""
        statements, columns = self.ports.warehouse.statements, self.ports.warehouse.columns(self.table)
        if in_flight.statement is not None and statements is not None and columns is not None:
            statements.create_scratch(self._loaded_table(in_flight), columns)

    def _loaded_table(self, in_flight: JobInFlight) -> TableReference:
        own = in_flight.statement
        return self.table if own is None else own.scratch(self.table, in_flight.job_id)

    def limits(self, files: Iterable[StagedFile]) -> LoadLimits:
        """The warehouse's limits for the partitions of these files."""
        return limits_by(self.ports.warehouse.limits, {self.table_options(files).partition_unit})

    def uris(self, files: Iterable[StagedFile]) -> tuple[str, ...]:
        """The URIs from which the warehouse reads files."""
        return tuple(self.ports.store.uri(file.path) for file in files)

    def table_options(self, files: Iterable[StagedFile]) -> TableOptions:
        return self.options.options(self.table, topics_of(files))
