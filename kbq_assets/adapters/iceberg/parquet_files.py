"""Writes rows of a table to Parquet files, one per partition, in bounded memory."""

from __future__ import annotations

import contextlib
import posixpath
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import parquet_file_to_data_file, schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from kbq_assets.adapters.iceberg.partitions import partitioned
from kbq_assets.adapters.iceberg.spill import HeldRows, SpilledRows

#: Bytes of Arrow that are sorted and written at once. They take about three times as much memory.
FLUSH_BYTES: Final = 32 << 20
#: Most files open at once; rows of more partitions are spilled first. Files are local until they are complete, because
#: the buffers of each upload take a few megabytes.
OPEN_FILES: Final = 64
TARGET_BYTES: Final = "write.target-file-size-bytes"
_COPY_BYTES: Final = 1 << 20
_DEFAULT_TARGET: Final = 512 << 20
#: Largest dictionary of a column chunk. A larger one would take more time and make the file larger.
_DICTIONARY_BYTES: Final = 64 << 10


@dataclass
class PartitionedFiles:
    """Writes the files of one job below the table's location. ``token`` makes their names unique to one attempt."""

    table: Table
    job_id: str
    token: str
    held_bytes: int = FLUSH_BYTES
    files: list[DataFile] = field(default_factory=list)
    _scratch: Path = Path()
    _open: dict[str, OpenFile] = field(default_factory=dict)
    _paths: list[str] = field(default_factory=list)

    def write(self, batches: Iterable[pa.Table]) -> None:
        """Write rows with all of the table's columns. Raises OSError."""
        with tempfile.TemporaryDirectory(prefix="kbq-lake-") as scratch:
            self._scratch = Path(scratch)
            spilled, held = SpilledRows(self._scratch), HeldRows()
            crowded: list[pa.Table] = []  # batches with few rows for each of many partitions
            for batch in batches:
                if not batch.num_rows:
                    continue
                found = partitioned(self.table, batch)
                if len(found.folders) > OPEN_FILES:
                    crowded.append(batch)
                    if sum(table.nbytes for table in crowded) >= self.held_bytes:
                        self._spill(crowded, spilled)
                else:
                    held.add(found.parts())
                self._write_held(held, spilled)
            if crowded:
                self._spill(crowded, spilled)
            self._write_rest(held, spilled)

    def _spill(self, crowded: list[pa.Table], spilled: SpilledRows) -> None:
        spilled.add(list(partitioned(self.table, pa.concat_tables(crowded)).slices()))
        crowded.clear()

    def _write_held(self, held: HeldRows, spilled: SpilledRows) -> None:
        """Write the largest partitions until memory is below the bound, or spill all if too many files would open."""
        while held.bytes > self.held_bytes:
            if len(self._open.keys() | held.folders) > OPEN_FILES:
                spilled.add(held.take_all())
            else:
                self._append(*held.take_largest())

    def _write_rest(self, held: HeldRows, spilled: SpilledRows) -> None:
        """Write all remaining rows, and close all files. Spilled rows of open files come first, so that the number of
        open files does not grow."""
        for folder in [folder for folder in spilled.folders if folder in self._open]:
            self._append_spilled(spilled, folder)
        for rows, folder in held.take_all():
            if folder in spilled.folders:
                spilled.add([(rows, folder)])
            else:
                self._append(rows, folder)
                self._close(folder)
        for folder in list(self._open):
            self._close(folder)
        for folder in spilled.folders:  # one open file at a time
            self._append_spilled(spilled, folder)
            self._close(folder)

    def _append_spilled(self, spilled: SpilledRows, folder: str) -> None:
        for rows in spilled.take(folder, self.held_bytes):
            self._append(rows, folder)

    def discard(self) -> None:
        """Delete the files of a job that was not committed, as far as possible. Remaining files only take space."""
        for each in self._open.values():
            with contextlib.suppress(OSError):
                each.close()
        for path in self._paths:
            with contextlib.suppress(OSError):
                self.table.io.delete(path)
        self._open.clear()
        self.files.clear()

    def _append(self, part: pa.Table, folder: str) -> None:
        """Write rows to the open file of a partition as one row group. Many small groups take more time and space."""
        if folder not in self._open:
            name = f"{self.job_id}-{self.token}-{len(self._paths):05}.parquet"
            path = "/".join((self.table.location().rstrip("/"), folder, name))
            schema = _writable(schema_to_pyarrow(self.table.schema()), part.schema)
            self._paths.append(path)
            local = self._scratch / posixpath.basename(path)
            self._open[folder] = OpenFile(path, schema, pa.OSFile(str(local), "wb"))
        file = self._open[folder]
        if columns := [(name, "ascending") for name in sort_columns(self.table)]:
            part = part.take(pc.sort_indices(part, sort_keys=columns))
        file.writer.write_table(part.cast(file.schema), row_group_size=max(1, part.num_rows))
        if file.stream.tell() >= int(self.table.properties.get(TARGET_BYTES, _DEFAULT_TARGET)):
            self._close(folder)

    def _close(self, folder: str) -> None:
        file = self._open.pop(folder, None)
        if file is None:  # the last rows filled it, and it was closed
            return
        file.close()
        local = self._scratch / posixpath.basename(file.path)
        with local.open("rb") as source, self.table.io.new_output(file.path).create() as target:
            shutil.copyfileobj(source, target, _COPY_BYTES)
        local.unlink()
        self.files.append(parquet_file_to_data_file(self.table.io, self.table.metadata, file.path))


def sort_columns(table: Table) -> list[str]:
    """The columns by which a table's rows are sorted."""
    schema, fields = table.schema(), table.sort_order().fields
    return [name for f in fields if (name := schema.find_column_name(f.source_id)) is not None]


class OpenFile:
    """A Parquet file that is being written."""

    def __init__(self, path: str, schema: pa.Schema, stream: Any) -> None:
        self.path = path
        self.schema = schema
        self.stream = stream
        self.writer = pq.ParquetWriter(
            stream, schema, compression="zstd", dictionary_pagesize_limit=_DICTIONARY_BYTES
        )

    def close(self) -> None:
        """Write the footer, which completes the file."""
        self.writer.close()
        self.stream.close()


def _writable(schema: pa.Schema, rows: pa.Schema) -> pa.Schema:
    """Iceberg's schema with its field ids and the types of the rows, which differ only in the width of offsets."""
    return pa.schema([_with_ids(field, rows.field(field.name).type) for field in schema])


def _with_ids(target: pa.Field, kind: pa.DataType) -> pa.Field:
    if pa.types.is_struct(kind):
        kind = pa.struct([_with_ids(child, kind.field(child.name).type) for child in target.type])
    elif pa.types.is_list(kind):
        kind = pa.list_(_with_ids(target.type.value_field, kind.value_type))
    return target.with_type(kind)
