"""Divides the read limits of a run and of its topics among partitions, by weight.

The method is water-filling: all shares rise in proportion to their weights until a limit of the topic or of the run is
used up. Partitions that need less leave the rest to the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

#: Levels between two whole positions of a share.
_STEPS: Final = 1 << 10
_UNLIMITED: Final = 1 << 100


@dataclass(frozen=True)
class ReadLimits:
    """The most that may be read; 0 means no limit."""

    #: in positions, an upper bound on the number of records
    records: int = 0
    #: estimated from the average record so far
    bytes: int = 0

    def __bool__(self) -> bool:
        return self.records > 0 or self.bytes > 0


@dataclass(frozen=True)
class Demand:
    """The unread work of one partition. ``bytes`` is the average size of a position."""

    topic: str
    positions: int
    bytes: int = 1
    weight: int = 1

    @property
    def size(self) -> int:
        """Bytes of a position, at least 1."""
        return max(1, self.bytes)


def allot(
    demands: Sequence[Demand], topics: Mapping[str, ReadLimits], run: ReadLimits | None = None
) -> list[int]:
    """The positions that each demand gets. The first demands get the remainders."""
    by_topic: dict[str, list[int]] = defaultdict(list)
    for index, demand in enumerate(demands):
        by_topic[demand.topic].append(index)
    groups = [(topics.get(topic, ReadLimits()), members) for topic, members in by_topic.items()]
    groups.append((run or ReadLimits(), list(range(len(demands)))))
    given = [demand.positions for demand in demands]
    for limits, members in groups:
        _lower(given, demands, limits, members)
    _give_remainders(given, demands, groups)
    return given


def _lower(given: list[int], demands: Sequence[Demand], limits: ReadLimits, members: Sequence[int]) -> None:
    """Cut the members' shares to the highest level within the limits."""

    def shares(level: int) -> list[int]:
        return [min(given[i], level * demands[i].weight // _STEPS) for i in members]

    low, high = 0, max((given[i] * _STEPS // demands[i].weight + 1 for i in members), default=0)
    if not limits or min(_rooms(limits, demands, members, shares(high))) >= 0:
        return
    while high - low > 1:
        level = (low + high) // 2
        fits = min(_rooms(limits, demands, members, shares(level))) >= 0
        low, high = (level, high) if fits else (low, level)
    for index, share in zip(members, shares(low), strict=True):
        given[index] = share


def _rooms(
    limits: ReadLimits, demands: Sequence[Demand], members: Sequence[int], shares: Sequence[int]
) -> list[int]:
    """Positions and bytes left under the limits; negative if the limits are exceeded."""
    size = sum(demands[i].size * share for i, share in zip(members, shares, strict=True))
    return [(limits.records or _UNLIMITED) - sum(shares), (limits.bytes or _UNLIMITED) - size]


def _give_remainders(
    given: list[int], demands: Sequence[Demand], groups: Sequence[tuple[ReadLimits, Sequence[int]]]
) -> None:
    """Distribute what rounding left over: one more position per demand, then the rest to the first demands."""
    rooms_of: dict[int, list[list[int]]] = defaultdict(list)
    for limits, members in groups:
        rooms = _rooms(limits, demands, members, [given[i] for i in members])
        for index in members:
            rooms_of[index].append(rooms)
    for most in (1, _UNLIMITED):
        for index, demand in enumerate(demands):
            free = (min(records, size // demand.size) for records, size in rooms_of[index])
            more = min(demand.positions - given[index], most, *free)
            given[index] += more
            for rooms in rooms_of[index]:
                rooms[0] -= more
                rooms[1] -= more * demand.size
