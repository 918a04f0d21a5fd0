"""From chunks to staged files: one window of one topic-partition, a file per table and schema.

The encoder validates every record, appends the good ones to their files in offset order, and gives the others
back as :class:`Rejects`. What becomes of rejects (fail, skip, error table) is the caller's policy; see
``error_rows``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TypeAlias

import numpy as np

from kbq_assets.core.errors import EncoderMisuse
from kbq_assets.wire.chunk import Chunk, Longs
from kbq_assets.wire.files.assemble import RecordOrigin
from kbq_assets.wire.files.blocks import SharedBlocks
from kbq_assets.wire.files.codec import Codec
from kbq_assets.wire.files.container import BLOCK_BYTES, Sink
from kbq_assets.wire.files.staged_file import EncodedFile, FileEncoder, NewFile, OpenSink
from kbq_assets.wire.records.event_time import EventTimes, event_times
from kbq_assets.wire.records.reasons import Reason
from kbq_assets.wire.records.rejects import NO_SCHEMA_ID, Rejections, Rejects
from kbq_assets.wire.records.schema import BodyKind, StagedSchema
from kbq_assets.wire.records.select import Chooser, Selector, Value
from kbq_assets.wire.records.validate import (
    BAD_MAGIC,
    NULL,
    PREFIX,
    SHORT,
    Captures,
    RecordLimits,
    Validation,
    split_prefix,
    validate_avro,
    validate_json,
)

__all__ = [  # all that a worker needs, in one place
    "NO_SCHEMA_ID",
    "EncodedFile",
    "FileEncoder",
    "NewFile",
    "OpenSink",
    "RecordLimits",
    "RecordOrigin",
    "RejectedSchema",
    "Rejects",
    "Route",
    "Sink",
    "ValueFormat",
    "WindowEncoder",
]

JSON_SCHEMA_ID = 0
"""In the place of a schema id where there is none: JSON topics and tombstones."""

MOST_TABLES = 200
"""Of a window: every open file takes memory."""

_MANY_FILES, _SMALL_BLOCK = 32, 64 * 1024
"""With so many open files, further ones have blocks of such size; snappy does not compress larger ones better."""


class ValueFormat(StrEnum):
    """How a topic's values are written."""

    AVRO = "avro"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Route:
    """Where the records of a schema id go. With a ``chooser`` each record's content says where: a route without one."""

    table: str
    schema: StagedSchema
    chooser: Chooser[Route | RejectedSchema] | None = None


@dataclass(frozen=True, slots=True)
class RejectedSchema:
    """Why records go nowhere: those of a schema id (UNKNOWN_SCHEMA, UNSTAGEABLE_SCHEMA), or what they choose."""

    reason: Reason
    message: str


Resolve: TypeAlias = Callable[[int], Route | RejectedSchema]


