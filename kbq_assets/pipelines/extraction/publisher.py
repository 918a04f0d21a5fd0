"""Publishes finished windows: one swap for every table at once, grouped, in order per partition (PROTOCOL E4).

Windows are appended where they begin, and where the leader epoch of the position is the one they were read on: what
was read beside or before it may stem from a log that has been truncated since.
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

#: GCS takes about one write a second to one object; the same pace is kept everywhere.
SECONDS_BETWEEN_SWAPS = 1.0
#: How often a swap is rebased on somebody else's before the windows are given up.
_REBASES = 10
_FASTER = "another extraction was faster"


class Publisher:
    """Buffers the windows of a run. ``published`` are those that this run knows to be in a commit.

    ``ends`` are the log ends that the broker told at ``asked_ms``: what is read up to them is marked so.
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
        """Take an outcome's windows, and its stop, for the next swap."""
        tp = outcome.unit.range.topic_partition
        if (outcome.windows or outcome.stop) and tp not in self.failures:
            self._waiting[tp.topic, shard_of(tp.partition)].append(outcome)

    def flush_due(self) -> None:
        """Publish shards whose last swap is a second ago."""
        ripe = self._clock.monotonic() - SECONDS_BETWEEN_SWAPS
        self._flush([s for s in self._waiting if self._last_swap.get(s, ripe) <= ripe])

    def flush(self) -> None:
        """Publish everything."""
        self._flush(list(self._waiting))

    def mark_idle(self) -> None:
        """Mark partitions that had nothing to read, and whose commit was not swapped."""
        mark_idle(self._store, self._clock, self._ends, self._asked_ms, self._last_swap.keys())

    def _flush(self, shards: Iterable[Shard]) -> None:
        shards = list(shards)
        # After the reading: a topic that still has the commit's id had it all the time (E2). A client may read on
        # in the new log of a recreated topic without a word.
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
                continue  # read again: what is listed was published, by this call or an earlier one
            self.failures.update(lost)
            return self._record(ours)
        return self._fail(
            outcomes, f"{path} changed {_REBASES} times; the next run reads these windows again"
        )

    def _timed(self, outcomes: list[UnitOutcome]) -> list[UnitOutcome]:
        """Stops with the store's time: tries are counted from it (E10)."""
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
    """Mark partitions that have nothing to read, now and then, but those of commits ``marked`` already: the oldest
    marks first, and after ``seconds`` none is begun. Nothing depends on it but which hours are complete: what fails, or
    is not reached, is marked later."""
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
    """Apply outcomes to a commit as it is now; return it with those whose windows are in it, and why others are not.

    A partition is kept while its epoch and ``next`` are what its windows were read for (E4). What follows windows that
    could not be published is not published either.
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
    """The commit with an outcome's windows, and its stop. Raises StateError where they do not follow."""
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
    """Raise StateError unless the windows go on in the log that the position was read from.

    The broker was asked about the unit's leader epoch. A slice that was read ahead began without one: if its first
    records have the epoch of the last ones before it, one leader wrote both, and nothing was truncated in between.
    """
    known = outcome.first_leader_epoch if outcome.unit.ahead else outcome.unit.leader_epoch
    if known != leader_epoch:
        raise StateError(f"{outcome.unit.range} was read under another leader; the next run reads it again")


def _stands_at(commit: Commit, unit: Unit) -> bool:
    here = commit.partitions[unit.range.topic_partition.partition]
    return commit.epoch == unit.epoch and here.next == unit.range.from_offset


def _lists(commit: Commit, tp: TopicPartition, windows: Iterable[Window]) -> bool:
    """Whether an earlier swap of these windows was applied although its reply said otherwise.

    Windows without files cannot be told from another attempt's, which are the same then.
    """
    state = commit.partitions.get(tp.partition)
    if state is None:
        return False
    paths = {f.path for w in state.windows for f in w.files}
    return any(f.path in paths for w in windows for f in w.files)
