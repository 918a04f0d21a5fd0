"""Replays in a lake (`ports.replay.ReplayTables`): each table is replaced by a commit of its own, and the first table's
decides (PROTOCOL R12)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from kbq_assets.adapters.iceberg import job_records, replayed_rows, schema
from kbq_assets.adapters.iceberg.commits import JOB_ID, commit_once, move_tag, turn_retries_off
from kbq_assets.adapters.iceberg.data_files import by_name, rows_at, touched
from kbq_assets.adapters.iceberg.housekeeping import delete_table
from kbq_assets.adapters.iceberg.job_records import JobRecord
from kbq_assets.adapters.iceberg.jobs import LakeJobs
from kbq_assets.adapters.iceberg.lake import IcebergLake, lake_errors
from kbq_assets.adapters.iceberg.parquet_files import PartitionedFiles
from kbq_assets.adapters.iceberg.rewrites import Rewrite, discard
from kbq_assets.adapters.iceberg.whole_days import replace
from kbq_assets.core.compaction.model import Rewritten
from kbq_assets.core.erasure.offsets import RowPlaces
from kbq_assets.core.errors import JobAlreadyExists, JobFailed, Unavailable
from kbq_assets.core.loading.table_notes import TableNotes
from kbq_assets.core.loading.tables import TableOptions
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.replay.model import REPLAY_COLUMN, check_own
from kbq_assets.ports.compaction import OpenRewriter
from kbq_assets.ports.replay import DayRows, PartitionDay, ReplaceJob, Replacement, RowDifference, RowRange

#: Attempts against compaction and other writers of a table: its loads wait.
_ATTEMPTS: Final = 20


class LakeReplayTables:
    """Replaces ranges in a catalog's tables. Many bytes are written again by tasks of ``open_rewriter``."""

    one_transaction: bool = False

    def __init__(self, lake: IcebergLake, open_rewriter: OpenRewriter) -> None:
        self._lake = lake
        self._jobs = LakeJobs(lake)
        self._open_rewriter = open_rewriter

    def days(
        self, tables: Collection[TableReference], rows: RowRange
    ) -> Mapping[TableReference, Mapping[PartitionDay, DayRows]]:
        """Rows of the range by partition and day."""
        found = {}
        for reference in tables:
            with lake_errors(str(reference)):
                table = self._lake.table(reference)
                if table is not None:
                    found[reference] = replayed_rows.days(table, _places(rows))
        return found

    def differences(
        self, live: TableReference, replay: TableReference, rows: RowRange, limit: int
    ) -> tuple[RowDifference, ...]:
        """The first offsets that differ."""
        with lake_errors(f"a comparison of {live}"):
            return replayed_rows.differences(
                self._lake.table(live), self._lake.table(replay), _places(rows), limit
            )

    def bytes_billed(self, sources: Mapping[TableReference, TableReference], rows: RowRange) -> int:
        """Nothing is billed."""
        return 0

    def shared(
        self, one: Collection[TableReference], other: Collection[TableReference], rows: RowRange
    ) -> int:
        """Offsets of the range in both sides."""
        with lake_errors("a comparison of tables"):
            sides = [
                [table for reference in side if (table := self._lake.table(reference)) is not None]
                for side in (one, other)
            ]
            return replayed_rows.shared(sides[0], sides[1], _places(rows))

    def replace(self, job: ReplaceJob) -> None:
        """Replace ranges, table after table; those that the job has replaced stay. All files are written before the
        first commit, so that readers see tables before and after the job for a moment only."""
        with lake_errors(f"job {job.job_id}"):
            left = [each for each in job.replacements if not self._is_replaced(job, each.table)]
            if not left:
                raise JobAlreadyExists(f"job {job.job_id} exists", next_step="get the job of each table")
            ready: dict[TableReference, _Ready | None] = {}
            try:
                for each in left:
                    ready[each.table] = self._prepared(job, each)
                for each in left:
                    self._replace(job, each, ready)
            finally:
                for waiting in filter(None, ready.values()):
                    waiting.discard()

    def drop(self, tables: Collection[TableReference]) -> None:
        """Delete a replay's own tables, and their files first."""
        for table in tables:
            check_own(table)
        for reference in tables:
            with lake_errors(str(reference)):
                table_ = self._lake.table(reference)
                if table_ is not None:
                    delete_table(self._lake.catalog, table_)

    def _is_replaced(self, job: ReplaceJob, table: TableReference) -> bool:
        """Whether the job has replaced a table. Raises JobAlreadyExists if its id was given up."""
        found = self._jobs.find(table, job.job_id)
        if found is not None and found[0].sources != source_of(table):
            raise JobAlreadyExists(f"job {job.job_id} was given up", next_step="begin again, under a new id")
        return found is not None

    def _replace(
        self, job: ReplaceJob, each: Replacement, ready: dict[TableReference, _Ready | None]
    ) -> None:
        """Commit one table, whose files may be ready."""
        for _ in range(_ATTEMPTS):
            if self._is_replaced(job, each.table):
                return
            found = ready.pop(each.table, None) or self._prepared(job, each)
            if found is not None and found.commit():
                return
        raise Unavailable(
            f"job {job.job_id}: {each.table} changed {_ATTEMPTS} times while it was written",
            next_step="run again; check which other program writes to the table",
        )

    def _prepared(self, job: ReplaceJob, each: Replacement) -> _Ready | None:
        """Keep the former rows, and write the table's new files. None if the table moved, or another process replaced
        it."""
        # Before the id is seen free: a late copy fails if the table of former rows was written since.
        former = self._former(each) if each.former is not None else None
        try:
            table = self._jobs.free_table(each.table, job.job_id)
        except JobAlreadyExists:
            return None
        if table is None:
            raise Unavailable(
                f"table {each.table} does not exist any more", next_step="run the command again"
            )
        rows, token = _places(job.rows), uuid.uuid4().hex[:12]
        old = list(touched(table, rows))
        results = Rewrite(each.table, job.job_id, token, rows).run(
            self._lake, table, old, self._open_rewriter
        )
        if results is None:
            return None
        ready = _Ready(each.table, table, job.job_id, old, results)
        try:
            if former is not None and not self._keep(job, former, table, old, ready.replaced_rows):
                ready.discard()
                return None
            self._add(job, each, ready)
        except BaseException:
            ready.discard()
            raise
        return ready

    def _former(self, each: Replacement) -> Table:
        """The table for the former rows, with all columns of the live one."""
        assert each.former is not None
        live, found = self._lake.table(each.table), self._lake.table(each.former)
        columns = schema.columns_in(live) if live is not None else ()
        if found is None:
            self._lake.catalog.create_table_if_not_exists(
                (each.former.dataset, each.former.table),
                made := schema.new_schema(columns),
                partition_spec=schema.new_spec(made, TableOptions()),
                properties=schema.new_properties(columns, TableOptions()),
            )
            found = self._lake.table(each.former)
            assert found is not None
        schema.update(found, columns, TableNotes())
        turn_retries_off(found)
        return found

    def _keep(
        self, job: ReplaceJob, former: Table, table: Table, old: Iterable[DataFile], expected: int
    ) -> bool:
        """Copy the rows that leave into the table of former rows, in place of what it has. False if that moved."""
        copies = _Copies(former, job.job_id)
        copies.write(rows_at(table, old, _places(job.rows)))
        if copies.rows != expected:
            copies.out.discard()
            raise JobFailed(f"{'.'.join(table.name())}: {copies.rows} of {expected} rows could be copied")
        transaction = former.transaction()
        present = [task.file for task in former.scan().plan_files()]
        snapshot = transaction.update_snapshot({JOB_ID: job.job_id})
        with snapshot.overwrite() if present else snapshot.fast_append() as producer:
            for file in present:
                producer.delete_data_file(file)
            for file in copies.out.files:
                producer.append_data_file(file)
        try:
            commit_once(transaction.commit_transaction, JobRecord(job.job_id, ""))
        except CommitFailedException:
            copies.out.discard()
            return False
        return True

    def _add(self, job: ReplaceJob, each: Replacement, ready: _Ready) -> None:
        """Write the new rows."""
        if each.source is None:
            return
        source = self._lake.table(each.source)
        if source is None:
            raise JobFailed(f"table {each.source} does not exist", next_step="read the range again")
        copies = _Copies(ready.table, job.job_id, each.number)
        ready.added = copies
        rows = _places(job.rows)
        copies.write(rows_at(source, touched(source, rows), rows))


