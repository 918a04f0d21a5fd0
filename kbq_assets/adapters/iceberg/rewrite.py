"""Merges a group of data files into one, in batches: in a Spark task or in this process (PROTOCOL C3, C4)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import StaticTable, Table

from kbq_assets.adapters.iceberg.data_files import rows_in
from kbq_assets.adapters.iceberg.erased_rows import without
from kbq_assets.adapters.iceberg.lake import lake_errors, shown
from kbq_assets.adapters.iceberg.parquet_files import FLUSH_BYTES, OpenFile, sort_columns
from kbq_assets.adapters.iceberg.whole_days import coarse_spec
from kbq_assets.core.compaction.model import RewriteTask, Rewritten, RowsDigest
from kbq_assets.core.errors import KbqError
from kbq_assets.wire.arrow.row_hash import digest


def rewrite(task: RewriteTask, properties: Mapping[str, Any]) -> Rewritten:
    """Write a group's rows to one file, and read them back. ``properties`` configures access to the catalog's files.
    Returns failures instead of raising them, because a task's outcome crosses processes."""
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
    """The new file's path: in the folder of the newest input, or of its day, if that is below the table's location."""
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
            for read in rows_in(table, old, schema):
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
    after = sum((digest(batch) for batch in rows_in(table, path, schema)), RowsDigest())
    return Rewritten(task, path, len(table.io.new_input(path)), before, after, erased=erased)


def _flush(file: OpenFile, waiting: list[pa.RecordBatch], columns: list[tuple[str, str]]) -> None:
    """Sort the waiting rows, and write them as one row group."""
    if waiting:
        rows = pa.Table.from_batches(waiting)
        waiting.clear()
        if columns:
            rows = rows.take(pc.sort_indices(rows, sort_keys=columns))
        file.writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        pa.default_memory_pool().release_unused()
