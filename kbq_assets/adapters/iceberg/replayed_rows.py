"""Counts and compares the rows of a range in a lake's tables. Keeps only a few bytes per row in memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table

from kbq_assets.adapters.iceberg import schema
from kbq_assets.adapters.iceberg.data_files import by_name, where
from kbq_assets.adapters.iceberg.erased_rows import is_erased
from kbq_assets.core.erasure.offset_sets import RowPlaces, offsets_of
from kbq_assets.core.statements.keys import has_paths
from kbq_assets.ports.replay import DayRows, PartitionDay, RowDifference
from kbq_assets.ports.warehouse import EVERYTHING
from kbq_assets.wire.arrow.row_hash import row_hashes

_DATE: Final = "event_date"
#: A row of a range: its place, and a hash of the compared values.
_ROW: Final = np.dtype([("partition", np.int64), ("offset", np.int64), ("hash", np.uint64)])
_PLACE: Final = ["partition", "offset"]


def days(table: Table, rows: RowPlaces, key: Sequence[str] = ()) -> dict[PartitionDay, DayRows]:
    """Counts of rows, offsets and distinct keys by partition and day. Keys are compared by hash. Takes 8 or 16 bytes
    per row."""
    found: dict[PartitionDay, list[tuple[npt.NDArray[Any], npt.NDArray[Any]]]] = defaultdict(list)
    dated = {_DATE} & {field.name for field in table.schema().fields}
    key = key if has_paths(schema.columns_in(table), key) else ()
    for batch in _rows(table, rows, (*schema.POSITIONS, *dated, *(path.partition(".")[0] for path in key))):
        columns = {
            "partition": batch["_kafka_partition"],
            "day": batch[_DATE] if dated else pa.nulls(batch.num_rows),
            "offset": batch["_kafka_offset"],
            "key": _key_hashes(batch, key),
        }
        grouped = pa.table(columns).group_by(["partition", "day"], use_threads=False)
        lists = grouped.aggregate([("offset", "list"), ("key", "list")])
        for row in range(lists.num_rows):
            at = PartitionDay(lists["partition"][row].as_py(), lists["day"][row].as_py())
            both = (lists[name][row].values.drop_null().to_numpy() for name in ("offset_list", "key_list"))
            found[at].append((next(both), next(both)))
    counted = {at: [np.concatenate(part) for part in zip(*parts, strict=True)] for at, parts in found.items()}
    return {
        at: DayRows(len(offsets), len(np.unique(offsets)), len(np.unique(hashes)) if key else None)
        for at, (offsets, hashes) in counted.items()
    }


def _key_hashes(batch: pa.RecordBatch, key: Sequence[str]) -> pa.Array:
    """A hash of each row's key; NULL if a part of the key is NULL, or there is no key."""
    if not key:
        return pa.nulls(batch.num_rows, pa.uint64())
    parts = []
    for path in key:
        name, *rest = path.split(".")
        parts.append(pc.struct_field(batch[name], rest) if rest else batch[name])
    hashes = row_hashes(pa.RecordBatch.from_arrays(parts, names=list(key)))
    is_missing = np.zeros(batch.num_rows, bool)
    for part in parts:
        is_missing |= part.is_null().to_numpy(zero_copy_only=False)
    return pa.array(hashes, mask=is_missing)


def shared(one: Collection[Table], other: Collection[Table], rows: RowPlaces) -> int:
    """The number of offsets that have a row on both sides."""
    here, there = (
        np.unique(np.concatenate([_hashed(table, rows, None)[_PLACE] for table in side]))
        if side
        else np.zeros(0, _ROW)[_PLACE]
        for side in (one, other)
    )
    return len(np.intersect1d(here, there, assume_unique=True))


def differences(
    live: Table | None, replay: Table | None, rows: RowPlaces, limit: int
) -> tuple[RowDifference, ...]:
    """The first places that differ, compared by a hash of each row. Takes 24 bytes per row on each side."""
    common = _common(live, replay) if live is not None and replay is not None else None
    here, there = (
        np.zeros(0, _ROW) if table is None else _hashed(table, rows, common) for table in (live, replay)
    )
    both, at_here, at_there = np.intersect1d(here[_PLACE], there[_PLACE], return_indices=True)
    found = [
        RowDifference(int(partition), int(offset), only=only)
        for side, only in ((here, "live"), (there, "replay"))
        for partition, offset in np.unique(np.setdiff1d(side[_PLACE], both))[:limit]
    ]
    differing = both[here["hash"][at_here] != there["hash"][at_there]][:limit]
    if live is not None and replay is not None and len(differing):
        found += _named(live, replay, rows, differing, limit)
    return tuple(sorted(found, key=lambda each: (each.partition, each.offset))[:limit])


def _named(live: Table, replay: Table, rows: RowPlaces, differing: Any, limit: int) -> list[RowDifference]:
    from kbq_assets.adapters.duckdb.comparison import compare_tables  # not for workers

    [epoch] = {epoch for _, epoch, _ in rows.places}
    by_partition: dict[int, list[int]] = defaultdict(list)
    for partition, offset in differing:
        by_partition[int(partition)].append(int(offset))
    places = RowPlaces(rows.topic, tuple((p, epoch, offsets_of(o)) for p, o in sorted(by_partition.items())))
    wanted = pa.schema([*schema_to_pyarrow(live.schema().select(*schema.POSITIONS)), *_common(live, replay)])
    both = [
        pa.Table.from_batches(
            (by_name(batch, wanted) for batch in _rows(table, places, tuple(wanted.names))), wanted
        )
        for table in (replay, live)
    ]
    columns = [column for column in schema.columns_in(live) if column.name in wanted.names]
    compared = compare_tables(both[0], both[1], columns, limit, EVERYTHING)
    return [RowDifference(row.range.partition, row.offset, row.columns) for row in compared.differing]


def _common(live: Table, replay: Table) -> pa.Schema:
    """The compared columns that both tables have, with the live table's types."""
    names = {field.name for field in replay.schema().fields}
    known = schema_to_pyarrow(live.schema())
    kept = EVERYTHING.columns(name for name in known.names if name in names)
    return pa.schema([known.field(name) for name in kept])


def _hashed(table: Table, rows: RowPlaces, compared: pa.Schema | None) -> npt.NDArray[Any]:
    """Places with a hash of the columns ``compared``, or 0 if it is None."""
    found = []
    for batch in _rows(table, rows, (*schema.POSITIONS, *(compared.names if compared else ()))):
        each = np.zeros(batch.num_rows, _ROW)
        each["partition"], each["offset"] = batch["_kafka_partition"], batch["_kafka_offset"]
        if compared is not None:
            each["hash"] = row_hashes(by_name(batch, compared))
        found.append(each)
    return np.concatenate(found) if found else np.zeros(0, _ROW)


def _rows(table: Table, rows: RowPlaces, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    if not rows.places:
        return
    scan = table.scan(where(rows), selected_fields=tuple(dict.fromkeys(columns)))
    for batch in scan.to_arrow_batch_reader():
        yield batch.filter(pa.array(is_erased(batch, rows)))
