"""New data files that are ready for the commit of a job, which replaces others with them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from kbq_assets.adapters.iceberg import job_records
from kbq_assets.adapters.iceberg.commits import JOB_ID, commit_once, move_tag
from kbq_assets.adapters.iceberg.data_files import by_name
from kbq_assets.adapters.iceberg.job_records import JobRecord
from kbq_assets.adapters.iceberg.parquet_files import PartitionedFiles
from kbq_assets.adapters.iceberg.rewrites import discard
from kbq_assets.adapters.iceberg.whole_days import replace
from kbq_assets.core.compaction.model import Rewritten


@dataclass
class CopiedRows:
    """Copies rows to a table. ``values`` overrides the values of columns."""

    table: Table
    job_id: str
    values: Mapping[str, Any] = field(default_factory=dict)
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
        for batch in batches:
            self.rows += batch.num_rows
            found = by_name(batch, wanted)
            for name, value in self.values.items():
                place = wanted.get_field_index(name)
                column = pa.repeat(pa.scalar(value, wanted.field(place).type), found.num_rows)
                found = found.set_column(place, wanted.field(place), column)
            yield found


@dataclass
class ReplacedFiles:
    """A table as it was read, and the files of a commit that replaces some of its files. ``source`` names the sources
    in the job's record."""

    source: str
    table: Table
    job_id: str
    old: list[DataFile]
    results: list[Rewritten]
    added: CopiedRows | None = None

    @property
    def replaced_rows(self) -> int:
        """The number of rows that the rewritten files leave out."""
        return sum(each.erased for each in self.results)

    def commit(self) -> bool:
        """Replace the files with the job's id. Returns False if the table changed meanwhile."""
        rows = self.added.rows if self.added else 0
        record = JobRecord(self.job_id, uuid.uuid4().hex[:12], self.source, rows, int(time.time() * 1000))
        changed, _ = job_records.recorded(self.table.properties, record)
        transaction = self.table.transaction()
        added = self.added.out.files if self.added else []
        replace(self.table, transaction, {JOB_ID: self.job_id}, self.old, self.results, added)
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
        """Delete the new files, if nothing was committed."""
        discard(self.table, [each.path for each in self.results])
        if self.added is not None:
            self.added.out.discard()


def _as_table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])