class WindowEncoder:
    """The staged files of one window of one topic-partition.

    Call :meth:`add` with chunks in offset order, then :meth:`finish` once. Whatever ``resolve``,
    ``open_sink`` or a sink's ``write`` raises comes out of :meth:`add`; the window is then to be dropped, its
    files are incomplete.
    """

    def __init__(
        self,
        source: RecordOrigin,
        *,
        resolve: Resolve,
        open_sink: OpenSink,
        sync_marker: bytes,
        value_format: ValueFormat = ValueFormat.AVRO,
        codec: Codec = "snappy",
        limits: RecordLimits = RecordLimits(),  # noqa: B008 (frozen)
        block_bytes: int = BLOCK_BYTES,
        tombstones: Route | None = None,
        max_tables: int = MOST_TABLES,
    ) -> None:
        self._source = source
        self._resolve = resolve
        self._open_sink = open_sink
        self._sync_marker = sync_marker
        self._value_format = value_format
        self._codec = codec
        self._limits = limits
        self._block_bytes = block_bytes
        self._tombstones = tombstones
        self._max_tables = max_tables
        self._routes: dict[int, Route | RejectedSchema] = {}
        self._selectors: dict[tuple[int, str], Selector[Route | RejectedSchema]] = {}
        self._chosen: dict[tuple[str, str], Route] = {}
        self._blocks: SharedBlocks | None = None
        self._files: dict[tuple[str, int, str], FileEncoder] = {}
        self._bytes_in_finished = 0
        self.rows = 0

    @property
    def open_files(self) -> tuple[FileEncoder, ...]:
        """The files that still take records."""
        return tuple(self._files.values())

    @property
    def bytes_written(self) -> int:
        """Bytes in all sinks, those of finished files included."""
        return self._bytes_in_finished + sum(file.bytes_written for file in self._files.values())

    def add(self, chunk: Chunk) -> Rejects:
        """Append the good records of ``chunk`` to their files; the result is all others."""
        rejected = Rejections(chunk)
        groups = (
            self._json_groups(chunk) if self._value_format is ValueFormat.JSON else self._avro_groups(chunk)
        )
        for schema_id, rows in groups:
            if schema_id in _UNREADABLE:
                self._add_unreadable(chunk, schema_id, rows, rejected)
            else:
                self._add_group(chunk, schema_id, rows, rejected)
        return rejected.sorted()

    def rotate(self, *, max_bytes: int) -> tuple[EncodedFile, ...]:
        """Finish the files that have at least so many bytes; their next record opens a new file."""
        return self._finish([key for key, file in self._files.items() if file.bytes_written >= max_bytes])

    def finish(self) -> tuple[EncodedFile, ...]:
        """Finish all open files, in the order of their first offsets."""
        return self._finish(list(self._files))

    def _finish(self, keys: list[tuple[str, int, str]]) -> tuple[EncodedFile, ...]:
        ended = [self._files.pop(key) for key in keys]
        finished = [file.finish() for file in ended]
        for file in ended:
            if self._blocks is not None and file.slot >= 0:
                self._blocks.give(file.slot)
        self._bytes_in_finished += sum(file.bytes_written for file in finished)
        return tuple(sorted(finished, key=lambda file: (file.first_offset, file.table)))

    def _avro_groups(self, chunk: Chunk) -> Iterator[tuple[int, Longs]]:
        return _grouped(split_prefix(chunk))

    def _json_groups(self, chunk: Chunk) -> Iterator[tuple[int, Longs]]:
        # With a table for tombstones they are payloads like others, and keep their place among them.
        if self._tombstones is not None:
            return _grouped(np.zeros(len(chunk), np.int64))
        return _grouped(np.where(chunk.starts < 0, NULL, JSON_SCHEMA_ID).astype(np.int64))

    def _add_group(self, chunk: Chunk, schema_id: int, rows: Longs, rejected: Rejections) -> None:
        route = self._route(schema_id)
        if isinstance(route, RejectedSchema):
            rejected.all(rows, route.reason, schema_id, route.message)
            return
        if (route.schema.body is BodyKind.JSON) is not (self._value_format is ValueFormat.JSON):
            raise EncoderMisuse(
                f"schema id {schema_id} resolves to a schema of another format than the topic's"
            )
        validation = self._validate(chunk, route.schema, rows)
        good = validation.reasons == Reason.GOOD
        if good.all():
            self._append(chunk, route, schema_id, rows, validation.captures, rejected)
            return
        rejected.invalid(route.schema, validation, rows, schema_id)
        captures = validation.captures
        self._append(chunk, route, schema_id, rows[good], captures.take(good), rejected)

    def _validate(self, chunk: Chunk, schema: StagedSchema, rows: Longs) -> Validation:
        if schema.body is not BodyKind.JSON:
            return validate_avro(chunk, schema.program, rows, self._limits)
        validation = validate_json(chunk, rows, self._limits)
        if self._tombstones is not None:
            validation.reasons[chunk.starts[rows] < 0] = Reason.GOOD
        return validation

    def _add_unreadable(self, chunk: Chunk, schema_id: int, rows: Longs, rejected: Rejections) -> None:
        if schema_id != NULL:
            rejected.all(rows, _UNREADABLE[schema_id], NO_SCHEMA_ID)
        elif self._tombstones is not None:
            self._append(chunk, self._tombstones, JSON_SCHEMA_ID, rows, _no_captures(len(rows)), rejected)
        else:
            keyless = np.zeros(len(rows), np.bool_) if chunk.keys is None else chunk.keys.starts[rows] < 0
            rejected.some(rows, np.where(keyless, Reason.NULL_VALUE, Reason.TOMBSTONE))

    def _append(
        self,
        chunk: Chunk,
        route: Route,
        schema_id: int,
        rows: Longs,
        captures: Captures,
        rejected: Rejections,
    ) -> None:
        if not len(rows):
            return
        if route.chooser is None:
            self._write(chunk, route, schema_id, rows, captures)
            return
        if self._blocks is None:
            self._blocks = SharedBlocks(min(self._max_tables, MOST_TABLES), self._small_block)
        own = captures.first(route.schema.program.captures - route.schema.program.routes)
        parts: list[tuple[FileEncoder, Longs]] = []
        for chosen, picked in self._selector(route, schema_id).split(chunk, rows, captures):
            if isinstance(chosen, RejectedSchema):
                rejected.all(rows[picked], chosen.reason, schema_id, chosen.message)
            else:
                first = int(chunk.offsets[rows[picked[0]]])
                parts.append((self._file(chosen, schema_id, first, self._blocks), picked))
        if len(parts) > 1 and all(file.slot >= 0 for file, _ in parts):
            self._scatter(self._blocks, chunk, route.schema, rows, own, parts)
        else:
            self._each(chunk, rows, own, parts)

    def _each(
        self, chunk: Chunk, rows: Longs, captures: Captures, parts: Sequence[tuple[FileEncoder, Longs]]
    ) -> None:
        """Append to one file after another."""
        for file, picked in parts:
            if len(picked) == len(rows):
                file.append(chunk, rows, captures, self._prefix)
            else:
                file.append(chunk, rows[picked], captures.take(picked), self._prefix)
            self.rows += len(picked)

    def _scatter(
        self,
        blocks: SharedBlocks,
        chunk: Chunk,
        schema: StagedSchema,
        rows: Longs,
        captures: Captures,
        parts: Sequence[tuple[FileEncoder, Longs]],
    ) -> None:
        """Append to many files in one pass over the chunk."""
        slots = np.full(len(rows), -1, np.int64)
        times, fallbacks, _ = event_times(chunk, rows, captures, schema.event_unit)
        for file, picked in parts:
            slots[picked] = file.slot
            blocks.used[file.slot], blocks.rows[file.slot] = file.bytes_buffered, 0
            if fallbacks:  # which of its rows they are is not kept
                found = event_times(chunk, rows[picked], captures.take(picked), schema.event_unit)
            else:
                found = EventTimes(times[picked] if len(times) else times)
            file.note(chunk, rows[picked], found)
            self.rows += len(picked)
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
        suffix = next(iter(files.values())).suffix  # of one window and one schema: alike but for names
        done = 0
        while (done := suffix.scatter(blocks, chunk, self._prefix, rows, slots, times, done)) < len(rows):
            full = files[int(slots[done])]
            self._settle(blocks, full)
            if full.bytes_buffered:
                full.flush()
            else:  # a record larger than the block
                one = slice(done, done + 1)
                full.lay(chunk, rows[one], times[one] if len(times) else times, self._prefix)
                full.flush()
                done += 1
            blocks.used[full.slot] = 0
        for file in files.values():
            self._settle(blocks, file)

    @staticmethod
    def _settle(blocks: SharedBlocks, file: FileEncoder) -> None:
        file.settle(int(blocks.rows[file.slot]), int(blocks.used[file.slot]))
        blocks.rows[file.slot] = 0

    @property
    def _prefix(self) -> int:
        return PREFIX if self._value_format is ValueFormat.AVRO else 0

    def _write(self, chunk: Chunk, route: Route, schema_id: int, rows: Longs, captures: Captures) -> None:
        self._file(route, schema_id, int(chunk.offsets[rows[0]])).append(chunk, rows, captures, self._prefix)
        self.rows += len(rows)

    def _route(self, schema_id: int) -> Route | RejectedSchema:
        if schema_id not in self._routes:
            self._routes[schema_id] = self._resolve(schema_id)
        return self._routes[schema_id]

    def _selector(self, route: Route, schema_id: int) -> Selector[Route | RejectedSchema]:
        key = (schema_id, route.schema.fingerprint)
        selector = self._selectors.get(key)
        if selector is None:
            assert route.chooser is not None
            chooser = Chooser(route.chooser.inputs, partial(self._chosen_by, route.chooser))
            selector = self._selectors[key] = Selector(chooser, route.schema.program)
        return selector

    def _chosen_by(
        self, chooser: Chooser[Route | RejectedSchema], values: tuple[Value, ...]
    ) -> Route | RejectedSchema:
        """A choice, one object for each table and schema."""
        choice = chooser.choose(values)
        if isinstance(choice, RejectedSchema):
            return choice
        key = (choice.table, choice.schema.fingerprint)
        if key not in self._chosen:
            tables = {table for table, _ in self._chosen}
            if len(tables | {choice.table}) > self._max_tables:
                return RejectedSchema(
                    Reason.TOO_MANY_TABLES, f"{choice.table}: {Reason.TOO_MANY_TABLES.message}"
                )
            self._chosen[key] = choice
        return self._chosen[key]

    @property
    def _small_block(self) -> int:
        return min(self._block_bytes, _SMALL_BLOCK)

    def _file(
        self, route: Route, schema_id: int, first_offset: int, blocks: SharedBlocks | None = None
    ) -> FileEncoder:
        key = (route.table, schema_id, route.schema.fingerprint)
        file = self._files.get(key)
        if file is None:
            new = NewFile(*key, first_offset)
            if blocks is None:
                size = self._block_bytes if len(self._files) < _MANY_FILES else self._small_block
            else:
                size = blocks.block_bytes
            sink = self._open_sink(new)
            file = FileEncoder(
                new, sink, route.schema, self._source, self._codec, self._sync_marker, size, blocks
            )
            self._files[key] = file
        return file


_UNREADABLE = {NULL: Reason.NULL_VALUE, BAD_MAGIC: Reason.WRONG_MAGIC, SHORT: Reason.TOO_SHORT}


def _grouped(keys: Longs) -> Iterator[tuple[int, Longs]]:
    """The row indexes of each distinct key, ascending; without a sort where there is one key."""
    if not len(keys):
        return
    if (keys == keys[0]).all():
        yield int(keys[0]), np.arange(len(keys), dtype=np.int64)
        return
    order = np.argsort(keys, kind="stable")
    distinct, first = np.unique(keys[order], return_index=True)
    yield from zip(distinct.tolist(), np.split(order, first[1:]), strict=True)


def _no_captures(count: int) -> Captures:
    none = np.empty((0, count), np.int64)
    return Captures(np.empty((0, count), np.uint8), none, none)
