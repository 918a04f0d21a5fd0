"""Groups rows by partition, and names the folders of partitions."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table
from pyiceberg.transforms import HourTransform, MonthTransform

Longs: TypeAlias = npt.NDArray[np.int64]

_HOUR_MICROS: Final = 3_600_000_000
_EPOCH_HOURS_A_DAY: Final = 24
#: numpy uses radix sort for 16-bit numbers.
_FEW: Final = 1 << 16


@dataclass(frozen=True)
class PartitionedRows:
    """Rows with, for each partition, the indexes of its rows in order, and its folder."""

    rows: pa.Table
    places: tuple[Longs, ...]
    folders: tuple[str, ...]

    def parts(self) -> Iterator[tuple[pa.Table, str]]:
        """The rows of each partition, copied to separate memory, so that holding one partition retains no other."""
        if len(self.folders) == 1:
            yield self.rows, self.folders[0]
            return
        for places, folder in zip(self.places, self.folders, strict=True):
            yield _taken(self.rows, places), folder

    def slices(self) -> Iterator[tuple[pa.Table, str]]:
        """The rows of each partition, as parts of one sorted table."""
        ordered, start = _taken(self.rows, np.concatenate(self.places)), 0
        for places, folder in zip(self.places, self.folders, strict=True):
            yield ordered.slice(start, len(places)), folder
            start += len(places)


def partitioned(table: Table, rows: pa.Table) -> PartitionedRows:
    """Rows of a table (at least one), grouped by its partitions."""
    keys = _keys(table, rows)
    codes, count = np.zeros(rows.num_rows, np.int64), 1
    for values in keys:
        codes, count = _combined(codes, count, values)
    if count == 1:
        places = [np.arange(rows.num_rows)]
    else:
        order = np.argsort(codes.astype(np.uint16) if count <= _FEW else codes, kind="stable")
        places = np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)
    firsts = [[values[int(each[0])].as_py() for values in keys] for each in places]
    folders = [posixpath.join("data", *_folder(table, values)) for values in firsts]
    return PartitionedRows(rows, tuple(places), tuple(folders))


def _taken(rows: pa.Table, places: Longs) -> pa.Table:
    taken: pa.Table = pc.take(rows, pa.array(places), boundscheck=False)
    return taken


def _combined(codes: Longs, count: int, values: pa.Array) -> tuple[Longs, int]:
    """A number for each combination of a code, which is below ``count``, and a value."""
    found = values.dictionary_encode(null_encoding="encode")
    if len(found.dictionary) == 1:
        return codes, count
    codes, count = codes * len(found.dictionary) + found.indices.to_numpy(), count * len(found.dictionary)
    if count <= _FEW:
        return codes, count
    found = pa.array(codes).dictionary_encode()
    return found.indices.to_numpy().astype(np.int64), len(found.dictionary)


def _keys(table: Table, rows: pa.Table) -> list[pa.Array]:
    found = []
    for each in table.spec().fields:
        values = rows[table.schema().find_column_name(each.source_id)].combine_chunks()
        if isinstance(each.transform, HourTransform):
            micros = values.cast(pa.int64())
            hours = micros.fill_null(0).to_numpy() // _HOUR_MICROS
            values = pa.array(hours, mask=micros.is_null().to_numpy(zero_copy_only=False))
        elif isinstance(each.transform, MonthTransform):
            values = pc.add(
                pc.multiply(pc.subtract(pc.year(values), 1970), 12), pc.subtract(pc.month(values), 1)
            )
        found.append(values)
    return found


def _folder(table: Table, values: Sequence[Any]) -> Iterator[str]:
    """The names of a partition's folders. They are for people: Iceberg reads partitions from its manifests."""
    for each, value in zip(table.spec().fields, values, strict=True):
        text = "null" if value is None else str(value)
        if value is not None and isinstance(each.transform, HourTransform):
            text = f"{value % _EPOCH_HOURS_A_DAY:02}"
        elif value is not None and isinstance(each.transform, MonthTransform):
            text = f"{1970 + value // 12}-{value % 12 + 1:02}"
        yield f"{each.name}={quote(text, safe='')}"
