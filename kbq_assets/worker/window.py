"""One window being written: its files, its counts, and the policy for bad records."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from kbq_assets.core.errors import KbqError, PreconditionFailed, SchemaChanged
from kbq_assets.core.extraction.units import Unit
from kbq_assets.core.protocol.business_times import BusinessTimes
from kbq_assets.core.protocol.commits import StagedFile, Window
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.names import StagedFileName, TableReference, schema_path
from kbq_assets.core.protocol.waits import StopReason
from kbq_assets.ports.kafka import RecordBatch
from kbq_assets.ports.object_store import ObjectStore, ObjectWriter
from kbq_assets.wire.chunk import Chunk
from kbq_assets.wire.files.codec import Codec
from kbq_assets.wire.files.encode import (
    NO_SCHEMA_ID,
    EncodedFile,
    FileFormat,
    NewFile,
    RecordOrigin,
    RejectedSchema,
    Rejects,
    Route,
    ValueFormat,
    WindowContext,
    WindowEncoder,
)
from kbq_assets.wire.files.error_rows import ERROR_FINGERPRINT, ErrorRows, error_schema_json
from kbq_assets.wire.files.hour_files import UnitHours, WindowHours
from kbq_assets.wire.privacy.json import LostValues
from kbq_assets.wire.records.reasons import Reason
from kbq_assets.wire.records.rejects import Rejections
from kbq_assets.wire.records.verdicts import RecordLimits
from kbq_assets.worker.privacy.avro import ErrorCopies
from kbq_assets.worker.routes import Routes
from kbq_assets.worker.stopping import PLACELESS, TOMBSTONES, first_stop, stop_at_record, stop_window
from kbq_assets.worker.translate import ValueTranslator


@dataclass
class _Tally:
    records: int = 0
    bytes: int = 0
    skipped: int = 0
    erased: int = 0
    errors: int = 0
    bad: int = 0
    oldest_ms: int = 2**63 - 1
    newest_ms: int = 0
    leader_epoch: int = -1


@dataclass(frozen=True)
class Staging:
    """Everything that the windows of one unit share. ``attempt`` is part of the file names."""

    unit: Unit
    attempt: str
    routes: Routes
    store: ObjectStore
    translator: ValueTranslator | None = None
    error_copies: ErrorCopies | None = None
    written_schemas: set[str] | None = None
    lost: LostValues = field(default_factory=LostValues)
    #: set if files of the topic must not cross an hour of business time (O8)
    hours: UnitHours | None = None

    def context(self, format_: FileFormat) -> WindowContext:
        """How the records of a window are read and written."""
        unit, settings = self.unit, self.unit.settings
        tp = unit.range.topic_partition
        return WindowContext(
            RecordOrigin(tp.topic, tp.partition, unit.epoch),
            format_,
            ValueFormat.AVRO if self.translator is not None else ValueFormat(settings.records.format),
            RecordLimits(max_bytes=settings.records.max_record_bytes),
            self.routes.tombstones(),
            settings.destination.max_tables,
        )

    def write_schema(self, fingerprint: str) -> None:
        """Store a staged schema, unless this process did so before. Errors of the store propagate."""
        if self.written_schemas is not None and fingerprint in self.written_schemas:
            return
        schema = error_schema_json() if fingerprint == ERROR_FINGERPRINT else self.routes.schemas[fingerprint]
        # Content-addressed: an existing object has the same content.
        with contextlib.suppress(PreconditionFailed):
            self.store.create(schema_path(fingerprint), schema.encode())
        if self.written_schemas is not None:
            self.written_schemas.add(fingerprint)

    def resolve(self, schema_id: int) -> Route | RejectedSchema:
        """The route of a schema id, or why it has none. Raises SchemaChanged and the registry's errors."""
        found = self.translator.problem(schema_id) if self.translator else None
        return found or self.routes.resolve(schema_id)

    def path(self, file: NewFile) -> str:
        """Where a file is staged."""
        tp, table = self.unit.range.topic_partition, TableReference.parse(file.table)
        return StagedFileName(
            tp, table, file.schema_id, file.first_offset, self.unit.epoch, self.attempt
        ).format()


