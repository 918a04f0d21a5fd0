"""Merges small files of a backup, while copies, readers and erasures continue (PROTOCOL B10).

This module imports numpy, so commands import it only when they need it."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import BinaryIO, Final

from kbq_assets.core.backup.backup_names import BACKUP
from kbq_assets.core.backup.merging import MergeRun, begun, ended, plan_merges
from kbq_assets.core.errors import KbqError, NotFound, Unavailable
from kbq_assets.core.protocol.commits import Commit, StagedFile, Window
from kbq_assets.core.protocol.names import commit_path
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.threads import parallel
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.wire.backup.merge import BlockMerger, OtherHeader
from kbq_assets.wire.files.read_container import DamagedFile

#: Bytes that one swap merges.
_BATCH_BYTES: Final = 4 << 30
#: Number of small files that are read at once, and their largest size. Larger files are streamed.
_READS: Final = 32
_READ_BYTES: Final = 4 << 20
#: Attempts while other processes begin merges that void ours.
_TRIES: Final = 5


@dataclass
class MergeReport:
    """``before`` files became ``after``. ``damaged`` files are unchanged; the values are the reasons."""

    before: int = 0
    after: int = 0
    bytes: int = 0
    damaged: dict[str, str] = field(default_factory=dict)


def plan_topic(store: ObjectStore, topic: str) -> MergeReport:
    """What `merge_topic` would do now. Raises NotFound without a backup."""
    report = MergeReport()
    for shard in _shards(store, topic):
        for run in plan_merges(state.read(store, Commit, commit_path(topic, shard)).value):
            _count(report, run)
    return report


def merge_topic(store: ObjectStore, topic: str, new_attempt: Callable[[], str]) -> MergeReport:
    """Merge until no merge is worthwhile. Raises NotFound without a backup; Unavailable."""
    report = MergeReport()
    for shard in _shards(store, topic):
        _merge_shard(store, topic, commit_path(topic, shard), new_attempt, report)
    return report


def _shards(store: ObjectStore, topic: str) -> Sequence[int]:
    registry = state.topic_registry(store)
    if topic not in registry.topics:
        raise NotFound(f"{topic} has no backup", next_step="kbq backup status lists the topics that have one")
    return registry.topics[topic].active


def _count(report: MergeReport, run: MergeRun) -> None:
    report.before += len(run.windows)
    report.after += 1
    report.bytes += run.bytes


def _merge_shard(
    store: ObjectStore, topic: str, path: str, new_attempt: Callable[[], str], report: MergeReport
) -> None:
    apart: set[str] = set()
    in_vain = 0
    while runs := _first(plan_merges(state.read(store, Commit, path).value, apart)):
        known = len(apart)
        # Swap the number before the first file is written: from now on, no clean-up deletes our files as orphans.
        number = state.change_head(store, path, begun).value.merges
        ages = {entry.path: entry.updated_ms for entry in store.list(f"{BACKUP}{topic}/")}
        merger = _Merger(store, number, new_attempt, ages, apart, report.damaged)
        merged = [(run, window) for run in runs if (window := merger.write(run)) is not None]
        now = state.change(store, Commit, path, partial(ended, number=number, merged=merged)).value
        listed = {file.path for file in now.files}
        # A file that another process replaced meanwhile is gone, not damaged.
        report.damaged = {each: why for each, why in report.damaged.items() if each in listed}
        done = [run for run, window in merged if window.files[0].path in listed]
        for run in done:
            _count(report, run)
        in_vain = 0 if done or len(apart) > known else in_vain + 1
        if in_vain == _TRIES:
            raise Unavailable(
                f"{topic}: other processes changed the merged files {_TRIES} times",
                next_step="run the command again",
            )


def _first(runs: Iterator[MergeRun]) -> list[MergeRun]:
    """As many runs as one swap merges."""
    chosen: list[MergeRun] = []
    for run in runs:
        if chosen and sum(each.bytes for each in chosen) + run.bytes > _BATCH_BYTES:
            break
        chosen.append(run)
    return chosen


@dataclass(frozen=True)
class _Merger:
    """One merge. It adds files to ``apart`` that must not be merged with the file before them."""

    store: ObjectStore
    number: int
    new_attempt: Callable[[], str]
    ages: dict[str, int]
    apart: set[str]
    damaged: dict[str, str]

    def write(self, run: MergeRun) -> Window | None:
        """The window of the merged file; None if a file cannot be merged with the others."""
        path = run.name(self.number, self.new_attempt()).format()
        sink = self.store.open_write(path)
        merger = BlockMerger(sink, hashlib.sha256(path.encode()).digest()[:16])
        at = run.files[0]
        try:
            for at, opened in self._opened(run.files):
                with opened() as stream:
                    merger.add(stream, at)
            stored = sink.close()
        except OtherHeader:
            sink.abort()
            self.apart.add(at.path)
            return None
        except (DamagedFile, NotFound) as error:
            sink.abort()
            self._set_apart(run, at, error)
            return None
        except BaseException:
            sink.abort()
            raise
        if (stored.size, stored.crc32c) != (merger.size, merger.crc32c):
            raise KbqError(
                f"{path}: the store's bytes differ from those written", next_step="kbq backup compact"
            )
        file = StagedFile(
            path=path,
            window=0,
            until=0,
            rows=0,
            bytes=stored.size,
            raw_bytes=0,
            crc32c=stored.crc32c,
            fingerprint="",
            content=merger.content,
        )
        return run.merged(file, max(w.written_ms or self.ages.get(w.files[0].path, 0) for w in run.windows))

    def _set_apart(self, run: MergeRun, bad: StagedFile, error: KbqError) -> None:
        """Do not merge a damaged file with the file before it or the file after it."""
        files = run.files
        self.damaged[bad.path] = error.message
        self.apart.update(file.path for file in files[files.index(bad) : files.index(bad) + 2])

    def _opened(self, files: Sequence[StagedFile]) -> Iterator[tuple[StagedFile, Callable[[], BinaryIO]]]:
        """Each file with a function that opens it. Small files are read ahead, many at once."""
        for begin in range(0, len(files), _READS):
            part = files[begin : begin + _READS]
            yield from zip(part, parallel(self._opener, part), strict=True)

    def _opener(self, file: StagedFile) -> Callable[[], BinaryIO]:
        if file.bytes > _READ_BYTES:
            return partial(self.store.open_read, file.path)
        try:
            with self.store.open_read(file.path) as stream:
                return partial(io.BytesIO, stream.read())
        except NotFound:
            return partial(self.store.open_read, file.path)