@dataclass
class _Copies:
    """Rows of one table that are written to another. ``number`` becomes their `_kbq_replay`, unless it is 0."""

    table: Table
    job_id: str
    number: int = 0
    rows: int = 0

    def __post_init__(self) -> None:
        self.out = PartitionedFiles(self.table, self.job_id, uuid.uuid4().hex[:12])

    def write(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Write all rows. Raises JobFailed, OSError."""
        try:
            self.out.write(map(_as_table, self._converted(batches)))
        except BaseException:
            self.out.discard()
            raise

    def _converted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        wanted = schema_to_pyarrow(self.table.schema())
        place = wanted.get_field_index(REPLAY_COLUMN)
        for batch in batches:
            self.rows += batch.num_rows
            found = by_name(batch, wanted)
            if self.number:
                numbers = pa.repeat(pa.scalar(self.number, wanted.field(place).type), found.num_rows)
                found = found.set_column(place, wanted.field(place), numbers)
            yield found


@dataclass
class _Ready:
    """A table, as it was read, and the files of the commit that replaces its range."""

    reference: TableReference
    table: Table
    job_id: str
    old: list[DataFile]
    results: list[Rewritten]
    added: _Copies | None = None

    @property
    def replaced_rows(self) -> int:
        """The rows of the range."""
        return sum(each.erased for each in self.results)

    def commit(self) -> bool:
        """Replace the files, under the job's id. False if the table moved."""
        rows = self.added.rows if self.added else 0
        now_ms = int(time.time() * 1000)
        record = JobRecord(self.job_id, uuid.uuid4().hex[:12], source_of(self.reference), rows, now_ms)
        changed, _ = job_records.recorded(self.table.properties, record)
        transaction = self.table.transaction()
        added = self.added.out.files if self.added else []
        if self.old or added:
            replace(self.table, transaction, {JOB_ID: self.job_id}, self.old, self.results, added)
        else:
            with transaction.update_snapshot({JOB_ID: self.job_id}).fast_append():
                pass
        transaction.set_properties(changed)
        move_tag(self.table, transaction)
        try:
            commit_once(transaction.commit_transaction, record)
        except CommitFailedException:
            self.discard()
            return False
        discard(self.table, [each.path for each in self.results if not each.after.rows])
        return True

    def discard(self) -> None:
        """Delete the files: the commit changed nothing."""
        discard(self.table, [each.path for each in self.results])
        if self.added is not None:
            self.added.out.discard()


def _as_table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])


def source_of(table: TableReference) -> str:
    """The source of the one table's job."""
    return f"replay:{table}"


def _places(rows: RowRange) -> RowPlaces:
    return RowPlaces(
        rows.topic,
        tuple(
            (each.topic_partition.partition, rows.epoch, (each.from_offset, each.until_offset))
            for each in rows.ranges
        ),
    )
