"""The commit of a topic: the position of every partition, and the windows that wait to be loaded.

A topic has one object per 64 partitions (PROTOCOL, Objects). Functions return the next commit, or raise StateError.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from kbq_assets.core.errors import BUG, Defect, Refused, StateError
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.business_times import BusinessTimes
from kbq_assets.core.protocol.codec import Stored
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.done_files import DoneFileName
from kbq_assets.core.protocol.manifest_entries import ManifestEntry
from kbq_assets.core.protocol.names import FIRST_WAREHOUSE, StagedFileName, TableReference
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.core.protocol.totals import WindowTotals
from kbq_assets.core.protocol.watermarks import Watermark
from kbq_assets.core.statements.rules import StatementRule

#: Most hours of business time listed per file (six weeks), so that a commit stays small whatever producers write.
MOST_HOURS: Final = 1_000
#: Most event dates listed per file: BigQuery's limit per load job. A file with more dates is loaded alone.
MOST_DATES: Final = 4_000
#: Most accepted gaps kept: a partition that is always behind its retention adds one in every run.
MOST_GAPS: Final = 100


@dataclass(frozen=True)
class StagedFile(Stored):
    """One Avro container file, as the commit lists it."""

    path: str
    #: first position of its window
    window: int
    #: position after the last one that it covers: the first offset of the next file after rotation, or the window's end
    until: int
    rows: int
    #: size of the object
    bytes: int
    #: size before compression
    raw_bytes: int
    crc32c: str
    fingerprint: str
    #: distinct event dates, in days since 1970; empty if there are more than `MOST_DATES`
    dates: tuple[int, ...] = ()
    #: lowest Kafka timestamp
    oldest_ms: int = 0
    events: BusinessTimes = field(default_factory=BusinessTimes, metadata=codec.INLINE)
    #: how often its range was read again (PROTOCOL L14); of two files with the same name, the higher number counts
    restaged: int = 0
    #: the warehouses that load it, with "" for the first; empty: only the first
    warehouses: tuple[str, ...] = ()
    #: hash of its records (only for backup files, PROTOCOL B3)
    content: str = ""
    #: the first schema ids of its records (only for backup files)
    schema_ids: tuple[int, ...] = ()

    @property
    def wanted_by(self) -> tuple[str, ...]:
        """The warehouses that load it."""
        return self.warehouses or (FIRST_WAREHOUSE,)

    @cached_property
    def name(self) -> StagedFileName:
        """The parsed path: topic, partition, table, schema id, first offset, epoch."""
        return StagedFileName.parse(self.path)

    @property
    def table(self) -> TableReference:
        return self.name.table

    @property
    def dataset(self) -> str:
        """The dataset of its rows; "" for a file of a backup."""
        return "" if self.content else self.table.dataset

    @property
    def done(self) -> DoneFileName:
        """Its done file (PROTOCOL E5): the last offset is the last position covered."""
        at = self.name
        return DoneFileName(at.topic_partition, at.table, at.schema_id, at.first_offset, self.until - 1)


@dataclass(frozen=True)
class Window(Stored):
    """A range of positions whose files become visible together (PROTOCOL E4). ``leader_epoch`` is the epoch of its last
    record, which is just before ``epoch_until``; without records they are -1 and 0. ``newest_ms`` is its highest Kafka
    timestamp, 0 if unknown. ``written_ms``: for a merged file, when the newest of the files that it replaced was
    written (PROTOCOL B10)."""

    first: int
    until: int
    counts: Counts
    files: tuple[StagedFile, ...] = ()
    leader_epoch: int = -1
    epoch_until: int = 0
    newest_ms: int = 0
    written_ms: int = 0


@dataclass(frozen=True)
class Stop(Stored):
    """Why extraction of a partition waits for an operator (PROTOCOL E10)."""

    #: a `StopReason` (core/protocol/waits.py)
    reason: str
    message: str
    first: int
    until: int
    #: failed tries since the partition stopped here (core/extraction/restarts.py)
    tries: int = 0
    #: when the partition stopped or the last try failed, by the store's time
    last_ms: int = 0


@dataclass(frozen=True)
class AcceptedGap(Stored):
    """Positions that an operator gave up, kept for the record."""

    first: int
    until: int
    reason: str


@dataclass(frozen=True)
class PartitionCommit(Stored):
    """One partition's position, totals and pending windows."""

    #: the first position that is not committed
    next: int
    #: where the partition began, in epoch ``since`` (0: the topic's first); resets of other partitions change neither
    start: int = 0
    since: int = 0
    leader_epoch: int = -1
    epoch_until: int = 0
    #: counts since ``start``
    totals: Counts = field(default_factory=Counts)
    windows: tuple[Window, ...] = ()
    stop: Stop | None = None
    #: consecutive tasks that died while they read from ``next`` on (core/extraction/deaths.py)
    deaths: int = 0
    #: windows below this may have any share of errors (`kbq resume --as-errors`)
    accept_errors_until: int = 0
    #: the latest gaps; ``totals.lost`` counts the positions of all
    accepted_gaps: tuple[AcceptedGap, ...] = ()
    #: the business time up to which it was read
    watermark: Watermark = field(default_factory=Watermark)
    #: the part of ``totals`` given to each warehouse besides the first
    delivered: Mapping[str, Counts] = field(default_factory=dict)
    #: the part of ``totals`` not given to the first warehouse
    withheld: Counts = field(default_factory=Counts)
    #: changes of row counts by replays and erasures, by job; for warehouses besides the first by `<warehouse>/<job>`
    replaced: Mapping[str, Counts] = field(default_factory=dict)

    @property
    def epoch_known_until(self) -> int:
        """The position up to which the log had the leader epoch: after the last record, or as a broker reported it."""
        # After a reset, the first record sets it. The totals of a backup do not show that: they go on.
        has_no_record = self.since > 0 or 0 < self.totals.positions == self.totals.gaps
        return self.epoch_until or (self.start if has_no_record else self.next)

    def totals_for(self, warehouse: str) -> Counts:
        """The rows given to a warehouse since ``start``, adjusted for replays and erasures."""
        given = self.delivered.get(warehouse, Counts())
        if warehouse == FIRST_WAREHOUSE:
            given = self.totals if self.withheld == Counts() else self.totals - self.withheld
        return sum(self.changes_of(warehouse).values(), given)

    def changes_of(self, warehouse: str) -> Mapping[str, Counts]:
        """Changes of a warehouse's row counts by replays and erasures, by job."""
        jobs = ((*key.rpartition("/"), counts) for key, counts in self.replaced.items())
        return {job: counts for name, _, job, counts in jobs if name == warehouse}


