"""What waits on the broker, judged: how much it probably is, how close to being lost, whether it may wait.

Everything here is politeness, order and estimate; no record depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kbq_assets.core.protocol.commits import Counts
from kbq_assets.core.protocol.offsets import BrokerOffsets, TopicPartition
from kbq_assets.core.topics.topic_settings import TopicSettings

#: A partition is in danger while less than this share of the log lies between the log's start and the position.
DANGER: Final = 0.1
#: How many turns a partition in danger gets for one of another of its topic.
DANGER_TURNS: Final = 4
#: Bytes of a record's value where nothing is known yet.
_UNKNOWN_BYTES: Final = 1024


@dataclass(frozen=True)
class Averages:
    """What a position holds on average, as the commits' totals tell from run to run. Estimates only."""

    records: float = 1.0
    bytes: float = _UNKNOWN_BYTES

    @classmethod
    def of(cls, totals: Counts, fallback: Averages | None = None) -> Averages:
        """Averages over positions that were read; the fallback where none were."""
        positions = totals.positions - totals.lost
        if positions <= 0:
            return fallback or cls()
        return cls(totals.records / positions, totals.bytes / positions)

    @classmethod
    def of_topic(cls, totals: Iterable[Counts]) -> Averages:
        """Over all partitions: what one without a past is taken for."""
        positions = records = size = 0
        for counts in totals:
            positions += counts.positions - counts.lost
            records += counts.records
            size += counts.bytes
        return cls.of(Counts(positions=positions, records=records, bytes=size))


@dataclass(frozen=True)
class Waiting:
    """A partition with so little to read that its topic lets it wait."""

    topic_partition: TopicPartition
    first: int
    positions: int
    max_wait_seconds: int
    message: str


def headroom(position: int, broker: BrokerOffsets) -> float:
    """The share of the retained log that retention may still delete before ``position`` is lost.

    1.0 where the log starts at 0: nothing was ever deleted.
    """
    if broker.earliest <= 0 or broker.latest <= broker.earliest:
        return 1.0
    return max(0, position - broker.earliest) / (broker.latest - broker.earliest)


def is_in_danger(room: float) -> bool:
    """Whether retention comes close to a position with this headroom."""
    return room < DANGER


def too_little(settings: TopicSettings, positions: int, averages: Averages) -> str:
    """Why so few positions may wait, or "" where they need not: any minimum that is reached is enough."""
    records, size = positions * averages.records, positions * averages.bytes
    short = []
    if settings.extraction.min_records:
        short.append((records, settings.extraction.min_records, "records"))
    if settings.extraction.min_bytes:
        short.append((size, settings.extraction.min_bytes, "bytes"))
    if not short or any(found >= least for found, least, _ in short):
        return ""
    return ", ".join(f"about {round(found):,} of {least:,} {what}" for found, least, what in short)
