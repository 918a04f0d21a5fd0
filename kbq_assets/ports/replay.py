"""The warehouse's part in a replay besides loading: counts, compares and replaces ranges of rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import date
from typing import Protocol, TypeAlias

from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import OffsetRange


@dataclass(frozen=True)
class RowRange:
    """Rows of one topic and epoch, in ranges of the topic's partitions."""

    topic: str
    epoch: int
    ranges: tuple[OffsetRange, ...]


@dataclass(frozen=True, order=True)
class PartitionDay:
    """Rows of one partition with one event date; None for rows without one."""

    partition: int
    day: date | None


#: The key columns of each table, as paths: `_kafka_key`, or `customer.id`.
Keys: TypeAlias = Mapping[TableReference, tuple[str, ...]]


@dataclass(frozen=True)
class DayRows:
    """Numbers of rows and of distinct offsets. ``keys`` is the number of distinct keys among rows that have all key
    columns; None if it was not requested, or if the table lacks such a column."""

    rows: int
    distinct: int
    keys: int | None = None


@dataclass(frozen=True)
class RowDifference:
    """An offset whose row differs between two tables. Without ``columns``, only one table has it."""

    partition: int
    offset: int
    columns: tuple[str, ...] = ()
    #: the only table that has it: `live` or `replay`
    only: str = ""


@dataclass(frozen=True)
class Replacement:
    """How to replace one table's range. Its rows move to ``former``, if given, and the rows of ``source``, if given,
    take their place. ``number`` becomes their `_kbq_replay`; 0 keeps the value in ``source``. If ``sql`` is given, it
    alone changes an upsert table and its companions (core/replay/keyed.py)."""

    table: TableReference
    source: TableReference | None
    former: TableReference | None = None
    number: int = 0
    sql: str = ""


@dataclass(frozen=True)
class ReplaceJob:
    """Replacements in several tables, with an id that runs once, as one transaction (PROTOCOL R4) or one commit per
    table (R12)."""

    job_id: str
    rows: RowRange
    replacements: tuple[Replacement, ...]

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources in this job's status. A burned id has none."""
        return tuple(f"replay:{each.table}" for each in self.replacements)

    def parts(self, *, one_transaction: bool) -> tuple[ReplaceJob, ...]:
        """The jobs that the warehouse runs: this one, or one per table. The first of them decides."""
        return (
            (self,) if one_transaction else tuple(replace(self, replacements=(r,)) for r in self.replacements)
        )


class ReplayTables(Protocol):
    """Guarantees: a job id runs at most once, as in `Warehouse`; its `get_job` finds these jobs too. A job's
    replacements become visible at once, or not at all. Without ``one_transaction``, this holds per table: tables are
    replaced in order, and none is replaced once the id is burned in the first (R12)."""

    #: whether a job on several tables is one transaction
    one_transaction: bool

    def days(
        self, tables: Collection[TableReference], rows: RowRange, keys: Keys | None = None
    ) -> Mapping[TableReference, Mapping[PartitionDay, DayRows]]:
        """Rows of the range by partition and day, in the tables that exist. Counts distinct keys for the tables in
        ``keys``. Raises Unavailable."""

    def differences(
        self, live: TableReference, replay: TableReference, rows: RowRange, limit: int
    ) -> tuple[RowDifference, ...]:
        """The first offsets of the range that differ between two tables. Ignores `_kbq_replay` and columns that one
        table lacks. Raises Unavailable."""

    def shared(
        self, one: Collection[TableReference], other: Collection[TableReference], rows: RowRange
    ) -> int:
        """The number of offsets in the range that have a row on both sides, in any table. Ignores tables that do not
        exist. Raises Unavailable."""

    def bytes_billed(self, sources: Mapping[TableReference, TableReference], rows: RowRange) -> int:
        """The bytes that the warehouse would bill to replace a range in append tables, each with the rows of its source
        in ``sources``; 0 if nothing is billed. A source that does not exist yet counts like the rows that it replaces.
        Changes nothing. Raises Unavailable."""

    def replace(self, job: ReplaceJob) -> None:
        """Replace the ranges that the job has not replaced yet. All tables must exist and have `_kbq_replay`. Raises
        JobAlreadyExists, UnknownOutcome, Unavailable, and JobFailed if the warehouse refuses; nothing changed then."""

    def drop(self, tables: Collection[TableReference]) -> None:
        """Delete tables, if they exist. Raises Refused unless all of them were made by a replay, and Unavailable."""