@dataclass(frozen=True)
class Commit(Stored):
    """A shard of a topic's commit: either whole, or the stored head, whose older windows are in ``manifests``."""

    topic: str
    shard: int
    cluster_id: str
    #: "" if the broker has none
    topic_id: str
    epoch: int
    partitions: Mapping[int, PartitionCommit] = field(default_factory=dict)
    #: paths of files that resets dropped before they were loaded; late backlog chunks or old plans may still name them
    given_up: tuple[str, ...] = ()
    #: totals of partitions from before their resets
    retired: Counts = field(default_factory=Counts)
    published: WindowTotals = field(default_factory=WindowTotals)
    #: fingerprints of the schemas with which its records were first read, by schema id
    schema_ids: Mapping[int, str] = field(default_factory=dict)
    #: manifests with older windows, accepted gaps and given-up paths; empty in a whole commit, which includes them
    manifests: tuple[ManifestEntry, ...] = ()
    #: the lowest version of the erasure log with which units may be published (PROTOCOL X2); 0: nothing was erased
    erasures: int = 0
    #: the topic's load rule when the last window was committed (PROTOCOL S10)
    load: StatementRule = field(default_factory=StatementRule)
    #: the number of the last merge of a backup's files; odd while a merge is under way (PROTOCOL B10)
    merges: int = 0

    @property
    def stored_format(self) -> int:
        """Locks out older releases, which would read erased records again, or delete files that a merge writes."""
        return codec.MERGING if self.merges % 2 else codec.ORDERED if self.erasures else codec.FORMAT

    def topic_partition(self, partition: int) -> TopicPartition:
        return TopicPartition(self.topic, partition)

    @property
    def totals(self) -> Counts:
        """All counts since the commit was created; they never decrease."""
        return sum((state.totals for state in self.partitions.values()), self.retired)

    @property
    def files(self) -> Iterable[StagedFile]:
        """All pending files, partition by partition in offset order. Raises StateError for a head with manifests."""
        if self.manifests:
            raise StateError(f"{self.topic}: a head does not list all files", next_step="report a bug")
        return (f for p in self.partitions.values() for w in p.windows for f in w.files)

    def with_partition(self, partition: int, state: PartitionCommit) -> Commit:
        return dataclasses.replace(self, partitions={**self.partitions, partition: state})


