"""Reads positions and error rows in batches. Counts read only metadata columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThanOrEqual,
    IsNull,
    LessThanOrEqual,
    Or,
    Reference,
)
from pyiceberg.expressions.literals import literal
from pyiceberg.table import Table

from kbq_assets.adapters.iceberg.schema import POSITIONS
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.topics.error_tables import is_error_table
from kbq_assets.ports.errors_replay import REPLAYED_AT
from kbq_assets.ports.warehouse import (
    DoubledOffset,
    ErrorQuery,
    ErrorRow,
    KafkaRange,
    OffsetSummary,
)

_GROUP: Final = ("_kafka_topic", "_kafka_partition", "_kbq_epoch")
_NEWEST_FIRST: Final = (
    ("_kafka_timestamp", "descending"),
    ("_kbq_epoch", "descending"),
    ("_kafka_topic", "ascending"),
    ("_kafka_partition", "ascending"),
    ("_kafka_offset", "descending"),
)
#: A column for the size of a value, since a query may return only the value's beginning.
_SIZE: Final = "value size"
Offsets = Mapping[KafkaRange, npt.NDArray[np.int64]]


def unmarked(table: Table, *, of_errors: bool) -> BooleanExpression:
    """A filter that excludes rows marked by replays: in error tables the replayed rows, in others the added rows."""
    names = {field.name for field in table.schema().fields}
    is_asked = REPLAYED_AT in names and is_error_table(TableReference(*table.name()[-2:])) == of_errors
    return IsNull(term=Reference(REPLAYED_AT)) if is_asked else AlwaysTrue()


def offsets_of(table: Table, where: BooleanExpression) -> Offsets:
    """All offsets by topic, partition and epoch. Takes eight bytes per row."""
    found: dict[KafkaRange, list[npt.NDArray[np.int64]]] = defaultdict(list)
    for batch in table.scan(where, selected_fields=POSITIONS).to_arrow_batch_reader():
        grouped = (
            pa.table(batch).group_by(list(_GROUP), use_threads=False).aggregate([("_kafka_offset", "list")])
        )
        for row in range(grouped.num_rows):
            range_ = KafkaRange(*(grouped[name][row].as_py() for name in _GROUP))
            found[range_].append(grouped["_kafka_offset_list"][row].values.to_numpy())
    return {range_: np.concatenate(found[range_]) for range_ in sorted(found, key=_order)}


def summaries(table: Table, since: date | None) -> Mapping[KafkaRange, OffsetSummary]:
    """Rows that load jobs wrote, distinct offsets and their bounds per topic, partition and epoch."""
    loaded = And(_since(since), unmarked(table, of_errors=False))
    return {
        range_: OffsetSummary(len(offsets), len(np.unique(offsets)), int(offsets.min()), int(offsets.max()))
        for range_, offsets in offsets_of(table, loaded).items()
    }


def rows_per_range(table: Table) -> Mapping[KafkaRange, int]:
    """Rows per topic, partition and epoch, without replayed error rows."""
    found = offsets_of(table, unmarked(table, of_errors=True))
    return {range_: len(offsets) for range_, offsets in found.items()}


def doubled(
    tables: Mapping[TableReference, Table], since: date | None, limit: int
) -> tuple[DoubledOffset, ...]:
    """The lowest ``limit`` offsets of each topic, partition and epoch with several rows in the tables."""
    everywhere = {
        reference: offsets_of(table, And(_since(since), unmarked(table, of_errors=True)))
        for reference, table in tables.items()
    }
    ranges = sorted({range_ for found in everywhere.values() for range_ in found}, key=_order)
    return tuple(each for range_ in ranges for each in _doubled(range_, everywhere, limit))


def _doubled(
    range_: KafkaRange, everywhere: Mapping[TableReference, Offsets], limit: int
) -> Iterator[DoubledOffset]:
    holding = {reference: found[range_] for reference, found in everywhere.items() if range_ in found}
    offsets, counts = np.unique(np.concatenate(list(holding.values())), return_counts=True)
    for offset in offsets[counts > 1][:limit]:
        sources = [
            reference
            for reference, own in holding.items()
            for _ in range(int(np.count_nonzero(own == offset)))
        ]
        yield DoubledOffset(range_, int(offset), tuple(sorted(sources)))


def positions(table: Table, range_: KafkaRange, offset: int | None) -> Mapping[int, int]:
    """Rows per offset of one topic, partition and epoch."""
    wanted = {"_kafka_topic": range_.topic, "_kafka_partition": range_.partition, "_kbq_epoch": range_.epoch}
    if offset is not None:
        wanted["_kafka_offset"] = offset
    where = And(_equal(wanted), unmarked(table, of_errors=True))
    found = offsets_of(table, where).get(range_, np.zeros(0, np.int64))
    offsets, counts = np.unique(found, return_counts=True)
    return dict(zip(offsets.tolist(), counts.tolist(), strict=True))


def rows_of_others(table: Table, files: pa.Table) -> pa.Table:
    """The rows of a table between the lowest and highest offset of the files' rows, by topic and partition."""
    where: BooleanExpression = AlwaysFalse()
    groups = files.group_by(list(_GROUP[:2])).aggregate([("_kafka_offset", "min"), ("_kafka_offset", "max")])
    for row in groups.to_pylist():
        offset = Reference("_kafka_offset")
        one = _equal({name: row[name] for name in _GROUP[:2]})
        low = GreaterThanOrEqual(term=offset, value=literal(row["_kafka_offset_min"]))
        high = LessThanOrEqual(term=offset, value=literal(row["_kafka_offset_max"]))
        where = Or(where, And(one, And(low, high)))
    return table.scan(where).to_arrow()


