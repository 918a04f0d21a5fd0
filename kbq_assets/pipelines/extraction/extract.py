"""Extraction: one bounded run that brings every selected topic up to date (PROTOCOL, Extraction).

    snapshot   registry, commits, table states, the broker's topics and offsets
    repair     done files that a dead run did not write (E5), then pruning and backlogs (E7)
    plan       pure: core.planning
    prepare    commits of new topics, new partitions, recorded gaps
    read       slices of units as tasks: core.turns; windows are published as they end (E4)
    charge     what it cost, per topic: core.cost

A crash anywhere leaves orphans and announcements, which the next run sweeps and completes.
"""

from __future__ import annotations

import logging
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from kbq_assets.core.errors import NotFound, PreconditionFailed, StateError
from kbq_assets.core.extraction.backlog import Waiting
from kbq_assets.core.extraction.cost import Cost, CostFunction, Usage, core_seconds, with_outcome
from kbq_assets.core.extraction.planning import (
    Addition,
    ExtractionPlan,
    PartitionStop,
    RecordedGap,
    TopicSnapshot,
    plan_extraction,
)
from kbq_assets.core.extraction.pruning import expected_done_files, plan_pruning
from kbq_assets.core.extraction.restarts import may_restart
from kbq_assets.core.extraction.throttle import ReadLimits
from kbq_assets.core.extraction.turns import SliceLimits, Turns
from kbq_assets.core.extraction.units import Unit, UnitOutcome, WindowLimits
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.observation.run_totals import WorkerUse
from kbq_assets.core.protocol import commits
from kbq_assets.core.protocol.commits import Commit, PartitionCommit
from kbq_assets.core.protocol.names import TableReference, commit_path, shard_of
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.topics.evolution import Evolution
from kbq_assets.core.topics.options import SourceEntry, select_topics
from kbq_assets.pipelines.extraction.costs import charge
from kbq_assets.pipelines.extraction.publisher import Publisher
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.done_files import has_done_files, list_done_files, write_done_files
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.ports.clock import Clock
from kbq_assets.ports.engine import ExtractionEngine
from kbq_assets.ports.kafka import OffsetReader
from kbq_assets.ports.object_store import ObjectStore

_LOGGER: Final = logging.getLogger("kbq.extract")
#: A record this far in the future says that one of two clocks is wrong: no partition waits by such a clock.
_CLOCK_SKEW_MS: Final = 60_000


def _random_run() -> str:
    return uuid.uuid4().hex[:12]


@dataclass(frozen=True)
class ExtractionLimits:
    """Bounds of one run. After ``seconds`` no task starts, and none reads on; ``grace_seconds`` later those that have
    not come back, or never started, are cancelled. ``total`` is what it reads at most."""

    seconds: float = 600.0
    grace_seconds: float = 120.0
    total: ReadLimits = field(default_factory=ReadLimits)
    slices: SliceLimits = field(default_factory=SliceLimits)
    window: WindowLimits = field(default_factory=WindowLimits)


@dataclass(frozen=True)
class ExtractionPorts:
    """The world of an extraction. ``cost`` may be anybody's function; ``new_run`` names a run."""

    store: ObjectStore
    offsets: OffsetReader
    engine: ExtractionEngine
    clock: Clock
    cost: CostFunction = core_seconds
    new_run: Callable[[], str] = _random_run


@dataclass(frozen=True)
class Progress:
    """How far a run is, for progress bars: positions of all units, and those published; ``units`` are in tasks now."""

    positions: int
    published: int
    records: int
    message: str = ""
    units: int = 0
    workers: tuple[WorkerUse, ...] = ()


@dataclass(frozen=True)
class PartitionReport:
    """What a run did to one partition."""

    topic_partition: TopicPartition
    first: int
    until: int
    counts: commits.Counts
    windows: int
    files: tuple[commits.StagedFile, ...]


