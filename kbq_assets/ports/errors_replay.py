"""Bad records that become rows after all: one transaction inserts the row and marks its error row. Where none changes
two tables, a job inserts the row, and then a commit marks its error row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, runtime_checkable

from kbq_assets.core.erasure.offset_sets import RowPlaces
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import TableReference

#: The column of error rows that were replayed, and of the rows that they became: when that was.
REPLAYED_AT: Final = "_kbq_replayed_at"


@dataclass(frozen=True)
class ReplayStatement:
    """How the rows of a table of statements change it, in place of being added (ER5): ``sql`` applies them, and
    ``effective`` then counts those that changed anything. Both are texts of the warehouse with `SCRATCH` for the rows,
    which have the column `REPLAYED_AT`. The target's ledger must be at ``batch``."""

    batch: int
    sql: str
    effective: str


class Replayed(NamedTuple):
    """What became of the rows whose error rows are marked now: ``superseded`` ones changed nothing, since their keys
    have newer records."""

    added: int
    superseded: int = 0


@dataclass(frozen=True)
class ErrorReplay:
    """Files of one staged schema, made of the records of ``errors``' rows, for a table. Both tables have the column
    `REPLAYED_AT`. ``files`` are the entries of the sources, by URI."""

    table: TableReference
    errors: TableReference
    source_uris: tuple[str, ...]
    schema: str
    now_ms: int
    files: Mapping[str, StagedFile] = field(default_factory=dict)
    statement: ReplayStatement | None = None


class ErrorReplays(Protocol):
    """Guarantees:

    1. The rows become visible and their error rows are marked in one transaction, or neither.
    2. A row whose error row is marked, or does not exist, is left out: the same replay again adds nothing, whatever
       became of the first and however many run at once.
    3. With a statement, that decides what becomes of the rows. If the ledger is at another batch, or the statement
       fails, nothing changes.
    """

    def replay(self, replay: ErrorReplay) -> Replayed:
        """Add the rows, or apply them. Raises JobFailed if the files do not load or the statement changes nothing,
        Unavailable, and UnknownOutcome: then the next replay finds which rows are left."""


@runtime_checkable
class ErrorReplaySteps(Protocol):
    """How a warehouse without such transactions replays error rows (PROTOCOL ER7): each step is a job of one table,
    under the id of the replay.

    1. An id runs at most once in each of both tables, as in `Warehouse`, whose `get_job` and `burn_job` know the jobs
       that add rows.
    2. A job becomes visible at once, or not at all.
    """

    def places(self, replay: ErrorReplay) -> RowPlaces:
        """The places of the rows in the files. Raises JobFailed if the files do not load, or if the error rows at these
        places cannot be marked."""

    def land(self, job_id: str, replay: ErrorReplay, places: RowPlaces) -> None:
        """Add the rows of the files that are at ``places``, as a load job does. Raises as `insert_job`."""

    def mark(self, job_id: str, errors: TableReference, places: RowPlaces, now_ms: int) -> None:
        """Mark the error rows at ``places`` with ``now_ms``. Raises JobAlreadyExists if the id ended in that table,
        UnknownOutcome, Unavailable, and JobFailed for rows that KBQ cannot change: then nothing changed."""
