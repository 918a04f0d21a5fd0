"""Replays of error rows: a bad record becomes a row after all. One transaction inserts the row and marks its error row.
If a warehouse has no transactions over two tables, a job inserts the row, then a commit marks the error row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, runtime_checkable

from kbq_assets.core.erasure.offset_sets import RowPlaces
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import TableReference

#: The column with the time of the replay, in replayed error rows and in the rows that they became.
REPLAYED_AT: Final = "_kbq_replayed_at"


@dataclass(frozen=True)
class ReplayStatement:
    """How rows change a table that is loaded by statements, instead of being added (ER5). ``sql`` applies them, then
    ``effective`` counts those that changed anything. Both are in the warehouse's dialect, with `SCRATCH` as the table
    of the rows, which have the column `REPLAYED_AT`. The target's ledger must be at ``batch``."""

    batch: int
    sql: str
    effective: str


class Replayed(NamedTuple):
    """Counts of the rows whose error rows are now marked. ``superseded`` rows changed nothing, because their keys have
    newer records."""

    added: int
    superseded: int = 0


@dataclass(frozen=True)
class ErrorReplay:
    """Files of one staged schema for a table, made from the records in the ``errors`` table. Both tables have the
    column `REPLAYED_AT`. ``files`` are the entries of the sources, by URI."""

    table: TableReference
    errors: TableReference
    source_uris: tuple[str, ...]
    schema: str
    now_ms: int
    files: Mapping[str, StagedFile] = field(default_factory=dict)
    statement: ReplayStatement | None = None


class ErrorReplays(Protocol):
    """Guarantees:

    1. One transaction makes the rows visible and marks their error rows.
    2. A row is left out if its error row is marked or does not exist. So repeating a replay adds nothing, whatever the
       outcome of the first one and however many run at once.
    3. If there is a statement, it applies the rows. If the ledger is at another batch, or the statement fails,
       nothing changes.
    """

    def replay(self, replay: ErrorReplay) -> Replayed:
        """Add the rows, or apply them. Raises JobFailed if the files do not load or the statement changes nothing,
        Unavailable, and UnknownOutcome; the next replay then finds the remaining rows."""


@runtime_checkable
class ErrorReplaySteps(Protocol):
    """How a warehouse without such transactions replays error rows (PROTOCOL ER7). Each step is a job on one table,
    with the id of the replay. Guarantees:

    1. An id runs at most once in each of the two tables, as in `Warehouse`; its `get_job` and `burn_job` cover the jobs
       that add rows.
    2. All changes of a job become visible at once, or none.
    """

    def places(self, replay: ErrorReplay) -> RowPlaces:
        """The places of the rows in the files. Raises JobFailed if the files do not load, or if the error rows at these
        places cannot be marked."""

    def land(self, job_id: str, replay: ErrorReplay, places: RowPlaces) -> None:
        """Add the files' rows at ``places``, as a load job does. Raises as `insert_job`."""

    def mark(self, job_id: str, errors: TableReference, places: RowPlaces, now_ms: int) -> None:
        """Mark the error rows at ``places`` with ``now_ms``. Raises JobAlreadyExists if the id ended in that table,
        UnknownOutcome, Unavailable, and JobFailed for rows that KBQ cannot change; nothing changed then."""
