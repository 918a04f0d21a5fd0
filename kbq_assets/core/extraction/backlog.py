"""The backlog of a partition: its estimated size, how close it is to being lost, and whether it may wait.

This module decides only the order and size of work. It cannot lose or repeat a record.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.offsets import BrokerOffsets, TopicPartition
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.core.topics.wait_options import QUIET_RECORDS

#: A partition is in danger while less than this share of the log lies below its position.
DANGER: Final = 0.1
#: Turns that a partition in danger gets for each turn of another partition of its topic.
DANGER_TURNS: Final = 4
#: Assumed bytes of a record's value until some are read.
_UNKNOWN_BYTES: Final = 1024


@dataclass(frozen=True)
class Averages:
    """Records and bytes per position on average, from the commits' totals. Estimates only."""

    records: float = 1.0
    bytes: float = _UNKNOWN_BYTES

    @classmethod
    def of(cls, totals: Counts, fallback: Averages | None = None) -> Averages:
        """Averages over the positions read so far; the fallback if none were read."""
        positions = totals.positions - totals.lost
        if positions <= 0:
            return fallback or cls()
        return cls(totals.records / positions, totals.bytes / positions)

    @classmethod
    def of_topic(cls, totals: Iterable[Counts]) -> Averages:
        """Averages over all partitions of a topic, used for a partition that was never read."""
        positions = records = size = 0
        for counts in totals:
            positions += counts.positions - counts.lost
            records += counts.records
            size += counts.bytes
        return cls.of(Counts(positions=positions, records=records, bytes=size))


@dataclass(frozen=True)
class Waiting:
    """A partition that may wait, because it has too little to read."""

    topic_partition: TopicPartition
    first: int
    positions: int
    max_wait_seconds: int
    message: str
    #: when its hour ends by the data clock, in ms; 0 if unknown, or if the end of the hour does not matter
    closes_ms: int = 0

    def is_closed(self, now_ms: int) -> bool:
        """Whether its hour has ended. Then the partition waits no longer, so that the hour can become complete."""
        return 0 < self.closes_ms <= now_ms

    def due_before(self, now_ms: int) -> int:
        """A Kafka time: if the oldest unread record is older, the partition waits no longer."""
        return now_ms - self.max_wait_seconds * 1000


def headroom(position: int, broker: BrokerOffsets) -> float:
    """The share of the retained log below ``position``, which retention deletes first.

    1.0 if the log starts at 0: nothing was ever deleted.
    """
    if broker.earliest <= 0 or broker.latest <= broker.earliest:
        return 1.0
    return max(0, position - broker.earliest) / (broker.latest - broker.earliest)


def is_in_danger(room: float) -> bool:
    """Whether retention is close to a position with this headroom."""
    return room < DANGER


def too_little(settings: TopicSettings, positions: int, averages: Averages, *, is_known: bool = True) -> str:
    """The reason that so few positions may wait; "" to read them now. Reaching any one minimum is enough to read. Quiet
    partitions, and those that close hours, wait only if ``is_known``: people want the first rows of a topic at once,
    and no hour of the topic is complete until every partition was read once."""
    records, size = positions * averages.records, positions * averages.bytes
    short, waits = [], settings.waits
    if waits.close_hours and not is_known:
        return ""
    if waits.min_records:
        short.append((records, waits.min_records, "records"))
    if waits.min_bytes:
        short.append((size, waits.min_bytes, "bytes"))
    if waits.quiet_seconds and is_known and not waits.has_minimum:
        short.append((records, QUIET_RECORDS, "records"))
    if not short or any(found >= least for found, least, _ in short):
        return ""
    return ", ".join(f"about {round(found):,} of {least:,} {what}" for found, least, what in short)
