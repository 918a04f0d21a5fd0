"""Publishes finished windows: one swap for every table at once, grouped, in order per partition (PROTOCOL E4)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from kbq_assets.core import commits
from kbq_assets.core.commits import Commit, Window
from kbq_assets.core.errors import NotFound, PreconditionFailed, StateError, UnknownOutcome
from kbq_assets.core.names import commit_path, shard_of
from kbq_assets.core.offsets import TopicPartition
from kbq_assets.core.planning import is_other_topic
from kbq_assets.core.units import UnitOutcome
from kbq_assets.pipelines.done_files import write_done_files
from kbq_assets.pipelines.state import read, swap
from kbq_assets.ports.clock import Clock
from kbq_assets.ports.kafka import OffsetReader
from kbq_assets.ports.object_store import ObjectStore

#: GCS takes about one write a second to one object; the same pace is kept everywhere.
SECONDS_BETWEEN_SWAPS = 1.0
#: How often a swap is rebased on somebody else's before the windows are given up.
_REBASES = 10

_Shard = tuple[str, int]


class Publisher:
    """Buffers the windows of a run. ``published`` are those that this run knows to be in a commit."""

    def __init__(self, store: ObjectStore, offsets: OffsetReader, clock: Clock) -> None:
        self._store = store
        self._offsets = offsets
        self._clock = clock
        self._waiting: dict[_Shard, list[UnitOutcome]] = defaultdict(list)
        self._last_swap: dict[_Shard, float] = {}
        self.published: dict[TopicPartition, list[Window]] = {}
        self.failures: dict[TopicPartition, str] = {}

    def add(self, outcome: UnitOutcome) -> None:
        """Take an outcome's windows, and its stop, for the next swap."""
        if outcome.windows or outcome.stop:
            tp = outcome.unit.range.topic_partition
            self._waiting[tp.topic, shard_of(tp.partition)].append(outcome)

    def flush_due(self) -> None:
        """Publish shards whose last swap is a second ago."""
        ripe = self._clock.monotonic() - SECONDS_BETWEEN_SWAPS
        self._flush([s for s in self._waiting if self._last_swap.get(s, ripe) <= ripe])

    def flush(self) -> None:
        """Publish everything."""
        self._flush(list(self._waiting))

    def _flush(self, shards: Iterable[_Shard]) -> None:
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
        for _ in range(_REBASES):
            try:
                current = read(self._store, Commit, path)
            except NotFound:
                return self._fail(outcomes, f"{path} is gone")
            if is_other_topic(current.value.topic_id, topic_id):
                return self._fail(outcomes, "the topic was recreated while it was read")
            wanted, listed = _rebase(current.value, outcomes)
            try:
                swap(self._store, current, wanted)
            except (PreconditionFailed, UnknownOutcome):
                continue  # read again: what is listed was published, by this call or an earlier one
            return self._record(wanted, outcomes, listed)
        return self._fail(
            outcomes, f"{path} changed {_REBASES} times; the next run reads these windows again"
        )

    def _record(
        self, commit: Commit, outcomes: list[UnitOutcome], ours: Mapping[TopicPartition, list[Window]]
    ) -> None:
        for tp, windows in ours.items():
            self.published.setdefault(tp, []).extend(windows)
        lost = [o for o in outcomes if o.windows and o.unit.range.topic_partition not in ours]
        self._fail(lost, "another extraction was faster")
        write_done_files(self._store, [f.done for ws in ours.values() for w in ws for f in w.files])

    def _fail(self, outcomes: Iterable[UnitOutcome], message: str) -> None:
        for outcome in outcomes:
            self.failures[outcome.unit.range.topic_partition] = message


def _rebase(
    commit: Commit, outcomes: Iterable[UnitOutcome]
) -> tuple[Commit, dict[TopicPartition, list[Window]]]:
    """Apply outcomes to a commit as it is now; return it with the windows that are ours in it.

    A partition is kept while its epoch and ``next`` are what its windows were read for (E4).
    """
    ours: dict[TopicPartition, list[Window]] = {}
    for outcome in outcomes:
        tp, windows = outcome.unit.range.topic_partition, outcome.windows
        if not _lists(commit, tp, windows):
            try:
                commit = commits.publish(commit, tp.partition, outcome.unit.epoch, windows)
            except StateError:
                continue  # somebody else published this range, or a reset gave it up
        if windows:
            ours.setdefault(tp, []).extend(windows)
        if outcome.stop is not None and commit.partitions[tp.partition].next == outcome.stop.first:
            commit = commits.stop(commit, tp.partition, outcome.stop)
    return commit, ours


def _lists(commit: Commit, tp: TopicPartition, windows: Iterable[Window]) -> bool:
    """Whether an earlier swap of these windows was applied although its reply said otherwise.

    Windows without files cannot be told from another attempt's, which are the same then.
    """
    state = commit.partitions.get(tp.partition)
    if state is None:
        return False
    paths = {f.path for w in state.windows for f in w.files}
    return any(f.path in paths for w in windows for f in w.files)
