"""The broker, for the planner (`OffsetReader`) and for units of extraction (`RecordSource`)."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from kbq_assets.core.protocol.offsets import BrokerOffsets, OffsetRange, TopicDescription, TopicPartition

if TYPE_CHECKING:  # planning reads no record, so it need not import numpy
    from kbq_assets.wire.chunk import Chunk

#: Minimum time to wait for a stalled range, because connecting and finding a new leader take a while.
LEAST_WAIT_SECONDS: Final = 5.0


@dataclass(frozen=True)
class RecordBatch:
    """The next records of a range; ``chunk`` may be empty. Every record below ``position`` has been delivered.
    ``leader_epoch`` is the last record's, -1 if unknown. ``erased`` is the number of records before ``position`` that
    were left out.
    """

    chunk: Chunk
    position: int
    leader_epoch: int = -1
    erased: int = 0


@dataclass(frozen=True)
class ReadOptions:
    """How to read a range, and which parts of a record besides its value.

    ``leader_epoch`` is the epoch of the record before the range, -1 if unknown; it lets the reader detect a truncated
    log. A stalled range fails ``wait_seconds`` after its beginning, but not before `LEAST_WAIT_SECONDS`. Without
    ``headers``, `Chunk.late_headers` returns the headers of single records as long as the chunk is the latest.
    """

    leader_epoch: int = -1
    keys: bool = False
    headers: bool = False
    wait_seconds: float = math.inf


VALUES_ONLY: Final = ReadOptions()
WITH_KEYS: Final = ReadOptions(keys=True)


class OffsetReader(Protocol):
    """Guarantees: offsets come from the broker and are never cached; a topic or partition that the broker does not know
    is absent from the answer, not empty; errors are Unavailable."""

    def cluster_id(self) -> str:
        """The cluster's id. Raises Unavailable."""

    def brokers(self) -> Collection[tuple[str, int]]:
        """Host and port of each broker, as the cluster advertises them. Raises Unavailable."""

    def topics(self, names: Collection[str] | None = None) -> Mapping[str, TopicDescription]:
        """These topics, by default all that the credentials may see, without internal topics. The cost grows with their
        number. Raises Unavailable."""

    def offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, BrokerOffsets]:
        """Log start and last stable offset of each partition. Raises Unavailable."""

    def offsets_for_time(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> Mapping[TopicPartition, int]:
        """The first offset at or after a time, or the last stable offset if there is none. Raises Unavailable."""

    def held_back(self, stable: Mapping[TopicPartition, int], before_ms: int) -> Mapping[TopicPartition, int]:
        """The number of positions after the last stable offset (``stable``) of each partition whose oldest open
        transaction began before a time. Raises Unavailable."""


class AdvisoryGroups(Protocol):
    """Committed offsets, for Kafka's own tools to display. Guarantees: KBQ never reads them; no group gets a member."""

    def commit(self, group: str, positions: Mapping[TopicPartition, int]) -> None:
        """Set a group's offsets. Raises Unavailable, including if the group has members."""


class RecordSource(Protocol):
    """Guarantees: delivers only records of committed transactions, each once, in offset order, with checksums verified.
    A position is never beyond an undelivered record."""

    def read(self, range_: OffsetRange, options: ReadOptions = VALUES_ONLY) -> Iterator[RecordBatch]:
        """Read exactly ``range_``. The last batch's position is ``range_.until_offset``, even if the last positions
        have no record (partition EOF, control records, compaction).

        Raises Unavailable, NotFound (topic or partition gone), OffsetOutOfRange (never a silent reset), and
        UnreadableBatch once everything before that batch is delivered.
        """
