"""One staged file while it is written: its current block, and the numbers for the commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from kbq_assets.wire.chunk import PADDING, Bytes, Chunk, Longs
from kbq_assets.wire.files.assemble import Suffix
from kbq_assets.wire.files.blocks import SharedBlocks, room_of
from kbq_assets.wire.files.container import ContainerWriter, FileFormat, Sink
from kbq_assets.wire.records.event_time import EventTimes, event_times
from kbq_assets.wire.records.rows_per_hour import HourCounter
from kbq_assets.wire.records.staged_schema import BodyKind
from kbq_assets.wire.records.verdicts import Captures


@dataclass(frozen=True, slots=True)
class NewFile:
    """The parts of a new file's name. ``first_offset`` is the offset of its first record."""

    table: str
    schema_id: int
    fingerprint: str
    first_offset: int


@dataclass(frozen=True, slots=True)
class EncodedFile:
    """A finished file. Offsets are those of its first and last record.

    ``event_dates`` are days since 1970, empty if there are more than `MOST_DATES` (core/protocol/commits.py).
    ``event_hours`` are rows by hour since 1970. ``newest_event_ms`` is the highest business time of a record.
    ``event_time_fallbacks`` counts rows that use the Kafka time although their topic defines a business time.
    """

    table: str
    schema_id: int
    fingerprint: str
    rows: int
    bytes_raw: int
    bytes_written: int
    first_offset: int
    last_offset: int
    event_dates: frozenset[int]
    event_hours: Mapping[int, int]
    newest_event_ms: int
    event_time_fallbacks: int


OpenSink: TypeAlias = Callable[[NewFile], Sink]


class FileEncoder:
    """One open file. It counts the numbers for the commit."""

    def __init__(
        self,
        file: NewFile,
        sink: Sink,
        suffix: Suffix,
        format_: FileFormat,
        blocks: SharedBlocks | None = None,
    ) -> None:
        self._file = file
        self._schema = suffix.schema
        self.suffix = suffix
        self.slot = -1 if blocks is None else blocks.take()
        self._block_bytes = format_.block_bytes
        self._writer = ContainerWriter(sink, suffix.schema.json, format_)
        if blocks is None or self.slot < 0:
            self._own: Bytes = np.empty(room_of(format_.block_bytes), np.uint8)
        else:
            self._own = blocks.block(self.slot)
        self._block = self._own
        self._rows_in_block = 0
        self._bytes_in_blocks = 0
        self._last_offset = file.first_offset
        self._hours = HourCounter()
        self._fallbacks = 0
        self.bytes_buffered = 0
        self.rows = 0

    @property
    def table(self) -> str:
        """The table of its rows."""
        return self._file.table

    @property
    def bytes_written(self) -> int:
        """Bytes in the sink, without the current block (``bytes_buffered``, before compression)."""
        return self._writer.bytes_written

    def append(self, chunk: Chunk, rows: Longs, captures: Captures, prefix: int) -> None:
        """Append the good records ``rows`` of ``chunk``, in offset order."""
        if not len(rows):
            return
        found = event_times(chunk, rows, captures, self._schema.event_unit, self._schema.metadata.bounds)
        self.note(chunk, rows, found)
        self.lay(chunk, rows, found.times, prefix)

    def note(self, chunk: Chunk, rows: Longs, found: EventTimes) -> None:
        """Count appended rows by their times, and store the last one's offset."""
        if len(found.times):
            self._hours.add(found.times, found.newest if found.fallbacks else None)
        else:
            whole = len(rows) == len(chunk)
            self._hours.add_kafka(chunk.timestamps if whole else chunk.timestamps[rows])
        self._fallbacks += found.fallbacks
        self._last_offset = int(chunk.offsets[rows[-1]])

    def lay(self, chunk: Chunk, rows: Longs, times: Longs, prefix: int) -> None:
        """Put records into blocks, and write full blocks."""
        done = 0
        while done < len(rows):
            done = self._fill_block(chunk, rows, times, done, prefix)

    def settle(self, rows: int, used: int) -> None:
        """Count ``rows`` that were put into the shared block, which now has ``used`` bytes."""
        self.rows += rows
        self._rows_in_block += rows
        self.bytes_buffered = used

    def finish(self) -> EncodedFile:
        """Write the last block. Does not close the sink; its owner does."""
        self.flush()
        return EncodedFile(
            table=self._file.table,
            schema_id=self._file.schema_id,
            fingerprint=self._file.fingerprint,
            rows=self.rows,
            bytes_raw=self._bytes_in_blocks,
            bytes_written=self._writer.bytes_written,
            first_offset=self._file.first_offset,
            last_offset=self._last_offset,
            event_dates=self._hours.days,
            event_hours=self._hours.hours,
            newest_event_ms=self.newest_ms,
            event_time_fallbacks=self._fallbacks,
        )

    @property
    def newest_ms(self) -> int:
        """The highest business time of a record; 0 for tombstones, which have none."""
        is_mute = self._schema.event_time and self._schema.body is BodyKind.EMPTY
        return 0 if is_mute else self._hours.newest_ms

    def _fill_block(self, chunk: Chunk, rows: Longs, times: Longs, first: int, prefix: int) -> int:
        until, used = self.suffix.append(
            self._block, self.bytes_buffered, chunk, prefix, rows, times, first, self._block_bytes
        )
        self.rows += until - first
        self._rows_in_block += until - first
        self.bytes_buffered = used
        if until == len(rows):
            return until
        if self._rows_in_block:
            self.flush()
        else:  # the record is larger than the block: allocate a block for it alone
            self._block = np.empty(self.suffix.room_for(chunk, int(rows[until])) + PADDING, np.uint8)
        return until

    def flush(self) -> None:
        """Write the block unless it is empty."""
        if not self._rows_in_block:
            return
        self._writer.write_block(self._block[: self.bytes_buffered], self._rows_in_block)
        self._bytes_in_blocks += self.bytes_buffered
        self._rows_in_block = self.bytes_buffered = 0
        self._block = self._own  # free the memory of a large record before the window ends
