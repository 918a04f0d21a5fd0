"""Erasure in backups: finds records by key, and rewrites files without them (PROTOCOL X5).

This module imports numpy, so commands import it only when they need it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from kbq_assets.core.backup.backup_names import BackupFileName, merge_attempt
from kbq_assets.core.backup.below_log_start import copies_of
from kbq_assets.core.backup.merging import begun
from kbq_assets.core.erasure import offset_sets as sets
from kbq_assets.core.erasure.forgotten_records import copied_offsets, rewritten
from kbq_assets.core.erasure.model import Erasure
from kbq_assets.core.erasure.offset_sets import Offsets
from kbq_assets.core.errors import Refused
from kbq_assets.core.protocol.commits import Commit, StagedFile
from kbq_assets.core.protocol.names import commit_path, shard_of
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.pipelines.backup.area import BackupArea
from kbq_assets.pipelines.operate.commands import shards_of
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.backup_copies import CopyTask, OpenCopies, SearchedCopy, leave_out
from kbq_assets.ports.compaction import IN_PROCESS_BYTES
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.wire.backup.read import read_chunks
from kbq_assets.wire.chunk import Chunk


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
    #: the codec of rewritten files, and what opens Spark for many bytes of them
    codec: str = ""
    open_tasks: OpenCopies | None = None

    @classmethod
    def of(
        cls, area: BackupArea, topic: str, codec: str = "", open_tasks: OpenCopies | None = None
    ) -> TopicBackup:
        """The backup, by its current commits."""
        return cls(area, topic, shards_of(area, topic, required=False), codec, open_tasks)

    def files(self) -> Iterator[tuple[Commit, StagedFile]]:
        """Every file, with its commit, in order."""
        for _, commit in sorted(self.commits.items()):
            for _, found in sorted(commit.partitions.items()):
                for window in found.windows:
                    yield from ((commit, file) for file in window.files)

    def until(self, ids: tuple[str, str], tp: TopicPartition, first: int) -> int:
        """The end of the contiguous copies from a position on, in the log with these ids."""
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

    def left(self, erasure: Erasure) -> Iterator[tuple[StagedFile, Offsets]]:
        """Files with records of an erasure, and the records' offsets. Raises Refused for a file that cannot be read."""
        with self._searched(erasure, lambda shard: "") as results:
            for _, result in results:
                if result.found:
                    yield result.task.file, result.found

    def rewrite(self, erasure: Erasure, new_attempt: Callable[[], str]) -> int:
        """Rewrite the files of `left` without the records; return their number. The old files become orphans (B6)."""
        numbers = {
            shard: state.change_head(self.area, commit_path(self.topic, shard), begun).value.merges
            for shard in self.commits
        }
        count = 0
        with self._searched(erasure, lambda shard: merge_attempt(numbers[shard], new_attempt())) as results:
            for commit, result in results:
                if result.new is not None:
                    self._replace(commit, result, numbers[commit.shard])
                    count += 1
        return count

    def _replace(self, commit: Commit, result: SearchedCopy, number: int) -> None:
        """List the new file instead of the old one. Until now, no clean-up could delete it as an orphan (B10)."""
        assert result.new is not None
        erased = sets.size(result.found)
        change = partial(rewritten, old=result.task.file, new=result.new, erased=erased, number=number)
        state.change(self.area, Commit, commit_path(commit.topic, commit.shard), change)

    @contextmanager
    def _searched(
        self, erasure: Erasure, new_attempt: Callable[[int], str]
    ) -> Iterator[Iterator[tuple[Commit, SearchedCopy]]]:
        """The outcome of each file that may have records of an erasure. Many bytes are searched by Spark tasks."""
        chosen = [
            (commit, CopyTask(self.area.name, file, wanted, self.codec, new_attempt(commit.shard)))
            for commit, file in self.files()
            if sets.meet(wanted := copied_offsets(erasure, commit, file), file.window, file.until)
        ]
        tasks = [task for _, task in chosen]
        with ExitStack() as opened:
            results: Iterable[SearchedCopy] = (leave_out(self.area, task) for task in tasks)
            if self.open_tasks is not None and sum(task.file.bytes for task in tasks) >= IN_PROCESS_BYTES:
                results = opened.enter_context(self.open_tasks())(tasks)
            yield (
                (commit, _readable(result, erasure.number))
                for (commit, _), result in zip(chosen, results, strict=True)
            )


def _readable(result: SearchedCopy, number: int) -> SearchedCopy:
    """The outcome of a file. Raises Refused if it cannot be read."""
    if result.error:
        raise Refused(
            f"{result.task.file.path} may have erased records, but cannot be read: {result.error}",
            next_step=f"kbq backup verify --topic {result.task.table}, then kbq erase resume {number}",
        )
    return result
