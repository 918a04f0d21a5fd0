"""The erasure part of `FakeWarehouse`. Searching by column requires a warehouse that keeps records."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kbq_assets.core.erasure.offset_sets import RowPlaces, has, offsets_of
from kbq_assets.core.errors import JobAlreadyExists
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.topics.error_tables import is_error_table
from kbq_assets.ports.compaction import OpenRewriter
from kbq_assets.ports.erasure import ErasedRows, ErasureJob
from kbq_assets.ports.warehouse import JobStatus

if TYPE_CHECKING:
    from kbq_assets_tests.fakes.warehouse import FakeWarehouse, Row, WarehouseView


class FakeErasureTables:
    """``view`` announces the deletion to its fault plan."""

    tables_per_job: int | None = None

    def __init__(self, warehouse: FakeWarehouse, view: WarehouseView | None = None) -> None:
        self._warehouse = warehouse
        self._view = view

    def find(
        self, tables: Collection[TableReference], topic: str, column: str, value: str, limit: int
    ) -> Mapping[TableReference, RowPlaces]:
        found = {}
        for table in tables:
            stored = self._warehouse.stored.get(table)
            if stored is None or column.partition(".")[0] not in {c.name for c in stored.columns}:
                continue
            by_range: dict[tuple[int, int], list[int]] = defaultdict(list)
            for record in stored.records:
                row = self._warehouse.row_of(record)
                if row.topic == topic and _text(record, column) == value:
                    by_range[row.partition, row.epoch].append(row.offset)
            found[table] = RowPlaces(topic, tuple((*at, offsets_of(o)) for at, o in sorted(by_range.items())))
        return found

    def count(
        self, tables: Collection[TableReference], rows: RowPlaces
    ) -> Mapping[TableReference, Mapping[tuple[int, int], ErasedRows]]:
        found = {}
        for table in tables:
            if (stored := self._warehouse.stored.get(table)) is None:
                continue
            all_ = [row for row in stored.rows if _is_erased(row, rows)]
            added = set() if is_error_table(table) else stored.replayed
            counts = Counter((row.partition, row.epoch) for row in all_)
            loaded = Counter((row.partition, row.epoch) for row in all_ if row not in added)
            found[table] = {at: ErasedRows(n, loaded[at]) for at, n in counts.items()}
        return found

    def keeps(self, tables: Collection[TableReference]) -> Iterable[str]:
        return ()

    def erase(self, job: ErasureJob, open_rewriter: OpenRewriter) -> None:
        if self._view is None:
            self._erase(job)
        else:
            self._view.write("erase", job.job_id, lambda: self._erase(job))

    def _erase(self, job: ErasureJob) -> None:
        from kbq_assets_tests.fakes.warehouse import FakeJob

        warehouse = self._warehouse
        key = (warehouse.project, warehouse.location, job.job_id)
        if key in warehouse.jobs:
            raise JobAlreadyExists(f"job {job.job_id} exists")
        warehouse.jobs[key] = FakeJob(JobStatus(job.job_id, "DONE", job.sources), None)
        for table in job.tables:
            if (stored := warehouse.stored.get(table)) is None:
                continue
            stored.rows = [row for row in stored.rows if not _is_erased(row, job.rows)]
            stored.records = [r for r in stored.records if not _is_erased(warehouse.row_of(r), job.rows)]
            stored.replayed = {row for row in stored.replayed if not _is_erased(row, job.rows)}
            gone = [t == table and _is_erased(row, job.rows) for t, row in warehouse.log]
            warehouse.job_ends[:] = [end - sum(gone[:end]) for end in warehouse.job_ends]
            warehouse.erased += itertools.compress(warehouse.log, gone)
            warehouse.log[:] = [
                each for each, is_gone in zip(warehouse.log, gone, strict=True) if not is_gone
            ]


def _is_erased(row: Row, rows: RowPlaces) -> bool:
    return row.topic == rows.topic and any(
        (row.partition, row.epoch) == (partition, epoch) and has(offsets, row.offset)
        for partition, epoch, offsets in rows.places
    )


def _text(record: Mapping[str, Any], column: str) -> str | None:
    value: Any = record
    for name in column.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return None if value is None else str(value)
