"""The warehouse: tables and load jobs with BigQuery's semantics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Protocol

from kbq_assets.core.loading.batches import LoadLimits
from kbq_assets.core.loading.table_notes import StoredTable, TableNotes
from kbq_assets.core.loading.tables import Column, TableOptions
from kbq_assets.core.protocol.names import TableReference


@dataclass(frozen=True)
class LoadJob:
    """A load of Avro files, all of one staged schema, appended to a table in one atomic job.

    ``schema`` is the files' Avro schema (JSON). ``location`` and ``project`` are where the job is submitted.
    ``replace``: the table's rows make way, in the same transaction.
    """

    job_id: str
    project: str
    location: str
    table: TableReference
    source_uris: tuple[str, ...]
    schema: str
    labels: Mapping[str, str] = field(default_factory=dict)
    replace: bool = False


@dataclass(frozen=True)
class JobError:
    """Why a job failed. ``transient``: the same files may succeed under a new id (L5)."""

    reason: str
    message: str
    transient: bool


@dataclass(frozen=True)
class JobStatus:
    """A job as the warehouse knows it. ``state`` is PENDING, RUNNING or DONE. ``source_uris`` are empty for a
    burned id. ``created_ms`` is the warehouse's time of its insertion, 0 where unknown."""

    job_id: str
    state: str
    source_uris: tuple[str, ...]
    output_rows: int = 0
    error: JobError | None = None
    created_ms: int = 0


@dataclass(frozen=True)
class KafkaRange:
    """Rows of one topic-partition and epoch to look for."""

    topic: str
    partition: int
    epoch: int


@dataclass(frozen=True)
class OffsetSummary:
    """Rows of one `KafkaRange` in a table: how many, of how many distinct offsets, the lowest and the highest."""

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
class ErrorQuery:
    """Rows of an error table to read. Values longer than ``value_bytes`` come cut."""

    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    limit: int = 100
    value_bytes: int = 2**31 - 1


@dataclass(frozen=True)
class ErrorRow:
    """A bad record as its error table has it. ``value_size`` are the bytes of the whole value, None for a null."""

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
    #: What one job may hold.
    limits: LoadLimits

    def insert_job(self, job: LoadJob) -> None:
        """Submit a job. Raises JobAlreadyExists, UnknownOutcome, Unavailable, JobFailed (refused: not inserted)."""

    def get_job(self, job_id: str, project: str, location: str) -> JobStatus | None:
        """A job's status, None when no such id was inserted. Raises Unavailable."""

    def burn_job(self, job_id: str, project: str, location: str) -> None:
        """Insert a no-op job under this id, so that a late insert fails (L3). Raises JobAlreadyExists,
        UnknownOutcome, Unavailable."""

    def cancel_job(self, job_id: str, project: str, location: str) -> None:
        """Ask a job to stop. It ends as DONE, with a transient error or, if it was faster, without one. A job that
        is not there or has ended is left alone. Raises UnknownOutcome, Unavailable."""

    def probe(self, job: LoadJob) -> JobError | None:
        """Try to load a job's files into a scratch table that is dropped again; the real table is not touched (L5).

        Returns the error, None when the files load. ``job.job_id`` is not used up. Raises Unavailable.
        """

    def columns(self, table: TableReference) -> tuple[Column, ...] | None:
        """A table's columns, None when it does not exist."""

    def find_table(self, table: TableReference) -> StoredTable | None:
        """A table with what is said of it, None when it does not exist."""

    def create_table(self, table: TableReference, columns: Iterable[Column], options: TableOptions) -> None:
        """Create a table, and its dataset; an existing one is left alone. Raises Unavailable, and ConfigurationError
        where a policy tag cannot be set: there is no unprotected table then."""

    def update_columns(
        self, table: TableReference, columns: Iterable[Column], notes: TableNotes | None = None
    ) -> None:
        """Add the columns that are missing and relax those now NULLABLE. Descriptions and policy tags that columns have
        are set, and what ``notes`` say of the table; what they leave blank stays. Idempotent. Raises Unavailable,
        ConfigurationError as above."""

    def tables(self) -> tuple[TableReference, ...]:
        """All tables that carry Kafka positions."""

    def positions(self, table: TableReference, range_: KafkaRange) -> Mapping[int, int]:
        """Rows per ``_kafka_offset`` of one topic-partition and epoch in a table."""

    def kafka_ranges(self, table: TableReference) -> Mapping[KafkaRange, int]:
        """Rows per topic, partition and epoch in a table."""

    def kafka_summary(
        self, table: TableReference, since: date | None = None
    ) -> Mapping[KafkaRange, OffsetSummary]:
        """What a table holds of each topic, partition and epoch, in one query that reads metadata columns alone.

        ``since`` reads rows with this ``event_date`` or a later one only; None reads all, those without a date too,
        also where the table requires a partition filter. Empty when there is no such table. Raises Unavailable.
        """

    def doubled_offsets(
        self, tables: Sequence[TableReference], since: date | None = None, limit: int = 10
    ) -> tuple[DoubledOffset, ...]:
        """Offsets with several rows, in one table or in several of these: the lowest ``limit`` of each topic,
        partition and epoch, in their order. Rows are read as by `kafka_summary`. Tables that do not exist have
        none. Raises Unavailable."""

    def error_rows(self, table: TableReference, query: ErrorQuery) -> tuple[ErrorRow, ...]:
        """Rows of an error table, by Kafka time, the newest first; () when it does not exist."""
