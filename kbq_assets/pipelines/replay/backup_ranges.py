"""The copies in a topic's backup, for replays that read from it (PROTOCOL R9)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kbq_assets.core.backup.areas import area_of
from kbq_assets.core.backup.below_log_start import copies_of, is_same_log
from kbq_assets.core.backup.commits import windows_of
from kbq_assets.core.errors import NotFound, Refused
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.names import commit_path, shard_of
from kbq_assets.core.protocol.offsets import BrokerOffsets, OffsetRange, TopicPartition
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.object_store import ObjectStore

_NEXT = "kbq backup status shows what the backup has; use --source kafka to read what Kafka has"


@dataclass(frozen=True)
class TopicCopies:
    """The backup's commits of one topic, by shard."""

    topic: str
    commits: Mapping[int, Commit]
    store: ObjectStore

    @classmethod
    def read(cls, live: Deployment, settings: TopicSettings, commits: Mapping[int, Commit]) -> TopicCopies:
        """Read the backup's commits. ``commits`` are those of the tables. Raises Refused if the topic has no backup, or
        if the backup is of another log; Unavailable."""
        topic = next(iter(commits.values())).topic
        if not (area := area_of(settings)):
            raise Refused(f"{topic} has no backup", next_step="--source kafka, or backup=true for the topic")
        store, found = live.backup_area(area), {}
        for shard, tables in sorted(commits.items()):
            try:
                found[shard] = state.read(store, Commit, commit_path(topic, shard)).value
            except NotFound as error:
                raise Refused(
                    f"{topic} has no backup yet", next_step="kbq extract, or --source kafka"
                ) from error
            if not is_same_log(found[shard], tables):
                raise Refused(f"the backup of {topic} is of another log than its tables", next_step=_NEXT)
        return cls(topic, found, store)

    def offsets(self, tp: TopicPartition) -> BrokerOffsets:
        """The range of the last contiguous copies of a partition; an empty range at 0 if there are none."""
        backup = self.commits[shard_of(tp.partition)]
        first = until = 0
        for window in windows_of(backup, tp.partition, backup.epoch):
            first, until = (first if window.first <= until and until else window.first), window.until
        return BrokerOffsets(first, until)

    def offset_at(self, tp: TopicPartition, time_ms: int) -> int:
        """The offset of the first record at or after a time, among the last contiguous copies; their end if there is
        none. Raises Refused if a file is damaged or gone."""
        from kbq_assets.pipelines.backup.times import offset_at

        backup, known = self.commits[shard_of(tp.partition)], self.offsets(tp)
        windows = [w for w in windows_of(backup, tp.partition, backup.epoch) if w.first >= known.earliest]
        found = offset_at(self.store, windows, time_ms)
        return known.latest if found is None else found

    def check(self, range_: OffsetRange, next_step: str = _NEXT) -> None:
        """Raise Refused unless the backup has all of a range."""
        partition = range_.topic_partition.partition
        backup = self.commits[shard_of(partition)]
        known = partition in backup.partitions
        until = copies_of(backup, partition, range_.from_offset).until if known else range_.from_offset
        if until < range_.until_offset:
            raise Refused(f"{range_}: the backup does not have position {until}", next_step=next_step)
