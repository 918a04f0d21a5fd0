"""Encodes chunks into staged files: one window of one topic-partition, with one file per table and schema.

The encoder validates every record, appends the good ones to their files in offset order, and returns the others as
:class:`Rejects`. The caller's policy decides what happens to rejects (fail, skip, error table): see ``error_rows``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from kbq_assets.core.errors import EncoderMisuse
from kbq_assets.wire.chunk import Chunk, Longs
from kbq_assets.wire.files.assemble import RecordOrigin
from kbq_assets.wire.files.choices import TableChoices
from kbq_assets.wire.files.container import FileFormat, Sink
from kbq_assets.wire.files.hour_files import RouteRows, WindowHours
from kbq_assets.wire.files.open_files import OpenFiles
from kbq_assets.wire.files.row_sizes import TOO_LARGE_ROW, oversized
from kbq_assets.wire.files.staged_file import EncodedFile, FileEncoder, NewFile, OpenSink
from kbq_assets.wire.files.window import (
    MOST_TABLES,
    RejectedSchema,
    Resolve,
    Route,
    ValueFormat,
    WindowContext,
)
from kbq_assets.wire.records.prefix import BAD_MAGIC, NULL, SHORT, split_prefix
from kbq_assets.wire.records.reasons import Reason
from kbq_assets.wire.records.rejects import NO_SCHEMA_ID, Rejections, Rejects
from kbq_assets.wire.records.staged_schema import BodyKind, StagedSchema
from kbq_assets.wire.records.validate import validate_avro, validate_json
from kbq_assets.wire.records.verdicts import Captures, RecordLimits, Validation

__all__ = [  # everything that a worker needs, in one place
    "MOST_TABLES",
    "NO_SCHEMA_ID",
    "EncodedFile",
    "FileEncoder",
    "FileFormat",
    "NewFile",
    "OpenSink",
    "RecordLimits",
    "RecordOrigin",
    "RejectedSchema",
    "Rejects",
    "Route",
    "Sink",
    "ValueFormat",
    "WindowContext",
    "WindowEncoder",
]

JSON_SCHEMA_ID = 0
"""The schema id of records without one: JSON topics and tombstones."""


class WindowEncoder:
    """The staged files of one window of one topic-partition.

    Call :meth:`add` with chunks in offset order, then :meth:`finish` once. :meth:`add` propagates errors of
    ``resolve``, ``open_sink`` and a sink's ``write``. After an error of ``resolve``, the window is as it was before the
    chunk. After other errors, discard the window, because its files are incomplete. ``ends_before`` gets a chunk's
    rejects and returns the record before which the window must end, if any.
    """

    def __init__(
        self,
        context: WindowContext,
        resolve: Resolve,
        open_sink: OpenSink,
        hours: WindowHours | None = None,
        ends_before: Callable[[Rejects], int | None] = lambda rejects: None,
    ) -> None:
        self._context = context
        self._resolve = resolve
        self._routes: dict[int, Route | RejectedSchema] = {}
        self._choices = TableChoices(context.max_tables)
        self._files = OpenFiles(context, open_sink)
        self._hours = hours
        self._ends_before = ends_before
        #: the chunk's records, by the way in which they are appended once all of them are validated
        self._to_divide: list[RouteRows] = []
        self._to_write: list[Callable[[], None]] = []
        self.rows = 0
        #: the first record of the last chunk that belongs to the next window; if set, nothing of the chunk was appended
        self.later: int | None = None

    @property
    def open_files(self) -> tuple[FileEncoder, ...]:
        """The files that still take records."""
        return tuple(self._files.files.values())

    @property
    def bytes_written(self) -> int:
        """Bytes in all sinks, including those of finished files."""
        return self._files.bytes_written

    def add(self, chunk: Chunk, *, is_translated: bool = False) -> Rejects:
        """Append the good records of ``chunk`` to their files; returns all others. If values are translated, messages
        have no positions, because they would not be the record's."""
        self._to_divide, self._to_write = [], []
        rejected = Rejections(positions=not is_translated)
        groups = (
            self._json_groups(chunk)
            if self._context.value_format is ValueFormat.JSON
            else self._avro_groups(chunk)
        )
        for schema_id, rows in groups:
            if schema_id in _UNREADABLE:
                self._add_unreadable(chunk, schema_id, rows, rejected)
            else:
                self._add_group(chunk, schema_id, rows, rejected)
        rejects = rejected.sorted()
        self.later = self._ends_before(rejects)
        if self.later is None:
            self._append_all(chunk)
        return rejects

    def rotate(self, *, max_bytes: int) -> tuple[EncodedFile, ...]:
        """Finish files that have at least ``max_bytes``; their next record opens a new file."""
        files = self._files.files.items()
        return self._files.finish([key for key, file in files if file.bytes_written >= max_bytes])

    def finish(self) -> tuple[EncodedFile, ...]:
        """Finish all open files, in the order of their first offsets."""
        return self._files.finish(list(self._files.files))

    def _avro_groups(self, chunk: Chunk) -> Iterator[tuple[int, Longs]]:
        return _grouped(split_prefix(chunk))

    def _json_groups(self, chunk: Chunk) -> Iterator[tuple[int, Longs]]:
        # If tombstones have a table, they are rows in order with the others.
        if self._context.tombstones is not None:
            return _grouped(np.zeros(len(chunk), np.int64))
        return _grouped(np.where(chunk.starts < 0, NULL, JSON_SCHEMA_ID).astype(np.int64))

    def _add_group(self, chunk: Chunk, schema_id: int, rows: Longs, rejected: Rejections) -> None:
        route = self._route(schema_id)
        if isinstance(route, RejectedSchema):
            rejected.all(rows, route.reason, schema_id, route.message)
            return
        if (route.schema.body is BodyKind.JSON) is not (self._context.value_format is ValueFormat.JSON):
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
            return validate_avro(chunk, schema.program, rows, self._context.limits)
        validation = validate_json(chunk, rows, self._context.limits)
        if self._context.tombstones is not None:
            validation.reasons[chunk.starts[rows] < 0] = Reason.GOOD
        return validation

    def _add_unreadable(self, chunk: Chunk, schema_id: int, rows: Longs, rejected: Rejections) -> None:
        if schema_id != NULL:
            rejected.all(rows, _UNREADABLE[schema_id], NO_SCHEMA_ID)
        elif self._context.tombstones is not None:
            self._append(
                chunk, self._context.tombstones, JSON_SCHEMA_ID, rows, _no_captures(len(rows)), rejected
            )
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
        too_large = oversized(chunk, rows, route.schema.metadata)
        if too_large is not None:
            rejected.all(rows[too_large], Reason.TOO_LARGE, schema_id, TOO_LARGE_ROW)
            rows, captures = rows[~too_large], captures.take(~too_large)
        if not len(rows):
            return
        if route.chooser is None:
            self._write(RouteRows(route, schema_id, rows, captures), chunk)
            return
        chosen: list[tuple[Route, Longs]] = []
        for choice, picked in self._choices.split(route, schema_id, chunk, rows, captures):
            if isinstance(choice, RejectedSchema):
                rejected.all(rows[picked], choice.reason, schema_id, choice.message)
            else:
                chosen.append((choice, picked))
        own = captures.first(route.schema.program.captures - route.schema.program.routes)
        if self._hours is None:
            self._to_write.append(partial(self._write_each, chosen, schema_id, chunk, rows, own))
            return
        for choice, picked in chosen:
            self._write(RouteRows(choice, schema_id, rows[picked], own.take(picked)), chunk)

    def _write(self, part: RouteRows, chunk: Chunk) -> None:
        if self._hours is not None:
            self._to_divide.append(part)
        else:
            self._to_write.append(partial(self._write_part, part, chunk))

    def _append_all(self, chunk: Chunk) -> None:
        """Append the chunk's good records, unless files have hours and one of the records begins the next window."""
        writes, self._to_write = self._to_write, []
        for write in writes:
            write()
        parts, self._to_divide = self._to_divide, []
        if self._hours is None or not parts:
            return
        self.later = self._hours.later(chunk, parts, is_new=self.rows == 0)
        if self.later is None:
            for hour, part in self._hours.divide(chunk, parts):
                self._write_part(part, chunk, hour)

    def _write_part(self, part: RouteRows, chunk: Chunk, hour: int = 0) -> None:
        self._files.write(part.route, part.schema_id, chunk, part.rows, part.captures, hour)
        self.rows += len(part.rows)

    def _write_each(
        self,
        chosen: list[tuple[Route, Longs]],
        schema_id: int,
        chunk: Chunk,
        rows: Longs,
        captures: Captures,
    ) -> None:
        self._files.write_each(chosen, schema_id, chunk, rows, captures)
        self.rows += sum(len(picked) for _, picked in chosen)

    def _route(self, schema_id: int) -> Route | RejectedSchema:
        if schema_id not in self._routes:
            self._routes[schema_id] = self._resolve(schema_id)
        return self._routes[schema_id]


_UNREADABLE = {NULL: Reason.NULL_VALUE, BAD_MAGIC: Reason.WRONG_MAGIC, SHORT: Reason.TOO_SHORT}


def _grouped(keys: Longs) -> Iterator[tuple[int, Longs]]:
    """The ascending row indexes of each distinct key. Does not sort if there is only one key."""
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
