"""Staged Avro to Parquet files: one per partition, with a row group per batch of rows, in bounded memory."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import parquet_file_to_data_file, schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.transforms import HourTransform, MonthTransform

from kbq_assets.adapters.iceberg.schema import SCHEMA_ID, columns_in
from kbq_assets.adapters.iceberg.spill import SpilledRows
from kbq_assets.core.loading.tables import Column
from kbq_assets.ports.warehouse import LoadJob
from kbq_assets.wire.arrow.staged import OpenUri, StagedBatch, StagedTables
from kbq_assets.wire.arrow.types import arrow_type

#: Bytes of Arrow that are sorted and written at once: they take about three times as much memory.
FLUSH_BYTES: Final = 32 << 20
#: Files open at once: rows of more partitions than this are spilled first.
OPEN_FILES: Final = 64
TARGET_BYTES: Final = "write.target-file-size-bytes"
_DEFAULT_TARGET: Final = 512 << 20
#: A column chunk with a larger dictionary has too many values for one: it would cost time, and make the file larger.
_DICTIONARY_BYTES: Final = 64 << 10
_HOUR_MICROS: Final = 3_600_000_000
_EPOCH_HOURS_A_DAY: Final = 24


@dataclass
class ParquetWriter:
    """Writes the files of one job below the table's location. ``token`` makes their names unique to one attempt."""

    table: Table
    job: LoadJob
    token: str
    open_uri: OpenUri
    flush_bytes: int = FLUSH_BYTES
    rows: int = 0
    files: list[DataFile] = field(default_factory=list)
    _open: dict[str, OpenFile] = field(default_factory=dict)
    _paths: list[str] = field(default_factory=list)

    def write(self) -> None:
        """Write all files. Raises LoadError, OSError."""
        with SpilledRows() as spilled:
            for batch in self._batches():
                self._take(list(self._parts(batch)), spilled)
                pa.default_memory_pool().release_unused()
            for folder in [folder for folder in spilled.folders if folder in self._open]:
                self._append_spilled(spilled, folder)
            for folder in list(self._open):
                self._close(folder)
            for folder in spilled.folders:  # one open file at a time
                self._append_spilled(spilled, folder)
                self._close(folder)

    def _take(self, parts: list[tuple[pa.Table, str]], spilled: SpilledRows) -> None:
        """Write the rows of a batch to the open files of their partitions, or spill all of them."""
        if len(self._open.keys() | {folder for _, folder in parts}) > OPEN_FILES:
            spilled.add(parts)
            return
        for part, folder in parts:
            self._append(part, folder)

    def _append_spilled(self, spilled: SpilledRows, folder: str) -> None:
        columns = [(name, "ascending") for name in sort_columns(self.table)]
        for rows in spilled.take(folder, self.flush_bytes):
            places = pc.sort_indices(rows, sort_keys=columns) if columns else None
            self._append(rows if places is None else rows.take(places), folder)

    def check(self) -> None:
        """Read all files, and write none. Raises LoadError, OSError."""
        for batch in self._batches():
            del batch

    def read(self) -> pa.Table:
        """All rows, with the table's columns. Raises LoadError, OSError."""
        batches = list(self._batches())
        empty = schema_to_pyarrow(self.table.schema(), include_field_ids=False).empty_table()
        return pa.concat_tables(batches) if batches else empty

    def discard(self) -> None:
        """Delete the files of a job that was not committed, as far as possible: what remains costs space alone."""
        for each in self._open.values():
            with contextlib.suppress(OSError):
                each.close()
        for path in self._paths:
            with contextlib.suppress(OSError):
                self.table.io.delete(path)
        self._open.clear()
        self.files.clear()

    def _batches(self) -> Iterator[pa.Table]:
        """The rows of all source files in large batches, with all columns of the table."""
        columns = columns_in(self.table)
        staged = StagedTables(columns, self.open_uri)
        waiting: list[pa.Table] = []
        size = 0
        for batch in staged.read(self.job.source_uris, self.job.files):
            self.rows += batch.table.num_rows
            size += batch.table.nbytes
            waiting.append(self._completed(batch, columns))
            if size >= self.flush_bytes:
                yield pa.concat_tables(waiting)
                waiting, size = [], 0
        if size or any(table.num_rows for table in waiting):
            yield pa.concat_tables(waiting)

    def _completed(self, batch: StagedBatch, columns: Sequence[Column]) -> pa.Table:
        """A batch with all of the table's columns, in their order."""
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

    def _parts(self, batch: pa.Table) -> Iterator[tuple[pa.Table, str]]:
        """The rows of each partition, sorted, with the partition's folder."""
        keys = self._keys(batch)
        columns = sort_columns(self.table)
        order = [(name, "ascending") for name in (*(f"k{i}" for i in range(len(keys))), *columns)]
        if columns or len(_starts(keys, batch.num_rows)) > 1:
            named = {f"k{i}": values for i, values in enumerate(keys)}
            sorting = pa.table({**named, **{name: batch[name] for name in columns}})
            places = pc.sort_indices(sorting, sort_keys=order)
            batch = batch.take(places)
            keys = [values.take(places) for values in keys]
        starts = _starts(keys, batch.num_rows)
        for start, end in zip(starts, [*starts[1:], batch.num_rows], strict=True):
            folder = posixpath.join("data", *self._folders([values[start].as_py() for values in keys]))
            yield batch.slice(start, end - start), folder

    def _keys(self, batch: pa.Table) -> list[pa.Array]:
        """The value of each partition field, row by row."""
        found = []
        for each in self.table.spec().fields:
            values = batch[self.table.schema().find_column_name(each.source_id)].combine_chunks()
            if isinstance(each.transform, HourTransform):
                micros = values.cast(pa.int64())
                values = pc.floor(pc.divide(micros.cast(pa.float64()), _HOUR_MICROS)).cast(pa.int64())
            elif isinstance(each.transform, MonthTransform):
                values = pc.add(
                    pc.multiply(pc.subtract(pc.year(values), 1970), 12), pc.subtract(pc.month(values), 1)
                )
            found.append(values)
        return found

    def _folders(self, values: Sequence[Any]) -> Iterator[str]:
        """Folders for people: Iceberg reads partitions from its manifests."""
        for each, value in zip(self.table.spec().fields, values, strict=True):
            text = "null" if value is None else str(value)
            if value is not None and isinstance(each.transform, HourTransform):
                text = f"{value % _EPOCH_HOURS_A_DAY:02}"
            elif value is not None and isinstance(each.transform, MonthTransform):
                text = f"{1970 + value // 12}-{value % 12 + 1:02}"
            yield f"{each.name}={quote(text, safe='')}"

    def _append(self, part: pa.Table, folder: str) -> None:
        """Write rows to the open file of a partition."""
        if folder not in self._open:
            name = f"{self.job.job_id}-{self.token}-{len(self._paths):05}.parquet"
            path = "/".join((self.table.location().rstrip("/"), folder, name))
            schema = _writable(schema_to_pyarrow(self.table.schema()), part.schema)
            self._paths.append(path)
            self._open[folder] = OpenFile(path, schema, self.table.io.new_output(path).create())
        file = self._open[folder]
        file.writer.write_table(part.cast(file.schema))
        if file.stream.tell() >= int(self.table.properties.get(TARGET_BYTES, _DEFAULT_TARGET)):
            self._close(folder)

    def _close(self, folder: str) -> None:
        file = self._open.pop(folder, None)
        if file is None:  # the last rows filled it
            return
        file.close()
        self.files.append(parquet_file_to_data_file(self.table.io, self.table.metadata, file.path))