def error_rows(table: Table, query: ErrorQuery) -> tuple[ErrorRow, ...]:
    """Rows of an error table: newest first, or by offset if the query has ``from_offset``. Keeps only the requested
    number of rows in memory, with values cut to the requested size."""
    where = _equal(query.values)
    order: tuple[tuple[str, str], ...] = _NEWEST_FIRST
    if query.from_offset is not None:
        own = GreaterThanOrEqual(term=Reference("_kafka_offset"), value=literal(query.from_offset))
        where, order = And(where, own), (("_kafka_offset", "ascending"),)
    if not query.replayed:
        where = And(where, unmarked(table, of_errors=True))
    found: pa.Table | None = None
    for batch in table.scan(where).to_arrow_batch_reader():
        rows = _shortened(pa.table(batch), query.value_bytes)
        rows = rows if found is None else pa.concat_tables([found, rows])
        found = rows.take(pc.sort_indices(rows, sort_keys=list(order))[: query.limit])
    return () if found is None else tuple(map(_error_row, found.to_pylist()))


def _shortened(rows: pa.Table, longest: int) -> pa.Table:
    """Rows with keys and values cut to ``longest`` bytes, and with the size of the whole values."""
    sizes = pc.binary_length(rows["value"])
    for name in ("key", "value"):
        place, column = rows.schema.get_field_index(name), rows[name].cast(pa.large_binary())
        rows = rows.set_column(place, name, pc.binary_slice(column, 0, longest))
    return rows.append_column(_SIZE, sizes)


def _error_row(row: Mapping[str, Any]) -> ErrorRow:
    return ErrorRow(
        topic=row["_kafka_topic"],
        partition=row["_kafka_partition"],
        offset=row["_kafka_offset"],
        epoch=row["_kbq_epoch"],
        timestamp_ms=round(row["_kafka_timestamp"].timestamp() * 1000),
        reason=row["reason"],
        message=row["message"],
        schema_id=row["schema_id"],
        key=row["key"],
        value=row["value"],
        value_size=row[_SIZE],
        headers=tuple((header["key"], header["value"]) for header in row["headers"] or ()),
    )


def _since(since: date | None) -> BooleanExpression:
    return (
        AlwaysTrue()
        if since is None
        else GreaterThanOrEqual(term=Reference("event_date"), value=literal(since.isoformat()))
    )


def _equal(values: Mapping[str, Any]) -> BooleanExpression:
    where: BooleanExpression = AlwaysTrue()
    for name, value in values.items():
        where = And(where, EqualTo(term=Reference(name), value=literal(value)))
    return where


def _order(range_: KafkaRange) -> tuple[str, int, int]:
    return range_.topic, range_.partition, range_.epoch
