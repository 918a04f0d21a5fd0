"""Backups under an erasure: which records of a file are forgotten, and the commit after that. Pure (PROTOCOL X5)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from kbq_assets.core.backup.backup_names import BackupFileName
from kbq_assets.core.erasure.model import CopiedEpochs, Erasure
from kbq_assets.core.erasure.offset_sets import Offsets
from kbq_assets.core.protocol.commits import Commit, StagedFile, Window
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.names import shard_of


def is_present(ids: tuple[str, str], commit: Commit, file: StagedFile) -> bool:
    """Whether a backup's file is of the log with this cluster and topic id."""
    name = BackupFileName.parse(file.path)
    found = commit.partitions.get(name.range.topic_partition.partition)
    return (commit.cluster_id, commit.topic_id) == ids and found is not None and name.epoch >= found.since


def epochs_of_log(
    ids: tuple[str, str], partitions: Iterable[int], commits: Mapping[int, Commit]
) -> Mapping[int, CopiedEpochs]:
    """By partition the epochs of a backup, as its commits by shard are now, that are of the log with this cluster and
    topic id; none up to now if it has no copy of the log."""
    found = {}
    for number in partitions:
        commit = commits.get(shard_of(number))
        if commit is None:
            found[number] = CopiedEpochs(1, 0)
        elif (commit.cluster_id, commit.topic_id) != ids:
            found[number] = CopiedEpochs(commit.epoch + 1, commit.epoch)
        else:
            known = commit.partitions.get(number)
            found[number] = CopiedEpochs(known.since if known else commit.epoch, commit.epoch)
    return found


def copied_offsets(erasure: Erasure, commit: Commit, file: StagedFile) -> Offsets:
    """The offsets that an erasure forgets of a backup's file: those of the log, or what a search found in an older
    epoch, whose offsets may be of another log."""
    name = BackupFileName.parse(file.path)
    partition = name.range.topic_partition.partition
    ids = erasure.cluster_id, erasure.topic_id
    if (known := erasure.copied.get(partition)) and name.epoch >= known.since:
        # A log that is gone never comes back: if the backup still has this one, all epochs in between are of it.
        is_of_log = name.epoch <= known.epoch or (commit.cluster_id, commit.topic_id) == ids
    else:
        is_of_log = is_present(ids, commit, file)
    if is_of_log:
        found = erasure.partitions.get(partition)
        return found.offsets if found else ()
    return erasure.copies.get(f"{partition}/{name.epoch}", ())


def rewritten(commit: Commit, *, old: StagedFile, new: StagedFile, erased: int, number: int) -> Commit:
    """A backup's commit that lists a file without the erased records, and counts them; unchanged if it lists the old
    one no more, or has another ``number`` of a merge (PROTOCOL B10): a clean-up may have taken the new one."""
    if commit.merges != number:
        return commit
    for partition, found in commit.partitions.items():
        windows = tuple(_replaced(window, old, new, erased) for window in found.windows)
        if windows != found.windows:
            changed = dataclasses.replace(
                found, windows=windows, totals=found.totals + _change(old, new, erased)
            )
            return commit.with_partition(partition, changed)
    return commit


def _replaced(window: Window, old: StagedFile, new: StagedFile, erased: int) -> Window:
    if not any(file.path == old.path for file in window.files):
        return window
    files = tuple(new if file.path == old.path else file for file in window.files)
    return dataclasses.replace(window, files=files, counts=window.counts + _change(old, new, erased))


def _change(old: StagedFile, new: StagedFile, erased: int) -> Counts:
    return Counts(erased=erased, rows={"backup": new.rows - old.rows})
