"""The replay part of `FakeWarehouse`, and a store below another one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, BinaryIO

from kbq_assets.adapters.object_paths import check_path
from kbq_assets.core.errors import JobAlreadyExists, JobFailed
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.replay.model import REPLAY_COLUMN, check_own
from kbq_assets.core.statements.keys import has_paths
from kbq_assets.ports.object_store import ObjectEntry, ObjectStore, ObjectWriter, StoredFile, StoredObject
from kbq_assets.ports.replay import (
    DayRows,
    Keys,
    PartitionDay,
    ReplaceJob,
    Replacement,
    RowDifference,
    RowRange,
)
from kbq_assets.ports.warehouse import JobError, JobStatus
from kbq_assets_tests.fakes.memory_store import create_each, delete_each
from kbq_assets_tests.fakes.warehouse import FakeTable, FakeWarehouse, Row, WarehouseView


class StoreBelow:
    """The `ObjectStore` port over the objects below a folder of another store."""

    def __init__(self, store: ObjectStore, folder: str) -> None:
        self._store, self._folder = store, f"{folder}/"

    def _path(self, path: str) -> str:
        return self._folder + check_path(path)

    def get(self, path: str) -> StoredObject:
        return self._store.get(self._path(path))

    def create(self, path: str, data: bytes) -> int:
        return self._store.create(self._path(path), data)

    def swap(self, path: str, data: bytes, generation: int) -> int:
        return self._store.swap(self._path(path), data, generation)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectEntry]:
        after = start_after and self._folder + start_after
        for entry in self._store.list(self._folder + prefix, after):
            yield replace(entry, path=entry.path.removeprefix(self._folder))

    def paths(self, prefix: str, start_after: str = "") -> Iterator[str]:
        after = start_after and self._folder + start_after
        for path in self._store.paths(self._folder + prefix, after):
            yield path.removeprefix(self._folder)

    def checksums(self, prefix: str) -> Iterator[StoredFile]:
        for stored in self._store.checksums(self._folder + prefix):
            yield replace(stored, path=stored.path.removeprefix(self._folder))

    def delete(self, path: str) -> None:
        self._store.delete(self._path(path))

    def create_empty(self, paths: Iterable[str]) -> Mapping[str, Exception]:
        return create_each(self, paths)

    def delete_many(self, paths: Iterable[str]) -> Mapping[str, Exception]:
        return delete_each(self, paths)

    def copy(self, source: str, target: str) -> None:
        self._store.copy(self._path(source), self._path(target))

    def open_write(self, path: str) -> ObjectWriter:
        return _Below(self._store.open_write(self._path(path)), self._folder)

    def open_read(self, path: str) -> BinaryIO:
        return self._store.open_read(self._path(path))

    def uri(self, path: str) -> str:
        return self._store.uri(self._folder + path)

    def now_ms(self) -> int:
        return self._store.now_ms()

    def sweep_temporary(self) -> int:
        return 0


class _Below:
    def __init__(self, writer: ObjectWriter, folder: str) -> None:
        self._writer, self._folder = writer, folder

    def write(self, data: bytes | bytearray | memoryview) -> int:
        return self._writer.write(data)

    def close(self) -> StoredFile:
        stored = self._writer.close()
        return replace(stored, path=stored.path.removeprefix(self._folder))

    def abort(self) -> None:
        self._writer.abort()


class FakeReplayTables:
    """`ReplayTables` over a FakeWarehouse. It compares whole rows where the warehouse keeps them. ``refusals`` may say
    why the part of one table is refused, where each has its own."""

    def __init__(
        self,
        warehouse: FakeWarehouse,
        view: WarehouseView | None = None,
        refusals: Callable[[], JobError | None] = lambda: None,
    ) -> None:
        self._refusals = refusals
        self._warehouse = warehouse
        self._view = view
        self.one_transaction: bool = warehouse.one_transaction

    def _write(self, operation: str, target: str, call: Callable[[], None]) -> None:
        if self._view is None:
            call()
        else:
            self._view.write(operation, target, call)

    def days(
        self, tables: Collection[TableReference], rows: RowRange, keys: Keys | None = None
    ) -> Mapping[TableReference, Mapping[PartitionDay, DayRows]]:
        found: dict[TableReference, dict[PartitionDay, DayRows]] = {}
        for table in tables:
            if (stored := self._warehouse.stored.get(table)) is None:
                continue
            by_day: dict[PartitionDay, list[int]] = {}
            for row in filter(lambda row: _within(row, rows), stored.rows):
                by_day.setdefault(PartitionDay(row.partition, stored.dates.get(row)), []).append(row.offset)
            key, records = (keys or {}).get(table, ()), self._rows(table, rows)
            found[table] = {}
            for at, offsets in by_day.items():
                known = None
                if has_paths(stored.columns, key):
                    values = {tuple(_at(records[at.partition, o], path) for path in key) for o in offsets}
                    known = sum(None not in value for value in values)
                found[table][at] = DayRows(len(offsets), len(set(offsets)), known)
        return found

    def differences(
        self, live: TableReference, replay: TableReference, rows: RowRange, limit: int
    ) -> tuple[RowDifference, ...]:
        here, there = self._rows(live, rows), self._rows(replay, rows)
        found = [
            RowDifference(*place, only="live" if place in here else "replay")
            for place in here.keys() ^ there.keys()
        ]
        for place in here.keys() & there.keys():
            one, other = here[place], there[place]
            common = (one.keys() & other.keys()) - {"_kbq_epoch", REPLAY_COLUMN}
            if columns := tuple(name for name in one if name in common and one[name] != other[name]):
                found.append(RowDifference(*place, columns))
        return tuple(sorted(found, key=lambda each: (each.partition, each.offset))[:limit])

    def shared(
        self, one: Collection[TableReference], other: Collection[TableReference], rows: RowRange
    ) -> int:
        here, there = (
            {place for table in side for place in self._rows(table, rows)} for side in (one, other)
        )
        return len(here & there)

    def bytes_billed(self, sources: Mapping[TableReference, TableReference], rows: RowRange) -> int:
        found = [self._rows(table, rows) for pair in sources.items() for table in pair]
        return self._warehouse.bytes_billed_per_row * sum(map(len, found))

    def replace(self, job: ReplaceJob) -> None:
        if self.one_transaction:
            self._write("replace", job.job_id, lambda: self._replace(job))
            return
        ran = [self._replaced_alone(part) for part in job.parts(one_transaction=False)]
        if not any(ran):
            raise JobAlreadyExists(f"job {job.job_id} exists", next_step="get the job of each table")

    def _replaced_alone(self, part: ReplaceJob) -> bool:
        """Replace one table, as a lake does; False if it was. Raises JobAlreadyExists if the id was given up."""
        if ran := self._found(part) is None:
            if error := self._refusals():
                raise JobFailed(error.message)
            with suppress(JobAlreadyExists):
                target = f"{part.job_id} {part.replacements[0].table}"
                self._write("replace", target, lambda: self._replace(part))
        if self._found(part) != part.sources:
            raise JobAlreadyExists(f"job {part.job_id} was given up", next_step="start again with a new id")
        return ran

    def _found(self, part: ReplaceJob) -> tuple[str, ...] | None:
        port = self._view or self._warehouse
        found = port.get_job(part.job_id, port.project, port.location, part.replacements[0].table)
        return None if found is None else found.source_uris

    def _replace(self, job: ReplaceJob) -> None:
        status = JobStatus(job.job_id, "PENDING", job.sources)
        first = job.replacements[0].table if job.replacements else TableReference("none", "none")
        self._warehouse.insert_replacement(
            status, first, lambda: sum(self._replaced(each, job.rows) for each in job.replacements)
        )

    def _replaced(self, each: Replacement, rows: RowRange) -> int:
        stored, log = self._warehouse.stored, self._warehouse.log
        table = stored[each.table]
        old = [row for row in table.rows if _within(row, rows)]
        old_records = [record for record in table.records if _within(_row(record), rows)]
        source = stored.get(each.source) if each.source else None
        new = [row for row in source.rows if _within(row, rows)] if source else []
        new_records = [record for record in source.records if _within(_row(record), rows)] if source else []
        dates = {row: source.dates[row] for row in new if row in source.dates} if source else {}
        if each.former is not None:
            stored[each.former] = FakeTable(
                table.columns, table.options, rows=old, records=old_records, dates=dict(table.dates)
            )
        table.rows = [row for row in table.rows if not _within(row, rows)]
        gone = [(name, _within(row, rows)) == (each.table, True) for name, row in log]
        self._warehouse.job_ends[:] = [end - sum(gone[:end]) for end in self._warehouse.job_ends]
        log[:] = [entry for entry, is_gone in zip(log, gone, strict=True) if not is_gone]
        table.records = [record for record in table.records if record not in old_records]
        number = {REPLAY_COLUMN: each.number} if each.number else {}
        table.records += [{**record, **number} for record in new_records]
        table.rows += new
        table.dates |= dates
        log += [(each.table, row) for row in new]
        return len(new)

    def drop(self, tables: Collection[TableReference]) -> None:
        for table in tables:
            self._warehouse.stored.pop(check_own(table), None)

    def _rows(self, table: TableReference, rows: RowRange) -> dict[tuple[int, int], dict[str, Any]]:
        stored = self._warehouse.stored.get(table)
        if stored is None:
            return {}
        found: dict[tuple[int, int], dict[str, Any]] = {
            (row.partition, row.offset): {} for row in stored.rows if _within(row, rows)
        }
        for record in stored.records:
            place = (record["_kafka_partition"], record["_kafka_offset"])
            if place in found:
                found[place] = record
        return found


def _at(record: Mapping[str, Any], path: str) -> Any:
    """A value of a record, None if it or what should hold it is null."""
    value: Any = record
    for name in path.split("."):
        value = (value or {}).get(name)
    return value


def _row(record: Mapping[str, Any]) -> Row:
    return Row(
        *(record[name] for name in ("_kbq_epoch", "_kafka_topic", "_kafka_partition", "_kafka_offset"))
    )


def _within(row: Row, rows: RowRange) -> bool:
    return (row.topic, row.epoch) == (rows.topic, rows.epoch) and any(
        range_.topic_partition.partition == row.partition
        and range_.from_offset <= row.offset < range_.until_offset
        for range_ in rows.ranges
    )
