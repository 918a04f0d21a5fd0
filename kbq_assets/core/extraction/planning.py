"""The plan of an extraction: a pure function of commits, the broker's offsets and settings (PROTOCOL E1, E2).

A plan is a value: `kbq plan` prints it, `pipelines/extraction/extract.py` executes it.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from kbq_assets.core.errors import InvalidName, KbqError, TransientError
from kbq_assets.core.extraction import restarts
from kbq_assets.core.extraction.backlog import Averages, Waiting, headroom, is_in_danger, too_little
from kbq_assets.core.extraction.shares import Throttled, urgency, within_limits
from kbq_assets.core.extraction.stops import PartitionStop, commit_stop, stop_of
from kbq_assets.core.extraction.throttle import ReadLimits
from kbq_assets.core.extraction.units import Unit, WindowLimits
from kbq_assets.core.protocol.commits import Commit, Stop, starting_at
from kbq_assets.core.protocol.done_files import check_fits
from kbq_assets.core.protocol.names import check_topic, shard_of
from kbq_assets.core.protocol.offsets import BrokerOffsets, OffsetRange, TopicDescription, TopicPartition
from kbq_assets.core.protocol.topic_registry import TopicEntry
from kbq_assets.core.protocol.waits import StopReason
from kbq_assets.core.protocol.watermarks import LogEnd, Shard
from kbq_assets.core.topics.topic_settings import TopicSettings

#: Ids that mean "no topic id" (KIP-516's zero id).
_UNKNOWN_IDS = frozenset({"", "AAAAAAAAAAAAAAAAAAAAAA"})


def is_other_topic(committed: str, now: str) -> bool:
    """Whether two known topic ids differ: the topic was deleted and created again."""
    return not {committed, now} & _UNKNOWN_IDS and committed != now


@dataclass(frozen=True)
class TopicSnapshot:
    """A topic as read at the start of a run. ``has_done_files``: of partitions without a commit. ``problem``: the error
    of a commit that cannot be read."""

    settings: TopicSettings
    description: TopicDescription
    entry: TopicEntry = field(default_factory=TopicEntry)
    commits: Mapping[int, Commit] = field(default_factory=dict)
    has_done_files: bool = False
    problem: KbqError | None = None


@dataclass(frozen=True)
class Creation:
    """A commit object to register and create, with the first position of each partition. ``is_last``: only after the
    topic's others, because the topic is new until it exists (E1)."""

    topic: str
    shard: int
    cluster_id: str
    topic_id: str
    starts: Mapping[int, int]
    leader_epochs: Mapping[int, int] = field(default_factory=dict)
    is_last: bool = False

    def commit(self) -> Commit:
        partitions = {p: starting_at(s, self.leader_epochs.get(p, -1)) for p, s in self.starts.items()}
        return Commit(self.topic, self.shard, self.cluster_id, self.topic_id, epoch=1, partitions=partitions)


@dataclass(frozen=True)
class Addition:
    """A new partition of a known topic: it starts at its earliest offset (E1) if the commit still has the ``epoch``."""

    topic_partition: TopicPartition
    epoch: int
    start: int
    leader_epoch: int = -1


@dataclass(frozen=True)
class RecordedGap:
    """Positions lost to retention that the topic's policy accepts (on_retention_loss=record), if the commit still has
    the ``epoch``."""

    topic_partition: TopicPartition
    epoch: int
    until: int
    reason: str
    leader_epoch: int = -1


@dataclass(frozen=True)
class ExtractionPlan:
    """The work of one extraction: state to create first, units to read, and stops."""

    creations: tuple[Creation, ...] = ()
    additions: tuple[Addition, ...] = ()
    gaps: tuple[RecordedGap, ...] = ()
    units: tuple[Unit, ...] = ()
    stops: tuple[PartitionStop, ...] = ()
    #: partitions whose commit the store did not give now, each with the error
    failures: Mapping[TopicPartition, str] = field(default_factory=dict)
    #: partitions with too little to read
    waiting: tuple[Waiting, ...] = ()
    #: partitions with more to read than the limits allow
    throttled: tuple[Throttled, ...] = ()
    #: number of partitions with nothing to read
    idle: int = 0
    #: for partitions that are not stopped, of topics with complete hours
    log_ends: Mapping[TopicPartition, LogEnd] = field(default_factory=dict, compare=False, repr=False)
    #: topics that an operator reported as deleted, and that the broker lists again
    returned: tuple[str, ...] = ()
    #: commits that exist but are only announced, because a run ended between the two
    announced: tuple[Shard, ...] = ()
    #: extra work for backups, by area; the units above may serve a backup too (PROTOCOL B1)
    backups: Mapping[str, ExtractionPlan] = field(default_factory=dict)

    @property
    def positions(self) -> int:
        """Positions to read: an upper bound on the number of records."""
        return sum(unit.range.positions for unit in self.units)

    @property
    def ends(self) -> dict[TopicPartition, int]:
        """The broker's log end for each partition that has a unit."""
        left = {throttled.topic_partition: throttled.positions for throttled in self.throttled}
        ranges = (unit.range for unit in self.units)
        return {r.topic_partition: r.until_offset + left.get(r.topic_partition, 0) for r in ranges}


