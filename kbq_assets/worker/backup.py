"""One window of a backup being written (PROTOCOL B3): one file, even if the window has no records."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from dataclasses import dataclass, field
from typing import IO, Final

from kbq_assets.core.backup.backup_names import MOST_SCHEMAS, BackupFileName
from kbq_assets.core.errors import KbqError
from kbq_assets.core.protocol.commits import StagedFile, Window
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.ports.kafka import RecordBatch
from kbq_assets.wire.backup.write import BackupWriter
from kbq_assets.wire.files.checksum import crc32c_text
from kbq_assets.worker.backup_place import BackupPlace
from kbq_assets.worker.backup_schemas import KeptSchemas

#: A file's name contains the window's last position, which is known only at the end. Until then the file is local, in
#: memory up to this many bytes and otherwise on disk.
_IN_MEMORY: Final = 4 * 1024 * 1024
_PIECE: Final = 1024 * 1024
#: The name under which a backup's commit counts its rows.
ROWS: Final = "backup"


@dataclass(frozen=True)
class BackupTarget:
    """Where the windows of one unit go. ``attempt`` is part of their files' names (PROTOCOL B2)."""

    place: BackupPlace
    topic_partition: TopicPartition
    epoch: int
    attempt: str
    #: stores the schemas that records use; if None, they are not stored
    schemas: KeptSchemas | None = None


@dataclass
class _CopyTally:
    erased: int = 0
    bytes: int = 0
    oldest_ms: int = 2**63 - 1
    newest_ms: int = 0
    leader_epoch: int = -1
    schemas: set[int | str] = field(default_factory=set)


class BackupWindowWriter:
    """Writes one window's file. Exactly one of `close` and `abort` ends it."""

    def __init__(self, target: BackupTarget, first: int) -> None:
        self.first = self.position = first
        self._target = target
        self._tally = _CopyTally()
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115
        tp = target.topic_partition
        marker = hashlib.sha256(f"{target.epoch}-{target.attempt}/{tp}/{first}".encode()).digest()[:16]
        place = target.place
        self._writer = BackupWriter(self._file, target.epoch, tp.partition, marker, place.codec, place.level)

    @property
    def records(self) -> int:
        """Records so far."""
        return self._writer.rows

    @property
    def bytes_written(self) -> int:
        """Bytes of the file so far, excluding the open block."""
        return self._writer.bytes_written

    def add(self, batch: RecordBatch) -> None:
        """Copy a batch, which has keys and headers."""
        chunk, tally = batch.chunk, self._tally
        tally.erased += batch.erased
        if len(chunk):
            self._writer.add(chunk)
            tally.bytes += int((chunk.ends - chunk.starts).sum())
            tally.oldest_ms = min(tally.oldest_ms, int(chunk.timestamps.min()))
            tally.newest_ms = max(tally.newest_ms, int(chunk.timestamps.max()))
            if self._target.schemas is not None:
                tally.schemas |= self._target.schemas.names(chunk)
        tally.leader_epoch = max(tally.leader_epoch, batch.leader_epoch)
        self.position = batch.position

    def close(self) -> Window:
        """Make the file visible. Errors of the store propagate."""
        self._writer.finish()
        schema_ids = sorted(name for name in self._tally.schemas if isinstance(name, int))[:MOST_SCHEMAS]
        if self._target.schemas is not None:
            others = sorted(name for name in self._tally.schemas if isinstance(name, str))[:MOST_SCHEMAS]
            self._target.schemas.keep((*schema_ids, *others))
        rows, tally, positions = self._writer.rows, self._tally, self.position - self.first
        range_ = OffsetRange(self._target.topic_partition, self.first, self.position)
        path = BackupFileName(range_, self._target.epoch, self._target.attempt).format()
        size, crc = self._upload(path)
        file = StagedFile(
            path=path,
            window=self.first,
            until=self.position,
            rows=rows,
            bytes=size,
            raw_bytes=self._writer.raw_bytes,
            crc32c=crc,
            fingerprint="",
            oldest_ms=tally.oldest_ms if rows else 0,
            content=self._writer.content,
            schema_ids=tuple(schema_ids),
        )
        counts = Counts(
            positions=positions,
            records=rows + tally.erased,
            bytes=tally.bytes,
            gaps=positions - rows - tally.erased,
            erased=tally.erased,
            rows={ROWS: rows} if rows else {},
        )
        return Window(
            self.first, self.position, counts, (file,), tally.leader_epoch, newest_ms=tally.newest_ms
        )

    def abort(self) -> None:
        """Abandon the window: nothing of it becomes visible. Never raises."""
        with contextlib.suppress(OSError):  # a full disk: closing writes what is left
            self._file.close()

    def _upload(self, path: str) -> tuple[int, str]:
        self._file.seek(0)
        with self._file as file:
            writer = self._target.place.store.open_write(path)
            try:
                while piece := file.read(_PIECE):
                    writer.write(piece)
                stored = writer.close()
            except BaseException:
                writer.abort()
                raise
        if (stored.size, stored.crc32c) != (self._writer.bytes_written, crc32c_text(self._writer.crc32c)):
            raise KbqError(f"{path}: the stored bytes differ from those written", next_step="kbq extract")
        return stored.size, stored.crc32c
