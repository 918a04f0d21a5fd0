"""One window being written: its files, its counts, and the policy for bad records."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from kbq_assets.core.errors import KbqError, PreconditionFailed
from kbq_assets.core.extraction.units import Unit
from kbq_assets.core.protocol.business_times import BusinessTimes
from kbq_assets.core.protocol.commits import StagedFile, Stop, Window
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
from kbq_assets.wire.records.verdicts import RecordLimits
from kbq_assets.worker.privacy.avro import ErrorCopies
from kbq_assets.worker.routes import Routes
from kbq_assets.worker.translate import ValueTranslator

_TOMBSTONES = (int(Reason.TOMBSTONE), int(Reason.NULL_VALUE))
#: Records without a table go to the error table, whatever the policy for bad records.
_PLACELESS = (int(Reason.UNKNOWN_TABLE), int(Reason.TOO_MANY_TABLES))
#: No policy turns these into error rows: the partition stops.
_STOPPING = (int(Reason.UNKNOWN_SCHEMA), int(Reason.UNSTAGEABLE_SCHEMA), int(Reason.TABLE_TRUNCATED))


class StopWindow(Exception):
    """The window must not be committed (PROTOCOL E10)."""

    def __init__(self, stop: Stop) -> None:
        super().__init__(stop.message)
        self.stop = stop


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
    """Everything that the windows of one unit share. ``attempt`` is part of their files' names."""

    unit: Unit
    attempt: str
    routes: Routes
    store: ObjectStore
    translator: ValueTranslator | None = None
    error_copies: ErrorCopies | None = None
    written_schemas: set[str] | None = None
    lost: LostValues = field(default_factory=LostValues)
    #: of a topic whose files never cross an hour of business time (O8)
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