@dataclass
class _PlanDraft:
    limits: WindowLimits
    ripe: Collection[TopicPartition] = ()
    now_ms: int = 0
    creations: list[Creation] = field(default_factory=list)
    additions: list[Addition] = field(default_factory=list)
    gaps: list[RecordedGap] = field(default_factory=list)
    units: list[Unit] = field(default_factory=list)
    stops: list[PartitionStop] = field(default_factory=list)
    failures: dict[TopicPartition, str] = field(default_factory=dict)
    waiting: list[Waiting] = field(default_factory=list)
    averages: dict[TopicPartition, Averages] = field(default_factory=dict)
    log_ends: dict[TopicPartition, LogEnd] = field(default_factory=dict)
    idle: int = 0

    def note_end(self, tp: TopicPartition, settings: TopicSettings, end: LogEnd) -> None:
        if settings.checks.complete_after_seconds:
            self.log_ends[tp] = end

    def stop(self, topic: str, partition: int, reason: StopReason, message: str, *commands: str) -> None:
        self.stops.append(PartitionStop(TopicPartition(topic, partition), reason, message, commands))


def plan_extraction(
    snapshots: Iterable[TopicSnapshot],
    offsets: Mapping[TopicPartition, BrokerOffsets],
    cluster_id: str,
    limits: WindowLimits | None = None,
    run: ReadLimits | None = None,
    ripe: Collection[TopicPartition] = (),
    now_ms: int = 0,
) -> ExtractionPlan:
    """Plan the units of one run, in order of urgency, within the limits of topics and of the run.

    ``ripe`` partitions need not wait for more. A stopped topic or partition does not stop the others. ``now_ms`` is the
    store's time, for automatic tries of stopped partitions; 0 means none.
    """
    draft = _PlanDraft(limits or WindowLimits(), ripe, now_ms)
    for snapshot in snapshots:
        _plan_topic(draft, snapshot, offsets, cluster_id)
    units, throttled = within_limits(sorted(draft.units, key=urgency), draft.averages, run or ReadLimits())
    return ExtractionPlan(
        creations=tuple(draft.creations),
        additions=tuple(draft.additions),
        gaps=tuple(draft.gaps),
        units=tuple(units),
        stops=tuple(draft.stops),
        failures=draft.failures,
        waiting=tuple(draft.waiting),
        throttled=tuple(throttled),
        idle=draft.idle,
        log_ends=draft.log_ends,
    )


def _plan_topic(
    draft: _PlanDraft,
    snapshot: TopicSnapshot,
    offsets: Mapping[TopicPartition, BrokerOffsets],
    cluster_id: str,
) -> None:
    topic = snapshot.description.topic
    if _stops_topic(draft, snapshot, cluster_id):
        return
    starts: dict[int, dict[int, int]] = defaultdict(dict)
    known = {p: c for c in snapshot.commits.values() for p in c.partitions}
    usual = Averages.of_topic(s.totals for c in snapshot.commits.values() for s in c.partitions.values())
    for partition in range(snapshot.description.partitions):
        tp = TopicPartition(topic, partition)
        if tp not in offsets:
            message = f"the broker reports no offsets for {tp}"
            draft.stop(topic, partition, StopReason.NO_OFFSETS, message, "kbq extract")
        elif partition in known:
            _plan_partition(draft, snapshot.settings, known[partition], partition, offsets[tp], usual)
        else:
            _plan_new_partition(draft, snapshot, tp, offsets[tp], starts, usual)
    for shard, positions in starts.items():
        epochs = {p: offsets[TopicPartition(topic, p)].leader_epoch for p in positions}
        topic_id = snapshot.description.topic_id
        is_last = _starts_at_latest(snapshot) and shard == 0 and len(starts) > 1
        draft.creations.append(Creation(topic, shard, cluster_id, topic_id, positions, epochs, is_last))
    for partition in sorted(set(known) - set(range(snapshot.description.partitions))):
        position = known[partition].partitions[partition]
        if position.since and not position.next:
            continue  # a reset began it at 0 in case it comes back (B5)
        message, command = f"{topic}[{partition}] is gone", f"kbq reset --topic {topic}"
        draft.stop(topic, partition, StopReason.PARTITION_GONE, message, command)