class WindowWriter:
    """Writes the files of one window into one attempt's folder. Exactly one of `close` and `abort` ends it."""

    def __init__(self, staging: Staging, first: int) -> None:
        unit = staging.unit
        self.first = first
        self.position = first
        self._staging = staging
        self._lost = staging.lost.counter()
        self._tally = _Tally()
        self._writers: dict[NewFile, ObjectWriter] = {}
        self._finished: list[EncodedFile] = []
        marker = hashlib.sha256(f"{unit.epoch}-{staging.attempt}/{first}".encode()).digest()[:16]
        context = staging.context(FileFormat(marker, cast("Codec", unit.settings.extraction.codec)))
        self._hours = WindowHours(staging.hours) if staging.hours else None
        self._is_trying = False
        self._encoder = WindowEncoder(
            context, staging.resolve, self._open_sink, self._hours, self._ends_before
        )
        table = str(unit.settings.error_table)
        self._errors = ErrorRows(context.origin, table, self._open_sink, context.format)

    @property
    def records(self) -> int:
        """Records delivered so far."""
        return self._tally.records

    @property
    def bytes_written(self) -> int:
        """Bytes of staged files so far, excluding open blocks."""
        return self._encoder.bytes_written + self._errors.bytes_written

    def add(self, batch: RecordBatch) -> RecordBatch | None:
        """Stage a batch. Returns the part for the next window, which begins with the first record of a later hour or
        the first that stops the partition. Raises StopWindow or SchemaChanged if this window would begin with a stop.
        Errors of the registry and the store propagate."""
        part, rest = batch, None
        while len(part.chunk):
            lost = self._staging.lost.count
            rejects, end = self._encode(part.chunk)
            if end is None:
                break
            self._check_first(part.chunk, rejects, batch.position)
            self._staging.lost.count = lost  # both parts are encoded again
            part, rest = _split(batch, end)
        self._count(part)
        if len(part.chunk):
            self._judge(part.chunk, rejects)
            if self._hours is None and rest is None:
                self._finished.extend(self._encoder.rotate(max_bytes=self._staging.unit.limits.file_bytes))
        return rest

    def _count(self, batch: RecordBatch) -> None:
        chunk, tally = batch.chunk, self._tally
        tally.records += len(chunk) + batch.erased
        tally.erased += batch.erased
        if len(chunk):
            tally.bytes += int((chunk.ends - chunk.starts).sum())
            tally.oldest_ms = min(tally.oldest_ms, int(chunk.timestamps.min()))
            tally.newest_ms = max(tally.newest_ms, int(chunk.timestamps.max()))
        tally.leader_epoch = max(tally.leader_epoch, batch.leader_epoch)
        self.position = batch.position

    def close(self) -> Window:
        """Make the window's files visible. Raises StopWindow if too many records are bad."""
        self._check_error_share()
        self._finished.extend(self._encoder.finish())
        errors = self._errors.finish()
        if errors is not None:
            self._finished.append(errors)
        for schema in sorted({file.fingerprint for file in self._finished}):
            self._staging.write_schema(schema)
        files = tuple(self._close_file(file) for file in sorted(self._finished, key=lambda f: f.first_offset))
        tally = self._tally
        return Window(
            self.first,
            self.position,
            self._counts(),
            files,
            tally.leader_epoch,
            newest_ms=tally.newest_ms,
        )

    def abort(self) -> None:
        """Abandon the window: nothing of it becomes visible."""
        for writer in self._writers.values():
            writer.abort()

    def _encode(self, chunk: Chunk) -> tuple[Rejects, int | None]:
        """Append a chunk and return its rejects. If one of its records belongs to the next window, append nothing and
        return the index of the first such record. Raises SchemaChanged if the window begins with a changed schema."""
        try:
            return self._translate_and_add(chunk), self._encoder.later
        except SchemaChanged:
            first = self._first_changed(chunk)
            if chunk.offsets[first] == self.first:
                raise
            return Rejections().sorted(), first

    def _first_changed(self, chunk: Chunk) -> int:
        """The first record whose schema changed, found by bisection: each trial encodes a part and appends nothing."""
        first, last, self._is_trying = 0, len(chunk) - 1, True
        while first < last:
            middle = (first + last + 1) // 2
            try:
                self._translate_and_add(chunk.slice(0, middle))
                first = middle
            except SchemaChanged:
                last = middle - 1
        self._is_trying = False
        return first

    def _translate_and_add(self, chunk: Chunk) -> Rejects:
        translated = chunk if self._staging.translator is None else self._staging.translator.translate(chunk)
        if translated is chunk:
            return self._encoder.add(chunk)
        rejects = self._encoder.add(translated, is_translated=True)
        # Error rows show the produced value, which has no schema id.
        return dataclasses.replace(rejects, schema_ids=np.full(len(rejects), NO_SCHEMA_ID, np.int64))

    def _ends_before(self, rejects: Rejects) -> int | None:
        if self._is_trying:
            return 0
        index = self._first_stop(rejects)
        return None if index is None else int(rejects.rows[index])

    def _first_stop(self, rejects: Rejects) -> int | None:
        return None if self._accepts_errors else first_stop(self._staging.unit, rejects)

    @property
    def _accepts_errors(self) -> bool:
        return self.first < self._staging.unit.accept_errors_until

    def _check_first(self, chunk: Chunk, rejects: Rejects, until: int) -> None:
        """Raise StopWindow if the window's first record stops the partition."""
        index = self._first_stop(rejects)
        if index is not None and chunk.offsets[rejects.rows[index]] == self.first:
            raise stop_at_record(self._staging.unit, chunk, rejects, index, until)

    def _judge(self, chunk: Chunk, rejects: Rejects) -> None:
        if not len(rejects):
            return
        records, tally = self._staging.unit.settings.records, self._tally
        null = np.isin(rejects.reasons, TOMBSTONES)
        is_message = rejects.reasons == Reason.NO_CHANGE
        if is_message.any():  # always skipped
            tally.skipped += int(is_message.sum())
            self._judge(chunk, rejects.take(~is_message))
            return
        tally.bad += int((~null).sum())
        to_errors = np.where(null, records.tombstones == "error_table", records.errors == "error_table")
        to_errors |= np.isin(rejects.reasons, PLACELESS)
        if self._accepts_errors:
            to_errors |= ~null
        copies = self._staging.error_copies
        personal = copies.are_personal(chunk, rejects) if copies else np.zeros(len(rejects), np.bool_)
        if copies is not None and copies.are_dropped:
            to_errors &= ~personal
        tally.errors += int(to_errors.sum())
        tally.skipped += int((~to_errors).sum())
        self._add_errors(chunk, rejects.take(to_errors), personal[to_errors])

    def _add_errors(self, chunk: Chunk, rejects: Rejects, personal: np.ndarray) -> None:
        """Append rejects as error rows, in order. The rows of ``personal`` rejects show nothing of the record."""
        shown = chunk
        if self._staging.error_copies is not None and personal.any():
            rows = rejects.rows[personal]
            shown = self._staging.error_copies.of_records(
                chunk, rows, self._staging.unit.range.topic_partition
            )
        ends = np.flatnonzero(np.diff(personal)) + 1
        for run in np.split(np.arange(len(rejects)), ends):
            self._errors.add(shown if personal[run].any() else chunk, rejects.take(run))

    def _check_error_share(self) -> None:
        options, tally = self._staging.unit.settings.records, self._tally
        if self._accepts_errors or tally.records < options.error_share_records:
            return
        if tally.bad > options.error_share * tally.records:
            share = f"bad records: {tally.bad} of {tally.records}, more than {options.error_share:.0%}"
            raise stop_window(self._staging.unit, StopReason.ERROR_SHARE, share, self.first, self.position)

    def _counts(self) -> Counts:
        tally = self._tally
        rows: dict[str, int] = {}
        error_table = str(self._staging.unit.settings.error_table)
        for file in self._finished:
            if file.table != error_table:
                rows[file.table] = rows.get(file.table, 0) + file.rows
        positions = self.position - self.first
        return Counts(
            positions=positions,
            records=tally.records,
            bytes=tally.bytes,
            gaps=positions - tally.records,
            skipped=tally.skipped,
            erased=tally.erased,
            errors=tally.errors,
            event_time_fallbacks=sum(file.event_time_fallbacks for file in self._finished),
            dropped_values=self._lost(),
            rows=rows,
        )

    def _open_sink(self, file: NewFile) -> ObjectWriter:
        writer = self._staging.store.open_write(self._staging.path(file))
        self._writers[file] = writer
        return writer

    def _close_file(self, file: EncodedFile) -> StagedFile:
        opened = NewFile(file.table, file.schema_id, file.fingerprint, file.first_offset)
        stored = self._writers.pop(opened).close()
        if stored.size != file.bytes_written:
            raise KbqError(f"{stored.path}: {stored.size} bytes were stored, not {file.bytes_written}")
        return StagedFile(
            path=stored.path,
            window=self.first,
            # files by hour overlap in offsets
            until=_until(file, () if self._hours else self._finished, self.position),
            rows=file.rows,
            bytes=stored.size,
            raw_bytes=file.bytes_raw,
            crc32c=stored.crc32c,
            fingerprint=file.fingerprint,
            dates=tuple(sorted(file.event_dates)),
            oldest_ms=self._tally.oldest_ms,
            events=BusinessTimes(file.event_hours, file.newest_event_ms, file.event_time_fallbacks),
            warehouses=self._staging.unit.settings.destination.warehouses,
        )


def _until(file: EncodedFile, finished: Iterable[EncodedFile], position: int) -> int:
    """The first offset of the file that follows after rotation, or the window's end."""
    key = (file.table, file.schema_id)
    following = [f.first_offset for f in finished if (f.table, f.schema_id) == key]
    return min((first for first in following if first > file.first_offset), default=position)


def _split(batch: RecordBatch, first: int) -> tuple[RecordBatch, RecordBatch]:
    """The batch split in two: the records before ``first``, and those from it on."""
    chunk = batch.chunk
    head = dataclasses.replace(
        batch,
        chunk=chunk.slice(0, first),
        position=int(chunk.offsets[first]),
        leader_epoch=_epoch_before(batch, first),
    )
    return head, dataclasses.replace(batch, chunk=chunk.slice(first, len(chunk)), erased=0)


def _epoch_before(batch: RecordBatch, first: int) -> int:
    """The leader epoch of the last record before ``first``, -1 if there is none."""
    if first == 0:
        return -1
    if batch.chunk.origins is None:
        return batch.leader_epoch
    return int(batch.chunk.origins().leader_epochs[first - 1])
