"""Reads the rows of data files in batches, and finds the files that have certain rows."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThanOrEqual, In, LessThan, Reference
from pyiceberg.expressions.literals import literal
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from kbq_assets.adapters.iceberg import schema
from kbq_assets.adapters.iceberg.erased_rows import is_erased
from kbq_assets.adapters.iceberg.manifests import planned
from kbq_assets.adapters.iceberg.whole_days import coarse_spec
from kbq_assets.core.erasure.offset_sets import RowPlaces
from kbq_assets.core.errors import JobFailed

#: Bytes of Arrow that are read at once.
_BATCH_BYTES: Final = 8 << 20
_BATCH_ROWS: Final = 1 << 16
_FIELD_ID: Final = b"PARQUET:field_id"
#: The key by which the columns of two schemas match.
_Key: TypeAlias = Callable[[pa.Field], Hashable]


def where(rows: RowPlaces) -> BooleanExpression:
    """A filter that matches all of the rows. With it, statistics exclude most files."""
    bounds = [bound for _, _, offsets in rows.places for bound in (offsets[0], offsets[-1])]
    partitions = {literal(partition) for partition, _, _ in rows.places}
    offset = Reference("_kafka_offset")
    within = And(
        GreaterThanOrEqual(term=offset, value=literal(min(bounds, default=0))),
        LessThan(term=offset, value=literal(max(bounds, default=0))),
    )
    own = And(
        EqualTo(term=Reference("_kafka_topic"), value=literal(rows.topic)),
        In(term=Reference("_kafka_partition"), values=partitions),
    )
    return And(own, within)


def touched(table: Table, rows: RowPlaces) -> Iterator[DataFile]:
    """The data files that have any of the rows. Raises JobFailed for a file that KBQ cannot replace."""
    if not rows.places:
        return
    for task in planned(table, where(rows)):
        with table.io.new_input(task.file.file_path).open() as stream:
            batches = pq.ParquetFile(stream).iter_batches(columns=list(schema.POSITIONS), use_threads=False)
            if not any(is_erased(batch, rows).any() for batch in batches):
                continue
        if task.delete_files or task.file.spec_id not in (table.metadata.default_spec_id, coarse_id(table)):
            why = (
                "another program deleted rows of it with delete files"
                if task.delete_files
                else "it has another partition spec"
            )
            raise JobFailed(
                f"{task.file.file_path} has rows to replace or delete, but {why}: KBQ cannot replace it",
                next_step="CALL system.rewrite_data_files with the program that did this, then resume or try again",
            )
        yield task.file


def coarse_id(table: Table) -> int | None:
    spec = coarse_spec(table.metadata)
    return spec.spec_id if spec else None


def rows_in(table: Table, path: str, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    """A file's rows with the table's columns, matched by field id."""
    with table.io.new_input(path).open() as stream:
        file = pq.ParquetFile(stream)
        stored = file.schema_arrow
        for group in range(file.num_row_groups):
            metadata = file.metadata.row_group(group)
            a_row = max(1, metadata.total_byte_size // max(1, metadata.num_rows))
            rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES // a_row))
            for batch in file.iter_batches(rows, row_groups=[group], use_threads=False):
                arrays = _projected(
                    list(batch.columns), list(stored), list(wanted), batch.num_rows, _field_id
                )
                yield pa.RecordBatch.from_arrays(arrays, schema=wanted)


def rows_at(table: Table, files: Iterable[DataFile], rows: RowPlaces) -> Iterator[pa.RecordBatch]:
    wanted = schema_to_pyarrow(table.schema())
    for file in files:
        for batch in rows_in(table, file.file_path, wanted):
            found = is_erased(batch, rows)
            if found.any():
                yield batch.filter(pa.array(found))


def by_name(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """Rows of another table with this table's columns, matched by name. Missing columns are NULL. Raises JobFailed if a
    required column has NULLs."""
    arrays = _projected(list(batch.columns), list(batch.schema), list(wanted), batch.num_rows, _name)
    for field, array in zip(wanted, arrays, strict=True):
        if array.null_count and not field.nullable:
            raise JobFailed(
                f"column {field.name} is required, but new rows lack it", next_step="make the column optional"
            )
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _projected(
    arrays: list[pa.Array], stored: list[pa.Field], wanted: list[pa.Field], rows: int, key: _Key
) -> list[pa.Array]:
    """The wanted columns of a struct or table, in order. Columns that the file lacks are NULL."""
    places = {key(field): i for i, field in enumerate(stored)}
    found = []
    for field in wanted:
        place = places.get(key(field))
        if place is None:
            found.append(pa.nulls(rows, field.type))
        else:
            found.append(_converted(arrays[place], stored[place], field, key))
    return found


def _converted(array: pa.Array, stored: pa.Field, wanted: pa.Field, key: _Key) -> pa.Array:
    kind = wanted.type
    if pa.types.is_struct(kind):
        children = [array.field(i) for i in range(stored.type.num_fields)]
        arrays = _projected(children, list(stored.type), list(kind), len(array), key)
        return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=array.is_null())
    if pa.types.is_large_list(kind):
        items = _converted(array.values, stored.type.value_field, kind.value_field, key)
        offsets: Any = pc.add(array.offsets.cast(pa.int64()), 0)  # its own memory: a slice may have no mask
        return pa.LargeListArray.from_arrays(offsets, items, type=kind, mask=_nulls(array))
    if pa.types.is_map(kind):
        raise TypeError(f"column {wanted.name} is a map, which compaction does not support")
    return array.cast(kind)


def _nulls(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _name(field: pa.Field) -> str:
    return str(field.name).lower()


def _field_id(field: pa.Field) -> bytes:
    """The field's id in Iceberg. Raises KeyError if there is none: another program wrote the file without field ids."""
    if field.metadata is None or _FIELD_ID not in field.metadata:
        raise KeyError(f"column {field.name} of a data file has no field id")
    return bytes(field.metadata[_FIELD_ID])
