"""Publishes finished windows, grouped, in order per partition, in one swap for all tables (PROTOCOL E4).

A window is appended only if the partition is at its first position, and has the leader epoch that the window was read
under. Otherwise it may come from a log that was truncated since.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from kbq_assets.core.errors import NotFound, PreconditionFailed, StateError, TransientError, UnknownOutcome
from kbq_assets.core.extraction.planning import is_other_topic
from kbq_assets.core.extraction.units import Unit, UnitOutcome
from kbq_assets.core.protocol import commits
from kbq_assets.core.protocol.commits import Commit, Window
from kbq_assets.core.protocol.names import commit_path, shard_of
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.protocol.watermarks import LogEnd, Shard, due_shards, mark_ends
from kbq_assets.pipelines.protocol.done_files import write_done_files
from kbq_assets.pipelines.protocol.state import parallel, read, swap
from kbq_assets.ports.clock import Clock
from kbq_assets.ports.kafka import OffsetReader
from kbq_assets.ports.object_store import ObjectStore

#: GCS allows about one write per second and object. The same pace is kept everywhere.
SECONDS_BETWEEN_SWAPS = 1.0
#: Rebases of a swap on other writers' swaps before the windows are dropped.
_REBASES = 10
_FASTER = "another extraction was faster"


class Publisher:
    """Buffers the windows of a run. ``published`` windows are known to be in a commit.

    ``ends`` are the log ends that the broker reported at ``asked_ms``. Partitions that are read up to them are marked.
    """

    def __init__(
        self,
        store: ObjectStore,
        offsets: OffsetReader,
        clock: Clock,
        ends: Mapping[TopicPartition, LogEnd] | None = None,
        asked_ms: int = 0,
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._clock = clock
        self._ends = ends or {}
        self._asked_ms = asked_ms
        self._waiting: dict[Shard, list[UnitOutcome]] = defaultdict(list)
        self._last_swap: dict[Shard, float] = {}
        self.published: dict[TopicPartition, list[Window]] = {}
        self.failures: dict[TopicPartition, str] = {}

    def add(self, outcome: UnitOutcome) -> None:
        """Add an outcome's windows and its stop to the next swap."""
        tp = outcome.unit.range.topic_partition
        if (outcome.windows or outcome.stop) and tp not in self.failures:
            self._waiting[tp.topic, shard_of(tp.partition)].append(outcome)

    def flush_due(self) -> None:
        """Publish shards whose last swap was at least a second ago."""
        ripe = self._clock.monotonic() - SECONDS_BETWEEN_SWAPS
        self._flush([s for s in self._waiting if self._last_swap.get(s, ripe) <= ripe])

    def flush(self) -> None:
        """Publish everything."""
        self._flush(list(self._waiting))

    def mark_idle(self) -> None:
        """Mark partitions that had nothing to read, in commits that this run did not swap."""
        mark_idle(self._store, self._clock, self._ends, self._asked_ms, self._last_swap.keys())

    def _flush(self, shards: Iterable[Shard]) -> None:
        shards = list(shards)
        # Ask after reading: a topic that still has the commit's id had it all the time (E2). A client may silently read
        # on in the new log of a recreated topic.
        described = self._offsets.topics() if shards else {}
        for shard in shards:
            outcomes = self._waiting.pop(shard)
            now = described.get(shard[0])
            self._publish(commit_path(*shard), outcomes, now.topic_id if now else "")
            self._last_swap[shard] = self._clock.monotonic()

    def _publish(self, path: str, outcomes: list[UnitOutcome], topic_id: str) -> None:
        outcomes = self._timed(outcomes)
        for _ in range(_REBASES):
            try:
                current = read(self._store, Commit, path)
            except NotFound:
                return self._fail(outcomes, f"{path} is gone")
            if is_other_topic(current.value.topic_id, topic_id):
                return self._fail(outcomes, "the topic was recreated while it was read")
            wanted, ours, lost = _rebase(current.value, outcomes, self._clock.now_ms(), self._asked_ms)
            wanted = mark_ends(wanted, self._ends, self._asked_ms)
            try:
                swap(self._store, current, wanted)
            except (PreconditionFailed, UnknownOutcome):
                continue  # read again: listed windows are published, by this call or an earlier one
            self.failures.update(lost)
            return self._record(ours)
        return self._fail(
            outcomes, f"{path} changed {_REBASES} times; the next run reads these windows again"
        )

    def _timed(self, outcomes: list[UnitOutcome]) -> list[UnitOutcome]:
        """Outcomes whose stops have the store's time, from which pauses count (E10)."""
        if all(outcome.stop is None for outcome in outcomes):
            return outcomes
        now_ms = self._store.now_ms()
        return [
            replace(o, stop=replace(o.stop, last_ms=now_ms)) if o.stop is not None else o for o in outcomes
        ]

    def _record(self, ours: list[UnitOutcome]) -> None:
        for outcome in ours:
            self.published.setdefault(outcome.unit.range.topic_partition, []).extend(outcome.windows)
        write_done_files(self._store, [f.done for o in ours for w in o.windows for f in w.files])

    def _fail(self, outcomes: Iterable[UnitOutcome], message: str) -> None:
        for outcome in outcomes:
            self.failures[outcome.unit.range.topic_partition] = message


