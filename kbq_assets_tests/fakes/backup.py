"""Backups in memory: files as extraction writes them, without an extraction."""

from __future__ import annotations

from collections.abc import Iterable

from kbq_assets.adapters.backup import BackupLog
from kbq_assets.core.protocol.commits import StagedFile, Window
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.ports.kafka import RecordBatch
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.worker.backup import BackupTarget, BackupWindowWriter
from kbq_assets.worker.backup_place import BackupPlace


def write_window(
    store: ObjectStore, tp: TopicPartition, batches: Iterable[RecordBatch], first: int = 0, epoch: int = 1
) -> Window:
    """One window with these batches."""
    writer = BackupWindowWriter(BackupTarget(BackupPlace(store), tp, epoch, "attempt"), first)
    for batch in batches:
        writer.add(batch)
    return writer.close()


def write_files(
    store: ObjectStore, tp: TopicPartition, batches: Iterable[RecordBatch], first: int = 0, epoch: int = 1
) -> list[StagedFile]:
    """A window per batch."""
    files: list[StagedFile] = []
    for batch in batches:
        files += write_window(store, tp, [batch], first, epoch).files
        first = batch.position
    return files


def log_of(files: Iterable[StagedFile], leader_epoch: int = -1) -> BackupLog:
    """The log of these files."""
    return BackupLog(tuple(files), leader_epoch)
