"""One table's load: a loop that its state object alone drives (PROTOCOL, Loading).

Every step starts from the state, so it needs no memory of crashes, lost replies or other loaders:

    replay in flight  leave the table: its rows are being replaced (R3)
    parked            leave the table, or try it again once its pause is over
    job in flight     get the job; then submit, wait, record, retry, isolate bad files, or give the id up (L3 to L5)
    statement         the same, but the ledger shows whether the statement took effect (S2)
    files pending     create or alter the table, enter the batch as the job in flight (L2), repeat
    nothing pending   drop backlog chunks that are loaded

No step sleeps: one that must wait ends the table's turn.
"""

from __future__ import annotations

import logging
from typing import Final

from kbq_assets.core.errors import Defect, KbqError
from kbq_assets.core.extraction.restarts import parking_restarts
from kbq_assets.core.loading import table_state
from kbq_assets.core.loading.replacing import replacing_words
from kbq_assets.core.loading.table_state import Parked, TableState
from kbq_assets.core.ordering import transitions
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.waits import park_commands
from kbq_assets.pipelines.loading import job_recovery, job_start
from kbq_assets.pipelines.loading.ports import (
    CONTINUE,
    NEXT_VIEW,
    LoadOptions,
    LoadPorts,
    TableReport,
    Turn,
    topics_of,
)
from kbq_assets.pipelines.loading.table_run import TableRun
from kbq_assets.pipelines.loading.view import LoadView
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.pipelines.statements import apply

_LOGGER: Final = logging.getLogger("kbq.load")


class TableLoader:
    """One table's loop within a run."""

    def __init__(
        self, ports: LoadPorts, options: LoadOptions, table: TableReference, deadline: float
    ) -> None:
        self._run = TableRun(ports, options, table, deadline)
        self._view: LoadView | None = None
        #: the error that ended the table's run
        self.error: KbqError | None = None

    @property
    def finished(self) -> list[StagedFile]:
        """Loaded files that no warehouse needs any more."""
        return self._run.finished

    def report(self) -> TableReport:
        return self._run.report()

    def fail(self, error: KbqError) -> Turn:
        self.error = error
        return self._run.fail(error)

    def advance(self, view: LoadView) -> Turn:
        """Do all steps that need no waiting. An error ends only this table's run."""
        try:
            with self._run.ports.warehouse.session():
                while (turn := self._step(view)) is CONTINUE:
                    pass
        except Exception as error:
            turn = self.fail(Defect.of(error))
            if not isinstance(error, KbqError):
                _LOGGER.error("%s failed", self._run.table, exc_info=error)
        return turn

    def _step(self, view: LoadView) -> Turn:
        # A view reads the state before the commits, so one plan may use both (L1).
        is_new, self._view = view is not self._view, view
        current = self._state_in(view) if is_new else self._run.read_state()
        if (replacing := current.value.definition.replacing) is not None:
            return self._run.end("waiting", replacing_words(replacing))
        if current.value.parked is not None:
            return self._leave_or_restart(view, current, current.value.parked)
        if (entry := current.value.in_flight) is not None:
            if entry.statement is not None and entry.statement.loaded_by:
                return apply.settle(self._run, current, entry)
            return job_recovery.settle(self._run, current, entry, view)
        return job_start.start_job(self._run, view, current) if is_new else NEXT_VIEW

    def _leave_or_restart(self, view: LoadView, current: Versioned[TableState], parked: Parked) -> Turn:
        """Leave a parked table until its pause is over. Then the next view plans a job for it."""
        run = self._run
        due = parking_restarts(parked, run.ports.store.now_ms)
        if not (due and run.options.restarts(topics_of(view.files(run.table)))):
            commands = park_commands(run.table, parked.reason, transitions.failed_batch(current.value))
            return run.end("parked", f"{parked.reason}: {parked.error}", commands=commands)
        run.swap(current, table_state.restart(current.value))
        return CONTINUE

    def _state_in(self, view: LoadView) -> Versioned[TableState]:
        found = view.states[self._run.table]
        if isinstance(found, KbqError):
            raise found
        return found