@dataclass(frozen=True)
class ExtractionReport:
    """What a run did. ``failures`` are transient errors per partition: the next run goes on there. ``lost_files`` were
    staged and could not be published; ``workers`` are the processes that read, the busiest first. ``evolved``: new
    columns and tables for schemas that contradict theirs."""

    plan: ExtractionPlan
    partitions: tuple[PartitionReport, ...]
    stops: tuple[PartitionStop, ...]
    failures: Mapping[TopicPartition, str]
    unfinished: int
    seconds: float
    costs: tuple[Cost, ...] = ()
    lost_files: int = 0
    workers: tuple[WorkerUse, ...] = ()
    evolved: tuple[Evolution, ...] = ()

    @property
    def totals(self) -> commits.Counts:
        """Counts over all partitions."""
        return sum((p.counts for p in self.partitions), commits.Counts())


def snapshot_topics(
    store: ObjectStore,
    reader: OffsetReader,
    sources: Iterable[SourceEntry],
    only: frozenset[str] | None = None,
) -> list[TopicSnapshot]:
    """Read what is known of every topic that the source list selects. ``only`` narrows the topics further."""
    registry = state.topic_registry(store)
    described = reader.topics()
    selected = select_topics(sources, described)
    known = frozenset(described)
    wanted = [topic for topic in selected if only is None or topic in only]

    def snapshot(topic: str) -> TopicSnapshot:
        entry = registry.topics.get(topic, commits.TopicEntry())
        is_new = not (entry.active or entry.creating)
        done = is_new and has_done_files(store, topic, known)
        base = TopicSnapshot(selected[topic], described[topic], entry, has_done_files=done)
        try:
            return replace(base, commits=_read_shards(store, topic, entry))
        except StateError as error:
            return replace(base, problem=error.message)

    return state.parallel(snapshot, wanted)


def plan(
    store: ObjectStore,
    reader: OffsetReader,
    sources: Iterable[SourceEntry],
    *,
    now_ms: int = 0,
    only: frozenset[str] | None = None,
    limits: ExtractionLimits | None = None,
) -> ExtractionPlan:
    """What `extract` would do now. Changes nothing. Without the time nothing waits for more."""
    limits = limits or ExtractionLimits()
    snapshots = snapshot_topics(store, reader, sources, only)
    partitions = [
        TopicPartition(s.description.topic, p) for s in snapshots for p in range(s.description.partitions)
    ]
    offsets, cluster = reader.offsets(partitions), reader.cluster_id()
    # The store's time, which a bucket is asked for: only where a stopped partition may be tried again.
    store_ms = store.now_ms() if any(map(_may_restart, snapshots)) else 0
    planned = plan_extraction(snapshots, offsets, cluster, limits.window, limits.total, now_ms=store_ms)
    if not planned.waiting:
        return planned
    ripe = _ripe(reader, planned.waiting, now_ms)
    return plan_extraction(snapshots, offsets, cluster, limits.window, limits.total, ripe, store_ms)


def _may_restart(snapshot: TopicSnapshot) -> bool:
    stops = (p.stop for commit in snapshot.commits.values() for p in commit.partitions.values())
    return any(may_restart(stop, snapshot.settings) for stop in stops if stop is not None)


def _ripe(reader: OffsetReader, waiting: Iterable[Waiting], now_ms: int) -> set[TopicPartition]:
    """Partitions whose oldest unread record is old enough by its Kafka time.

    The local clock is not trusted alone: where it and the record's time cannot both be right, nothing waits.
    """
    first = {w.topic_partition: w.first for w in waiting}
    groups: dict[int, list[TopicPartition]] = defaultdict(list)
    for w in waiting:
        groups[w.max_wait_seconds].append(w.topic_partition)
    later = reader.offsets_for_time(list(first), now_ms + _CLOCK_SKEW_MS)
    ripe = {tp for tp in first if later.get(tp, first[tp]) <= first[tp]}
    for seconds, partitions in groups.items():
        young = reader.offsets_for_time(partitions, now_ms - seconds * 1000)
        ripe |= {tp for tp in partitions if young.get(tp, first[tp] + 1) > first[tp]}
    return ripe


