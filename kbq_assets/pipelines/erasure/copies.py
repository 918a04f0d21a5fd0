"""Backups under an erasure: records are found by key, and files written again without them (PROTOCOL X5). It loads
arrays: not for every command."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from kbq_assets.core.backup.copies import copies_of
from kbq_assets.core.backup.names import BackupFileName
from kbq_assets.core.erasure import offsets as sets
from kbq_assets.core.erasure.copies import copied_offsets, rewritten
from kbq_assets.core.erasure.model import Erasure
from kbq_assets.core.erasure.offsets import Offsets
from kbq_assets.core.errors import NotFound, Refused
from kbq_assets.core.protocol.commits import Commit, StagedFile
from kbq_assets.core.protocol.names import commit_path, shard_of
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.pipelines.backup.area import BackupArea
from kbq_assets.pipelines.operate.commands import shards_of
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.object_store import ObjectStore, ObjectWriter
from kbq_assets.wire.backup.read import read_chunks
from kbq_assets.wire.backup.write import BackupWriter
from kbq_assets.wire.chunk import Chunk
from kbq_assets.wire.files.codec import Codec
from kbq_assets.wire.files.read_container import DamagedFile


def matching(area: ObjectStore, file: StagedFile, chosen: Callable[[Chunk], Iterator[int]]) -> Offsets:
    """The offsets of a file's chosen records. Raises DamagedFile, NotFound."""
    name = BackupFileName.parse(file.path)
    with area.open_read(file.path) as stream:
        chunks = read_chunks(stream, name.epoch, name.range)
        return sets.offsets_of(offset for chunk, _ in chunks for offset in chosen(chunk))


@dataclass(frozen=True)
class TopicBackup:
    """The backup of one topic in one area."""

    area: BackupArea
    topic: str
    commits: dict[int, Commit]

    @classmethod
    def of(cls, area: BackupArea, topic: str) -> TopicBackup:
        """As its commits list it now."""
        return cls(area, topic, shards_of(area, topic, required=False))

    def files(self) -> Iterator[tuple[Commit, StagedFile]]:
        """Every file with its commit, in order."""
        for _, commit in sorted(self.commits.items()):
            for _, found in sorted(commit.partitions.items()):
                for window in found.windows:
                    yield from ((commit, file) for file in window.files)

    def until(self, ids: tuple[str, str], tp: TopicPartition, first: int) -> int:
        """The end of the copies that adjoin from a position on, of the log with these ids."""
        commit = self.commits.get(shard_of(tp.partition))
        if (
            commit is None
            or (commit.cluster_id, commit.topic_id) != ids
            or tp.partition not in commit.partitions
        ):
            return first
        return copies_of(commit, tp.partition, first).until

    def matching(self, file: StagedFile, chosen: Callable[[Chunk], Iterator[int]]) -> Offsets:
        """The offsets of a file's chosen records. Raises DamagedFile, NotFound."""
        return matching(self.area, file, chosen)

    def left(self, erasure: Erasure) -> Iterator[tuple[Commit, StagedFile, Offsets]]:
        """Files that have records of an erasure, with their offsets. Raises Refused for a file that cannot be read."""
        for commit, file in self.files():
            wanted = copied_offsets(erasure, commit, file)
            if not sets.meet(wanted, file.window, file.until):
                continue
            try:
                if found := self.matching(file, partial(_among, wanted)):
                    yield commit, file, found
            except (DamagedFile, NotFound) as error:
                raise Refused(
                    f"{file.path} may have erased records and cannot be read: {error.message}",
                    next_step=f"kbq backup verify --topic {self.topic}, then kbq erase resume {erasure.number}",
                ) from error

    def rewrite(self, erasure: Erasure, new_attempt: Callable[[], str], codec: Codec) -> int:
        """Write those files again without the records; return how many. The old ones become orphans (B6)."""
        count = 0
        for commit, file, found in self.left(erasure):
            listed, erased = file, sets.size(found)
            while True:
                new = self._without(file, found, new_attempt(), codec)
                change = partial(rewritten, old=listed, new=new, erased=erased)
                state.change(self.area, Commit, commit_path(commit.topic, commit.shard), change)
                if any(each.path == new.path for each in self.area.checksums(new.path)):
                    break
                # A clean-up that ran meanwhile took it for an orphan; the old file is still there (E6, L14).
                listed, erased = new, 0
            count += 1
        return count

    def _without(self, file: StagedFile, erased: Offsets, attempt: str, codec: Codec) -> StagedFile:
        """A copy of a file without some records, in a folder of its own attempt (PROTOCOL B2)."""
        name = dataclasses.replace(BackupFileName.parse(file.path), attempt=attempt)
        path = name.format()
        sink = self.area.open_write(path)
        try:
            writer = self._filled(file, erased, name, sink, codec)
            stored = sink.close()
        except BaseException:
            sink.abort()
            raise
        return dataclasses.replace(
            file,
            path=path,
            rows=writer.rows,
            bytes=stored.size,
            raw_bytes=writer.raw_bytes,
            crc32c=stored.crc32c,
            content=writer.content,
        )

    def _filled(
        self, file: StagedFile, erased: Offsets, name: BackupFileName, sink: ObjectWriter, codec: Codec
    ) -> BackupWriter:
        marker = hashlib.sha256(name.format().encode()).digest()[:16]
        writer = BackupWriter(sink, name.epoch, name.range.topic_partition.partition, marker, codec)
        with self.area.open_read(file.path) as stream:
            for chunk, _ in read_chunks(stream, name.epoch, name.range):
                for part in kept_parts(chunk, erased):
                    writer.add(part)
        writer.finish()
        return writer


def kept_parts(chunk: Chunk, erased: Offsets) -> Iterator[Chunk]:
    """A chunk in parts, without the records of these offsets."""
    inside = np.searchsorted(np.array(erased, np.int64), chunk.offsets, "right") % 2 == 1
    edges = [0, *(np.flatnonzero(np.diff(inside)) + 1).tolist(), len(chunk)]
    for first, until in pairwise(edges):
        if first < until and not inside[first]:
            yield chunk.slice(first, until)


def _among(wanted: Offsets, chunk: Chunk) -> Iterator[int]:
    inside = np.searchsorted(np.array(wanted, np.int64), chunk.offsets, "right") % 2 == 1
    yield from chunk.offsets[inside].tolist()
