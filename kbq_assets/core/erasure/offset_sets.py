"""Sets of offsets, as stored in the erasure log: the sorted bounds of half-open ranges. ``(4, 6, 9, 10)`` means 4, 5
and 9."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

#: Alternating firsts and ends, strictly increasing.
Offsets: TypeAlias = tuple[int, ...]
#: Most offsets of one erasure. A person has thousands of records, not millions; larger sets must be split.
MOST_OFFSETS = 200_000


@dataclass(frozen=True)
class RowPlaces:
    """Rows of one topic, as tuples of partition, epoch and offsets."""

    topic: str
    places: tuple[tuple[int, int, Offsets], ...]

    def single(self) -> Iterator[tuple[int, int, int]]:
        """Partition, epoch and offset of each row."""
        for partition, epoch, offsets in self.places:
            for offset in each_of(offsets):
                yield partition, epoch, offset


#: The columns with the position of a row and, in an upsert's table of deleted keys, of the record that deleted a key.
POSITIONS = (
    ("_kafka_topic", "_kafka_partition", "_kbq_epoch", "_kafka_offset"),
    ("kbq_topic", "kbq_partition", "kbq_epoch", "kbq_offset"),
)


def positions_in(columns: Iterable[str]) -> tuple[str, str, str, str] | None:
    """The columns of `POSITIONS` that a table has, None if its rows have no position."""
    names = frozenset(columns)
    return next((each for each in POSITIONS if names.issuperset(each)), None)


def offsets_of(values: Iterable[int]) -> Offsets:
    bounds: list[int] = []
    for value in sorted(set(values)):
        if bounds and bounds[-1] == value:
            bounds[-1] = value + 1
        else:
            bounds += (value, value + 1)
    return tuple(bounds)


def united(*sets: Offsets) -> Offsets:
    bounds: list[int] = []
    for first, until in sorted(pair for each in sets for pair in pairs(each)):
        if bounds and first <= bounds[-1]:
            bounds[-1] = max(bounds[-1], until)
        else:
            bounds += (first, until)
    return tuple(bounds)


def pairs(offsets: Offsets) -> Iterator[tuple[int, int]]:
    return zip(offsets[::2], offsets[1::2], strict=True)


def each_of(offsets: Offsets) -> Iterator[int]:
    for first, until in pairs(offsets):
        yield from range(first, until)


def size(offsets: Offsets) -> int:
    return sum(until - first for first, until in pairs(offsets))


def has(offsets: Offsets, offset: int) -> bool:
    return bisect_right(offsets, offset) % 2 == 1


def meet(offsets: Offsets, first: int, until: int) -> bool:
    """Whether a set has an offset in [first, until)."""
    at = bisect_right(offsets, first)
    return first < until and (at % 2 == 1 or (at < len(offsets) and offsets[at] < until))
