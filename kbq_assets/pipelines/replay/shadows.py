"""The warehouse as a replay's loader sees it: each table stands for its shadow (PROTOCOL R1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date

from kbq_assets.core.loading.table_notes import StoredTable, TableNotes
from kbq_assets.core.loading.tables import Column, TableOptions
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.replay.model import Replay
from kbq_assets.ports.erasure import ErasureTables
from kbq_assets.ports.statements import Statements
from kbq_assets.ports.warehouse import (
    EVERYTHING,
    Comparable,
    DoubledOffset,
    ErrorQuery,
    ErrorRow,
    JobError,
    JobStatus,
    KafkaRange,
    LoadJob,
    OffsetSummary,
    RowComparison,
    Warehouse,
)


class ShadowWarehouse:
    """A Warehouse whose tables are the shadows of one replay. Jobs, projects and limits are the real warehouse's."""

    def __init__(self, real: Warehouse, replay: Replay) -> None:
        self._real = real
        self._shadow = replay.shadow
        self.project, self.location = real.project, real.location
        self.limits, self.verifies, self.compares = real.limits, real.verifies, real.compares
        self.session = real.session

    @property
    def statements(self) -> Statements | None:
        """None, because a replay only appends."""
        return None

    @property
    def errors_replay(self) -> None:
        """None, because error rows are replayed only in the live tables."""
        return None

    @property
    def erasures(self) -> ErasureTables | None:
        """None, because nothing is erased while a replay has copies."""
        return None

    def insert_job(self, job: LoadJob) -> None:
        self._real.insert_job(replace(job, table=self._shadow(job.table)))

    def get_job(
        self, job_id: str, project: str, location: str, table: TableReference | None = None
    ) -> JobStatus | None:
        return self._real.get_job(job_id, project, location, table and self._shadow(table))

    def burn_job(self, job_id: str, project: str, location: str, table: TableReference | None = None) -> None:
        self._real.burn_job(job_id, project, location, table and self._shadow(table))

    def cancel_job(
        self, job_id: str, project: str, location: str, table: TableReference | None = None
    ) -> None:
        self._real.cancel_job(job_id, project, location, table and self._shadow(table))

    def probe(self, job: LoadJob) -> JobError | None:
        return self._real.probe(replace(job, table=self._shadow(job.table)))

    def compare(self, job: LoadJob, limit: int = 10, which: Comparable = EVERYTHING) -> RowComparison | None:
        return self._real.compare(replace(job, table=self._shadow(job.table)), limit, which)

    def columns(self, table: TableReference) -> tuple[Column, ...] | None:
        return self._real.columns(self._shadow(table))

    def find_table(self, table: TableReference) -> StoredTable | None:
        return self._real.find_table(self._shadow(table))

    def create_table(self, table: TableReference, columns: Iterable[Column], options: TableOptions) -> None:
        self._real.create_table(self._shadow(table), columns, options)

    def update_columns(
        self, table: TableReference, columns: Iterable[Column], notes: TableNotes | None = None
    ) -> None:
        self._real.update_columns(self._shadow(table), columns, notes)

    def tables(self) -> tuple[TableReference, ...]:
        """Empty, because a replay has nothing to do with other tables."""
        return ()

    def positions(
        self, table: TableReference, range_: KafkaRange, offset: int | None = None
    ) -> Mapping[int, int]:
        return self._real.positions(self._shadow(table), range_, offset)

    def kafka_ranges(self, table: TableReference) -> Mapping[KafkaRange, int]:
        return self._real.kafka_ranges(self._shadow(table))

    def kafka_summary(
        self, table: TableReference, since: date | None = None
    ) -> Mapping[KafkaRange, OffsetSummary]:
        return self._real.kafka_summary(self._shadow(table), since)

    def doubled_offsets(
        self, tables: Sequence[TableReference], since: date | None = None, limit: int = 10
    ) -> tuple[DoubledOffset, ...]:
        """See the port. The results name the shadows."""
        return self._real.doubled_offsets([self._shadow(table) for table in tables], since, limit)

    def error_rows(self, table: TableReference, query: ErrorQuery) -> tuple[ErrorRow, ...]:
        return self._real.error_rows(self._shadow(table), query)
