"""The broker, seen by the planner (`OffsetReader`) and by a unit of extraction (`RecordSource`)."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from kbq_assets.core.protocol.offsets import BrokerOffsets, OffsetRange, TopicDescription, TopicPartition

if TYPE_CHECKING:  # planning reads no record, and need not wait for numpy
    from kbq_assets.wire.chunk import Chunk

#: How long a range that stands still is waited for at least: connecting and finding a new leader take a while.
LEAST_WAIT_SECONDS: Final = 5.0


@dataclass(frozen=True)
class RecordBatch:
    """Records read so far: ``chunk`` may be empty. Everything below ``position`` has been delivered or has no record.

    ``leader_epoch`` is that of the last record, -1 where unknown.
    """

    chunk: Chunk
    position: int
    leader_epoch: int = -1


class OffsetReader(Protocol):
    """Guarantees: offsets are the broker's own, never a cached view; a topic or partition the broker does not know is
    absent from the answer rather than empty; errors are Unavailable."""

    def cluster_id(self) -> str:
        """The cluster's id. Raises Unavailable."""

    def topics(self) -> Mapping[str, TopicDescription]:
        """All topics the credentials may see, internal ones left out. Raises Unavailable."""

    def offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, BrokerOffsets]:
        """Log start and last stable offset of each partition. Raises Unavailable."""

    def offsets_for_time(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> Mapping[TopicPartition, int]:
        """The first offset at or after a time; the last stable offset where there is none. Raises Unavailable."""


class RecordSource(Protocol):
    """Guarantees: records of committed transactions only, each once, in offset order, checksums verified; positions
    never run ahead of records not yet delivered."""

    def read(
        self,
        range_: OffsetRange,
        *,
        leader_epoch: int = -1,
        keys: bool = False,
        headers: bool = False,
        wait_seconds: float = math.inf,
    ) -> Iterator[RecordBatch]:
        """Read exactly ``range_``. The last batch's position is ``range_.until_offset``; the range ends there even
        where its last positions hold no record (partition EOF, control records, compaction).

        A range that stands still is waited for only until ``wait_seconds`` after the beginning, but for some seconds
        (`LEAST_WAIT_SECONDS`) in any case.

        A chunk without ``headers`` can tell single records' headers (`Chunk.late_headers`) while it is the latest.

        Raises Unavailable, NotFound (topic or partition gone), OffsetOutOfRange (never a silent reset).
        """
