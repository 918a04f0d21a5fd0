"""The open files of one window, one per table and schema. Records of a chunk go to one of them, or to many in one
pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from kbq_assets.wire.chunk import Chunk, Longs
from kbq_assets.wire.files.assemble import Suffix
from kbq_assets.wire.files.blocks import SharedBlocks
from kbq_assets.wire.files.container import FileFormat
from kbq_assets.wire.files.staged_file import EncodedFile, FileEncoder, NewFile, OpenSink
from kbq_assets.wire.files.window import MOST_TABLES, Route, ValueFormat, WindowContext
from kbq_assets.wire.records.event_time import EventTimes, event_times
from kbq_assets.wire.records.prefix import PREFIX
from kbq_assets.wire.records.verdicts import Captures

_MANY_FILES, _SMALL_BLOCK = 32, 64 * 1024
"""Number of open files beyond which new ones have smaller blocks, which Snappy compresses as well."""

FileKey: TypeAlias = tuple[str, int, str, int]
"""Table, schema id, fingerprint, and the hour (0 if files have none)."""


class OpenFiles:
    """Opens a file at its first record. Errors of ``open_sink`` propagate."""

    def __init__(self, context: WindowContext, open_sink: OpenSink) -> None:
        self._context = context
        self._open_sink = open_sink
        self._prefix = PREFIX if context.value_format is ValueFormat.AVRO else 0
        self._small = replace(context.format, block_bytes=min(context.format.block_bytes, _SMALL_BLOCK))
        self._blocks: SharedBlocks | None = None
        self._files: dict[FileKey, FileEncoder] = {}
        self._bytes_in_finished = 0

    @property
    def files(self) -> Mapping[FileKey, FileEncoder]:
        """The files that still take records."""
        return self._files

    @property
    def bytes_written(self) -> int:
        """Bytes in all sinks, including those of finished files."""
        return self._bytes_in_finished + sum(file.bytes_written for file in self._files.values())

    def write(
        self, route: Route, schema_id: int, chunk: Chunk, rows: Longs, captures: Captures, hour: int = 0
    ) -> None:
        """Append records to the file of their route, and of their hour if it has one."""
        format_ = self._small if len(self._files) >= _MANY_FILES else None
        file = self._file(route, schema_id, int(chunk.offsets[rows[0]]), format_, hour=hour)
        file.append(chunk, rows, captures, self._prefix)

    def write_each(
        self,
        chosen: Sequence[tuple[Route, Longs]],
        schema_id: int,
        chunk: Chunk,
        rows: Longs,
        captures: Captures,
    ) -> None:
        """Append records to the files that they chose. ``chosen`` has routes of one schema with indexes into
        ``rows``."""
        if self._blocks is None:
            slots = min(self._context.max_tables, MOST_TABLES)
            self._blocks = SharedBlocks(slots, self._small.block_bytes)
        parts = [
            (self._file(route, schema_id, int(chunk.offsets[rows[picked[0]]]), shared=self._blocks), picked)
            for route, picked in chosen
        ]
        if len(parts) > 1 and all(file.slot >= 0 for file, _ in parts):
            self._scatter(self._blocks, chunk, rows, captures, parts)
            return
        for file, picked in parts:
            if len(picked) == len(rows):
                file.append(chunk, rows, captures, self._prefix)
            else:
                file.append(chunk, rows[picked], captures.take(picked), self._prefix)

    def finish(self, keys: Iterable[FileKey]) -> tuple[EncodedFile, ...]:
        """Finish files, in the order of their first offsets."""
        ended = [self._files.pop(key) for key in keys]
        finished = [file.finish() for file in ended]
        for file in ended:
            if self._blocks is not None and file.slot >= 0:
                self._blocks.give(file.slot)
        self._bytes_in_finished += sum(file.bytes_written for file in finished)
        return tuple(sorted(finished, key=lambda file: (file.first_offset, file.table)))

    def _scatter(
        self,
        blocks: SharedBlocks,
        chunk: Chunk,
        rows: Longs,
        captures: Captures,
        parts: Sequence[tuple[FileEncoder, Longs]],
    ) -> None:
        """Append to many files in one pass over the chunk."""
        slots = np.full(len(rows), -1, np.int64)
        schema = parts[0][0].suffix.schema
        unit, bounds = schema.event_unit, schema.metadata.bounds
        times, fallbacks, _ = event_times(chunk, rows, captures, unit, bounds)
        for file, picked in parts:
            slots[picked] = file.slot
            blocks.used[file.slot], blocks.rows[file.slot] = file.bytes_buffered, 0
            if fallbacks:  # the pass over all rows only counts them
                found = event_times(chunk, rows[picked], captures.take(picked), unit, bounds)
            else:
                found = EventTimes(times[picked] if len(times) else times)
            file.note(chunk, rows[picked], found)
        placed = slots >= 0
        if not placed.all():
            rows, slots, times = rows[placed], slots[placed], times[placed] if len(times) else times
        self._lay(blocks, {file.slot: file for file, _ in parts}, (chunk, rows, slots, times))

    def _lay(
        self,
        blocks: SharedBlocks,
        files: Mapping[int, FileEncoder],
        records: tuple[Chunk, Longs, Longs, Longs],
    ) -> None:
        chunk, rows, slots, times = records
        suffix = next(
            iter(files.values())
        ).suffix  # all of one window, schema and schema id, so equal except for names
        done = 0
        while (done := suffix.scatter(blocks, chunk, self._prefix, rows, slots, times, done)) < len(rows):
            full = files[int(slots[done])]
            _settle(blocks, full)
            if full.bytes_buffered:
                full.flush()
            else:  # a record larger than the block
                one = slice(done, done + 1)
                full.lay(chunk, rows[one], times[one] if len(times) else times, self._prefix)
                full.flush()
                done += 1
            blocks.used[full.slot] = 0
        for file in files.values():
            _settle(blocks, file)

    def _file(
        self,
        route: Route,
        schema_id: int,
        first_offset: int,
        format_: FileFormat | None = None,
        shared: SharedBlocks | None = None,
        hour: int = 0,
    ) -> FileEncoder:
        key = (route.table, schema_id, route.schema.fingerprint, hour)
        if key not in self._files:
            new = NewFile(*key[:3], first_offset)
            sink = self._open_sink(new)
            format_ = self._small if shared is not None else format_ or self._context.format
            suffix = Suffix(self._context.origin, route.schema, schema_id)
            self._files[key] = FileEncoder(new, sink, suffix, format_, shared)
        return self._files[key]


def _settle(blocks: SharedBlocks, file: FileEncoder) -> None:
    file.settle(int(blocks.rows[file.slot]), int(blocks.used[file.slot]))
    blocks.rows[file.slot] = 0
