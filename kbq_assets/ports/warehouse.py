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
    """A load of Avro files, appended in one atomic job. The files have one staged schema, or several if the warehouse's
    ``limits`` allow it. ``schema`` is the first file's Avro schema (JSON). The job is submitted to ``location`` and
    ``project``. ``replace``: the same transaction deletes the table's old rows. ``files`` are the commit's entries of
    the sources, by URI; a warehouse that `verifies` compares size and CRC32C with them.
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
    """Why a job failed. ``transient``: the same files may succeed under a new id (L5). ``blames_files``: if a probe of
    files ends with the error, they are bad; other errors concern the table, the project or a permission."""

    reason: str
    message: str
    transient: bool
    blames_files: bool = True


@dataclass(frozen=True)
class JobStatus:
    """A job as the warehouse reports it. ``state`` is PENDING, RUNNING or DONE. ``source_uris`` is empty for a burned
    id. ``created_ms`` is when the job was inserted, by the warehouse's time, 0 if unknown. For statements,
    ``statement`` is the digest of the text, ``bytes_billed`` the bytes that were billed, and ``changed_rows`` the
    number of rows that an INSERT, UPDATE, DELETE or MERGE changed, -1 if unknown. If a file batch has several of these,
    it is the lowest number."""

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
    """Rows of one `KafkaRange` in a table: number of rows and of distinct offsets, lowest and highest offset."""

    rows: int
    distinct: int
    first: int
    last: int

    @property
    def duplicates(self) -> int:
        """The number of rows beyond the first of each offset."""
        return self.rows - self.distinct


@dataclass(frozen=True)
class DoubledOffset:
    """An offset with several rows. ``tables`` has one entry per row, sorted."""

    range: KafkaRange
    offset: int
    tables: tuple[TableReference, ...]


@dataclass(frozen=True)
class DifferingRow:
    """A row whose values differ from the file's, and the columns that differ."""

    range: KafkaRange
    offset: int
    columns: tuple[str, ...]


@dataclass(frozen=True)
class RowComparison:
    """The number of rows of files that were found in a table, by topic, partition and offset, and the first that
    differ. ``skipped`` rows were found too, but differ in their `Comparable.same` columns."""

    compared: int
    differing: tuple[DifferingRow, ...] = ()
    skipped: int = 0


