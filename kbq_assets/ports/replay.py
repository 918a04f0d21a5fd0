"""The warehouse's side of a replay, besides loading: counts and differences of ranges, and their replacement."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import date
from typing import Protocol, TypeAlias

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


#: The columns of each table's key, as paths: `_kafka_key`, or `customer.id`.
Keys: TypeAlias = Mapping[TableReference, tuple[str, ...]]


@dataclass(frozen=True)
class DayRows:
    """Rows, and distinct offsets among them; ``keys``: distinct keys, of rows that have all of the key's columns. None
    if nobody asked for them, or the table has no such column."""

    rows: int
    distinct: int
    keys: int | None = None


@dataclass(frozen=True)
class RowDifference:
    """An offset whose row differs in two tables; without columns it is in one of them alone."""

    partition: int
    offset: int
    columns: tuple[str, ...] = ()
    #: the table that alone has it: `live` or `replay`
    only: str = ""


@dataclass(frozen=True)
class Replacement:
    """How one table's range is replaced: its rows move to ``former`` if given, and those of ``source`` take their
    place, none without a source. ``number`` becomes their `_kbq_replay`; 0 keeps what ``source`` has there. If ``sql``
    is given, that alone changes an upsert table, and its companions (core/replay/keyed.py)."""

    table: TableReference
    source: TableReference | None
    former: TableReference | None = None
    number: int = 0
    sql: str = ""


@dataclass(frozen=True)
class ReplaceJob:
    """A replacement in several tables, under an id that runs once: one transaction (PROTOCOL R4), or a commit of each
    table (R12)."""

    job_id: str
    rows: RowRange
    replacements: tuple[Replacement, ...]

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources that a status of this job names: a burned id has none."""
        return tuple(f"replay:{each.table}" for each in self.replacements)

    def parts(self, *, one_transaction: bool) -> tuple[ReplaceJob, ...]:
        """The jobs that the warehouse has: itself, or one for each table. The first of these decides."""
        return (
            (self,) if one_transaction else tuple(replace(self, replacements=(r,)) for r in self.replacements)
        )


class ReplayTables(Protocol):
    """Guarantees: a job id runs at most once, as in `Warehouse`, whose `get_job` finds these jobs too; its replacements
    become visible at once, or not at all. Without one transaction, this holds for each table: a table is replaced after
    the one before it, and none once the id is burned in the first (R12)."""

    #: whether a job over several tables is one transaction
    one_transaction: bool

    def days(
        self, tables: Collection[TableReference], rows: RowRange, keys: Keys | None = None
    ) -> Mapping[TableReference, Mapping[PartitionDay, DayRows]]:
        """Rows of the range by partition and day, of those tables that exist, with distinct ``keys`` of those that it
        names. Raises Unavailable."""

    def differences(
        self, live: TableReference, replay: TableReference, rows: RowRange, limit: int
    ) -> tuple[RowDifference, ...]:
        """The first offsets of the range that differ between two tables. `_kbq_replay` and columns that one table lacks
        do not count. Raises Unavailable."""

    def shared(
        self, one: Collection[TableReference], other: Collection[TableReference], rows: RowRange
    ) -> int:
        """The offsets of the range with a row in some table of each side. Tables that do not exist have none. Raises
        Unavailable."""

    def bytes_billed(self, sources: Mapping[TableReference, TableReference], rows: RowRange) -> int:
        """The bytes that the warehouse would bill for replacing a range in tables that append, each by the rows of the
        table that it maps to; 0 if it bills nothing. A source that does not exist yet counts like the rows that it
        replaces. Changes nothing. Raises Unavailable."""

    def replace(self, job: ReplaceJob) -> None:
        """Replace ranges, those that the job has not replaced. All tables exist, with `_kbq_replay`. Raises
        JobAlreadyExists, UnknownOutcome, Unavailable, and JobFailed if the warehouse refuses: then nothing changed."""

    def drop(self, tables: Collection[TableReference]) -> None:
        """Delete tables, if they exist. Raises Refused unless each is a replay's own, and Unavailable."""
