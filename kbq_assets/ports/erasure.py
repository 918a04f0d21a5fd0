"""The warehouse's side of an erasure: it finds, counts and deletes single rows."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from kbq_assets.core.erasure.offset_sets import RowPlaces
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.ports.compaction import OpenRewriter


@dataclass(frozen=True)
class ErasedRows:
    """Rows of a table, and those of them that load jobs wrote: replays of error rows add others."""

    rows: int = 0
    loaded: int = 0


@dataclass(frozen=True)
class ErasureJob:
    """One transaction over several tables, under an id that runs once (PROTOCOL X3)."""

    job_id: str
    rows: RowPlaces
    tables: tuple[TableReference, ...]

    @property
    def digest(self) -> str:
        """A hash of its tables."""
        return hashlib.sha256(" ".join(map(str, self.tables)).encode()).hexdigest()[:32]

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources that a status of this job names: a burned id has none."""
        return (f"erase:{self.digest}",)


class ErasureTables(Protocol):
    """Guarantees: a job id runs at most once, as in `Warehouse`, whose `get_job` finds these jobs too, by one of their
    tables; its deletions become visible at once, or not at all."""

    #: the most tables of one job, None for any number: no commit of a lake changes two tables
    tables_per_job: int | None

    def find(
        self, tables: Collection[TableReference], topic: str, column: str, value: str, limit: int
    ) -> Mapping[TableReference, RowPlaces]:
        """Rows of a topic whose column has a value, written as text, in those tables that have the column; at most
        ``limit`` of each. A dot leads into a record: `customer.id`. Raises Unavailable."""

    def count(
        self, tables: Collection[TableReference], rows: RowPlaces
    ) -> Mapping[TableReference, Mapping[tuple[int, int], ErasedRows]]:
        """The rows that each table has of these, by partition and epoch. Raises Unavailable."""

    def keeps(self, tables: Collection[TableReference]) -> Iterable[str]:
        """Lines about where the warehouse itself keeps deleted rows of these tables, and until when. Raises
        Unavailable."""

    def erase(self, job: ErasureJob, open_rewriter: OpenRewriter) -> None:
        """Delete the rows. Tables that do not exist have none. A lake writes many bytes again by tasks of
        ``open_rewriter``. Raises JobAlreadyExists, UnknownOutcome, Unavailable, JobFailed."""
