"""Converts staged Avro to Parquet files, one per partition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from kbq_assets.adapters.iceberg.parquet_files import FLUSH_BYTES, PartitionedFiles
from kbq_assets.adapters.iceberg.schema import SCHEMA_ID, columns_in
from kbq_assets.core.loading.tables import Column
from kbq_assets.ports.warehouse import LoadJob
from kbq_assets.wire.arrow.staged import OpenUri, StagedBatch, StagedTables
from kbq_assets.wire.arrow.types import arrow_type


@dataclass
class ParquetWriter:
    """Writes the files of one load job with `PartitionedFiles`."""

    table: Table
    job: LoadJob
    token: str
    open_uri: OpenUri
    held_bytes: int = FLUSH_BYTES
    #: selects or changes the rows of a batch, which has all of the table's columns
    chosen: Callable[[pa.Table], pa.Table] = lambda rows: rows
    rows: int = 0
    _out: PartitionedFiles = field(init=False)

    def __post_init__(self) -> None:
        self._out = PartitionedFiles(self.table, self.job.job_id, self.token, self.held_bytes)

    @property
    def files(self) -> list[DataFile]:
        return self._out.files

    def write(self) -> None:
        """Write all files. Raises LoadError, OSError."""
        self._out.write(self._batches())

    def discard(self) -> None:
        """Delete the files of a job that was not committed, as far as possible. Remaining files only take space."""
        self._out.discard()

    def check(self) -> None:
        """Read all source files without writing anything. Raises LoadError, OSError."""
        for batch in self._batches():
            del batch

    def read(self) -> pa.Table:
        """All rows, with the table's columns. Raises LoadError, OSError."""
        batches = list(self._batches())
        empty = schema_to_pyarrow(self.table.schema(), include_field_ids=False).empty_table()
        return pa.concat_tables(batches) if batches else empty

    def _batches(self) -> Iterator[pa.Table]:
        """The rows of all source files, with all columns of the table."""
        columns = columns_in(self.table)
        staged = StagedTables(columns, self.open_uri)
        for batch in staged.read(self.job.source_uris, self.job.files):
            rows = self.chosen(self._completed(batch, columns))
            self.rows += rows.num_rows
            yield rows

    def _completed(self, batch: StagedBatch, columns: Sequence[Column]) -> pa.Table:
        """The batch with all of the table's columns, in the table's order."""
        table, arrays = batch.table, dict[str, Any]()
        known = {name.lower(): name for name in table.column_names}
        by_name = {column.name: column for column in columns}
        for each in self.table.schema().fields:
            if each.name == SCHEMA_ID:
                arrays[each.name] = self._schema_ids(batch)
            elif (name := known.get(each.name.lower())) is not None:
                arrays[each.name] = table[name]
            else:
                arrays[each.name] = pa.nulls(table.num_rows, arrow_type(by_name[each.name]))
        return pa.table(arrays)

    def _schema_ids(self, batch: StagedBatch) -> pa.Array:
        """The schema id of each row's file."""
        files = (self.job.files.get(uri) for uri in batch.rows)
        ids = [0 if file is None else file.name.schema_id for file in files]
        return pa.array(np.repeat(np.array(ids, np.int64), list(batch.rows.values())))
