"""The order in which partitions are read, and how much of each the limits allow."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kbq_assets.core.extraction.backlog import DANGER_TURNS, Averages, is_in_danger
from kbq_assets.core.extraction.throttle import Demand, ReadLimits, allot
from kbq_assets.core.extraction.units import Unit
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition


@dataclass(frozen=True)
class Throttled:
    """Positions that a limit of the topic or of the run defers to later runs."""

    topic_partition: TopicPartition
    positions: int


def weight(unit: Unit) -> int:
    """The share of turns of a unit's partition: its topic's priority, raised if the partition is close to losing
    records."""
    return unit.settings.extraction.priority * (DANGER_TURNS if is_in_danger(unit.headroom) else 1)


def urgency(unit: Unit) -> tuple[float, int]:
    """Sort key: partitions nearest to losing records first, then the longest ranges, to keep cores busy to the end."""
    return (unit.headroom if is_in_danger(unit.headroom) else 1.0, -unit.range.positions)


def within_limits(
    units: Sequence[Unit], averages: Mapping[TopicPartition, Averages], run: ReadLimits
) -> tuple[list[Unit], list[Throttled]]:
    """Units cut to the limits, and the positions that are deferred. A limit below the size of a position lets one
    position through: otherwise no run would ever read it."""
    topics = {
        unit.range.topic_partition.topic: ReadLimits(
            unit.settings.extraction.max_records, unit.settings.extraction.max_bytes
        )
        for unit in units
    }
    most = {
        topic: min(filter(None, (own.bytes, run.bytes)), default=math.inf) for topic, own in topics.items()
    }
    demands = [
        Demand(
            tp.topic, unit.range.positions, math.ceil(min(averages[tp].bytes, most[tp.topic])), weight(unit)
        )
        for unit in units
        for tp in [unit.range.topic_partition]
    ]
    kept, throttled = [], []
    for unit, positions in zip(units, allot(demands, topics, run), strict=True):
        left = unit.range.positions - positions
        if left:
            throttled.append(Throttled(unit.range.topic_partition, left))
        if positions:
            kept.append(_cut(unit, positions) if left else unit)
    return kept, throttled


def _cut(unit: Unit, positions: int) -> Unit:
    whole = unit.range
    part = OffsetRange(whole.topic_partition, whole.from_offset, whole.from_offset + positions)
    return dataclasses.replace(unit, range=part)
