"""Leaves erased records out of the batches that a task reads (PROTOCOL X2), and out of backups (X5)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from kbq_assets.core.config.settings import Settings, parse_settings
from kbq_assets.core.erasure.model import ErasureLog, check_version, log_path
from kbq_assets.core.erasure.offset_sets import Offsets
from kbq_assets.core.errors import NotFound
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.ports.backup_copies import CopyTask, SearchedCopy, leave_out
from kbq_assets.ports.kafka import RecordBatch
from kbq_assets.ports.object_store import ObjectStore


def read_log(store: ObjectStore, commit: Commit) -> ErasureLog | None:
    """The erasure log that a commit requires; None if nothing was erased. Raises MissingState."""
    if not commit.erasures:
        return None
    path = log_path(commit.topic)
    try:
        found = codec.loads(ErasureLog, store.get(path).data, path)
    except NotFound:
        found = None
    return check_version(commit, found)


def without(batch: RecordBatch, erased: Offsets) -> Iterator[RecordBatch]:
    """The batch in parts, without the erased offsets. Each part counts the records left out just before it."""
    chunk = batch.chunk
    if not len(chunk) or not erased:
        yield batch
        return
    is_erased = np.searchsorted(np.array(erased, np.int64), chunk.offsets, "right") % 2 == 1
    if not is_erased.any():
        yield batch
        return
    edges = [0, *(np.flatnonzero(np.diff(is_erased)) + 1).tolist(), len(chunk)]
    left_out = 0
    for first, until in pairwise(edges):
        if is_erased[first]:
            left_out += until - first
        else:
            position = batch.position if until == len(chunk) else int(chunk.offsets[until - 1]) + 1
            yield replace(batch, chunk=chunk.slice(first, until), position=position, erased=left_out)
            left_out = 0
    if left_out:
        yield replace(batch, chunk=chunk.slice(0, 0), erased=left_out)


@dataclass(frozen=True)
class CopyOnWorker:
    """The callable that is sent to workers: the addresses of backups, without secrets."""

    settings: Settings

    @staticmethod
    def of(settings: Settings) -> CopyOnWorker:
        """For the backups of the settings."""
        blank = parse_settings({"KBQ_HOME": str(settings.home)})
        return CopyOnWorker(
            replace(blank, staging_url=settings.staging_url, backup=settings.backup, google=settings.google)
        )

    def __call__(self, task: CopyTask) -> SearchedCopy:
        """Search one file, and rewrite it without erased records if it has any."""
        from kbq_assets.worker.adapters import open_backup_store

        return leave_out(open_backup_store(self.settings, task.area), task)