def sort_columns(table: Table) -> list[str]:
    """The columns that a table's rows are sorted by."""
    schema, fields = table.schema(), table.sort_order().fields
    return [name for f in fields if (name := schema.find_column_name(f.source_id)) is not None]


class OpenFile:
    """A Parquet file that still gets rows."""

    def __init__(self, path: str, schema: pa.Schema, stream: Any) -> None:
        self.path = path
        self.schema = schema
        self.stream = stream
        self.writer = pq.ParquetWriter(
            stream, schema, compression="zstd", dictionary_pagesize_limit=_DICTIONARY_BYTES
        )

    def close(self) -> None:
        """Write the footer, and make the file whole."""
        self.writer.close()
        self.stream.close()


def _starts(keys: Sequence[pa.Array], rows: int) -> list[int]:
    """Where a new combination of values begins."""
    changes = np.zeros(rows, np.bool_)
    changes[:1] = True
    for values in keys:
        is_plain = pa.types.is_integer(values.type) and not values.null_count
        codes = values if is_plain else values.dictionary_encode(null_encoding="encode").indices
        codes = codes.to_numpy(zero_copy_only=False)
        changes[1:] |= codes[1:] != codes[:-1]
    return [int(place) for place in np.flatnonzero(changes)]


def _writable(schema: pa.Schema, rows: pa.Schema) -> pa.Schema:
    """Iceberg's schema with its field ids, and the types of the rows, which differ in the width of offsets alone."""
    return pa.schema([_with_ids(field, rows.field(field.name).type) for field in schema])


def _with_ids(target: pa.Field, kind: pa.DataType) -> pa.Field:
    if pa.types.is_struct(kind):
        kind = pa.struct([_with_ids(child, kind.field(child.name).type) for child in target.type])
    elif pa.types.is_list(kind):
        kind = pa.list_(_with_ids(target.type.value_field, kind.value_type))
    return target.with_type(kind)
