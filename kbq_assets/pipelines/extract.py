"""Extraction: one bounded run that brings every selected topic up to date (PROTOCOL, Extraction).

    snapshot   registry, commits, table states, the broker's topics and offsets
    repair     done files that a dead run did not write (E5), then pruning and backlogs (E7)
    plan       pure: core.planning
    prepare    commits of new topics, new partitions, recorded gaps
    read       units as tasks, the longest first; windows are published as they end (E4)

A crash anywhere leaves orphans and announcements, which the next run sweeps and completes.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from kbq_assets.core import commits
from kbq_assets.core.commits import Commit, PartitionCommit
from kbq_assets.core.errors import NotFound, PreconditionFailed, StateError
from kbq_assets.core.loading import TableState
from kbq_assets.core.names import TableReference, commit_path, shard_of
from kbq_assets.core.offsets import OffsetRange, TopicPartition
from kbq_assets.core.planning import (
    Addition,
    ExtractionPlan,
    PartitionStop,
    RecordedGap,
    TopicSnapshot,
    expected_done_files,
    plan_extraction,
    plan_pruning,
)
from kbq_assets.core.topics import SourceEntry, select_topics
from kbq_assets.core.units import Unit, UnitOutcome, WindowLimits
from kbq_assets.pipelines import state
from kbq_assets.pipelines.done_files import list_done_files, topics_with_done_files, write_done_files
from kbq_assets.pipelines.publisher import Publisher
from kbq_assets.pipelines.state import Versioned
from kbq_assets.ports.clock import Clock
from kbq_assets.ports.engine import ExtractionEngine
from kbq_assets.ports.kafka import OffsetReader
from kbq_assets.ports.object_store import ObjectStore


@dataclass(frozen=True)
class ExtractionLimits:
    """Bounds of one run. A unit is cut after ``slice_positions``, so that long partitions take turns; ranges up to
    ``packed_positions`` in all share a task. No new task starts after ``seconds``."""

    seconds: float = 600.0
    slice_positions: int = 5_000_000
    packed_positions: int = 20_000
    packed_units: int = 64
    window: WindowLimits = field(default_factory=WindowLimits)


@dataclass(frozen=True)
class ExtractionPorts:
    """The world of an extraction."""

    store: ObjectStore
    offsets: OffsetReader
    engine: ExtractionEngine
    clock: Clock


@dataclass(frozen=True)
class Progress:
    """How far a run is, for progress bars: positions of all units, and those published."""

    positions: int
    published: int
    records: int
    message: str = ""


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
    """What a run did. ``failures`` are transient errors per partition: the next run goes on there."""

    plan: ExtractionPlan
    partitions: tuple[PartitionReport, ...]
    stops: tuple[PartitionStop, ...]
    failures: Mapping[TopicPartition, str]
    unfinished: int
    seconds: float

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
    done_topics = topics_with_done_files(store, frozenset(described))
    wanted = [topic for topic in selected if only is None or topic in only]

    def snapshot(topic: str) -> TopicSnapshot:
        entry = registry.topics.get(topic, commits.TopicEntry())
        base = TopicSnapshot(selected[topic], described[topic], entry, has_done_files=topic in done_topics)
        try:
            return dataclasses.replace(base, commits=_read_shards(store, topic, entry))
        except StateError as error:
            return dataclasses.replace(base, problem=error.message)

    return state.parallel(snapshot, wanted)


def plan(
    store: ObjectStore,
    reader: OffsetReader,
    sources: Iterable[SourceEntry],
    *,
    only: frozenset[str] | None = None,
    limits: WindowLimits | None = None,
) -> ExtractionPlan:
    """What `extract` would do now. Changes nothing."""
    snapshots = snapshot_topics(store, reader, sources, only)
    partitions = [
        TopicPartition(s.description.topic, p) for s in snapshots for p in range(s.description.partitions)
    ]
    return plan_extraction(snapshots, reader.offsets(partitions), reader.cluster_id(), limits)


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
    started = ports.clock.monotonic()
    repair_and_prune(ports.store)
    planned = plan(ports.store, ports.offsets, sources, only=only, limits=limits.window)
    units = prepare(ports.store, planned)
    run = _Run(ports, limits, units, on_progress)
    run.read_all()
    return run.report(planned, ports.clock.monotonic() - started)


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
    for commit in current:
        _prune(store, commit, states)


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
    """The reading part of one extraction: a queue of units, tasks in flight, a publisher."""

    def __init__(
        self,
        ports: ExtractionPorts,
        limits: ExtractionLimits,
        units: list[Unit],
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._ports = ports
        self._limits = limits
        self._queue = deque(units)
        self._positions = sum(unit.range.positions for unit in units)
        self._on_progress = on_progress
        self._publisher = Publisher(ports.store, ports.offsets, ports.clock)
        self._failures: dict[TopicPartition, str] = {}
        self._stops: list[PartitionStop] = []
        self._in_flight: dict[TopicPartition, Unit] = {}
        self._deadline = ports.clock.monotonic() + limits.seconds

    def read_all(self) -> None:
        """Run units until none is left or the time is up; everything finished is published."""
        engine = self._ports.engine
        while self._queue or self._in_flight:
            while self._queue and engine.idle_slots > 0 and self._has_time():
                engine.submit(self._next_task())
            if not self._in_flight:
                break
            for outcome in engine.next_outcomes(timeout_seconds=1.0):
                self._take(outcome)
            self._publisher.flush_due()
            self._show_progress()
        self._publisher.flush()
        self._show_progress()

    def report(self, planned: ExtractionPlan, seconds: float) -> ExtractionReport:
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
        return ExtractionReport(planned, partitions, stops, failures, len(self._queue), seconds)

    def _has_time(self) -> bool:
        return self._ports.clock.monotonic() < self._deadline

    def _next_task(self) -> tuple[Unit, ...]:
        """The next unit, cut to a slice; small ones share a task."""
        packed = [self._cut(self._queue.popleft())]
        size = packed[0].range.positions
        while self._queue and len(packed) < self._limits.packed_units:
            size += self._queue[0].range.positions
            if size > self._limits.packed_positions:
                break
            packed.append(self._cut(self._queue.popleft()))
        return tuple(packed)

    def _cut(self, unit: Unit) -> Unit:
        range_ = unit.range
        until = min(range_.until_offset, range_.from_offset + self._limits.slice_positions)
        self._in_flight[range_.topic_partition] = unit
        return dataclasses.replace(unit, range=OffsetRange(range_.topic_partition, range_.from_offset, until))

    def _take(self, outcome: UnitOutcome) -> None:
        tp = outcome.unit.range.topic_partition
        whole = self._in_flight.pop(tp)
        self._publisher.add(outcome)
        if outcome.failure:
            self._failures[tp] = outcome.failure
        if outcome.stop is not None:
            options = f"--topic {tp.topic} --partition {tp.partition}"
            commands = (f"kbq resume {options}", f"kbq resume {options} --as-errors")
            self._stops.append(PartitionStop(tp, outcome.stop.reason, outcome.stop.message, commands))
        ended = outcome.failure or outcome.stop or outcome.superseded
        if not ended and outcome.position < whole.range.until_offset:
            rest = OffsetRange(tp, outcome.position, whole.range.until_offset)
            epoch = outcome.windows[-1].leader_epoch if outcome.windows else whole.leader_epoch
            self._queue.append(
                dataclasses.replace(whole, range=rest, leader_epoch=max(epoch, whole.leader_epoch))
            )
            # The next slice checks the commit first (E3): its windows must be there by then.
            self._publisher.flush()

    def _show_progress(self) -> None:
        published = self._publisher.published
        positions = sum(ws[-1].until - ws[0].first for ws in published.values())
        records = sum(w.counts.records for ws in published.values() for w in ws)
        self._on_progress(Progress(self._positions, positions, records))