@dataclass(frozen=True)
class Comparable:
    """Which rows and columns to compare: all columns except ``without``, of rows whose ``same`` columns are equal.
    ``null_lists``: an empty list equals NULL, as in rows older than the column. ``since`` leaves out rows of earlier
    epochs."""

    without: frozenset[str] = frozenset()
    same: tuple[str, ...] = ()
    null_lists: bool = False
    since: int = 0

    def columns(self, names: Iterable[str]) -> list[str]:
        """The columns to compare, in the table's order. Leaves out the columns that locate a row, and those that may
        differ legitimately: epoch, schema id and replay."""
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
    """Which rows of an error table to read. Values longer than ``value_bytes`` are cut. ``from_offset`` reads from that
    offset on, in offset order. ``replayed`` includes rows that were replayed."""

    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    limit: int = 100
    value_bytes: int = 2**31 - 1
    epoch: int | None = None
    reason: str | None = None
    from_offset: int | None = None
    replayed: bool = False

    @property
    def values(self) -> dict[str, str | int]:
        """The values that columns of the rows must have."""
        wanted = {
            "_kafka_topic": self.topic,
            "_kafka_partition": self.partition,
            "_kafka_offset": self.offset,
            "_kbq_epoch": self.epoch,
            "reason": self.reason,
        }
        return {name: value for name, value in wanted.items() if value is not None}


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
    #: Whether a job checks the sources itself, and fails if one is not the file that ``LoadJob.files`` lists (L11).
    verifies: bool
    #: Whether `compare` compares values; if not, it returns None.
    compares: bool

    @property
    def session(self) -> Callable[[], AbstractContextManager[object]]:
        """A context for consecutive calls in one thread. A warehouse that is a file opens it once for all of them."""

    @property
    def statements(self) -> Statements | None:
        """How the warehouse runs statements; None if it only appends."""

    @property
    def errors_replay(self) -> ErrorReplays | ErrorReplaySteps | None:
        """How the warehouse replays error rows; None if it cannot."""

    @property
    def erasures(self) -> ErasureTables | None:
        """How the warehouse deletes single rows; None if KBQ cannot yet."""

    def insert_job(self, job: LoadJob) -> None:
        """Submit a job. Raises JobAlreadyExists, UnknownOutcome, Unavailable, JobFailed (refused: not inserted)."""

    def get_job(
        self, job_id: str, project: str, location: str, table: TableReference | None = None
    ) -> JobStatus | None:
        """A job's status, None if the id was never inserted. ``table`` is the job's table, None if unknown: then a
        warehouse that stores jobs with their tables searches all of them. Raises Unavailable."""

    def burn_job(self, job_id: str, project: str, location: str, table: TableReference | None = None) -> None:
        """Insert a no-op job under this id, so that a late insert into ``table`` fails (L3). Raises JobAlreadyExists,
        UnknownOutcome, Unavailable."""

    def cancel_job(
        self, job_id: str, project: str, location: str, table: TableReference | None = None
    ) -> None:
        """Request that a job stops. It ends as DONE with a transient error, or without one if it finishes first. Does
        nothing if the job does not exist or has ended. Raises UnknownOutcome, Unavailable."""

    def probe(self, job: LoadJob) -> JobError | None:
        """Try to load a job's files into a scratch table, then drop that table; the real table does not change (L5).
        Returns the error, None if the files load. Does not use ``job.job_id``. Raises Unavailable, ConfigurationError.
        """

    def compare(self, job: LoadJob, limit: int = 10, which: Comparable = EVERYTHING) -> RowComparison | None:
        """Load a job's files into a scratch table, and compare them with the table's rows at the same topic, partition
        and offset, of any epoch up to the files'. The table does not change. Returns the first ``limit`` differing rows
        by offset, or None unless the warehouse `compares`. A warehouse that bills by bytes read only searches the
        files' dates. If the table does not exist, no row is compared. Raises JobFailed if the files do not load,
        Unavailable."""

    def columns(self, table: TableReference) -> tuple[Column, ...] | None:
        """A table's columns, None if it does not exist."""

    def find_table(self, table: TableReference) -> StoredTable | None:
        """A table with its descriptions, labels and number of rows, None if it does not exist. Costs one read of
        metadata."""

    def create_table(self, table: TableReference, columns: Iterable[Column], options: TableOptions) -> None:
        """Create a table and its dataset, unless they exist. ``options`` set the expiration of its partitions, whatever
        the dataset's default is; if the warehouse refuses that, `find_table` returns the real expiration. Raises
        Unavailable, ConfigurationError if a policy tag cannot be set (no unprotected table is created then), and
        WrongOptions if the warehouse refuses such a table for good."""

    def update_columns(
        self, table: TableReference, columns: Iterable[Column], notes: TableNotes | None = None
    ) -> None:
        """Add missing columns, relax those now NULLABLE, and set the descriptions and policy tags of ``columns`` and
        the table's texts in ``notes``. Blank texts do not change anything. Idempotent. Raises Unavailable,
        ConfigurationError as above."""

    def tables(self) -> tuple[TableReference, ...]:
        """All tables that carry Kafka positions."""

    def positions(
        self, table: TableReference, range_: KafkaRange, offset: int | None = None
    ) -> Mapping[int, int]:
        """Rows per ``_kafka_offset`` of one topic-partition and epoch in a table; with ``offset``, only of that offset.
        This method, `kafka_ranges` and `doubled_offsets` do not count rows that came from replays of error rows."""

    def kafka_ranges(self, table: TableReference) -> Mapping[KafkaRange, int]:
        """Rows per topic, partition and epoch in a table."""

    def kafka_summary(
        self, table: TableReference, since: date | None = None
    ) -> Mapping[KafkaRange, OffsetSummary]:
        """The rows of each topic, partition and epoch in a table, from one query that reads only metadata columns.
        ``since`` limits it to rows with this ``event_date`` or a later one. None reads all rows, including those
        without a date, even if the table requires a partition filter. Counts rows that load jobs wrote, including
        replayed error rows, but not rows that came from replays. Empty if the table does not exist. Raises Unavailable.
        """

    def doubled_offsets(
        self, tables: Sequence[TableReference], since: date | None = None, limit: int = 10
    ) -> tuple[DoubledOffset, ...]:
        """Offsets with several rows in these tables taken together: the lowest ``limit`` of each topic, partition and
        epoch, in order. Reads rows as `kafka_summary` does. Ignores tables that do not exist. Raises Unavailable."""

    def error_rows(self, table: TableReference, query: ErrorQuery) -> tuple[ErrorRow, ...]:
        """Rows of an error table by Kafka time, newest first, unless the query sets another order; () if the table does
        not exist."""


@runtime_checkable
class MarksComplete(Protocol):
    """A warehouse whose readers can query a table as of the time when its hours became complete."""

    def mark_complete(self, table: TableReference, until_hour: int) -> bool:
        """Mark the table's present rows as complete up to this hour since 1970 (UTC, exclusive). Does nothing if this
        or a later hour is marked already. Returns whether it marked the rows. Raises Unavailable."""
