"""Removes erased records from a backup's files: searches files and rewrites them, in this process or in Spark tasks
(PROTOCOL X5). `leave_out` imports numpy, so commands that start fast must not call it.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from kbq_assets.core.backup.backup_names import BackupFileName
from kbq_assets.core.erasure import offset_sets as sets
from kbq_assets.core.erasure.offset_sets import Offsets
from kbq_assets.core.errors import NotFound
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.ports.object_store import ObjectStore

if TYPE_CHECKING:
    from kbq_assets.wire.chunk import Chunk
    from kbq_assets.wire.files.codec import Codec


@dataclass(frozen=True)
class CopyTask:
    """A file in a backup's ``area`` that may have records at the ``erased`` offsets. With an ``attempt``, the file is
    rewritten without them into a folder of that name (B2)."""

    area: str
    file: StagedFile
    erased: Offsets
    codec: str
    attempt: str = ""

    @property
    def table(self) -> str:
        """The topic of its file."""
        return BackupFileName.parse(self.file.path).range.topic_partition.topic


@dataclass(frozen=True)
class SearchedCopy:
    """The task's offsets ``found`` in the file, and the ``new`` file without them; or the ``error`` if it cannot be
    read."""

    task: CopyTask
    found: Offsets = ()
    new: StagedFile | None = None
    error: str = ""


#: Runs tasks and returns an outcome for each, also for failed ones. Raises Unavailable if it gives up on a task.
RunCopies: TypeAlias = Callable[[Sequence[CopyTask]], Sequence[SearchedCopy]]
OpenCopies: TypeAlias = Callable[[], AbstractContextManager[RunCopies]]


def leave_out(store: ObjectStore, task: CopyTask) -> SearchedCopy:
    """Search a file for the task's offsets, and rewrite it if it has any. Raises Unavailable."""
    from kbq_assets.wire.files.read_container import DamagedFile

    try:
        found = sets.offsets_of(
            offset for chunk in _chunks(store, task.file) for offset in _among(task, chunk)
        )
        return SearchedCopy(task, found, _without(store, task, found) if found and task.attempt else None)
    except (DamagedFile, NotFound) as error:
        return SearchedCopy(task, error=error.message)


def _chunks(store: ObjectStore, file: StagedFile) -> Iterator[Chunk]:
    from kbq_assets.wire.backup.read import read_chunks

    name = BackupFileName.parse(file.path)
    with store.open_read(file.path) as stream:
        for chunk, _ in read_chunks(stream, name.epoch, name.range):
            yield chunk


def _without(store: ObjectStore, task: CopyTask, erased: Offsets) -> StagedFile:
    from kbq_assets.wire.backup.write import BackupWriter

    name = dataclasses.replace(BackupFileName.parse(task.file.path), attempt=task.attempt)
    path = name.format()
    sink = store.open_write(path)
    try:
        marker = hashlib.sha256(path.encode()).digest()[:16]
        partition, codec = name.range.topic_partition.partition, cast("Codec", task.codec)
        writer = BackupWriter(sink, name.epoch, partition, marker, codec)
        for chunk in _chunks(store, task.file):
            for part in kept_parts(chunk, erased):
                writer.add(part)
        writer.finish()
        stored = sink.close()
    except BaseException:
        sink.abort()
        raise
    return dataclasses.replace(
        task.file,
        path=path,
        rows=writer.rows,
        bytes=stored.size,
        raw_bytes=writer.raw_bytes,
        crc32c=stored.crc32c,
        content=writer.content,
    )


def kept_parts(chunk: Chunk, erased: Offsets) -> Iterator[Chunk]:
    """Slices of a chunk that leave out the records at these offsets."""
    import numpy as np

    inside = _are_in(chunk, erased)
    edges = [0, *(np.flatnonzero(np.diff(inside)) + 1).tolist(), len(chunk)]
    for first, until in pairwise(edges):
        if first < until and not inside[first]:
            yield chunk.slice(first, until)


def _among(task: CopyTask, chunk: Chunk) -> Iterator[int]:
    yield from chunk.offsets[_are_in(chunk, task.erased)].tolist()


def _are_in(chunk: Chunk, offsets: Offsets) -> Any:
    import numpy as np

    return np.searchsorted(np.array(offsets, np.int64), chunk.offsets, "right") % 2 == 1
