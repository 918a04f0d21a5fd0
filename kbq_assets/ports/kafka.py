"""The broker, for the planner (`OffsetReader`) and for a unit of extraction (`RecordSource`)."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from kbq_assets.core.protocol.offsets import BrokerOffsets, OffsetRange, TopicDescription, TopicPartition

if TYPE_CHECKING:  # planning reads no record, so it need not import numpy
    from kbq_assets.wire.chunk import Chunk

#: Minimum time to wait for a stalled range: connecting and finding a new leader take a while.
LEAST_WAIT_SECONDS: Final = 5.0


@dataclass(frozen=True)
class RecordBatch:
    """Records read so far: ``chunk`` may be empty. Everything below ``position`` has been delivered or has no record.

    ``leader_epoch`` is that of the last record, -1 if unknown. ``erased`` records before ``position`` were left out.
    """

    chunk: Chunk
    position: int
    leader_epoch: int = -1
    erased: int = 0


@dataclass(frozen=True)
class ReadOptions:
    """How to read a range: which parts of a record besides its value, and until when.

    ``leader_epoch`` is that of the record before the range, -1 if unknown: a reader notices that the log was truncated.
    A stalled range fails ``wait_seconds`` after its beginning, and no sooner than after `LEAST_WAIT_SECONDS`.
    While a chunk without ``headers`` is the latest, `Chunk.late_headers` returns single records' headers.
    """

    leader_epoch: int = -1
    keys: bool = False
    headers: bool = False
    wait_seconds: float = math.inf


VALUES_ONLY: Final = ReadOptions()
WITH_KEYS: Final = ReadOptions(keys=True)


class OffsetReader(Protocol):
    """Guarantees: offsets are the broker's own, never cached; a topic or partition that the broker does not know is
    absent from the answer, not empty; errors are Unavailable."""

    def cluster_id(self) -> str:
        """The cluster's id. Raises Unavailable."""

    def brokers(self) -> Collection[tuple[str, int]]:
        """Host and port of each broker, as the cluster advertises them. Raises Unavailable."""

    def topics(self, names: Collection[str] | None = None) -> Mapping[str, TopicDescription]:
        """These topics, by default all that the credentials may see; internal ones never. The cost grows with their
        number. Raises Unavailable."""

    def offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, BrokerOffsets]:
        """Log start and last stable offset of each partition. Raises Unavailable."""

    def offsets_for_time(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> Mapping[TopicPartition, int]:
        """The first offset at or after a time, else the last stable offset. Raises Unavailable."""

    def held_back(self, stable: Mapping[TopicPartition, int], before_ms: int) -> Mapping[TopicPartition, int]:
        """How many positions lie behind the last stable offsets ``stable``, where a transaction has been open since
        before a time. Raises Unavailable."""


class AdvisoryGroups(Protocol):
    """Committed offsets for Kafka's own tools. Guarantees: nothing is read; no group gets a member."""

    def commit(self, group: str, positions: Mapping[TopicPartition, int]) -> None:
        """Set a group's offsets. Raises Unavailable, also if the group has members."""


class RecordSource(Protocol):
    """Guarantees: only records of committed transactions, each once, in offset order, checksums verified; positions
    never run ahead of undelivered records."""

    def read(self, range_: OffsetRange, options: ReadOptions = VALUES_ONLY) -> Iterator[RecordBatch]:
        """Read exactly ``range_``. The last batch's position is ``range_.until_offset``, even
        if the last positions hold no record (partition EOF, control records, compaction).

        Raises Unavailable, NotFound (topic or partition gone), OffsetOutOfRange (never a silent reset), and
        UnreadableBatch after everything before that batch.
        """
