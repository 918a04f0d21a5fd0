"""The warehouse: tables and load jobs with BigQuery's semantics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import date
from typing import Final, Protocol, runtime_checkable

from kbq_assets.core.loading.batches import LoadLimits
from kbq_assets.core.loading.table_notes import StoredTable, TableNotes
from kbq_assets.core.loading.tables import Column, TableOptions
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.replay.model import REPLAY_COLUMN
from kbq_assets.ports.erasure import ErasureTables
from kbq_assets.ports.errors_replay import REPLAYED_AT, ErrorReplays, ErrorReplaySteps
from kbq_assets.ports.statements import Statements


@dataclass(frozen=True)
class LoadJob:
    """A load of Avro files, of one staged schema or, if its ``limits`` allow it, several, appended in one atomic job.

    ``schema`` is the first file's Avro schema (JSON). ``location`` and ``project`` are where the job is submitted.
    ``replace``: the same transaction deletes the table's old rows. ``files`` are the commit's entries of the sources,
    by URI: a warehouse that `verifies` compares size and CRC32C with them.
    """

    job_id: str
    project: str
    location: str
    table: TableReference
    source_uris: tuple[str, ...]
    schema: str
    labels: Mapping[str, str] = field(default_factory=dict)
    replace: bool = False
    files: Mapping[str, StagedFile] = field(default_factory=dict)


@dataclass(frozen=True)
class JobError:
    """Why a job failed. ``transient``: the same files may succeed under a new id (L5)."""

    reason: str
    message: str
    transient: bool


@dataclass(frozen=True)
class JobStatus:
    """A job as the warehouse reports it. ``state`` is PENDING, RUNNING or DONE. ``source_uris`` are empty for a
    burned id. ``created_ms`` is the warehouse's time of its insertion, 0 if unknown. Of a statement: ``statement`` is
    the digest of its text, ``bytes_billed`` its price, and ``changed_rows`` what an INSERT, UPDATE, DELETE or MERGE
    changed (of several for a batch of files: the fewest), -1 if unknown."""

    job_id: str
    state: str
    source_uris: tuple[str, ...]
    output_rows: int = 0
    error: JobError | None = None
    created_ms: int = 0
    statement: str = ""
    bytes_billed: int = 0
    changed_rows: int = -1


@dataclass(frozen=True)
class KafkaRange:
    """The rows of one topic-partition and epoch."""

    topic: str
    partition: int
    epoch: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True)
class OffsetSummary:
    """Rows of one `KafkaRange` in a table: their number, distinct offsets, lowest and highest offset."""

    rows: int
    distinct: int
    first: int
    last: int

    @property
    def duplicates(self) -> int:
        """Rows beyond the first of their offset."""
        return self.rows - self.distinct


@dataclass(frozen=True)
class DoubledOffset:
    """An offset with several rows. ``tables`` has one entry per row, sorted."""

    range: KafkaRange
    offset: int
    tables: tuple[TableReference, ...]


@dataclass(frozen=True)
class DifferingRow:
    """A row whose values are not those of the file, and the columns that differ."""

    range: KafkaRange
    offset: int
    columns: tuple[str, ...]


@dataclass(frozen=True)
class RowComparison:
    """How many rows of files were found in a table, by topic, partition and offset, and the first that differ.
    ``skipped`` were found too, but their columns `Comparable.same` differ."""

    compared: int
    differing: tuple[DifferingRow, ...] = ()
    skipped: int = 0


@dataclass(frozen=True)
class Comparable:
    """Which rows and columns are compared: all but the columns ``without``, of rows whose columns ``same`` are equal.
    ``null_lists``: a list without items equals none, which rows have that are older than their column. ``since``: rows
    of an earlier epoch are left out."""

    without: frozenset[str] = frozenset()
    same: tuple[str, ...] = ()
    null_lists: bool = False
    since: int = 0

    def columns(self, names: Iterable[str]) -> list[str]:
        """The columns of a table to compare, in its order. A row's place finds it, its epoch may be older, it may come
        from a replay, and it may be older than the column of schema ids."""
        return [name for name in names if name not in self.without and name not in _PLACE]


EVERYTHING: Final = Comparable()
_PLACE: Final = frozenset(
    {
        "_kafka_topic",
        "_kafka_partition",
        "_kafka_offset",
        "_kbq_epoch",
        "_kbq_schema_id",
        REPLAY_COLUMN,
        REPLAYED_AT,
    }
)


@dataclass(frozen=True)
class ErrorQuery:
    """Which rows of an error table to read. Values longer than ``value_bytes`` are cut. ``from_offset`` reads from
    there on in the order of offsets. ``replayed``: also rows that were replayed since."""

    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    limit: int = 100
    value_bytes: int = 2**31 - 1
    epoch: int | None = None
    reason: str | None = None
    from_offset: int | None = None
    replayed: bool = False


@dataclass(frozen=True)
class ErrorRow:
    """A row of an error table. ``value_size`` is the length of the whole value in bytes, None for a null."""

    topic: str
    partition: int
    offset: int
    epoch: int
    timestamp_ms: int
    reason: str
    message: str
    schema_id: int | None
    key: bytes | None
    value: bytes | None
    value_size: int | None
    headers: tuple[tuple[str, bytes | None], ...]


class Warehouse(Protocol):
    """Guarantees:

    1. A job id runs at most once, ever; inserting it again raises JobAlreadyExists.
    2. A job is one transaction: all its rows become visible at once, or none.
    3. An acknowledged job, and its outcome, survive kill -9.

    A call without an answer raises UnknownOutcome: the job may start now, later or never.
    """

    project: str
    location: str
    #: Limits of one job.
    limits: LoadLimits
    #: A job reads the sources itself, and fails if one is not the file that ``LoadJob.files`` lists (L11).
    verifies: bool
    #: `compare` compares values; otherwise it returns None.
    compares: bool

    @property
    def session(self) -> Callable[[], AbstractContextManager[object]]:
        """Surrounds calls that follow one another in a thread: a warehouse that is a file opens it once for them."""

    @property
    def statements(self) -> Statements | None:
        """How the warehouse runs statements; None if it only appends."""

    @property
    def errors_replay(self) -> ErrorReplays | ErrorReplaySteps | None:
        """How the warehouse replays error rows; None for one whose tables have none of their own."""

    @property
    def erasures(self) -> ErasureTables | None:
        """How the warehouse deletes single rows; None if KBQ cannot yet."""

    def insert_job(self, job: LoadJob) -> None:
        """Submit a job. Raises JobAlreadyExists, UnknownOutcome, Unavailable, JobFailed (refused: not inserted)."""

    def get_job(
        self, job_id: str, project: str, location: str, table: TableReference | None = None
    ) -> JobStatus | None:
        """A job's status, None if no such id was inserted. ``table`` is the job's, None if unknown: a warehouse that
        keeps jobs with their tables then searches all of them. Raises Unavailable."""

    def burn_job(self, job_id: str, project: str, location: str, table: TableReference | None = None) -> None:
        """Insert a no-op job under this id, so that a late insert into ``table`` fails (L3). Raises JobAlreadyExists,
        UnknownOutcome, Unavailable."""

    def cancel_job(
        self, job_id: str, project: str, location: str, table: TableReference | None = None
    ) -> None:
        """Ask a job to stop. It ends as DONE, with a transient error or, if it was faster, without one. Does nothing
        if the job does not exist or has ended. Raises UnknownOutcome, Unavailable."""

    def probe(self, job: LoadJob) -> JobError | None:
        """Try to load a job's files into a scratch table, then drop it; the real table does not change (L5).

        Returns the error, None if the files load. Does not use up ``job.job_id``. Raises Unavailable.
        """

    def compare(self, job: LoadJob, limit: int = 10, which: Comparable = EVERYTHING) -> RowComparison | None:
        """Compare a job's files, loaded into a scratch table, with the table's rows of the same topic, partition and
        offset, of any epoch up to the files'; the table does not change. The first ``limit`` differing rows, by offset.
        A warehouse that bills what it reads looks for them under the files' dates alone. No row is compared if there
        is no such table. None unless the warehouse
        `compares`. Raises JobFailed if the files do not load, Unavailable."""

    def columns(self, table: TableReference) -> tuple[Column, ...] | None:
        """A table's columns, None if it does not exist."""

    def find_table(self, table: TableReference) -> StoredTable | None:
        """A table with its descriptions, labels and number of rows, None if it does not exist. One read of metadata."""

    def create_table(self, table: TableReference, columns: Iterable[Column], options: TableOptions) -> None:
        """Create a table, and its dataset; an existing one stays as it is. Its partitions expire as ``options`` say,
        whatever the dataset's default is; if the warehouse refuses that, `find_table` shows the expiration. Raises
        Unavailable, and ConfigurationError if a policy tag cannot be set: then it creates no unprotected table."""

    def update_columns(
        self, table: TableReference, columns: Iterable[Column], notes: TableNotes | None = None
    ) -> None:
        """Add missing columns and relax those now NULLABLE. Also set the descriptions and policy tags of ``columns``,
        and the table's texts in ``notes``; blank ones stay as they are. Idempotent. Raises Unavailable,
        ConfigurationError as above."""

    def tables(self) -> tuple[TableReference, ...]:
        """All tables that carry Kafka positions."""

    def positions(
        self, table: TableReference, range_: KafkaRange, offset: int | None = None
    ) -> Mapping[int, int]:
        """Rows per ``_kafka_offset`` of one topic-partition and epoch in a table; with ``offset``, of that one. Error
        rows that were replayed do not count, here and in `kafka_ranges` and `doubled_offsets`."""

    def kafka_ranges(self, table: TableReference) -> Mapping[KafkaRange, int]:
        """Rows per topic, partition and epoch in a table."""

    def kafka_summary(
        self, table: TableReference, since: date | None = None
    ) -> Mapping[KafkaRange, OffsetSummary]:
        """The rows of each topic, partition and epoch in a table, from one query that reads only metadata columns.

        ``since`` limits it to rows with this ``event_date`` or a later one; None reads all rows, also without a date,
        even if the table requires a partition filter. Counts what load jobs wrote: error rows that were replayed too,
        and no rows of replays. Empty if there is no such table. Raises Unavailable.
        """

    def doubled_offsets(
        self, tables: Sequence[TableReference], since: date | None = None, limit: int = 10
    ) -> tuple[DoubledOffset, ...]:
        """Offsets with several rows, in one or several of these tables: the lowest ``limit`` of each topic,
        partition and epoch, in order. Reads rows as `kafka_summary` does. Tables that do not exist have
        none. Raises Unavailable."""

    def error_rows(self, table: TableReference, query: ErrorQuery) -> tuple[ErrorRow, ...]:
        """Rows of an error table by Kafka time, newest first, or as the query says; () if it does not exist."""


@runtime_checkable
class MarksComplete(Protocol):
    """A warehouse whose readers can ask for a table as it was when its hours became complete."""

    def mark_complete(self, table: TableReference, until_hour: int) -> bool:
        """Name the rows that a table has now as complete below this hour since 1970, UTC. Does nothing if an hour as
        late has been named. Returns whether it did. Raises Unavailable."""