def mark_idle(
    store: ObjectStore,
    clock: Clock,
    ends: Mapping[TopicPartition, LogEnd],
    asked_ms: int,
    marked: Collection[Shard] = (),
    seconds: float = math.inf,
) -> None:
    """Mark partitions that have nothing to read and an old mark, the oldest marks first; skip commits in ``marked``.

    No swap begins after ``seconds``. Only complete hours depend on the marks, so a later run makes up for failures.
    """
    oldest: dict[Shard, int] = defaultdict(lambda: asked_ms)
    for tp, end in ends.items():
        if end.position == end.until:
            shard = tp.topic, shard_of(tp.partition)
            oldest[shard] = min(end.marked_ms, oldest[shard])
    deadline = clock.monotonic() + seconds

    def mark(shard: Shard) -> None:
        if clock.monotonic() < deadline:
            with contextlib.suppress(NotFound, PreconditionFailed, TransientError, StateError):
                current = read(store, Commit, commit_path(*shard))
                swap(store, current, mark_ends(current.value, ends, asked_ms))

    parallel(mark, sorted((s for s in due_shards(ends, asked_ms) if s not in marked), key=oldest.__getitem__))


_Rebased = tuple[Commit, list[UnitOutcome], dict[TopicPartition, str]]


def _rebase(commit: Commit, outcomes: Iterable[UnitOutcome], now_ms: int, asked_ms: int = 0) -> _Rebased:
    """The commit with the outcomes applied; the outcomes whose windows it has; and why others are lost.

    Windows fit while the partition's epoch and ``next`` are those that they were read for (E4). Windows that follow
    lost ones are lost too.
    """
    ours: list[UnitOutcome] = []
    lost: dict[TopicPartition, str] = {}
    stopped_short: set[TopicPartition] = set()
    for outcome in outcomes:
        tp = outcome.unit.range.topic_partition
        if tp in stopped_short:
            continue
        try:
            commit = _with(commit, outcome, now_ms, asked_ms)
        except StateError as error:
            stopped_short.add(tp)
            if outcome.windows:
                lost[tp] = error.message if _stands_at(commit, outcome.unit) else _FASTER
            continue
        if outcome.windows:
            ours.append(outcome)
    return commit, ours, lost


def _with(commit: Commit, outcome: UnitOutcome, now_ms: int, asked_ms: int) -> Commit:
    """The commit with an outcome's windows and stop. Raises StateError if the windows do not follow."""
    tp, windows = outcome.unit.range.topic_partition, outcome.windows
    if not _lists(commit, tp, windows):
        published = commits.publish(commit, tp.partition, outcome.unit.epoch, windows, asked_ms)
        _check_log(commit.partitions[tp.partition].leader_epoch, outcome)
        commit = _counted(published, outcome, now_ms)
    if outcome.stop is not None and commit.partitions[tp.partition].next == outcome.stop.first:
        commit = commits.stop(commit, tp.partition, outcome.stop)
    return commit


def _counted(commit: Commit, outcome: UnitOutcome, now_ms: int) -> Commit:
    """The commit that counts an outcome's windows as published now."""
    totals = commit.published
    for number, window in enumerate(outcome.windows):
        opened_ms = outcome.opened_ms[number] if outcome.opened_ms else now_ms
        totals = totals.published(window, max(0.0, (now_ms - opened_ms) / 1000), now_ms)
    return dataclasses.replace(commit, published=totals)


def _check_log(leader_epoch: int, outcome: UnitOutcome) -> None:
    """Raise StateError unless the windows continue the log that the position was read from.

    The broker verified the unit's leader epoch. A slice that was read ahead began without one. If its first records
    have the epoch of the last records before it, one leader wrote both, so nothing was truncated in between.
    """
    known = outcome.first_leader_epoch if outcome.unit.ahead else outcome.unit.leader_epoch
    if known != leader_epoch:
        raise StateError(f"{outcome.unit.range} was read under another leader; the next run reads it again")


def _stands_at(commit: Commit, unit: Unit) -> bool:
    here = commit.partitions[unit.range.topic_partition.partition]
    return commit.epoch == unit.epoch and here.next == unit.range.from_offset


def _lists(commit: Commit, tp: TopicPartition, windows: Iterable[Window]) -> bool:
    """Whether an earlier swap of these windows was applied although its reply was an error.

    Windows without files look the same in every attempt.
    """
    state = commit.partitions.get(tp.partition)
    if state is None:
        return False
    paths = {f.path for w in state.windows for f in w.files}
    return any(f.path in paths for w in windows for f in w.files)
