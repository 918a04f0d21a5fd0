"""The `RecordSource` port over backup files, for records that Kafka no longer has and for replays (PROTOCOL B7).

It reads only the files that its logs list. The code that plans a range reads the backup's commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kbq_assets.core.backup.backup_names import BackupFileName
from kbq_assets.core.errors import NotFound, OffsetOutOfRange, Unavailable, UnreadableBatch
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.ports.kafka import VALUES_ONLY, ReadOptions, RecordBatch
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.wire.backup.read import read_chunks
from kbq_assets.wire.chunk import Chunk
from kbq_assets.wire.files.read_container import DamagedFile

_LOST = "kbq backup status shows the ranges in the backup"


@dataclass(frozen=True)
class BackupLog:
    """One partition's backup files in one epoch, in order. ``leader_epoch`` is that of the last record, -1 if
    unknown."""

    files: tuple[StagedFile, ...] = ()
    leader_epoch: int = -1

    def overlapping(self, range_: OffsetRange) -> Sequence[StagedFile]:
        """The files that overlap a range. Raises OffsetOutOfRange if a position lies before the first file or between
        two files: it was lost, or has expired from the backup."""
        end = self.files[-1].until if self.files else 0
        if range_.from_offset > end:
            raise OffsetOutOfRange(f"{range_}: the backup ends at {end}", next_step=_LOST)
        files = [f for f in self.files if f.until > range_.from_offset and f.window < range_.until_offset]
        position = range_.from_offset
        for file in files:
            if file.window > position:
                raise OffsetOutOfRange(f"{range_}: the backup does not cover {position}", next_step=_LOST)
            position = file.until
        if position < min(range_.until_offset, end):
            raise OffsetOutOfRange(f"{range_}: the backup does not cover {position}", next_step=_LOST)
        return files


class BackupSource:
    """Records from backup files. Threads may share it. Each file's size and checksum are verified before any of its
    records is delivered."""

    def __init__(self, store: ObjectStore, logs: Mapping[TopicPartition, BackupLog]) -> None:
        self._store = store
        self._logs = logs

    def read(self, range_: OffsetRange, options: ReadOptions = VALUES_ONLY) -> Iterator[RecordBatch]:
        """Read exactly ``range_``; see the port."""
        log = self._logs.get(range_.topic_partition)
        if log is None:
            raise NotFound(f"{range_.topic_partition} has no backup", next_step=_LOST)
        if options.leader_epoch > log.leader_epoch >= 0:
            raise OffsetOutOfRange(
                f"{range_}: the backup ends in leader epoch {log.leader_epoch}, before {options.leader_epoch}",
                next_step=_LOST,
            )
        position = range_.from_offset
        for file in log.overlapping(range_):
            for batch in self._batches(file, range_, position):
                yield RecordBatch(_wanted(batch.chunk, options), batch.position, batch.leader_epoch)
                position = batch.position
        if position < range_.until_offset:
            raise Unavailable(f"{range_}: the backup ends at offset {position}", next_step="kbq extract")
        if not range_:
            empty = Chunk.from_messages((), keys=options.keys, headers=options.headers)
            yield RecordBatch(empty, range_.until_offset)

    def _batches(self, file: StagedFile, range_: OffsetRange, position: int) -> Iterator[RecordBatch]:
        """The records of one file from ``position`` on. The last batch reaches the end of the file or the range."""
        name = BackupFileName.parse(file.path)
        until = min(file.until, range_.until_offset)
        leader_epoch, held = -1, None
        try:
            self._check(file)
            with self._store.open_read(file.path) as stream:
                for chunk, _ in read_chunks(stream, name.epoch, name.range):
                    first, last = chunk.offsets.searchsorted([position, until])
                    if held is not None:
                        yield held
                        position, held = held.position, None
                    if first < last:
                        part = chunk.slice(int(first), int(last))
                        assert part.origins is not None
                        leader_epoch = int(part.origins().leader_epochs[-1])
                        held = RecordBatch(part, int(part.offsets[-1]) + 1, leader_epoch)
                    if last < len(chunk):
                        break
        except (DamagedFile, NotFound) as error:
            if held is not None:
                yield held
                position = held.position
            what = f"{self._store.uri(file.path)}: {error.message}"
            raise UnreadableBatch(what, first=position, until=file.until, next_step=_LOST) from error
        if held is None:
            held = RecordBatch(Chunk.from_messages((), keys=True, headers=True), until)
        yield RecordBatch(held.chunk, until, held.leader_epoch)

    def _check(self, file: StagedFile) -> None:
        """Raise DamagedFile unless the object has the committed size and checksum."""
        for stored in self._store.checksums(file.path):
            if stored.path == file.path:
                if (stored.size, stored.crc32c) == (file.bytes, file.crc32c):
                    return
                raise DamagedFile(f"it has {stored.size} bytes and crc {stored.crc32c}, not those committed")
        raise NotFound(f"{file.path} is gone", next_step=_LOST)


def _wanted(chunk: Chunk, options: ReadOptions) -> Chunk:
    """The chunk with the parts that the caller requested."""
    late = None if options.headers or chunk.headers is None else chunk.headers
    return Chunk(
        chunk.buffer,
        chunk.starts,
        chunk.ends,
        chunk.offsets,
        chunk.timestamps,
        chunk.keys if options.keys else None,
        chunk.headers if options.headers else None,
        None if late is None else lambda row: late.get(row) or b"\x00",
        origins=chunk.origins,
    )
