"""The broker and the source list as a replay's extraction sees them: one range of one topic."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from kbq_assets.core.backup.areas import READ_ONLY
from kbq_assets.core.errors import Refused
from kbq_assets.core.protocol.offsets import BrokerOffsets, TopicDescription, TopicPartition
from kbq_assets.core.replay.model import BACKUP, KAFKA, Bounds, Replay
from kbq_assets.core.replay.promotion import check_kind
from kbq_assets.core.topics.check_options import CheckOptions
from kbq_assets.core.topics.ordering_options import OrderingOptions
from kbq_assets.core.topics.source_list import SourceEntry
from kbq_assets.core.topics.statement_options import StatementOptions
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.core.topics.wait_options import WaitOptions
from kbq_assets.pipelines.catalog.source_list import SourceList
from kbq_assets.ports.kafka import OffsetReader

_NOTHING: Final = Bounds(0, 0)
_UNCHECKED: Final = CheckOptions(complete_after_seconds=0, blocking=frozenset())


@dataclass(frozen=True)
class RangedOffsets:
    """An OffsetReader whose topic ends at the end of the replay's range. Retention is visible as in any extraction."""

    broker: OffsetReader
    replay: Replay

    def cluster_id(self) -> str:
        return self.broker.cluster_id()

    def brokers(self) -> Collection[tuple[str, int]]:
        return self.broker.brokers()

    def topics(self, names: Collection[str] | None = None) -> Mapping[str, TopicDescription]:
        """See the port; only for the replay's topic."""
        wanted = {self.replay.topic} if names is None else {self.replay.topic} & set(names)
        return self.broker.topics(wanted) if wanted else {}

    def offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, BrokerOffsets]:
        """See the port. The ends of the ranges are the last stable offsets."""
        return {tp: self._ended(tp, found) for tp, found in self.broker.offsets(partitions).items()}

    def offsets_for_time(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> Mapping[TopicPartition, int]:
        found = self.broker.offsets_for_time(partitions, timestamp_ms)
        return {tp: min(offset, self._bounds(tp).until) for tp, offset in found.items()}

    def held_back(self, stable: Mapping[TopicPartition, int], before_ms: int) -> Mapping[TopicPartition, int]:
        """Empty, because a range ends at or below the last stable offset."""
        return {}

    def _bounds(self, tp: TopicPartition) -> Bounds:
        return self.replay.bounds.get(tp.partition, _NOTHING)

    def _ended(self, tp: TopicPartition, broker: BrokerOffsets) -> BrokerOffsets:
        bounds = self._bounds(tp)
        # If nothing is left to read, retention loses nothing. If Kafka has no such records, the backup has them (R9).
        if bounds.first >= bounds.until or self.replay.source == BACKUP:
            return BrokerOffsets(bounds.until, bounds.until, broker.leader_epoch)
        return BrokerOffsets(broker.earliest, min(broker.latest, bounds.until), broker.leader_epoch)


@dataclass(frozen=True)
class ReplaySources(SourceList):
    """The current source list entry of one topic, changed for a replay. No record waits for more, no check, gate or
    marker makes files wait, and nothing is backed up again. The area has one warehouse (R13).

    ``settings`` are the live ones, because some defaults depend on all warehouses."""

    topic: str = ""
    source: str = KAFKA

    def read(self) -> tuple[SourceEntry, ...]:
        """The single entry. Raises Refused if the list no longer selects the topic."""
        found = replayed_settings(SourceList(self.settings, self.open_catalog), self.topic)
        from_backup = self.source == BACKUP
        extraction = dataclasses.replace(found.extraction, backup=READ_ONLY if from_backup else "false")
        if from_backup:  # a gap in the backup is not a loss of the topic
            extraction = dataclasses.replace(extraction, on_retention_loss="stop")
        settled = dataclasses.replace(
            found,
            destination=dataclasses.replace(found.destination, warehouses=()),
            extraction=extraction,
            waits=WaitOptions(),
            checks=_UNCHECKED,
            ordering=OrderingOptions(),
            statement=StatementOptions(),
        )
        return (SourceEntry(self.topic, settled),)


def replayed_settings(sources: SourceList, topic: str) -> TopicSettings:
    """The current options of a topic. Raises Refused if it cannot be replayed."""
    found = sources.select([topic]).get(topic)
    for mistake in sources.unknown([topic]).values():
        raise Refused(f"{topic} waits: {mistake.message}", next_step=mistake.next_step)
    if found is None:
        raise Refused(f"the source list does not select {topic}", next_step="add it, or choose another topic")
    check_kind(topic, found.statement.rule, are_changes=found.records.format == "debezium")
    return found
