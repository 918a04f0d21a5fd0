"""What a replay requires of the warehouse, besides loading: counts and differences of ranges."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Protocol

from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import OffsetRange


@dataclass(frozen=True)
class RowRange:
    """Rows of one topic and epoch, in ranges of its partitions."""

    topic: str
    epoch: int
    ranges: tuple[OffsetRange, ...]


@dataclass(frozen=True, order=True)
class PartitionDay:
    """Rows of one partition with one event date; None for rows without one."""

    partition: int
    day: date | None


@dataclass(frozen=True)
class DayRows:
    """Rows, and distinct offsets among them."""

    rows: int
    distinct: int


@dataclass(frozen=True)
class RowDifference:
    """An offset whose row differs in two tables; without columns it is in one of them alone."""

    partition: int
    offset: int
    columns: tuple[str, ...] = ()
    #: the table that alone has it: `live` or `replay`
    only: str = ""


class ReplayTables(Protocol):
    """Guarantees: it counts and compares what is committed; it deletes no table but a replay's own."""

    def days(
        self, tables: Collection[TableReference], rows: RowRange
    ) -> Mapping[TableReference, Mapping[PartitionDay, DayRows]]:
        """Rows of the range by partition and day, of those tables that exist. Raises Unavailable."""

    def differences(
        self, live: TableReference, replay: TableReference, rows: RowRange, limit: int
    ) -> tuple[RowDifference, ...]:
        """The first offsets of the range that differ between two tables. `_kbq_replay` and columns that one table lacks
        do not count. Raises Unavailable."""

    def drop(self, tables: Collection[TableReference]) -> None:
        """Delete tables, if they exist. Raises Refused unless each is a replay's own, and Unavailable."""
