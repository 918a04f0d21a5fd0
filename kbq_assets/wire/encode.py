"""From chunks to staged files: one window of one topic-partition, a file per table and schema.

The encoder validates every record, appends the good ones to their files in offset order, and gives the others
back as :class:`Rejects`. What becomes of rejects (fail, skip, error table) is the caller's policy; see
``error_rows``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kbq_assets.wire.assemble import Source, Suffix
from kbq_assets.wire.chunk import PADDING, Bytes, Chunk, Longs
from kbq_assets.wire.codec import Codec
from kbq_assets.wire.container import BLOCK_BYTES, ContainerWriter, Sink
from kbq_assets.wire.errors import EncoderMisuse
from kbq_assets.wire.reasons import Reason
from kbq_assets.wire.schema import BodyKind, StagedSchema
from kbq_assets.wire.validate import (
    BAD_MAGIC,
    NULL,
    PREFIX,
    SHORT,
    Captures,
    Limits,
    Validation,
    describe,
    event_days,
    split_prefix,
    validate_avro,
    validate_json,
)

__all__ = [  # all that a worker needs, in one place
    "EncodedFile",
    "Limits",
    "NewFile",
    "Problem",
    "Rejects",
    "Route",
    "Sink",
    "Source",
    "ValueFormat",
    "WindowEncoder",
]

JSON_SCHEMA_ID = 0
"""In the place of a schema id where there is none: JSON topics and tombstones."""

NO_SCHEMA_ID = -1


class ValueFormat(StrEnum):
    """How a topic's values are written."""

    AVRO = "avro"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Route:
    """Where the records of a schema id go."""

    table: str
    schema: StagedSchema


@dataclass(frozen=True, slots=True)
class Problem:
    """Why the records of a schema id go nowhere: UNKNOWN_SCHEMA or UNSTAGEABLE_SCHEMA."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class NewFile:
    """What the name of a file about to be written needs. ``first_offset`` is its first record's."""

    table: str
    schema_id: int
    fingerprint: str
    first_offset: int


@dataclass(frozen=True, slots=True)
class EncodedFile:
    """A finished file. Offsets are those of its first and last record; event dates are days since 1970."""

    table: str
    schema_id: int
    fingerprint: str
    rows: int
    bytes_raw: int
    bytes_written: int
    first_offset: int
    last_offset: int
    event_dates: frozenset[int]
    event_date_fallbacks: int
    crc32c: int


Resolve: TypeAlias = Callable[[int], Route | Problem]
OpenSink: TypeAlias = Callable[[NewFile], Sink]


@dataclass(frozen=True, slots=True, eq=False)
class Rejects:
    """Records of one chunk that are not rows: indexes into it in ascending order, and why."""

    rows: Longs
    reasons: NDArray[np.uint8]
    schema_ids: Longs
    messages: list[str]

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, selection: NDArray[np.bool_] | Sequence[int] | Longs) -> Rejects:
        """Those of a mask, or of ascending indexes into these rejects."""
        chosen = np.asarray(selection)
        indexes = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen.astype(np.int64)
        return Rejects(
            self.rows[indexes],
            self.reasons[indexes],
            self.schema_ids[indexes],
            [self.messages[index] for index in indexes.tolist()],
        )

    def counts(self) -> dict[Reason, int]:
        """How many there are of each reason."""
        reasons, counts = np.unique(self.reasons, return_counts=True)
        return {
            Reason(reason): count for reason, count in zip(reasons.tolist(), counts.tolist(), strict=True)
        }


