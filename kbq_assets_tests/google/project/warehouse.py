"""A warehouse whose datasets have a prefix, so that contracts, which name theirs themselves, touch no others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date

from kbq_assets.adapters.bigquery import BigQueryWarehouse
from kbq_assets.core.loading.table_notes import StoredTable, TableNotes
from kbq_assets.core.loading.tables import Column, TableOptions
from kbq_assets.core.protocol.names import TableReference
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
)
from kbq_assets_tests.google.project.place import Place


@dataclass(frozen=True)
class OpenProject:
    """Opens the warehouse of one test, in any process."""

    place: Place
    name: str

    def __call__(self) -> ProjectWarehouse:
        return ProjectWarehouse(self.place, self.name)


class ProjectWarehouse(BigQueryWarehouse):
    """Accepts the contract's jobs, which name a local warehouse's project and location. Ids are permanent, so they
    get the run's prefix too."""

    def __init__(self, place: Place, name: str) -> None:
        super().__init__(place.client(), place.project, place.location)
        self._name = f"{name}_"

    def insert_job(self, job: LoadJob) -> None:
        super().insert_job(self._placed(job))

    def get_job(
        self, job_id: str, project: str, location: str, table: TableReference | None = None
    ) -> JobStatus | None:
        found = super().get_job(self._name + job_id, project, location, table)
        return replace(found, job_id=job_id) if found else None

    def burn_job(self, job_id: str, project: str, location: str, table: TableReference | None = None) -> None:
        super().burn_job(self._name + job_id, project, location, table)

    def cancel_job(
        self, job_id: str, project: str, location: str, table: TableReference | None = None
    ) -> None:
        super().cancel_job(self._name + job_id, project, location, table)

    def compare(self, job: LoadJob, limit: int = 10, which: Comparable = EVERYTHING) -> RowComparison:
        return super().compare(self._placed(job), limit, which)

    def probe(self, job: LoadJob) -> JobError | None:
        return super().probe(self._placed(job))

    def columns(self, table: TableReference) -> tuple[Column, ...] | None:
        return super().columns(self._there(table))

    def create_table(self, table: TableReference, columns: Iterable[Column], options: TableOptions) -> None:
        super().create_table(self._there(table), columns, options)

    def find_table(self, table: TableReference) -> StoredTable | None:
        return super().find_table(self._there(table))

    def update_columns(
        self, table: TableReference, columns: Iterable[Column], notes: TableNotes | None = None
    ) -> None:
        super().update_columns(self._there(table), columns, notes)

    def tables(self) -> tuple[TableReference, ...]:
        return tuple(self._here(table) for table in super().tables() if table.dataset.startswith(self._name))

    def positions(
        self, table: TableReference, range_: KafkaRange, offset: int | None = None
    ) -> Mapping[int, int]:
        return super().positions(self._there(table), range_, offset)

    def kafka_ranges(self, table: TableReference) -> Mapping[KafkaRange, int]:
        return super().kafka_ranges(self._there(table))

    def kafka_summary(
        self, table: TableReference, since: date | None = None
    ) -> Mapping[KafkaRange, OffsetSummary]:
        return super().kafka_summary(self._there(table), since)

    def doubled_offsets(
        self, tables: Sequence[TableReference], since: date | None = None, limit: int = 10
    ) -> tuple[DoubledOffset, ...]:
        found = super().doubled_offsets(list(map(self._there, tables)), since, limit)
        return tuple(replace(doubled, tables=tuple(map(self._here, doubled.tables))) for doubled in found)

    def error_rows(self, table: TableReference, query: ErrorQuery) -> tuple[ErrorRow, ...]:
        return super().error_rows(self._there(table), query)

    def _there(self, table: TableReference) -> TableReference:
        return TableReference(self._name + table.dataset, table.table)

    def _here(self, table: TableReference) -> TableReference:
        return TableReference(table.dataset.removeprefix(self._name), table.table)

    def _placed(self, job: LoadJob) -> LoadJob:
        return replace(
            job,
            job_id=self._name + job.job_id,
            project=self.project,
            location=self.location,
            table=self._there(job.table),
        )
