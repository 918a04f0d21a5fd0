"""How much of each partition one run may read: limits of the run and of topics, shared out fairly.

Water-filling: all partitions rise together, each at the pace of its weight, until it has all it wants, or a limit of
its topic or of the run is used up. So nobody gets more than the limits, nothing is held back that a limit would still
allow, and what one partition does not need goes to the others.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction


@dataclass(frozen=True)
class ReadLimits:
    """Most that may be read; 0 is no limit. ``records`` are held against positions, an upper bound of them; ``bytes``
    against an estimate from the average record so far."""

    records: int = 0
    bytes: int = 0

    def __bool__(self) -> bool:
        return self.records > 0 or self.bytes > 0


@dataclass(frozen=True)
class Demand:
    """What one partition could read. ``bytes`` are a position's, on average."""

    topic: str
    positions: int
    bytes: int = 1
    weight: int = 1


def allot(
    demands: Sequence[Demand], topics: Mapping[str, ReadLimits], run: ReadLimits | None = None
) -> list[int]:
    """The positions that each demand gets. Remainders of a position go to the first demands."""
    shares = _Shares(demands, topics, run or ReadLimits())
    shares.fill()
    shares.give_out_remainders()
    return shares.given


@dataclass
class _Limit:
    """One limit: what is used of it, and how fast the demands that still rise use it up."""

    most: int
    costs: dict[int, int] = field(default_factory=dict)
    used: int = 0
    pace: int = 0
    rising: set[int] = field(default_factory=set)

    @property
    def level(self) -> Fraction:
        """Where the common level stands when this limit is used up."""
        return Fraction(self.most - self.used, self.pace)


class _Shares:
    def __init__(self, demands: Sequence[Demand], topics: Mapping[str, ReadLimits], run: ReadLimits) -> None:
        self.given = [demand.positions for demand in demands]
        self._demands = demands
        self._limits: list[_Limit] = []
        self._limits_of: dict[int, list[int]] = defaultdict(list)
        by_topic: dict[str, list[int]] = defaultdict(list)
        for index, demand in enumerate(demands):
            by_topic[demand.topic].append(index)
        for topic, members in by_topic.items():
            self._limit(topics.get(topic, ReadLimits()), members)
        self._limit(run, range(len(demands)))

    def _limit(self, limits: ReadLimits, members: Sequence[int]) -> None:
        if limits.records:
            self._add(limits.records, {i: 1 for i in members})
        if limits.bytes:
            self._add(limits.bytes, {i: max(1, self._demands[i].bytes) for i in members})

    def _add(self, most: int, costs: dict[int, int]) -> None:
        pace = sum(cost * self._demands[i].weight for i, cost in costs.items())
        for index in costs:
            self._limits_of[index].append(len(self._limits))
        self._limits.append(_Limit(most, costs, 0, pace, set(costs)))

    def fill(self) -> None:
        """Raise the level until every demand is met or stands below a limit that is used up."""
        rising = set(self._limits_of)
        # (level, limit or -1, demand): what happens as the level rises. An entry of a limit is stale when its pace has
        # changed since; its level can only have grown.
        events = [(Fraction(self._demands[i].positions, self._demands[i].weight), -1, i) for i in rising]
        events += [(limit.level, number, -1) for number, limit in enumerate(self._limits) if limit.pace]
        heapq.heapify(events)
        while rising and events:
            level, number, index = heapq.heappop(events)
            if number < 0:
                stopped = [index] if index in rising else []
            elif not self._limits[number].rising:
                continue
            elif self._limits[number].level > level:
                heapq.heappush(events, (self._limits[number].level, number, -1))
                continue
            else:
                stopped = sorted(self._limits[number].rising)
            for index in stopped:
                self._stop(index, level)
            rising.difference_update(stopped)

    def _stop(self, index: int, level: Fraction) -> None:
        demand = self._demands[index]
        self.given[index] = min(demand.positions, int(level * demand.weight))
        for number in self._limits_of[index]:
            limit = self._limits[number]
            limit.used += self.given[index] * limit.costs[index]
            limit.pace -= demand.weight * limit.costs[index]
            limit.rising.discard(index)

    def give_out_remainders(self) -> None:
        """Levels are no whole positions: first one more for each that can have it, then whatever is left."""
        for most in (1, None):
            for index, limits in self._limits_of.items():
                room = [
                    (self._limits[n].most - self._limits[n].used) // self._limits[n].costs[index]
                    for n in limits
                ]
                more = min(self._demands[index].positions - self.given[index], *room)
                self._give(index, more if most is None else min(more, most))

    def _give(self, index: int, more: int) -> None:
        self.given[index] += more
        for number in self._limits_of[index]:
            self._limits[number].used += more * self._limits[number].costs[index]
