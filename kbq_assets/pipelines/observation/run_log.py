"""Stores the totals and errors of runs (core/observation/run_totals.py). A failure here is logged and fails nothing
else."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kbq_assets.core.errors import KbqError, NotFound, may_pass
from kbq_assets.core.observation import run_totals
from kbq_assets.core.observation.run_totals import (
    CLEANING,
    EXTRACTION,
    LOADING,
    WHOLE_RUN,
    RunEnd,
    RunFailure,
    RunTotals,
    SignOfLife,
    failure_key,
    run_failure,
)
from kbq_assets.pipelines.extraction.ports import ExtractionReport, Progress
from kbq_assets.pipelines.operate.clean import CleaningReport
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.warehouse_store import warehouse_of
from kbq_assets.ports.clock import Clock
from kbq_assets.ports.object_store import ObjectStore

if TYPE_CHECKING:  # an extraction does not need the modules of loads
    from kbq_assets.pipelines.loading.load import LoadReport, TableReport

_LOGGER: Final = logging.getLogger("kbq.metrics")
#: Seconds between a run's signs of life. Readers wait a few times as long before they call a run dead.
SIGN_SECONDS: Final = 15.0


def _new_run() -> str:
    return uuid.uuid4().hex[:12]


@dataclass
class RunLog:
    """The record of one run."""

    store: ObjectStore
    clock: Clock
    run: str = field(default_factory=_new_run)
    _shown: bool = False
    _due: float = 0.0

    def watching(self, on_progress: Callable[[Progress], None]) -> Callable[[Progress], None]:
        """A progress callback that also writes signs of life while the extraction runs."""

        def watch(progress: Progress) -> None:
            on_progress(progress)
            now = self.clock.monotonic()
            if progress.units and now >= self._due:
                self._due = now + SIGN_SECONDS
                self._quietly(lambda: self._show(SignOfLife(EXTRACTION, progress.units, progress.workers)))

        return watch

    def end_extraction(self, report: ExtractionReport) -> None:
        """Count an extraction. It succeeded if no partition failed; a stopped partition is not a failure."""
        now_ms = self.clock.now_ms()
        done = (
            *(each.topic_partition for each in report.partitions),
            *(s.topic_partition for s in report.stops),
        )
        failures = {
            str(tp): run_failure(message, now_ms, transient=tp not in report.refused)
            for tp, message in report.failures.items()
        }
        end = RunEnd(
            self.run,
            not report.failures,
            report.seconds,
            now_ms,
            lost_files=report.lost_files,
            advisory_failures=len(report.advisory_failures),
            costs=report.costs,
            workers=report.workers,
            parts={WHOLE_RUN: None, **dict.fromkeys(map(str, done)), **failures},
        )
        self._end(EXTRACTION, end)

    def fail_extraction(self, error: KbqError) -> None:
        """Count an extraction of all topics that ended with an error."""
        now_ms = self.clock.now_ms()
        failure = run_failure(_described(error), now_ms, transient=may_pass(error))
        self._end(EXTRACTION, RunEnd(self.run, False, 0.0, now_ms, parts={WHOLE_RUN: failure}))

    def end_loading(self, report: LoadReport) -> None:
        """Count a load. It succeeded if no table failed; a parked table is not a failure."""
        warehouse, now_ms = warehouse_of(self.store), self.clock.now_ms()
        parts = {failure_key(warehouse, each.table): _failure(each, now_ms) for each in report.tables}
        end = RunEnd(
            self.run,
            not any(parts.values()),
            report.seconds,
            now_ms,
            done_files=report.deleted_done_files,
            parts=parts,
        )
        self._end(LOADING, end)

    def end_cleaning(self, report: CleaningReport, seconds: float) -> None:
        end = RunEnd(
            self.run,
            not report.failures,
            seconds,
            self.clock.now_ms(),
            orphans=report.orphans,
            done_files=report.done_files,
        )
        self._end(CLEANING, end)

    def close(self) -> None:
        """Remove the sign of life. Called however the run ended."""
        if self._shown:
            self._quietly(lambda: self.store.delete(run_totals.sign_path(self.run)))

    def _show(self, sign: SignOfLife) -> None:
        path = run_totals.sign_path(self.run)
        if not self._shown:
            self._shown = True
            state.create(self.store, path, sign)
        else:
            state.swap(self.store, state.read(self.store, SignOfLife, path), sign)

    def _end(self, kind: str, end: RunEnd) -> None:
        self._quietly(lambda: _count(self.store, run_totals.totals_path(kind), end))

    def _quietly(self, action: Callable[[], object]) -> None:
        try:
            action()
        except KbqError as error:
            _LOGGER.warning("run %s could not be recorded: %s", self.run, error)


def _described(error: KbqError) -> str:
    return f"{type(error).__name__}: {error}"


def _failure(table: TableReport, now_ms: int) -> RunFailure | None:
    if table.state != "failed":
        return None
    return run_failure(table.message, now_ms, transient=table.transient)


def _count(store: ObjectStore, path: str, end: RunEnd) -> None:
    try:
        state.change(store, RunTotals, path, lambda totals: totals.plus(end))
    except NotFound:
        state.create(store, path, RunTotals())
        state.change(store, RunTotals, path, lambda totals: totals.plus(end))