def starting_at(start: int, leader_epoch: int, since: int = 0) -> PartitionCommit:
    """A partition before anything of it is read, with the broker's ``leader_epoch``, -1 if unknown (PROTOCOL E2)."""
    return PartitionCommit(start, start, since, leader_epoch, start if leader_epoch >= 0 else 0)


def publish(
    commit: Commit, partition: int, epoch: int, windows: Iterable[Window], asked_ms: int = 0
) -> Commit:
    """Append finished windows to a partition (PROTOCOL E4). ``asked_ms`` is when their run queried the log end, 0 if
    unknown. Raises StateError on a gap, an overlap or a different epoch, Defect for windows that contradict
    themselves."""
    tp = commit.topic_partition(partition)
    # A reset may have dropped the partition, or a run that did not see it yet created the commit.
    if (state := commit.partitions.get(partition)) is None or epoch != commit.epoch:
        raise StateError(f"{tp} of epoch {epoch} is not in the commit of epoch {commit.epoch}")
    for window in windows:
        state = _with_window(state, window, tp, asked_ms)
    return commit.with_partition(partition, state)


def _with_window(state: PartitionCommit, window: Window, tp: TopicPartition, asked: int) -> PartitionCommit:
    covered = OffsetRange(tp, window.first, window.until)
    if window.first != state.next or not covered:
        raise StateError(f"window {covered} does not follow position {state.next}")
    if window.counts.positions != covered.positions:
        raise Defect(f"window {covered} accounts for {window.counts.positions} positions", next_step=BUG)
    window.counts.check(str(covered))
    if sum(f.rows for f in window.files) != window.counts.staged + window.counts.errors:
        raise Defect(f"window {covered}: the files' rows differ from its counts", next_step=BUG)
    warehouses = window.files[0].wanted_by if window.files else (FIRST_WAREHOUSE,)
    others = [name for name in warehouses if name != FIRST_WAREHOUSE]
    given = {name: state.delivered.get(name, Counts()) + window.counts for name in others}
    return dataclasses.replace(
        state,
        delivered={**state.delivered, **given} if given else state.delivered,
        withheld=state.withheld if FIRST_WAREHOUSE in warehouses else state.withheld + window.counts,
        next=window.until,
        leader_epoch=epoch_after(state.leader_epoch, window),
        epoch_until=window.epoch_until or state.epoch_known_until,
        totals=state.totals + window.counts,
        windows=(*state.windows, window) if window.files else state.windows,
        stop=None,
        deaths=0,
        watermark=state.watermark.with_window(window, asked),
    )


def epoch_after(leader_epoch: int, window: Window) -> int:
    """The leader epoch at a window's end, from its last record. A window without records does not change it."""
    return window.leader_epoch if window.leader_epoch >= 0 or window.epoch_until else leader_epoch


def prune(commit: Commit, is_loaded: Callable[[StagedFile], bool]) -> Commit:
    """Drop windows whose files are all loaded (PROTOCOL E7)."""
    return _map_windows(commit, lambda window: None if all(map(is_loaded, window.files)) else window)


def drop_files(commit: Commit, dropped: Callable[[StagedFile], bool]) -> Commit:
    """Drop files that a backlog now lists (PROTOCOL E7), and windows that become empty."""

    def without(window: Window) -> Window | None:
        kept = tuple(f for f in window.files if not dropped(f))
        return dataclasses.replace(window, files=kept) if kept else None

    return _map_windows(commit, without)


def map_files(commit: Commit, change: Callable[[StagedFile], StagedFile]) -> Commit:
    """Replace each pending file by one other file (PROTOCOL L14)."""
    return _map_windows(commit, lambda w: dataclasses.replace(w, files=tuple(map(change, w.files))))


def _map_windows(commit: Commit, change: Callable[[Window], Window | None]) -> Commit:
    partitions = {}
    for number, state in commit.partitions.items():
        windows = tuple(w for w in map(change, state.windows) if w is not None)
        partitions[number] = (
            state if windows == state.windows else dataclasses.replace(state, windows=windows)
        )
    return dataclasses.replace(commit, partitions=partitions)


