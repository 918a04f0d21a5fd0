"""The commit of a topic: where every partition stands, and the windows that wait to be loaded.

One object per topic and 64 partitions, changed by compare-and-swap, by extraction alone (PROTOCOL, Objects).
Everything here is a pure function from a commit to the next one; a violated expectation raises StateError.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from kbq_assets.core.errors import Refused, StateError
from kbq_assets.core.protocol.names import DoneFileName, StagedFileName, TableReference
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.core.protocol.totals import WindowTotals
from kbq_assets.core.protocol.watermarks import Watermark

#: Hours of business time that a file lists: six weeks; a commit must stay small whatever producers write.
MOST_HOURS: Final = 1_000
#: Event dates that a file lists: as many as a load job of BigQuery may change; a file with more is loaded alone.
MOST_DATES: Final = 4_000


@dataclass(frozen=True)
class StagedFile:
    """One Avro container file, as the commit lists it.

    ``until`` is the position after the last one the file covers: the first offset of the file that follows it by
    rotation, or the window's end. ``window`` is the first position of its window. ``bytes`` are bytes of the object,
    ``raw_bytes`` before compression. ``dates`` are the distinct event dates in days since 1970-01-01; none are
    listed where they are more than `MOST_DATES`: then it may have rows of any.
    ``oldest_ms`` is the lowest Kafka timestamp in it.

    Rows per hour of business time (hours since 1970, UTC; the Kafka time where there is none) are ``event_hours``: at
    most `MOST_HOURS`, those with most rows. Rows in no listed hour are what is missing to ``rows``: all of them in
    files that are older than the field. ``newest_event_ms`` is the highest business time that a record told, 0 where
    none did: in error files, those of tombstones, and older ones. ``event_time_fallbacks`` counts rows of topics with a
    business time that told none, and have the Kafka time.
    """

    path: str
    window: int
    until: int
    rows: int
    bytes: int
    raw_bytes: int
    crc32c: str
    fingerprint: str
    dates: tuple[int, ...] = ()
    oldest_ms: int = 0
    event_hours: Mapping[int, int] = field(default_factory=dict)
    newest_event_ms: int = 0
    event_time_fallbacks: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def name(self) -> StagedFileName:
        """The parsed path: topic, partition, table, schema id, first offset, epoch."""
        return StagedFileName.parse(self.path)

    @property
    def table(self) -> TableReference:
        """The table its rows go to."""
        return self.name.table

    @property
    def done(self) -> DoneFileName:
        """Its done file (PROTOCOL E5): the last offset is the last position covered."""
        name = self.name
        return DoneFileName(
            name.topic_partition, name.table, name.schema_id, name.first_offset, self.until - 1
        )


@dataclass(frozen=True)
class Counts:
    """What happened to the positions of a range: ``positions = records + gaps + lost``.

    ``records`` were delivered by the broker; ``records = rows + errors + skipped``. ``gaps`` are control records,
    aborted transactions and compaction; ``lost`` positions were given up by `kbq accept-gap`. ``bytes`` are the
    records' value bytes. ``event_time_fallbacks`` of the rows told no business time where they should have one.
    """

    positions: int = 0
    records: int = 0
    bytes: int = 0
    gaps: int = 0
    lost: int = 0
    skipped: int = 0
    errors: int = 0
    event_time_fallbacks: int = 0
    rows: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: Counts) -> Counts:
        rows = {
            table: self.rows.get(table, 0) + other.rows.get(table, 0) for table in {**self.rows, **other.rows}
        }
        sums = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in dataclasses.fields(self)[:-1]}
        return Counts(**sums, rows=rows)

    @property
    def staged(self) -> int:
        """Rows in data tables' files."""
        return sum(self.rows.values())

    def check(self, context: str) -> None:
        """Raise StateError unless every position is accounted for."""
        if self.positions != self.records + self.gaps + self.lost:
            raise StateError(f"{context}: {self} leaves positions unaccounted for", next_step="report a bug")
        if self.records != self.staged + self.errors + self.skipped:
            raise StateError(f"{context}: {self} leaves records unaccounted for", next_step="report a bug")


@dataclass(frozen=True)
class Window:
    """A range of positions extracted as one: its files become visible together (PROTOCOL E4).

    ``leader_epoch`` is that of its last record, which is the one before ``epoch_until``; -1 and 0 without records.
    ``newest_ms`` is the highest Kafka timestamp in it, 0 where unknown.
    """

    first: int
    until: int
    counts: Counts
    files: tuple[StagedFile, ...] = ()
    leader_epoch: int = -1
    epoch_until: int = 0
    newest_ms: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Stop:
    """Why extraction of a partition waits for an operator (PROTOCOL E10), as stored in the commit.

    ``reason`` is one of `unknown_schema`, `unstageable_schema`, `error_share`, `bad_record`. ``tries`` failed since the
    partition stopped here; the last, or the stop itself, was at ``last_ms`` by the store's time
    (core/extraction/restarts.py).
    """

    reason: str
    message: str
    first: int
    until: int
    tries: int = 0
    last_ms: int = 0


