"""Finds records by time or by key, in Kafka and, if Kafka no longer has them, in the backup."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kbq_assets.core.backup.commits import windows_of
from kbq_assets.core.erasure.offset_sets import each_of
from kbq_assets.core.errors import NotFound
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.commits import Commit, Window
from kbq_assets.core.protocol.names import commit_path_of
from kbq_assets.core.protocol.offsets import OffsetRange, TopicDescription, TopicPartition
from kbq_assets.pipelines.operate.operator import Operator
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.kafka import WITH_KEYS, RecordSource
from kbq_assets.ports.object_store import ObjectStore


@dataclass(frozen=True)
class RecordFinder:
    """Finds the positions of records of one topic."""

    operator: Operator
    open_source: Callable[[], RecordSource]

    def at_time(
        self, topic: str, partition: int | None, time_ms: int
    ) -> Iterator[tuple[TopicPartition, int]]:
        """The first record of each partition at or after a time. Raises NotFound, Refused, Unavailable."""
        from kbq_assets.pipelines.backup.times import offset_at

        described, reader = self._described(topic), self.operator.deployment.offsets
        partitions = _partitions(described, partition)
        ends, found = reader.offsets(partitions), reader.offsets_for_time(partitions, time_ms)
        for tp in partitions:
            area, windows = self._backup(described, tp)
            copied = offset_at(area, windows, time_ms) if area else None
            offset = found.get(tp, ends[tp].latest)
            offset = offset if copied is None else min(offset, copied)
            if offset < ends[tp].latest:
                yield tp, offset

    def with_key(self, topic: str, partition: int | None, key: bytes) -> Iterator[tuple[TopicPartition, int]]:
        """All records with a key, in order. Reads whole partitions. Raises NotFound, Unavailable."""
        from kbq_assets.pipelines.erasure.backup_files import matching
        from kbq_assets.pipelines.erasure.search import WantedKeys

        described = self._described(topic)
        wanted = WantedKeys.of(frozenset([key]))
        for tp in _partitions(described, partition):
            broker = self.operator.deployment.offsets.offsets([tp])[tp]
            area, windows = self._backup(described, tp)
            for file in (file for window in windows for file in window.files):
                if area and file.window < broker.earliest:
                    offsets = each_of(matching(area, file, wanted.matching))
                    yield from ((tp, offset) for offset in offsets if offset < broker.earliest)
            if range_ := OffsetRange(tp, broker.earliest, broker.latest):
                for batch in self.open_source().read(range_, WITH_KEYS):
                    yield from ((tp, offset) for offset in wanted.matching(batch.chunk))

    def _described(self, topic: str) -> TopicDescription:
        found = self.operator.deployment.offsets.topics((topic,)).get(topic)
        if found is None:
            raise NotFound(
                f"topic {topic} is not on the broker", next_step="check the name, or give an offset"
            )
        return found

    def _backup(
        self, described: TopicDescription, tp: TopicPartition
    ) -> tuple[ObjectStore | None, tuple[Window, ...]]:
        """The copies of a partition in the backup's current epoch; empty if they are of another log."""
        try:
            area = self.operator.backups.area(tp.topic)
            commit = state.read(area, Commit, commit_path_of(tp)).value
        except NotFound:
            return None, ()
        is_same = commit.topic_id == described.topic_id
        return (area, windows_of(commit, tp.partition, commit.epoch)) if is_same else (None, ())


def _partitions(described: TopicDescription, partition: int | None) -> list[TopicPartition]:
    found = [TopicPartition(described.topic, number) for number in range(described.partitions)]
    if partition is None:
        return found
    if partition >= len(found):
        raise NotFound(
            f"{described.topic} has {counted(len(found), 'partition')}", next_step="choose one of them"
        )
    return [found[partition]]