class WindowWriter:
    """Writes the files of one window under one attempt's folder. Exactly one of `close` and `abort` ends it."""

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
        self._encoder = WindowEncoder(context, self._resolve, self._open_sink, self._hours)
        table = str(unit.settings.error_table)
        self._errors = ErrorRows(context.origin, table, self._open_sink, context.format)

    @property
    def records(self) -> int:
        """Records delivered so far."""
        return self._tally.records

    @property
    def bytes_written(self) -> int:
        """Bytes of staged files so far, without open blocks."""
        return self._encoder.bytes_written + self._errors.bytes_written

    def add(self, batch: RecordBatch) -> RecordBatch | None:
        """Stage a batch. Returns the part that begins a later hour, for the next window, if files have hours. Raises
        StopWindow; errors of the registry and the store propagate."""
        if not len(batch.chunk):
            self._count(batch)
            return None
        lost = self._staging.lost.count
        rejects = self._encode(batch.chunk)
        if self._encoder.later is not None:
            self._staging.lost.count = lost  # both parts are read again
            head, rest = _split(batch, self._encoder.later)
            self.add(head)
            return rest
        self._count(batch)
        self._judge(batch.chunk, rejects, batch.position)
        if self._hours is None:
            self._finished.extend(self._encoder.rotate(max_bytes=self._staging.unit.limits.file_bytes))
        return None

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
            self._write_schema(schema)
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

    def _encode(self, chunk: Chunk) -> Rejects:
        translated = chunk if self._staging.translator is None else self._staging.translator.translate(chunk)
        if translated is chunk:
            return self._encoder.add(chunk)
        rejects = self._encoder.add(translated, is_translated=True)
        # Error rows show the produced value, which has no schema id.
        return dataclasses.replace(rejects, schema_ids=np.full(len(rejects), NO_SCHEMA_ID, np.int64))

    def _judge(self, chunk: Chunk, rejects: Rejects, position: int) -> None:
        if not len(rejects):
            return
        records, tally = self._staging.unit.settings.records, self._tally
        null = np.isin(rejects.reasons, _TOMBSTONES)
        is_message = rejects.reasons == Reason.NO_CHANGE
        if is_message.any():  # always skipped
            tally.skipped += int(is_message.sum())
            self._judge(chunk, rejects.take(~is_message), position)
            return
        tally.bad += int((~null).sum())
        to_errors = np.where(null, records.tombstones == "error_table", records.errors == "error_table")
        to_errors |= np.isin(rejects.reasons, _PLACELESS)
        if self.first < self._staging.unit.accept_errors_until:
            to_errors |= ~null
        else:
            self._refuse(chunk, rejects, null, position)
        copies = self._staging.error_copies
        personal = copies.are_personal(chunk, rejects) if copies else np.zeros(len(rejects), np.bool_)
        if copies is not None and copies.are_dropped:
            to_errors &= ~personal
        tally.errors += int(to_errors.sum())
        tally.skipped += int((~to_errors).sum())
        self._add_errors(chunk, rejects.take(to_errors), personal[to_errors])

    def _add_errors(self, chunk: Chunk, rejects: Rejects, personal: np.ndarray) -> None:
        """Append rejects as rows, in their order; rows of ``personal`` ones show nothing of the record."""
        shown = chunk
        if self._staging.error_copies is not None and personal.any():
            rows = rejects.rows[personal]
            shown = self._staging.error_copies.of_records(
                chunk, rows, self._staging.unit.range.topic_partition
            )
        ends = np.flatnonzero(np.diff(personal)) + 1
        for run in np.split(np.arange(len(rejects)), ends):
            self._errors.add(shown if personal[run].any() else chunk, rejects.take(run))

    def _refuse(self, chunk: Chunk, rejects: Rejects, null: np.ndarray, position: int) -> None:
        """Stop for records that no policy may turn into error rows."""
        stopping = np.isin(rejects.reasons, _STOPPING)
        own = null | np.isin(rejects.reasons, _PLACELESS)
        fatal = stopping if self._staging.unit.settings.records.errors != "fail" else ~own
        if not fatal.any():
            return
        index = int(np.argmax(fatal))
        offset = int(chunk.offsets[rejects.rows[index]])
        reason = Reason(int(rejects.reasons[index]))
        kind = StopReason(reason.name.lower()) if stopping[index] else StopReason.BAD_RECORD
        self._stop(kind, f"offset {offset}: {reason.name}: {rejects.messages[index]}", position)

    def _check_error_share(self) -> None:
        options, tally = self._staging.unit.settings.records, self._tally
        if self.first < self._staging.unit.accept_errors_until or tally.records < options.error_share_records:
            return
        if tally.bad > options.error_share * tally.records:
            share = f"{tally.bad} of {tally.records} records are bad, more than {options.error_share:.0%}"
            self._stop(StopReason.ERROR_SHARE, share, self.position)

    def _stop(self, reason: StopReason, message: str, until: int) -> None:
        where = f"{self._staging.unit.range.topic_partition} [{self.first}, {until})"
        raise StopWindow(Stop(reason, f"{where}: {message}", self.first, until))

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

    def _resolve(self, schema_id: int) -> Route | RejectedSchema:
        return (
            self._staging.translator.problem(schema_id) if self._staging.translator else None
        ) or self._staging.routes.resolve(schema_id)

    def _path(self, file: NewFile | EncodedFile) -> str:
        table = TableReference.parse(file.table)
        tp = self._staging.unit.range.topic_partition
        epoch = self._staging.unit.epoch
        return StagedFileName(
            tp, table, file.schema_id, file.first_offset, epoch, self._staging.attempt
        ).format()

    def _open_sink(self, file: NewFile) -> ObjectWriter:
        writer = self._staging.store.open_write(self._path(file))
        self._writers[file] = writer
        return writer

    def _close_file(self, file: EncodedFile) -> StagedFile:
        opened = NewFile(file.table, file.schema_id, file.fingerprint, file.first_offset)
        stored = self._writers.pop(opened).close()
        if stored.size != file.bytes_written:
            raise KbqError(f"{stored.path}: {stored.size} bytes were stored of {file.bytes_written}")
        return StagedFile(
            path=stored.path,
            window=self.first,
            until=self._until(file),
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

    def _until(self, file: EncodedFile) -> int:
        """The first offset of the next file after rotation, or the window's end. Files of hours do not follow each
        other."""
        if self._hours is not None:
            return self.position
        key = (file.table, file.schema_id)
        following = [f.first_offset for f in self._finished if (f.table, f.schema_id) == key]
        return min((first for first in following if first > file.first_offset), default=self.position)

    def _write_schema(self, fingerprint: str) -> None:
        if self._staging.written_schemas is not None and fingerprint in self._staging.written_schemas:
            return
        schema = (
            error_schema_json()
            if fingerprint == ERROR_FINGERPRINT
            else self._staging.routes.schemas[fingerprint]
        )
        # content-addressed: an existing object is the same
        with contextlib.suppress(PreconditionFailed):
            self._staging.store.create(schema_path(fingerprint), schema.encode())
        if self._staging.written_schemas is not None:
            self._staging.written_schemas.add(fingerprint)


def _split(batch: RecordBatch, first: int) -> tuple[RecordBatch, RecordBatch]:
    """A batch before its record ``first``, and from it on."""
    chunk = batch.chunk
    head = dataclasses.replace(batch, chunk=chunk.slice(0, first), position=int(chunk.offsets[first]))
    return head, dataclasses.replace(batch, chunk=chunk.slice(first, len(chunk)), erased=0)
