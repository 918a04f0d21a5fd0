"""Merges small adjacent files of a backup: which ones, and the commit before and after (PROTOCOL B10). Pure
functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kbq_assets.core.backup.backup_names import FILE_HASH, MOST_SCHEMAS, BackupFileName, merge_attempt
from kbq_assets.core.protocol.commits import Commit, StagedFile, Window
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition

#: The size of a merged file. It is limited because erasures rewrite whole files, and readers of a range skip a file's
#: beginning.
TARGET_BYTES: Final = 128 << 20
#: Larger files are not merged.
SMALL_BYTES: Final = TARGET_BYTES * 3 // 4
#: Fewer adjacent files are not merged.
LEAST_FILES: Final = 10


@dataclass(frozen=True)
class MergeRun:
    """Adjacent windows of one partition and epoch, to merge into one."""

    topic_partition: TopicPartition
    windows: tuple[Window, ...]

    @property
    def files(self) -> tuple[StagedFile, ...]:
        """Their files, in order."""
        return tuple(file for window in self.windows for file in window.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    def name(self, number: int, random: str) -> BackupFileName:
        """The name of the file that replaces theirs."""
        range_ = OffsetRange(self.topic_partition, self.windows[0].first, self.windows[-1].until)
        epoch = BackupFileName.parse(self.files[0].path).epoch
        return BackupFileName(range_, epoch, merge_attempt(number, random))

    def merged(self, file: StagedFile, written_ms: int) -> Window:
        """The merged window. ``file`` has path, size and checksums; ``written_ms`` is when the newest of the old files
        was written."""
        files, last = self.files, self.windows[-1]
        with_rows = [window for window in self.windows if any(each.rows for each in window.files)]
        ids = sorted({number for each in files for number in each.schema_ids})
        whole = dataclasses.replace(
            file,
            window=self.windows[0].first,
            until=last.until,
            rows=sum(each.rows for each in files),
            raw_bytes=sum(each.raw_bytes for each in files),
            oldest_ms=min((each.oldest_ms for each in files if each.rows), default=0),
            schema_ids=tuple(ids[:MOST_SCHEMAS]),
        )
        known = [window for window in self.windows if window.leader_epoch >= 0 or window.epoch_until] or [
            last
        ]
        newest = [window.newest_ms for window in with_rows]
        return Window(
            first=self.windows[0].first,
            until=last.until,
            counts=sum((window.counts for window in self.windows), Counts()),
            files=(whole,),
            leader_epoch=known[-1].leader_epoch,
            epoch_until=known[-1].epoch_until,
            newest_ms=max(newest) if newest and all(newest) else 0,
            written_ms=written_ms,
        )


def plan_merges(commit: Commit, apart: Collection[str] = ()) -> Iterator[MergeRun]:
    """The possible merges. Files with paths in ``apart`` begin a new run. No file in a run is larger than the others
    together, so each byte is copied only a few times, however often merges run.
    """
    for number, state in sorted(commit.partitions.items()):
        for adjoining in _adjoining(state.windows, apart):
            for windows in _worthwhile(adjoining):
                yield MergeRun(commit.topic_partition(number), tuple(windows))


def _adjoining(windows: Iterable[Window], apart: Collection[str]) -> Iterator[list[Window]]:
    """Runs of small windows of one epoch without gaps, up to the target size."""
    run: list[Window] = []
    size = 0
    for window in windows:
        if not _is_small(window):
            yield run
            run, size = [], 0
            continue
        size += _bytes([window])
        if run and (
            window.first != run[-1].until
            or window.files[0].path in apart
            or _epoch(window) != _epoch(run[-1])
            or size > TARGET_BYTES
        ):
            yield run
            run, size = [], _bytes([window])
        run.append(window)
    yield run


def _worthwhile(run: Sequence[Window]) -> Iterator[Sequence[Window]]:
    if len(run) < LEAST_FILES:
        return
    largest = max(range(len(run)), key=lambda place: run[place].files[0].bytes)
    if 2 * run[largest].files[0].bytes <= _bytes(run):
        yield run
    else:
        yield from _worthwhile(run[:largest])
        yield from _worthwhile(run[largest + 1 :])


def _is_small(window: Window) -> bool:
    """Whether a window may be merged. Files of former releases have another kind of hash, and are not merged."""
    return len(window.files) == 1 and (
        window.files[0].bytes < SMALL_BYTES and window.files[0].content.startswith(FILE_HASH)
    )


def _epoch(window: Window) -> int:
    return BackupFileName.parse(window.files[0].path).epoch


def _bytes(windows: Iterable[Window]) -> int:
    return sum(file.bytes for window in windows for file in window.files)


def begun(commit: Commit) -> Commit:
    """The commit with the number of a new merge. A merge that is under way then ends without effect."""
    return dataclasses.replace(commit, merges=commit.merges + 1 + commit.merges % 2)


def voided(commit: Commit) -> Commit:
    """The commit with no merge under way."""
    return dataclasses.replace(commit, merges=commit.merges + commit.merges % 2)


def ended(commit: Commit, number: int, merged: Iterable[tuple[MergeRun, Window]]) -> Commit:
    """The commit with one window for each run that it still lists unchanged. The same commit if another merge has
    begun, or if this one was voided."""
    if commit.merges != number:
        return commit
    for run, window in merged:
        partition = run.topic_partition.partition
        state = commit.partitions[partition]
        first = next((n for n, each in enumerate(state.windows) if each == run.windows[0]), 0)
        until = first + len(run.windows)
        if state.windows[first:until] == run.windows:
            windows = (*state.windows[:first], window, *state.windows[until:])
            commit = commit.with_partition(partition, dataclasses.replace(state, windows=windows))
    return voided(commit)
