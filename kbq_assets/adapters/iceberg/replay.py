"""Replays in a lake (`ports.replay.ReplayTables`): each table's range is replaced by its own commit, and the first
table's commit decides (PROTOCOL R12)."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from kbq_assets.adapters.iceberg import replayed_rows, schema
from kbq_assets.adapters.iceberg.commits import JOB_ID, commit_once, turn_retries_off
from kbq_assets.adapters.iceberg.data_files import rows_at, touched
from kbq_assets.adapters.iceberg.housekeeping import delete_table
from kbq_assets.adapters.iceberg.job_records import JobRecord
from kbq_assets.adapters.iceberg.lake import IcebergLake, lake_errors
from kbq_assets.adapters.iceberg.load_jobs import LakeJobs
from kbq_assets.adapters.iceberg.manifests import planned
from kbq_assets.adapters.iceberg.overwrites import replace_files
from kbq_assets.adapters.iceberg.replaced_files import CopiedRows, ReplacedFiles
from kbq_assets.adapters.iceberg.rewrites import Rewrite
from kbq_assets.core.erasure.offset_sets import RowPlaces
from kbq_assets.core.errors import JobAlreadyExists, JobFailed, Unavailable
from kbq_assets.core.loading.table_notes import TableNotes
from kbq_assets.core.loading.tables import TableOptions
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.replay.model import REPLAY_COLUMN, check_own
from kbq_assets.ports.compaction import OpenRewriter
from kbq_assets.ports.replay import (
    DayRows,
    Keys,
    PartitionDay,
    ReplaceJob,
    Replacement,
    RowDifference,
    RowRange,
)

#: Attempts to commit while compaction or other programs change a table. Its loads wait.
_ATTEMPTS: Final = 20


class LakeReplayTables:
    """Replaces ranges in a catalog's tables. Large files are rewritten in tasks of ``open_rewriter``."""

    one_transaction: bool = False

    def __init__(self, lake: IcebergLake, open_rewriter: OpenRewriter) -> None:
        self._lake = lake
        self._jobs = LakeJobs(lake)
        self._open_rewriter = open_rewriter

    def days(
        self, tables: Collection[TableReference], rows: RowRange, keys: Keys | None = None
    ) -> Mapping[TableReference, Mapping[PartitionDay, DayRows]]:
        found = {}
        for reference in tables:
            with lake_errors(str(reference)):
                table = self._lake.table(reference)
                if table is not None:
                    key = (keys or {}).get(reference, ())
                    found[reference] = replayed_rows.days(table, _places(rows), key)
        return found

    def differences(
        self, live: TableReference, replay: TableReference, rows: RowRange, limit: int
    ) -> tuple[RowDifference, ...]:
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
        """The number of the range's offsets on both sides."""
        with lake_errors("a comparison of tables"):
            sides = [
                [table for reference in side if (table := self._lake.table(reference)) is not None]
                for side in (one, other)
            ]
            return replayed_rows.shared(sides[0], sides[1], _places(rows))

    def replace(self, job: ReplaceJob) -> None:
        """Replace ranges, one table after another, except tables that the job has already replaced. All files are
        written before the first commit, so that only for a moment do readers see some tables replaced and others
        not."""
        with lake_errors(f"job {job.job_id}"):
            left = [each for each in job.replacements if not self._is_replaced(job, each.table)]
            if not left:
                raise JobAlreadyExists(f"job {job.job_id} exists", next_step="get the job of each table")
            ready: dict[TableReference, ReplacedFiles | None] = {}
            try:
                for each in left:
                    ready[each.table] = self._prepared(job, each)
                for each in left:
                    self._replace(job, each, ready)
            finally:
                for waiting in filter(None, ready.values()):
                    waiting.discard()

    def drop(self, tables: Collection[TableReference]) -> None:
        """Delete a replay's own tables after their files."""
        for table in tables:
            check_own(table)
        for reference in tables:
            with lake_errors(str(reference)):
                table_ = self._lake.table(reference)
                if table_ is not None:
                    delete_table(self._lake.catalog, table_)

    def _is_replaced(self, job: ReplaceJob, table: TableReference) -> bool:
        """Whether the job has replaced a table. Raises JobAlreadyExists if the job's id was given up."""
        found = self._jobs.find(table, job.job_id)
        if found is not None and found[0].sources != source_of(table):
            raise JobAlreadyExists(f"job {job.job_id} was given up", next_step="start again with a new id")
        return found is not None

    def _replace(
        self, job: ReplaceJob, each: Replacement, ready: dict[TableReference, ReplacedFiles | None]
    ) -> None:
        """Commit one table. Its files may be ready."""
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

    def _prepared(self, job: ReplaceJob, each: Replacement) -> ReplacedFiles | None:
        """Copy the former rows, and write the table's new files. Returns None if the table changed meanwhile, or if
        another process replaced it."""
        # Open this table before checking the id: a late copy then fails if the table of former rows was written since.
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
        ready = ReplacedFiles(source_of(each.table), table, job.job_id, old, results)
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
        """The table for the former rows, with all columns of the live table."""
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
        """Copy the rows to be replaced into the table of former rows, whose old content is replaced. Returns False if
        that table changed meanwhile."""
        copies = CopiedRows(former, job.job_id)
        copies.write(rows_at(table, old, _places(job.rows)))
        if copies.rows != expected:
            copies.out.discard()
            raise JobFailed(f"{'.'.join(table.name())}: {copies.rows} of {expected} rows could be copied")
        transaction = former.transaction()
        present = [task.file for task in planned(former)]
        replace_files(former, transaction, {JOB_ID: job.job_id}, present, copies.out.files)
        try:
            commit_once(transaction.commit_transaction, JobRecord(job.job_id, ""))
        except CommitFailedException:
            copies.out.discard()
            return False
        return True

    def _add(self, job: ReplaceJob, each: Replacement, ready: ReplacedFiles) -> None:
        """Write the new rows."""
        if each.source is None:
            return
        source = self._lake.table(each.source)
        if source is None:
            raise JobFailed(f"table {each.source} does not exist", next_step="read the range again")
        copies = CopiedRows(ready.table, job.job_id, {REPLAY_COLUMN: each.number} if each.number else {})
        ready.added = copies
        rows = _places(job.rows)
        copies.write(rows_at(source, touched(source, rows), rows))


def source_of(table: TableReference) -> str:
    return f"replay:{table}"


def _places(rows: RowRange) -> RowPlaces:
    return RowPlaces(
        rows.topic,
        tuple(
            (each.topic_partition.partition, rows.epoch, (each.from_offset, each.until_offset))
            for each in rows.ranges
        ),
    )