@dataclass(frozen=True)
class AcceptedGap:
    """Positions given up on purpose, kept for the record."""

    first: int
    until: int
    reason: str


@dataclass(frozen=True)
class PartitionCommit:
    """One partition's position, totals and pending windows.

    ``totals`` count since ``start``, where the partition began anew in epoch ``since`` (0: with its topic's first). A
    reset of other partitions bumps the epoch and leaves it as it is. Windows before ``accept_errors_until`` may have
    any share of errors (`kbq resume --as-errors`). The ``watermark`` says how far it was read in time.
    """

    next: int
    start: int = 0
    since: int = 0
    leader_epoch: int = -1
    epoch_until: int = 0
    totals: Counts = field(default_factory=Counts)
    windows: tuple[Window, ...] = ()
    stop: Stop | None = None
    accept_errors_until: int = 0
    accepted_gaps: tuple[AcceptedGap, ...] = ()
    watermark: Watermark = field(default_factory=Watermark)
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Commit:
    """A shard of a topic's commit. ``topic_id`` is "" where the broker has none.

    ``given_up`` are paths of files that resets dropped before they were loaded: a backlog chunk written late, or a
    batch planned from an older read, may still name them. ``retired`` are the totals of partitions that were begun
    anew; with those of the partitions they count all that was ever read.
    """

    topic: str
    shard: int
    cluster_id: str
    topic_id: str
    epoch: int
    partitions: Mapping[int, PartitionCommit] = field(default_factory=dict)
    given_up: tuple[str, ...] = ()
    retired: Counts = field(default_factory=Counts)
    published: WindowTotals = field(default_factory=WindowTotals)
    extra: Mapping[str, Any] = field(default_factory=dict)

    def topic_partition(self, partition: int) -> TopicPartition:
        """The topic-partition of one of its partitions."""
        return TopicPartition(self.topic, partition)

    @property
    def totals(self) -> Counts:
        """Everything it ever accounted for: it never falls."""
        return sum((state.totals for state in self.partitions.values()), self.retired)

    @property
    def files(self) -> Iterable[StagedFile]:
        """All pending files, per partition in offset order."""
        return (f for p in self.partitions.values() for w in p.windows for f in w.files)

    def with_partition(self, partition: int, state: PartitionCommit) -> Commit:
        """The commit with one partition replaced."""
        return dataclasses.replace(self, partitions={**self.partitions, partition: state})


@dataclass(frozen=True)
class TopicEntry:
    """A topic in the registry. ``active`` shards must exist; a shard being created may not yet (PROTOCOL E1)."""

    active: tuple[int, ...] = ()
    creating: tuple[int, ...] = ()


@dataclass(frozen=True)
class TopicRegistry:
    """`commits/_topics.json`: which commits exist, so that a missing one is seen as missing."""

    topics: Mapping[str, TopicEntry] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    def announce(self, topic: str, shard: int) -> TopicRegistry:
        """Note that a shard is about to be created."""
        entry = self.topics.get(topic, TopicEntry())
        if shard in entry.active or shard in entry.creating:
            return self
        return self._with(topic, dataclasses.replace(entry, creating=(*entry.creating, shard)))

    def activate(self, topic: str, shard: int) -> TopicRegistry:
        """Note that a shard exists: from now on a missing object is an error."""
        entry = self.topics.get(topic, TopicEntry())
        if shard in entry.active:
            return self
        creating = tuple(s for s in entry.creating if s != shard)
        return self._with(topic, TopicEntry((*entry.active, shard), creating))

    def _with(self, topic: str, entry: TopicEntry) -> TopicRegistry:
        return dataclasses.replace(self, topics={**self.topics, topic: entry})


def publish(
    commit: Commit, partition: int, epoch: int, windows: Iterable[Window], asked_ms: int = 0
) -> Commit:
    """Append finished windows to a partition (PROTOCOL E4). Raises StateError on a gap, overlap or other epoch.

    ``asked_ms`` is when their run asked for the log end, 0 where unknown.
    """
    state = commit.partitions[partition]
    tp = commit.topic_partition(partition)
    if epoch != commit.epoch:
        raise StateError(f"{tp}: window of epoch {epoch}, the commit has {commit.epoch}")
    for window in windows:
        watermark = state.watermark.with_window(window, asked_ms)
        state = dataclasses.replace(_with_window(state, window, tp), watermark=watermark)
    return commit.with_partition(partition, state)