def accept_gap(commit: Commit, partition: int, until: int, reason: str, leader_epoch: int = -1) -> Commit:
    """Give up the positions [next, until) of a partition and count them as lost. ``leader_epoch`` is the broker's."""
    state = commit.partitions[partition]
    if until <= state.next:
        raise Refused(
            f"{commit.topic_partition(partition)} is at {state.next}; there is no gap before {until}",
            next_step="kbq status shows the stopped partitions",
        )
    lost = until - state.next
    accepted = dataclasses.replace(
        state,
        next=until,
        totals=state.totals + Counts(positions=lost, lost=lost),
        accepted_gaps=_with_gap(state.accepted_gaps, AcceptedGap(state.next, until, reason)),
        leader_epoch=leader_epoch,
        epoch_until=until if leader_epoch >= 0 else 0,
        stop=None,
        deaths=0,
    )
    return commit.with_partition(partition, accepted)


def _with_gap(gaps: tuple[AcceptedGap, ...], gap: AcceptedGap) -> tuple[AcceptedGap, ...]:
    """The gaps with one more, at most `MOST_GAPS`. Adjacent gaps with the same reason are merged."""
    if gaps and (gaps[-1].until, gaps[-1].reason) == (gap.first, gap.reason):
        return (*gaps[:-1], dataclasses.replace(gaps[-1], until=gap.until))
    return (*gaps[-MOST_GAPS + 1 :], gap)


def reset(
    commit: Commit,
    starts: Mapping[int, int],
    *,
    cluster_id: str,
    topic_id: str,
    give_up_pending: bool = False,
    backlog: Iterable[StagedFile] = (),
    gone: Collection[int] = (),
    leader_epochs: Mapping[int, int] | None = None,
) -> Commit:
    """Start a new epoch (PROTOCOL E9): partitions in ``starts`` begin there, with the broker's ``leader_epochs``;
    ``gone`` ones are dropped. Raises Refused while windows are pending, unless ``give_up_pending``, which gives up the
    files in ``backlog`` too.
    """
    pending = sum(len(state.windows) for state in commit.partitions.values())
    if pending and not give_up_pending:
        raise Refused(
            f"{commit.topic}: windows that wait to be loaded: {pending}",
            next_step="run `kbq load` first, or pass --give-up-pending to lose them",
        )
    given_up = (*commit.files, *(backlog if give_up_pending else ()))
    ended = (commit.partitions[p].totals for p in {*starts, *gone} if p in commit.partitions)
    kept = {n: state for n, state in commit.partitions.items() if n not in gone}
    partitions = {n: dataclasses.replace(state, windows=()) for n, state in kept.items()}
    for partition, start in starts.items():
        partitions[partition] = starting_at(start, (leader_epochs or {}).get(partition, -1), commit.epoch + 1)
    return dataclasses.replace(
        commit,
        epoch=commit.epoch + 1,
        cluster_id=cluster_id,
        topic_id=topic_id,
        partitions=partitions,
        given_up=(*commit.given_up, *(file.path for file in given_up)),
        retired=sum(ended, commit.retired),
    )


def stop(commit: Commit, partition: int, why: Stop) -> Commit:
    """Stop a partition until it is resumed or retried (PROTOCOL E10). A second stop at the same position counts as a
    failed try."""
    state = commit.partitions[partition]
    if (before := state.stop) is not None and before.first == why.first:
        if before.last_ms == why.last_ms:
            return commit  # the same stop: the reply to its swap was lost
        why = dataclasses.replace(why, tries=before.tries + 1)
    return commit.with_partition(partition, dataclasses.replace(state, stop=why))


def resume(commit: Commit, partition: int, *, as_errors: bool = False) -> Commit:
    """Resume a stopped partition; ``as_errors`` accepts the error rows of the stopped range."""
    state = commit.partitions[partition]
    if state.stop is None:
        stopped = "kbq status lists stopped partitions"
        raise Refused(f"{commit.topic_partition(partition)} is not stopped", next_step=stopped)
    until = state.stop.until if as_errors else state.accept_errors_until
    return commit.with_partition(partition, dataclasses.replace(state, stop=None, accept_errors_until=until))
