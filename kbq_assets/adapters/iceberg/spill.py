"""Holds rows of many partitions until each partition is written: in memory up to a bound, then in temporary files.

A job over a year of history has thousands of partitions, and each batch has rows of all. With one writer open for each,
memory would be unbounded. With few writers, each batch would create a separate file per partition.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, KeysView, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

#: Memory overhead of an array, in bytes.
_ARRAY_BYTES: Final = 1 << 10


class HeldRows:
    """Rows of some partitions in memory, until each has enough for a row group. ``bytes`` is their size."""

    def __init__(self) -> None:
        self._parts: dict[str, list[pa.Table]] = {}
        self._sizes: dict[str, int] = {}
        self.bytes = 0

    @property
    def folders(self) -> KeysView[str]:
        """The partitions that have rows here."""
        return self._parts.keys()

    def add(self, parts: Iterable[tuple[pa.Table, str]]) -> None:
        """Hold rows of partitions. They must share no memory with other rows."""
        for rows, folder in parts:
            size = rows.nbytes + rows.num_columns * _ARRAY_BYTES
            self._parts.setdefault(folder, []).append(rows)
            self._sizes[folder] = self._sizes.get(folder, 0) + size
            self.bytes += size

    def take_largest(self) -> tuple[pa.Table, str]:
        return self._take(max(self._sizes, key=self._sizes.__getitem__))

    def take_all(self) -> list[tuple[pa.Table, str]]:
        return [self._take(folder) for folder in list(self._parts)]

    def _take(self, folder: str) -> tuple[pa.Table, str]:
        self.bytes -= self._sizes.pop(folder)
        return pa.concat_tables(self._parts.pop(folder)), folder


class SpilledRows:
    """Batches on disk, sorted by partition, with the place of each partition's rows. Reading maps them into memory
    without copying."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs: list[pa.Table] = []
        self._places: dict[str, list[tuple[int, int, int]]] = defaultdict(list)

    @property
    def folders(self) -> list[str]:
        """The partitions that have rows here, sorted."""
        return sorted(self._places)

    def add(self, parts: Sequence[tuple[pa.Table, str]]) -> None:
        """Write the rows of a batch, given as one part per partition. Raises OSError."""
        path = self._folder / f"{len(self._runs)}.arrow"
        start = 0
        with pa.OSFile(str(path), "wb") as stream, pa.ipc.new_file(stream, parts[0][0].schema) as writer:
            for rows, folder in parts:
                self._places[folder].append((len(self._runs), start, rows.num_rows))
                start += rows.num_rows
            writer.write_table(pa.concat_tables([rows for rows, _ in parts]).combine_chunks())
        self._runs.append(pa.ipc.open_file(pa.memory_map(str(path))).read_all())

    def take(self, folder: str, most_bytes: int) -> Iterator[pa.Table]:
        """The rows of a partition, in tables of about ``most_bytes``."""
        waiting: list[pa.Table] = []
        size = 0
        for run, start, length in self._places.pop(folder):
            waiting.append(self._runs[run].slice(start, length))
            size += waiting[-1].nbytes
            if size >= most_bytes:
                yield pa.concat_tables(waiting)
                waiting, size = [], 0
        if waiting:
            yield pa.concat_tables(waiting)