def _stops_topic(draft: _PlanDraft, snapshot: TopicSnapshot, cluster_id: str) -> bool:
    """Names, E1, and the identities of E2."""
    topic = snapshot.description.topic
    if unfit := _unfit_name(topic, snapshot.settings):
        draft.stop(topic, -1, StopReason.UNFIT_NAME, unfit.message, unfit.next_step)
        return True
    if isinstance(snapshot.problem, TransientError):  # the next run may get it
        partitions = range(snapshot.description.partitions)
        draft.failures |= {TopicPartition(topic, p): str(snapshot.problem) for p in partitions}
        return True
    missing = sorted(set(snapshot.entry.active) - set(snapshot.commits))
    if damaged := commit_stop(topic, snapshot.problem, missing):
        draft.stops.append(damaged)
        return True
    if snapshot.has_done_files:
        message = f"{topic} has done files but no commit"
        command = f"kbq bootstrap --topic {topic} --from-done-files"
        draft.stop(topic, -1, StopReason.NOT_BOOTSTRAPPED, message, command)
        return True
    return any(_other_identity(draft, commit, snapshot, cluster_id) for commit in snapshot.commits.values())


def _unfit_name(topic: str, settings: TopicSettings) -> InvalidName | None:
    """The error if the topic's file names would be invalid, found before anything of the topic is committed. Tables
    that records choose are not known yet; the worker checks their names (worker/routes.py).
    """
    try:
        check_topic(topic)
        check_fits(topic, settings.error_table)
        if not settings.destination.by_record and settings.destination.route != "record_name":
            check_fits(topic, settings.destination.table_for(topic))
    except InvalidName as error:
        return error
    return None


def _other_identity(draft: _PlanDraft, commit: Commit, snapshot: TopicSnapshot, cluster_id: str) -> bool:
    topic, now = commit.topic, snapshot.description.topic_id
    if commit.cluster_id and cluster_id and commit.cluster_id != cluster_id:
        message = f"{topic} was read from cluster {commit.cluster_id}, this is cluster {cluster_id}"
    elif is_other_topic(commit.topic_id, now):
        message = f"{topic} was recreated: topic id {commit.topic_id} became {now}"
    else:
        return False
    ranges = ", ".join(f"[{p}] from {s.next}" for p, s in sorted(commit.partitions.items()))
    draft.stop(
        topic,
        -1,
        StopReason.RECREATED,
        f"{message}; unread positions are gone: {ranges}",
        f"kbq reset --topic {topic}",
    )
    return True


def _starts_at_latest(snapshot: TopicSnapshot) -> bool:
    """Whether the topic is new, and starts at its latest offsets. Shards of its commit may exist already."""
    return 0 not in snapshot.commits and snapshot.settings.extraction.start == "latest"


def _plan_new_partition(
    draft: _PlanDraft,
    snapshot: TopicSnapshot,
    tp: TopicPartition,
    broker: BrokerOffsets,
    starts: dict[int, dict[int, int]],
    usual: Averages,
) -> None:
    start = broker.latest if _starts_at_latest(snapshot) else broker.earliest
    shard = shard_of(tp.partition)
    if shard in snapshot.commits:
        epoch = snapshot.commits[shard].epoch
        draft.additions.append(Addition(tp, epoch, start, broker.leader_epoch))
    else:
        starts[shard][tp.partition] = start
        epoch = 1
    draft.note_end(tp, snapshot.settings, LogEnd(start, broker.latest))
    limits = draft.limits.of_topic(snapshot.settings)
    range_ = OffsetRange(tp, start, broker.latest)
    unit = Unit(range_, epoch, snapshot.settings, broker.leader_epoch, start, limits=limits)
    _add_unit(draft, unit, broker, usual, is_known=False)


