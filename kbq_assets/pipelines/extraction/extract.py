"""Extraction: one bounded run that brings every selected topic up to date (PROTOCOL, Extraction).

    repair     write done files that a dead run did not write (E5), then prune commits and move backlogs (E7)
    snapshot   read the registry and the commits, then the broker's topics and offsets
    plan       pure: core/extraction/planning.py
    prepare    create commits of new topics, add partitions, record gaps
    read       run slices of units as tasks (core/extraction/turns.py); publish windows as they end (E4)
    charge     store the cost per topic (core/extraction/cost.py)

A crash at any point leaves only orphans and announcements. The next clean-up deletes the orphans, and the next run
completes the announcements.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache, partial, reduce
from typing import Final

from kbq_assets.core.errors import KbqError, TransientError
from kbq_assets.core.extraction.cost import Usage, cost_lines, costs_path, with_outcome
from kbq_assets.core.extraction.planning import ExtractionPlan
from kbq_assets.core.extraction.stops import PartitionStop
from kbq_assets.core.extraction.turns import Turns
from kbq_assets.core.extraction.units import Outage, TaskTime, Unit, UnitOutcome
from kbq_assets.core.observation.run_totals import WorkerUse
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.protocol.waits import stop_commands
from kbq_assets.core.topics.evolution import Evolution
from kbq_assets.core.topics.source_list import SourceEntry
from kbq_assets.pipelines.backup.publish import BackupPublishers
from kbq_assets.pipelines.extraction.plan import plan
from kbq_assets.pipelines.extraction.ports import (
    ExtractionLimits,
    ExtractionPorts,
    ExtractionReport,
    PartitionReport,
    Progress,
)
from kbq_assets.pipelines.extraction.prepare import prepare_each
from kbq_assets.pipelines.extraction.publisher import Publisher
from kbq_assets.pipelines.extraction.recovery import repair_and_prune
from kbq_assets.pipelines.protocol.outages import guarded
from kbq_assets.pipelines.threads import pool_of
from kbq_assets.ports.object_store import ObjectStore

__all__ = [
    "ExtractionLimits",
    "ExtractionPorts",
    "ExtractionReport",
    "Progress",
    "extract",
    "plan",
]

_LOGGER: Final = logging.getLogger("kbq.extract")


def extract(
    ports: ExtractionPorts,
    sources: Iterable[SourceEntry],
    *,
    only: frozenset[str] | None = None,
    limits: ExtractionLimits | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> ExtractionReport:
    """Run one extraction. The report names topics that stopped or failed. Raises MissingState, and Unavailable for the
    broker or the registries."""
    limits = limits or ExtractionLimits()
    started, started_ms = ports.clock.monotonic(), ports.clock.now_ms()
    refused = _repaired(ports.store, limits)
    planned = plan(
        ports.store, ports.offsets, sources,
        now_ms=started_ms, only=only, limits=limits, open_backup=ports.open_backup,
    )  # fmt: skip
    prepared = prepare_each(guarded(ports.store), planned)
    with pool_of(ports.publishing_threads, "kbq-publish") as pool:
        ends, hints = planned.log_ends, limits.done_files
        store = guarded(ports.store, ports.clock.monotonic)
        publisher = Publisher(store, ports.offsets, ports.clock, pool, ends, started_ms, done_files=hints)
        areas = cache(lambda area: guarded(ports.open_backup(area), ports.clock.monotonic))
        backups = BackupPublishers(areas, ports.offsets, ports.clock, pool)
        units = backups.prepare(planned, prepared.units, partial(prepare_each, log_store=store))
        run = _Run(ports, limits, units, (publisher, backups), on_progress)
        run.read_all()
    costs = charge(store, run.usage, ports.new_run(), started_ms)
    report = run.report(planned, costs, ports.clock.monotonic() - started)
    failures = {**planned.failures, **prepared.failures, **report.failures}
    return replace(report, stops=(*refused, *prepared.stops, *report.stops), failures=failures)


def _repaired(store: ObjectStore, limits: ExtractionLimits) -> list[PartitionStop]:
    """`repair_and_prune`. If the store does not answer now, the next run repairs the rest."""
    try:
        return repair_and_prune(guarded(store), done_files=limits.done_files)
    except TransientError as error:
        _LOGGER.warning("commits are not pruned yet: %s", error.message)
        return []


@dataclass
class _TimeLimit:
    """The time when a run stops starting tasks, and the time when it cancels running tasks. Monotonic seconds."""

    deadline: float
    limits: ExtractionLimits
    cancel_at: float = field(init=False)
    is_draining: bool = field(default=False, init=False)
    is_cancelled: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.cancel_at = self.deadline + self.limits.grace_seconds

    def drain(self, now: float) -> None:
        """Bring both times forward, because the run was asked to end."""
        if not self.is_draining:
            self.is_draining = True
            self.deadline = min(self.deadline, now)
            self.cancel_at = min(self.cancel_at, now + self.limits.drain_seconds)

    def reason_to_cancel(self, now: float) -> str:
        """The reason to cancel running tasks now; "" if there is none, or if it was returned before."""
        if self.is_cancelled or now < self.cancel_at:
            return ""
        self.is_cancelled = True
        limit = "the run was asked to end" if self.is_draining else "the run's time limit"
        return f"the task was canceled {now - self.deadline:.0f} s after {limit}"


class _Run:
    """The read step of one extraction: turns, running tasks and publishers."""

    def __init__(
        self,
        ports: ExtractionPorts,
        limits: ExtractionLimits,
        units: list[Unit],
        publishers: tuple[Publisher, BackupPublishers],
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._ports = ports
        self._turns = Turns(units, limits.slices)
        self._positions = sum(unit.range.positions for unit in units if unit.tables)
        self._on_progress = on_progress
        self._publisher, self._backups = publishers
        self._failures: dict[TopicPartition, str] = {}
        self._refused: set[TopicPartition] = set()
        self._stops: list[PartitionStop] = []
        self._usage: dict[str, Usage] = {}
        self._workers: dict[str, WorkerUse] = {}
        self._evolved: set[Evolution] = set()
        self._staged_files = 0
        self._complaint = ""
        self._time = _TimeLimit(ports.clock.monotonic() + limits.seconds, limits)

    def read_all(self) -> None:
        """Run tasks until nothing is left or the time limit is reached, and publish every finished window."""
        while True:
            if self._ports.is_draining():
                self._time.drain(self._ports.clock.monotonic())
            self._submit()
            if not self._turns.in_flight:
                break
            for outcome in self._ports.engine.next_outcomes(timeout_seconds=1.0):
                self._take(outcome)
            self._watch_tasks()
            self._publisher.flush_due()
            self._backups.flush_due()
            self._show_progress()
        self._publisher.flush()
        self._backups.flush()
        self._publisher.mark_idle()
        self._show_progress()

    def report(self, planned: ExtractionPlan, costs: tuple[Usage, ...], seconds: float) -> ExtractionReport:
        partitions = tuple(
            PartitionReport(
                tp, windows[0].first, windows[-1].until, reduce(operator.add, (w.counts for w in windows)),
                len(windows), tuple(f for w in windows for f in w.files),
            )
            for tp, windows in sorted(self._publisher.published.items())
        )  # fmt: skip
        stops = (*planned.stops, *self._stops, *self._publisher.stops)
        failures = {**self._failures, **self._publisher.failures}
        unfinished = self._turns.unfinished
        lost_files = self._staged_files - sum(len(p.files) for p in partitions)
        return ExtractionReport(
            planned, partitions, stops, failures, unfinished, seconds, costs, lost_files, self._busiest,
            tuple(sorted(self._evolved)), backup=self._backups.report(),
            is_behind=unfinished > self._turns.limited, refused=frozenset(self._refused),
        )  # fmt: skip

    @property
    def _busiest(self) -> tuple[WorkerUse, ...]:
        return tuple(sorted(self._workers.values(), key=lambda worker: worker.seconds, reverse=True))

    @property
    def usage(self) -> list[Usage]:
        return [self._usage[topic] for topic in sorted(self._usage)]

    def _watch_tasks(self) -> None:
        """Log the engine's complaint, if it has a new one. Cancel tasks that run long after the time limit; the next
        run reads their ranges again."""
        engine, before = self._ports.engine, self._complaint
        self._complaint = engine.complaint()
        if self._complaint and not before:
            _LOGGER.warning("%s", self._complaint)
        if reason := self._time.reason_to_cancel(self._ports.clock.monotonic()):
            engine.cancel(f"{reason}: {self._complaint}" if self._complaint else reason)

    def _submit(self) -> None:
        engine, clock = self._ports.engine, self._ports.clock
        while self._turns.has_more:
            left = self._time.deadline - clock.monotonic()
            # Ask the engine last: the question starts Spark.
            if left <= 0 or (idle := engine.idle_slots) <= 0:
                return
            task = self._turns.next_task(idle, left)
            if not task:
                return
            time = TaskTime(left, clock.now_ms())
            engine.submit(tuple(replace(unit, task=time) for unit in task))

    def _take(self, outcome: UnitOutcome) -> None:
        topic = outcome.unit.range.topic_partition.topic
        self._usage[topic] = with_outcome(self._usage.get(topic), outcome)
        if outcome.unit.tables:
            self._staged_files += sum(len(window.files) for window in outcome.windows)
        self._evolved.update(outcome.evolved)
        worker = outcome.process.name
        self._workers[worker] = self._workers.get(worker, WorkerUse()).with_outcome(outcome)
        for released in self._turns.take(outcome):
            if released.unit.tables:
                self._publisher.add(released)
                self._note(released)
            if backup := released.backup if released.unit.tables else released:
                self._backups.add(backup)

    def _note(self, outcome: UnitOutcome) -> None:
        tp = outcome.unit.range.topic_partition
        if outcome.failure:
            self._failures[tp] = outcome.failure
        if outcome.outage is Outage.REFUSED:
            self._refused.add(tp)
        if outcome.stop is not None:
            stop = outcome.stop
            self._stops.append(PartitionStop(tp, stop.reason, stop.message, stop_commands(stop.reason, tp)))

    def _show_progress(self) -> None:
        done, in_flight = self._publisher.counts, self._turns.in_flight
        self._on_progress(
            Progress(self._positions, done.positions, done.records, self._complaint, in_flight, self._busiest)
        )


def charge(store: ObjectStore, costs: Iterable[Usage], run: str, started_ms: int) -> tuple[Usage, ...]:
    """Store a run's costs, and return them. All windows are already published, so a failure is only logged."""
    costs = tuple(costs)
    if costs:
        try:
            store.create(costs_path(run, started_ms), cost_lines(costs, run, started_ms))
        except KbqError as error:
            _LOGGER.warning("the cost of run %s could not be stored: %s", run, error)
    return costs
