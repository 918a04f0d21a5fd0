"""Rewrites a group of data files into one, batch by batch: in a Spark task or in this process (PROTOCOL C3, C4)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import StaticTable, Table

from kbq_assets.adapters.iceberg.erased_rows import without
from kbq_assets.adapters.iceberg.lake import lake_errors, shown
from kbq_assets.adapters.iceberg.whole_days import coarse_spec
from kbq_assets.adapters.iceberg.writer import FLUSH_BYTES, OpenFile, sort_columns
from kbq_assets.core.compaction.model import RewriteTask, Rewritten, RowsDigest
from kbq_assets.core.errors import KbqError
from kbq_assets.wire.arrow.row_hash import digest

#: Bytes of Arrow that are read at once.
_BATCH_BYTES: Final = 8 << 20
_BATCH_ROWS: Final = 1 << 16
_FIELD_ID: Final = b"PARQUET:field_id"


def rewrite(task: RewriteTask, properties: Mapping[str, str]) -> Rewritten:
    """Write a group's rows into one file, and read them back. ``properties`` are those of the catalog's files. Raises
    nothing: a task's outcome crosses processes."""
    path = ""
    try:
        with lake_errors(f"a compaction of {task.table}"):
            table = StaticTable.from_metadata(task.metadata, dict(properties))
            path = _new_path(table, task)
            return _rewritten(table, task, path)
    except FileNotFoundError as error:
        return Rewritten(task, failure=f"an input file is gone: {shown(error)}", gone=True)
    except (KbqError, TypeError, KeyError) as error:
        if path:
            with contextlib.suppress(OSError):
                table.io.delete(path)
        message = error.message if isinstance(error, KbqError) else shown(error)
        return Rewritten(task, failure=message, gone=_is_gone(error))


def _is_gone(error: BaseException) -> bool:
    """Whether the cause is a file that does not exist."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, FileNotFoundError):
            return True
        found = found.__cause__ or found.__context__
    return False


def _new_path(table: Table, task: RewriteTask) -> str:
    """Next to the newest input, or in the folder of its day, if that is below the table's location."""
    location, newest = table.location().rstrip("/"), task.group.paths[-1]
    folder = newest.rpartition("/")[0] if newest.startswith(f"{location}/data/") else f"{location}/data"
    if task.group.coarse and (spec := coarse_spec(table.metadata)) is not None:
        fine = {each.name for each in table.spec().fields} - {each.name for each in spec.fields}
        below = folder.removeprefix(location).split("/")
        folder = location + "/".join(part for part in below if part.partition("=")[0] not in fine)
    return f"{folder}/{task.job_id}-{task.token}-00000.parquet"


def _rewritten(table: Table, task: RewriteTask, path: str) -> Rewritten:
    schema = schema_to_pyarrow(table.schema())
    before, erased = RowsDigest(), 0
    columns = [(name, "ascending") for name in sort_columns(table)]
    file = OpenFile(path, schema, table.io.new_output(path).create())
    waiting: list[pa.RecordBatch] = []
    size = 0
    try:
        for old in task.group.paths:
            for read in _batches(table, old, schema):
                batch = read if task.erased is None else without(read, task.erased)
                erased += read.num_rows - batch.num_rows
                before += digest(batch)
                waiting.append(batch)
                size += batch.nbytes
                if size >= FLUSH_BYTES:
                    _flush(file, waiting, columns)
                    size = 0
        _flush(file, waiting, columns)
    finally:
        file.close()
    after = sum((digest(batch) for batch in _batches(table, path, schema)), RowsDigest())
    return Rewritten(task, path, len(table.io.new_input(path)), before, after, erased=erased)


def _flush(file: OpenFile, waiting: list[pa.RecordBatch], columns: list[tuple[str, str]]) -> None:
    """Write what waits as one row group, sorted."""
    if waiting:
        rows = pa.Table.from_batches(waiting)
        waiting.clear()
        if columns:
            rows = rows.take(pc.sort_indices(rows, sort_keys=columns))
        file.writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        pa.default_memory_pool().release_unused()


def _batches(table: Table, path: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """A file's rows with the table's columns, found by field id."""
    with table.io.new_input(path).open() as stream:
        file = pq.ParquetFile(stream)
        stored = file.schema_arrow
        for group in range(file.num_row_groups):
            metadata = file.metadata.row_group(group)
            a_row = max(1, metadata.total_byte_size // max(1, metadata.num_rows))
            rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES // a_row))
            for batch in file.iter_batches(rows, row_groups=[group], use_threads=False):
                arrays = _projected(list(batch.columns), list(stored), list(schema), batch.num_rows)
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _projected(
    arrays: list[pa.Array], stored: list[pa.Field], wanted: list[pa.Field], rows: int
) -> list[pa.Array]:
    """The columns of a struct or table, in its order; NULL for what the file does not have."""
    places = {_field_id(field): i for i, field in enumerate(stored)}
    found = []
    for field in wanted:
        place = places.get(_field_id(field))
        if place is None:
            found.append(pa.nulls(rows, field.type))
        else:
            found.append(_converted(arrays[place], stored[place], field))
    return found


def _converted(array: pa.Array, stored: pa.Field, wanted: pa.Field) -> pa.Array:
    kind = wanted.type
    if pa.types.is_struct(kind):
        children = [array.field(i) for i in range(stored.type.num_fields)]
        arrays = _projected(children, list(stored.type), list(kind), len(array))
        return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=array.is_null())
    if pa.types.is_large_list(kind):
        items = _converted(array.values, stored.type.value_field, kind.value_field)
        offsets: Any = pc.add(array.offsets.cast(pa.int64()), 0)  # its own memory: a slice may have no mask
        return pa.LargeListArray.from_arrays(offsets, items, type=kind, mask=_nulls(array))
    if pa.types.is_map(kind):
        raise TypeError(f"column {wanted.name} is a map, which compaction does not copy")
    return array.cast(kind)


def _nulls(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _field_id(field: pa.Field) -> bytes:
    """The field's id in Iceberg. Raises KeyError for a file without: another program wrote it by names alone."""
    if field.metadata is None or _FIELD_ID not in field.metadata:
        raise KeyError(f"column {field.name} of a data file has no field id")
    return bytes(field.metadata[_FIELD_ID])
