"""Rows of many partitions, in temporary files until each partition is written.

A job over a year of history has thousands of partitions, and rows of each in every batch. With as many writers open,
memory has no bound; with few, each batch would make a file of its own per partition.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

import pyarrow as pa


class SpilledRows:
    """Batches that are sorted by partition, on disk, with the place of each partition's rows. Reading maps them into
    memory, and copies nothing."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kbq-lake-")
        self._runs: list[pa.Table] = []
        self._places: dict[str, list[tuple[int, int, int]]] = defaultdict(list)

    def __enter__(self) -> SpilledRows:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runs.clear()
        self._folder.cleanup()

    @property
    def folders(self) -> list[str]:
        """The partitions that have rows here, sorted."""
        return sorted(self._places)

    def add(self, parts: Sequence[tuple[pa.Table, str]]) -> None:
        """Write the rows of a batch, with the partition of each part. Raises OSError."""
        path = Path(self._folder.name) / f"{len(self._runs)}.arrow"
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