class FileEncoder:
    """One open file: a block that fills, and what the commit needs to know."""

    def __init__(
        self,
        file: NewFile,
        sink: Sink,
        schema: StagedSchema,
        source: Source,
        codec: Codec,
        sync_marker: bytes,
        block_bytes: int,
    ) -> None:
        self._file = file
        self._schema = schema
        self._suffix = Suffix(source, schema)
        self._block_bytes = block_bytes
        self._writer = ContainerWriter(sink, schema_json=schema.json, codec=codec, sync_marker=sync_marker)
        self._room = block_bytes + max(4096, block_bytes // 8)
        self._block: Bytes = np.empty(self._room, np.uint8)
        self._rows_in_block = 0
        self._bytes_in_blocks = 0
        self._last_offset = file.first_offset
        self._event_dates: set[int] = set()
        self._fallbacks = 0
        self.bytes_buffered = 0
        self.rows = 0

    @property
    def table(self) -> str:
        return self._file.table

    @property
    def schema_id(self) -> int:
        return self._file.schema_id

    @property
    def bytes_written(self) -> int:
        """Bytes in the sink; the block that fills comes on top (``bytes_buffered``, before compression)."""
        return self._writer.bytes_written

    def append(self, chunk: Chunk, rows: Longs, captures: Captures, prefix: int) -> None:
        """Append the good records ``rows`` of ``chunk``, in offset order."""
        if not len(rows):
            return
        days, fallbacks = event_days(chunk, rows, captures)
        self._event_dates.update(_distinct(days))
        self._fallbacks += fallbacks
        done = 0
        while done < len(rows):
            done = self._fill_block(chunk, rows, days, done, prefix)
        self._last_offset = int(chunk.offsets[rows[-1]])

    def finish(self) -> EncodedFile:
        """Write the last block. The sink stays open: its owner closes it."""
        self._flush()
        return EncodedFile(
            self._file.table,
            self._file.schema_id,
            self._file.fingerprint,
            self.rows,
            self._bytes_in_blocks,
            self._writer.bytes_written,
            self._file.first_offset,
            self._last_offset,
            frozenset(self._event_dates),
            self._fallbacks,
            self._writer.crc32c,
        )

    def _fill_block(self, chunk: Chunk, rows: Longs, days: NDArray[np.int32], first: int, prefix: int) -> int:
        until, used = self._suffix.append(
            self._block, self.bytes_buffered, chunk, prefix, rows, days, first, self._block_bytes
        )
        self.rows += until - first
        self._rows_in_block += until - first
        self.bytes_buffered = used
        if until == len(rows):
            return until
        if self._rows_in_block:
            self._flush()
        else:  # a record larger than the block: make room for it alone
            self._block = np.empty(self._suffix.room_for(chunk, int(rows[until])) + PADDING, np.uint8)
        return until

    def _flush(self) -> None:
        if not self._rows_in_block:
            return
        self._writer.write_block(self._block[: self.bytes_buffered], self._rows_in_block)
        self._bytes_in_blocks += self.bytes_buffered
        self._rows_in_block = self.bytes_buffered = 0
        if len(self._block) > self._room:  # one large record must not hold memory for the whole window
            self._block = np.empty(self._room, np.uint8)


class WindowEncoder:
    """The staged files of one window of one topic-partition.

    Call :meth:`add` with chunks in offset order, then :meth:`finish` once. Whatever ``resolve``,
    ``open_sink`` or a sink's ``write`` raises comes out of :meth:`add`; the window is then to be dropped, its
    files are incomplete.
    """

    def __init__(
        self,
        source: Source,
        *,
        resolve: Resolve,
        open_sink: OpenSink,
        sync_marker: bytes,
        value_format: ValueFormat = ValueFormat.AVRO,
        codec: Codec = "snappy",
        limits: Limits = Limits(),  # noqa: B008 (frozen)
        block_bytes: int = BLOCK_BYTES,
        tombstones: Route | None = None,
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
        self._routes: dict[int, Route | Problem] = {}
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
        rejected = _Rejections(chunk)
        groups = (
            self._json_groups(chunk) if self._value_format is ValueFormat.JSON else self._avro_groups(chunk)
        )
        for schema_id, rows in groups:
            if schema_id in _UNREADABLE:
                self._add_unreadable(chunk, schema_id, rows, rejected)
            else:
                self._add_group(chunk, schema_id, rows, rejected)
        return rejected.sorted()

    def rotate(self, *, max_bytes: int, max_rows: int | None = None) -> tuple[EncodedFile, ...]:
        """Finish the files that have at least so many bytes or rows; their next record opens a new file."""
        full = [
            key
            for key, file in self._files.items()
            if file.bytes_written >= max_bytes or (max_rows is not None and file.rows >= max_rows)
        ]
        return self._finish(full)

    def finish(self) -> tuple[EncodedFile, ...]:
        """Finish all open files, in the order of their first offsets."""
        return self._finish(list(self._files))

    def _finish(self, keys: list[tuple[str, int, str]]) -> tuple[EncodedFile, ...]:
        finished = [self._files.pop(key).finish() for key in keys]
        self._bytes_in_finished += sum(file.bytes_written for file in finished)
        return tuple(sorted(finished, key=lambda file: (file.first_offset, file.table)))

    def _avro_groups(self, chunk: Chunk) -> Iterator[tuple[int, Longs]]:
        return _grouped(split_prefix(chunk))

    def _json_groups(self, chunk: Chunk) -> Iterator[tuple[int, Longs]]:
        # With a table for tombstones they are payloads like others, and keep their place among them.
        if self._tombstones is not None:
            return _grouped(np.zeros(len(chunk), np.int64))
        return _grouped(np.where(chunk.starts < 0, NULL, JSON_SCHEMA_ID).astype(np.int64))

    def _add_group(self, chunk: Chunk, schema_id: int, rows: Longs, rejected: _Rejections) -> None:
        route = self._route(schema_id)
        if isinstance(route, Problem):
            rejected.all(rows, route.reason, schema_id, route.message)
            return
        if (route.schema.body is BodyKind.JSON) is not (self._value_format is ValueFormat.JSON):
            raise EncoderMisuse(
                f"schema id {schema_id} resolves to a schema of another format than the topic's"
            )
        validation = self._validate(chunk, route.schema, rows)
        good = validation.reasons == Reason.GOOD
        if good.all():
            self._append(chunk, route, schema_id, rows, validation.captures)
            return
        rejected.invalid(route.schema, validation, rows, schema_id)
        captures = validation.captures
        kept = Captures(captures.kinds[:, good], captures.starts[:, good], captures.ends[:, good])
        self._append(chunk, route, schema_id, rows[good], kept)

    def _validate(self, chunk: Chunk, schema: StagedSchema, rows: Longs) -> Validation:
        if schema.body is not BodyKind.JSON:
            return validate_avro(chunk, schema.program, rows, self._limits)
        validation = validate_json(chunk, rows, self._limits)
        if self._tombstones is not None:
            validation.reasons[chunk.starts[rows] < 0] = Reason.GOOD
        return validation

    def _add_unreadable(self, chunk: Chunk, schema_id: int, rows: Longs, rejected: _Rejections) -> None:
        if schema_id != NULL:
            rejected.all(rows, _UNREADABLE[schema_id], NO_SCHEMA_ID)
        elif self._tombstones is not None:
            self._append(chunk, self._tombstones, JSON_SCHEMA_ID, rows, _no_captures(len(rows)))
        else:
            keyless = np.zeros(len(rows), np.bool_) if chunk.keys is None else chunk.keys.starts[rows] < 0
            rejected.some(rows, np.where(keyless, Reason.NULL_VALUE, Reason.TOMBSTONE))

    def _append(self, chunk: Chunk, route: Route, schema_id: int, rows: Longs, captures: Captures) -> None:
        if not len(rows):
            return
        prefix = PREFIX if self._value_format is ValueFormat.AVRO else 0
        self._file(route, schema_id, int(chunk.offsets[rows[0]])).append(chunk, rows, captures, prefix)
        self.rows += len(rows)

    def _route(self, schema_id: int) -> Route | Problem:
        if schema_id not in self._routes:
            self._routes[schema_id] = self._resolve(schema_id)
        return self._routes[schema_id]

    def _file(self, route: Route, schema_id: int, first_offset: int) -> FileEncoder:
        key = (route.table, schema_id, route.schema.fingerprint)
        file = self._files.get(key)
        if file is None:
            new = NewFile(*key, first_offset)
            file = FileEncoder(
                new,
                self._open_sink(new),
                route.schema,
                self._source,
                self._codec,
                self._sync_marker,
                self._block_bytes,
            )
            self._files[key] = file
        return file


_UNREADABLE = {NULL: Reason.NULL_VALUE, BAD_MAGIC: Reason.WRONG_MAGIC, SHORT: Reason.TOO_SHORT}


class _Rejections:
    """Collects the rejects of one chunk, group by group."""

    def __init__(self, chunk: Chunk) -> None:
        self._chunk = chunk
        self._rows: list[int] = []
        self._reasons: list[int] = []
        self._schema_ids: list[int] = []
        self._messages: list[str] = []

    def all(self, rows: Longs, reason: Reason, schema_id: int, message: str | None = None) -> None:
        self._extend(rows, [int(reason)] * len(rows), schema_id, [message or reason.message] * len(rows))

    def some(self, rows: Longs, reasons: NDArray[np.int64]) -> None:
        codes = reasons.tolist()
        self._extend(rows, codes, NO_SCHEMA_ID, [Reason(code).message for code in codes])

    def invalid(self, schema: StagedSchema, validation: Validation, rows: Longs, schema_id: int) -> None:
        bad = np.flatnonzero(validation.reasons)
        messages = [describe(schema.program, validation, index) for index in bad.tolist()]
        self._extend(rows[bad], validation.reasons[bad].tolist(), schema_id, messages)

    def sorted(self) -> Rejects:
        order = np.argsort(np.array(self._rows, np.int64), kind="stable")
        return Rejects(
            np.array(self._rows, np.int64)[order],
            np.array(self._reasons, np.uint8)[order],
            np.array(self._schema_ids, np.int64)[order],
            [self._messages[index] for index in order.tolist()],
        )

    def _extend(self, rows: Longs, reasons: list[int], schema_id: int, messages: list[str]) -> None:
        self._rows += rows.tolist()
        self._reasons += reasons
        self._schema_ids += [schema_id] * len(reasons)
        self._messages += messages


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


def _distinct(days: NDArray[np.int32]) -> list[int]:
    """The distinct values; without a sort where they are one, as in most chunks."""
    if days.min() == days.max():
        return [int(days[0])]
    distinct: list[int] = np.unique(days).tolist()
    return distinct


def _no_captures(count: int) -> Captures:
    none = np.empty((0, count), np.int64)
    return Captures(np.empty((0, count), np.uint8), none, none)