def extract(
    ports: ExtractionPorts,
    sources: Iterable[SourceEntry],
    *,
    only: frozenset[str] | None = None,
    limits: ExtractionLimits | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> ExtractionReport:
    """Run one extraction. Raises Unavailable, MissingState; topics that must stop are in the report."""
    limits = limits or ExtractionLimits()
    started, started_ms = ports.clock.monotonic(), ports.clock.now_ms()
    repair_and_prune(ports.store)
    planned = plan(ports.store, ports.offsets, sources, now_ms=started_ms, only=only, limits=limits)
    units = prepare(ports.store, planned)
    publisher = Publisher(ports.store, ports.offsets, ports.clock, planned.log_ends, started_ms)
    run = _Run(ports, limits, units, publisher, on_progress)
    run.read_all()
    costs = charge(ports.store, ports.cost, run.usage, ports.new_run, started_ms)
    return run.report(planned, costs, ports.clock.monotonic() - started)


def repair_and_prune(store: ObjectStore) -> None:
    """Write missing done files (E5), then drop loaded windows and set parked tables' files aside (E7).

    In this order: a partition's highest done file exists before its window can leave the commit (L7).
    """
    current = state.read_commits(store, state.topic_registry(store))
    versioned = state.read_table_states(store, state.table_registry(store))
    states = {table: v.value for table, v in versioned.items()}
    existing = frozenset(list_done_files(store))
    expected = [name for c in current for name in expected_done_files(c.value, states)]
    write_done_files(store, [name for name in expected if name not in existing])
    state.parallel(lambda commit: _prune(store, commit, states), current)


def _prune(
    store: ObjectStore, commit: Versioned[Commit], states: Mapping[TableReference, TableState]
) -> None:
    planned = plan_pruning(commit.value, states)
    for path, chunk in planned.chunks.items():
        state.create(store, path, chunk)
    try:
        state.swap(store, commit, planned.commit)
    except PreconditionFailed:
        return  # somebody extracts: pruning is theirs too


def prepare(store: ObjectStore, planned: ExtractionPlan) -> list[Unit]:
    """Create what the plan needs, and return the units whose partitions stand where the plan saw them."""
    state.create_commits(store, [creation.commit() for creation in planned.creations])
    for addition in planned.additions:
        _change_partition(store, addition.topic_partition, partial(_add, addition))
    for gap in planned.gaps:
        _change_partition(store, gap.topic_partition, partial(_record_gap, gap))
    return list(planned.units)


def _change_partition(store: ObjectStore, tp: TopicPartition, function: Callable[[Commit], Commit]) -> None:
    state.change(store, Commit, commit_path(tp.topic, shard_of(tp.partition)), function)


def _add(addition: Addition, commit: Commit) -> Commit:
    partition = addition.topic_partition.partition
    if partition in commit.partitions:
        return commit
    return commit.with_partition(partition, PartitionCommit(next=addition.start, start=addition.start))


def _record_gap(gap: RecordedGap, commit: Commit) -> Commit:
    partition = gap.topic_partition.partition
    if commit.partitions[partition].next >= gap.until:
        return commit
    return commits.accept_gap(commit, partition, gap.until, gap.reason)


def _read_shards(store: ObjectStore, topic: str, entry: commits.TopicEntry) -> dict[int, Commit]:
    found = {}
    for shard in (*entry.active, *entry.creating):
        try:
            found[shard] = state.read(store, Commit, commit_path(topic, shard)).value
        except NotFound:
            continue  # the planner judges: active and missing stops the topic
    return found


class _Run:
    """The reading part of one extraction: whose turn it is, tasks in flight, a publisher."""

    def __init__(
        self,
        ports: ExtractionPorts,
        limits: ExtractionLimits,
        units: list[Unit],
        publisher: Publisher,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._ports = ports
        self._limits = limits
        self._turns = Turns(units, limits.slices)
        self._positions = sum(unit.range.positions for unit in units)
        self._on_progress = on_progress
        self._publisher = publisher
        self._failures: dict[TopicPartition, str] = {}
        self._stops: list[PartitionStop] = []
        self._usage: dict[str, Usage] = {}
        self._workers: dict[str, WorkerUse] = {}
        self._evolved: set[Evolution] = set()
        self._staged_files = 0
        self._complaint = ""
        self._is_cancelled = False
        self._deadline = ports.clock.monotonic() + limits.seconds

    def read_all(self) -> None:
        """Run tasks until nothing is left or the time is up; everything finished is published."""
        while True:
            self._submit()
            if not self._turns.in_flight:
                break
            for outcome in self._ports.engine.next_outcomes(timeout_seconds=1.0):
                self._take(outcome)
            self._watch_tasks()
            self._publisher.flush_due()
            self._show_progress()
        self._publisher.flush()
        self._publisher.mark_idle()
        self._show_progress()

    def report(self, planned: ExtractionPlan, costs: tuple[Cost, ...], seconds: float) -> ExtractionReport:
        """What the run did."""
        partitions = tuple(
            PartitionReport(
                tp, windows[0].first, windows[-1].until, sum((w.counts for w in windows), commits.Counts()),
                len(windows), tuple(f for w in windows for f in w.files),
            )
            for tp, windows in sorted(self._publisher.published.items())
        )  # fmt: skip
        stops = (*planned.stops, *self._stops)
        failures = {**self._failures, **self._publisher.failures}
        unfinished = self._turns.unfinished
        lost_files = self._staged_files - sum(len(p.files) for p in partitions)
        return ExtractionReport(
            planned, partitions, stops, failures, unfinished, seconds, costs, lost_files, self._busiest,
            tuple(sorted(self._evolved)),
        )  # fmt: skip

    @property
    def _busiest(self) -> tuple[WorkerUse, ...]:
        return tuple(sorted(self._workers.values(), key=lambda worker: worker.seconds, reverse=True))

    @property
    def usage(self) -> list[Usage]:
        """What each topic used."""
        return [self._usage[topic] for topic in sorted(self._usage)]

    def _watch_tasks(self) -> None:
        """Say so when none is running; give them up well after the run's end. They have nothing that waits for them
        but this run: what they had staged is read again."""
        engine, said = self._ports.engine, self._complaint
        self._complaint = engine.complaint()
        if self._complaint and not said:
            _LOGGER.warning("%s", self._complaint)
        grace = self._limits.grace_seconds
        if self._is_cancelled or self._ports.clock.monotonic() < self._deadline + grace:
            return
        self._is_cancelled = True
        reason = f"the task was cancelled, {grace:.0f} s after the run's time was up"
        engine.cancel(f"{reason}: {self._complaint}" if self._complaint else reason)

    def _submit(self) -> None:
        engine, clock = self._ports.engine, self._ports.clock
        while self._turns.has_more and (idle := engine.idle_slots) > 0:
            left = self._deadline - clock.monotonic()
            if left <= 0:
                return
            task = self._turns.next_task(idle, left)
            if not task:
                return
            now_ms = clock.now_ms()
            engine.submit(tuple(replace(unit, task_seconds=left, handed_ms=now_ms) for unit in task))

    def _take(self, outcome: UnitOutcome) -> None:
        topic = outcome.unit.range.topic_partition.topic
        self._usage[topic] = with_outcome(self._usage.get(topic), outcome)
        self._staged_files += sum(len(window.files) for window in outcome.windows)
        self._evolved.update(outcome.evolved)
        self._workers[outcome.worker] = self._workers.get(outcome.worker, WorkerUse()).with_outcome(outcome)
        for released in self._turns.take(outcome):
            self._publisher.add(released)
            self._note(released)

    def _note(self, outcome: UnitOutcome) -> None:
        tp = outcome.unit.range.topic_partition
        if outcome.failure:
            self._failures[tp] = outcome.failure
        if outcome.stop is not None:
            options = f"--topic {tp.topic} --partition {tp.partition}"
            commands = (f"kbq resume {options}", f"kbq resume {options} --as-errors")
            self._stops.append(PartitionStop(tp, outcome.stop.reason, outcome.stop.message, commands))

    def _show_progress(self) -> None:
        published = self._publisher.published
        positions = sum(ws[-1].until - ws[0].first for ws in published.values())
        records = sum(w.counts.records for ws in published.values() for w in ws)
        in_flight = self._turns.in_flight
        self._on_progress(
            Progress(self._positions, positions, records, self._complaint, in_flight, self._busiest)
        )