def _plan_partition(
    draft: _PlanDraft,
    settings: TopicSettings,
    commit: Commit,
    partition: int,
    broker: BrokerOffsets,
    usual: Averages,
) -> None:
    tp, state = commit.topic_partition(partition), commit.partitions[partition]
    first = state.next
    if state.stop is not None and _still_stands(state.stop, first, broker, settings, draft.now_ms):
        draft.stops.append(stop_of(settings, state.stop, tp))
        return
    if first > broker.latest:
        message = f"{tp} is at {first}, the broker ends at {broker.latest}: truncated or recreated"
        command = f"kbq reset --topic {tp.topic} --partition {partition}"
        draft.stop(tp.topic, partition, StopReason.TRUNCATED, message, command)
        return
    if first < broker.earliest:
        if not _records_loss(draft, settings, tp, commit, broker):
            return
        first = broker.earliest
    # After a gap, the broker's leader epoch applies to the new position, not the old one.
    has_epoch = first == state.next and state.leader_epoch >= 0
    # Retention deleted the last position with a known epoch, so the epoch of the next record is unknown.
    is_gone = has_epoch and state.epoch_known_until < first <= broker.earliest
    known_until = max(state.epoch_known_until, broker.earliest) if has_epoch else first
    last = max(first, broker.latest)
    draft.note_end(tp, settings, LogEnd(first, broker.latest, state.watermark.end_ms))
    if state.stop is not None and first < state.stop.until:
        last = min(last, state.stop.until)  # a try reads the stopped range; the next run reads the rest
    unit = Unit(
        range=OffsetRange(tp, first, last),
        epoch=commit.epoch,
        settings=settings,
        leader_epoch=state.leader_epoch if has_epoch else broker.leader_epoch,
        epoch_until=-1 if is_gone else known_until,
        accept_errors_until=state.accept_errors_until,
        limits=draft.limits.of_topic(settings),
        alone=state.deaths > 0,
    )
    averages, is_known = Averages.of(state.totals, usual), state.totals.positions > 0
    closes_ms = state.watermark.next_hour_ms(settings.checks.complete_after_seconds * 1000)
    _add_unit(draft, unit, broker, averages, closes_ms, is_try=state.stop is not None, is_known=is_known)


def _records_loss(
    draft: _PlanDraft, settings: TopicSettings, tp: TopicPartition, commit: Commit, broker: BrokerOffsets
) -> bool:
    """Whether positions that retention deleted unread were recorded as a gap. If not, the partition is stopped."""
    if settings.extraction.on_retention_loss == "record":
        reason = "retention (on_retention_loss=record)"
        draft.gaps.append(RecordedGap(tp, commit.epoch, broker.earliest, reason, broker.leader_epoch))
        return True
    first = commit.partitions[tp.partition].next
    options = f"--topic {tp.topic} --partition {tp.partition}"
    message = f"{tp}: positions [{first}, {broker.earliest}) were deleted by retention before they were read"
    commands = (f"kbq accept-gap {options}", f"kbq reset {options}")
    draft.stop(tp.topic, tp.partition, StopReason.RETENTION_LOSS, message, *commands)
    return False


def _still_stands(
    stop: Stop, position: int, broker: BrokerOffsets, settings: TopicSettings, now_ms: int
) -> bool:
    """Whether a recorded stop still applies in this run. If retention or truncation moved the log past it, rule E2
    decides instead."""
    if stop.reason == StopReason.LOG_CHANGED and not broker.earliest <= position <= broker.latest:
        return False
    return not restarts.restarts_now(stop, settings, now_ms)


def _add_unit(
    draft: _PlanDraft,
    unit: Unit,
    broker: BrokerOffsets,
    averages: Averages,
    closes_ms: int = 0,
    *,
    is_known: bool,
    is_try: bool = False,
) -> None:
    if not unit.range:
        draft.idle += 1
        return
    tp, first, positions = unit.range.topic_partition, unit.range.from_offset, unit.range.positions
    room = headroom(first, broker)
    needs_no_more = is_try or tp in draft.ripe or is_in_danger(room)
    short = "" if needs_no_more else too_little(unit.settings, positions, averages, is_known=is_known)
    if short:
        waits = unit.settings.waits
        closes_ms = closes_ms if waits.close_hours else 0
        draft.waiting.append(Waiting(tp, first, positions, waits.longest_seconds, short, closes_ms))
    else:
        draft.units.append(dataclasses.replace(unit, headroom=room))
        draft.averages[tp] = averages
