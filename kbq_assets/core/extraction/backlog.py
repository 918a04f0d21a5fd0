"""Unread positions of a partition: an estimate of their size, how close they are to being lost, and whether they may
wait.

Everything here decides order and size of work. No record depends on it.
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
#: Turns of a partition in danger for one turn of another partition of its topic.
DANGER_TURNS: Final = 4
#: Assumed bytes of a record's value until some are read.
_UNKNOWN_BYTES: Final = 1024


@dataclass(frozen=True)
class Averages:
    """Records and bytes of an average position, from the commits' totals. Estimates only."""

    records: float = 1.0
    bytes: float = _UNKNOWN_BYTES

    @classmethod
    def of(cls, totals: Counts, fallback: Averages | None = None) -> Averages:
        """Averages over positions that were read; the fallback if none were."""
        positions = totals.positions - totals.lost
        if positions <= 0:
            return fallback or cls()
        return cls(totals.records / positions, totals.bytes / positions)

    @classmethod
    def of_topic(cls, totals: Iterable[Counts]) -> Averages:
        """Averages over all partitions, assumed for one that was never read."""
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
    #: when its hour ends by the data clock, in ms; 0 if that is unknown, or it does not wait for it
    closes_ms: int = 0

    def is_closed(self, now_ms: int) -> bool:
        """Whether its hour has ended: it waits no longer, so that the hour can be complete."""
        return 0 < self.closes_ms <= now_ms

    def due_before(self, now_ms: int) -> int:
        """The partition waits no longer if its oldest unread record is older than this Kafka time."""
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
    """Why so few positions may wait; "" if they need not. Reaching any one minimum is enough. A quiet partition waits
    only if ``is_known``: people want the first rows of a topic at once. So does one that closes hours: no hour of its
    topic is complete before it is read."""
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
