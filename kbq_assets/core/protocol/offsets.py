"""Topic-partitions and half-open ranges of offsets.

A range counts *positions*: each may have a record, a control record, an aborted record or nothing (compaction). Row
counts are never offset arithmetic (PROTOCOL, Objects).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class TopicPartition(NamedTuple):
    """One partition of one Kafka topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]"


@dataclass(frozen=True, order=True)
class OffsetRange:
    """Positions ``from_offset <= position < until_offset`` of one partition."""

    topic_partition: TopicPartition
    from_offset: int
    until_offset: int

    def __post_init__(self) -> None:
        if not 0 <= self.from_offset <= self.until_offset:
            raise ValueError(f"not a range of offsets: {self}")

    @property
    def positions(self) -> int:
        """Number of positions: an upper bound on the number of records."""
        return self.until_offset - self.from_offset

    def __bool__(self) -> bool:
        return self.positions > 0

    def __str__(self) -> str:
        return f"{self.topic_partition} [{self.from_offset}, {self.until_offset})"


@dataclass(frozen=True)
class BrokerOffsets:
    """The broker's offsets of one partition.

    ``latest`` is the last stable offset: no record below it belongs to an open transaction. ``leader_epoch`` is -1 if
    the broker does not report it.
    """

    earliest: int
    latest: int
    leader_epoch: int = -1


@dataclass(frozen=True)
class TopicDescription:
    """A topic as the broker describes it. ``topic_id`` is "" if unknown (KIP-516's zero id)."""

    topic: str
    topic_id: str
    partitions: int