def _with_window(state: PartitionCommit, window: Window, tp: TopicPartition) -> PartitionCommit:
    covered = OffsetRange(tp, window.first, window.until)
    if window.first != state.next or not covered:
        raise StateError(f"window {covered} does not follow position {state.next}")
    if window.counts.positions != covered.positions:
        raise StateError(f"window {covered} accounts for {window.counts.positions} positions")
    window.counts.check(str(covered))
    if sum(f.rows for f in window.files) != window.counts.staged + window.counts.errors:
        raise StateError(f"window {covered}: the files' rows differ from its counts")
    return dataclasses.replace(
        state,
        next=window.until,
        leader_epoch=max(state.leader_epoch, window.leader_epoch),
        epoch_until=window.epoch_until or state.epoch_until or window.first,
        totals=state.totals + window.counts,
        windows=(*state.windows, window) if window.files else state.windows,
        stop=None,
    )


def prune(commit: Commit, is_loaded: Callable[[StagedFile], bool]) -> Commit:
    """Drop the windows all of whose files are loaded (PROTOCOL E7)."""
    return _map_windows(commit, lambda window: None if all(map(is_loaded, window.files)) else window)


def drop_files(commit: Commit, dropped: Callable[[StagedFile], bool]) -> Commit:
    """Drop files that now stand in a backlog (PROTOCOL E7), and the windows that become empty."""

    def without(window: Window) -> Window | None:
        kept = tuple(f for f in window.files if not dropped(f))
        return dataclasses.replace(window, files=kept) if kept else None

    return _map_windows(commit, without)


def _map_windows(commit: Commit, change: Callable[[Window], Window | None]) -> Commit:
    partitions = {}
    for number, state in commit.partitions.items():
        windows = tuple(w for w in map(change, state.windows) if w is not None)
        partitions[number] = (
            state if windows == state.windows else dataclasses.replace(state, windows=windows)
        )
    return dataclasses.replace(commit, partitions=partitions)


def accept_gap(commit: Commit, partition: int, until: int, reason: str) -> Commit:
    """Give up the positions [next, until) of a partition, counted as lost."""
    state = commit.partitions[partition]
    if until <= state.next:
        raise Refused(
            f"{commit.topic_partition(partition)} stands at {state.next}; there is no gap before {until}",
            next_step="kbq status shows the stopped partitions",
        )
    lost = until - state.next
    gap = AcceptedGap(state.next, until, reason)
    return commit.with_partition(
        partition,
        dataclasses.replace(
            state,
            next=until,
            totals=state.totals + Counts(positions=lost, lost=lost),
            accepted_gaps=(*state.accepted_gaps, gap),
            leader_epoch=-1,
            epoch_until=0,
            stop=None,
        ),
    )


def reset(
    commit: Commit,
    starts: Mapping[int, int],
    *,
    cluster_id: str,
    topic_id: str,
    give_up_pending: bool = False,
) -> Commit:
    """Start a new epoch (PROTOCOL E9) in which the given partitions begin anew at ``starts``.

    Refuses while windows are pending, unless told to give them up.
    """
    pending = sum(len(state.windows) for state in commit.partitions.values())
    if pending and not give_up_pending:
        raise Refused(
            f"{commit.topic}: {pending} windows wait to be loaded",
            next_step="run `kbq load` first, or pass --give-up-pending to lose them",
        )
    partitions = {n: dataclasses.replace(s, windows=()) for n, s in commit.partitions.items()}
    retired = sum((partitions[p].totals for p in starts if p in partitions), commit.retired)
    for partition, start in starts.items():
        partitions[partition] = PartitionCommit(next=start, start=start, since=commit.epoch + 1)
    return dataclasses.replace(
        commit,
        epoch=commit.epoch + 1,
        cluster_id=cluster_id,
        topic_id=topic_id,
        partitions=partitions,
        given_up=(*commit.given_up, *(file.path for file in commit.files)),
        retired=retired,
    )


def stop(commit: Commit, partition: int, why: Stop) -> Commit:
    """Stop a partition until it is resumed or tried again (PROTOCOL E10). A stop where one stood is a failed try."""
    state = commit.partitions[partition]
    before = state.stop
    if before is not None and before.first == why.first:
        if before.last_ms == why.last_ms:
            return commit  # this stop, by a swap whose reply was lost
        why = dataclasses.replace(why, tries=before.tries + 1)
    return commit.with_partition(partition, dataclasses.replace(state, stop=why))


def resume(commit: Commit, partition: int, *, as_errors: bool = False) -> Commit:
    """Let a stopped partition go on; ``as_errors`` accepts the error rows of the stopped range."""
    state = commit.partitions[partition]
    if state.stop is None:
        raise Refused(
            f"{commit.topic_partition(partition)} is not stopped", next_step="kbq status lists what is"
        )
    until = state.stop.until if as_errors else state.accept_errors_until
    return commit.with_partition(partition, dataclasses.replace(state, stop=None, accept_errors_until=until))
