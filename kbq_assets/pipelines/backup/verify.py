"""Verifies backups: sizes and checksums against the store's listing, then every record by its hash (PROTOCOL B3,
B7)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kbq_assets.core.backup.backup_names import BACKUP, FILE_HASH, BackupFileName, schemas_prefix
from kbq_assets.core.errors import NotFound
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.commits import Commit, StagedFile
from kbq_assets.core.protocol.names import commit_path
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.object_store import ObjectStore, StoredFile
from kbq_assets.wire.backup.read import read_chunks
from kbq_assets.wire.files.read_container import DamagedFile, Readable


@dataclass(frozen=True)
class Damage:
    """A file that differs from its entry in the commit."""

    path: str
    topic_partition: TopicPartition
    first: int
    until: int
    problem: str


@dataclass
class Verified:
    """Totals of the files that were read. ``missing_schemas`` are schema ids in records that the backup does not
    have."""

    files: int = 0
    records: int = 0
    bytes: int = 0
    damages: tuple[Damage, ...] = ()
    missing_schemas: tuple[tuple[str, int], ...] = ()


def files_of(commit: Commit, partition: int | None, first: int, until: int | None) -> Iterator[StagedFile]:
    """A commit's files with positions in a range, in all epochs."""
    for number, found in sorted(commit.partitions.items()):
        if partition in (None, number):
            for window in found.windows:
                if window.until > first and (until is None or window.first < until):
                    yield from window.files


def verify_topic(
    store: ObjectStore, topic: str, *, partition: int | None = None, first: int = 0, until: int | None = None
) -> Verified:
    """Read and verify the files of a topic's backup. Raises NotFound if it has none."""
    registry = state.topic_registry(store)
    if topic not in registry.topics:
        raise NotFound(f"{topic} has no backup", next_step="kbq backup status lists the topics that have one")
    stored = {each.path: each for each in store.checksums(f"{BACKUP}{topic}/")}
    found = Verified()
    named: set[int] = set()
    for shard in registry.topics[topic].active:
        commit = state.read(store, Commit, commit_path(topic, shard)).value
        for file in files_of(commit, partition, first, until):
            found.files += 1
            named.update(file.schema_ids)
            try:
                found.records += _read(store, file, stored.get(file.path))
                found.bytes += file.bytes
            except (DamagedFile, NotFound) as error:
                tp = BackupFileName.parse(file.path).range.topic_partition
                found.damages += (Damage(file.path, tp, file.window, file.until, error.message),)
    kept = set(map(_schema_id, store.paths(schemas_prefix(topic))))
    found.missing_schemas = tuple((topic, schema_id) for schema_id in sorted(named - kept))
    return found


def _schema_id(path: str) -> int:
    number = path.rsplit("/", 1)[-1].partition("-")[0]
    return int(number) if number.isdigit() else -1


def _read(store: ObjectStore, file: StagedFile, stored: StoredFile | None) -> int:
    """The number of a file's records. Raises DamagedFile, NotFound."""
    if stored is None:
        raise NotFound("the file is gone")
    if (stored.size, stored.crc32c) != (file.bytes, file.crc32c):
        raise DamagedFile(
            f"it has {stored.size} bytes and crc {stored.crc32c}, not {file.bytes} and {file.crc32c}"
        )
    name, hashed, rows = BackupFileName.parse(file.path), hashlib.sha256(), 0
    is_of_file = file.content.startswith(FILE_HASH)
    with store.open_read(file.path) as stream:
        source = _Hashed(stream, hashed) if is_of_file else stream
        for chunk, block in read_chunks(source, name.epoch, name.range):
            if not is_of_file:
                hashed.update(block.data)
            rows += len(chunk)
    content = FILE_HASH * is_of_file + hashed.hexdigest()
    if (rows, content) != (file.rows, file.content):
        raise DamagedFile(
            f"it has {counted(rows, 'record')} with hash {content}; the commit has other values"
        )
    return rows


class _Hashed:
    """A file that is hashed as it is read."""

    def __init__(self, stream: Readable, hashed: Any) -> None:
        self._stream, self._hashed = stream, hashed

    def read(self, size: int, /) -> bytes:
        """Up to ``size`` bytes; fewer at the end."""
        data = self._stream.read(size)
        self._hashed.update(data)
        return data
