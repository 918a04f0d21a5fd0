"""Parses the beginning and end of a replay's range as an operator writes them.

2026-11-20T10:00Z     a time: the first record of each partition at or after it
4200                  an offset of every partition
0:4200,3:117          offsets of some partitions; others are not read again
earliest, latest      all extracted positions that Kafka still has
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from kbq_assets.core.errors import ConfigurationError, Refused
from kbq_assets.core.protocol.commits import PartitionCommit
from kbq_assets.core.protocol.offsets import BrokerOffsets, TopicPartition
from kbq_assets.core.replay.model import Bounds
from kbq_assets.core.timestamps import parse_moment

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_OFFSETS: Final = re.compile(r"\d{1,18}:\d{1,18}(,\d{1,18}:\d{1,18})*")
_FORMS: Final = "a time such as 2026-11-20T10:00Z, an offset, offsets of partitions such as 0:4200,3:117, or"


@dataclass(frozen=True)
class Position:
    """One end of a range: exactly one of an edge, a time, an offset for all partitions, or offsets for some."""

    edge: str = ""
    time_ms: int = -1
    offset: int = -1
    offsets: Mapping[int, int] = field(default_factory=dict)

    def of(self, partition: int, at_time: int, edge: int) -> int | None:
        """The offset in a partition, None if the partition is not selected. ``at_time`` is the first offset at the
        time."""
        if self.offsets:
            return self.offsets.get(partition)
        if self.offset >= 0:
            return self.offset
        return at_time if self.time_ms >= 0 else edge


def parse_position(option: str, text: str, edge: str) -> Position:
    """Parse the value of an option. ``edge`` is its other allowed word. Raises ConfigurationError."""
    if text == edge:
        return Position(edge)
    if text.isascii() and text.isdecimal() and len(text) <= 18:
        return Position(offset=int(text))
    if _OFFSETS.fullmatch(text):
        pairs = [pair.split(":") for pair in text.split(",")]
        return Position(offsets={int(partition): int(offset) for partition, offset in pairs})
    try:
        if not text.isdigit():
            return Position(time_ms=parse_moment(text))
    except ConfigurationError:
        pass
    raise ConfigurationError(f"{option}: {text!r} is not a position", next_step=f"write {_FORMS} {edge}")


@dataclass(frozen=True)
class Extracted:
    """One partition: its extracted positions, Kafka's positions, the offsets at the replay's two times, and the first
    offset whose row waits for a table that is gone."""

    topic_partition: TopicPartition
    state: PartitionCommit
    broker: BrokerOffsets
    first_at: int = 0
    until_at: int = 0
    #: whether ``broker`` limits the positions to read; if not, the caller does
    is_bound: bool = True
    waits_from: int | None = None

    @property
    def latest(self) -> int:
        """The end of the positions that tables have. Rows that wait are loaded once the table exists again."""
        return self.state.next if self.waits_from is None else min(self.state.next, self.waits_from)


def bounds_of(partitions: Collection[Extracted], first: Position, until: Position) -> dict[int, Bounds]:
    """The range of every partition, empty if the partition is not selected. Times are limited to extracted positions,
    offsets are not. Raises Refused if Kafka no longer has a range."""
    known = {each.topic_partition.partition for each in partitions}
    if unknown := sorted({*first.offsets, *until.offsets} - known):
        raise Refused(
            f"the topic has no partition {', '.join(map(str, unknown))}",
            next_step="kbq status lists the partitions",
        )
    return {each.topic_partition.partition: _bounds(each, first, until) for each in partitions}


def _bounds(found: Extracted, first: Position, until: Position) -> Bounds:
    tp, state, broker = found.topic_partition, found.state, found.broker
    start = first.of(tp.partition, max(found.first_at, state.start), max(broker.earliest, state.start))
    end = until.of(tp.partition, min(found.until_at, found.latest), found.latest)
    if start is None or end is None or start >= end:
        return Bounds(state.next, state.next)
    if not state.start <= start < end <= state.next:
        raise Refused(
            f"{tp} [{start}, {end}) is not within [{state.start}, {state.next}), which was extracted",
            next_step="choose offsets that were extracted since the partition's last reset",
        )
    if found.is_bound and (start < broker.earliest or end > broker.latest):
        raise Refused(
            f"Kafka no longer has {tp} [{start}, {end}): it has [{broker.earliest}, {broker.latest})",
            next_step=f"--source backup reads a backup; --from {EARLIEST} begins at the first record that Kafka has",
        )
    return Bounds(start, end)
