"""The warehouse's part in an erasure: finds, counts and deletes single rows."""

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
    """The number of a table's rows, and how many of them load jobs wrote. Replays of error rows write the others."""

    rows: int = 0
    loaded: int = 0


@dataclass(frozen=True)
class ErasureJob:
    """One transaction over several tables, with an id that runs once (PROTOCOL X3)."""

    job_id: str
    rows: RowPlaces
    tables: tuple[TableReference, ...]

    @property
    def digest(self) -> str:
        """A hash of its tables."""
        return hashlib.sha256(" ".join(map(str, self.tables)).encode()).hexdigest()[:32]

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources in this job's status. A burned id has none."""
        return (f"erase:{self.digest}",)


class ErasureTables(Protocol):
    """Guarantees: a job id runs at most once, as in `Warehouse`; its `get_job` finds these jobs too, by any of their
    tables. A job's deletions become visible together, or not at all."""

    #: most tables per job, None for any number; 1 for a lake, whose commits change one table
    tables_per_job: int | None

    def find(
        self, tables: Collection[TableReference], topic: str, column: str, value: str, limit: int
    ) -> Mapping[TableReference, RowPlaces]:
        """Rows of a topic whose column has a value, given as text, in the tables that have the column; at most
        ``limit`` per table. A dot selects a field of a record: `customer.id`. Raises Unavailable."""

    def count(
        self, tables: Collection[TableReference], rows: RowPlaces
    ) -> Mapping[TableReference, Mapping[tuple[int, int], ErasedRows]]:
        """The number of ``rows`` that each table has, by partition and epoch. Raises Unavailable."""

    def keeps(self, tables: Collection[TableReference]) -> Iterable[str]:
        """Lines that state where the warehouse itself retains deleted rows of these tables, and how long. Raises
        Unavailable."""

    def erase(self, job: ErasureJob, open_rewriter: OpenRewriter) -> None:
        """Delete the rows. Ignores tables that do not exist. A lake runs large rewrites as tasks of ``open_rewriter``.
        Raises JobAlreadyExists, UnknownOutcome, Unavailable, JobFailed."""
