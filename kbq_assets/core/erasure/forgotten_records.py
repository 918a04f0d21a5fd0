"""Erasure in backups: the records of a file to erase, and the commit after that (PROTOCOL X5). Pure functions."""

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
    """Whether a backup's file belongs to the log with this cluster and topic id."""
    name = BackupFileName.parse(file.path)
    found = commit.partitions.get(name.range.topic_partition.partition)
    return (commit.cluster_id, commit.topic_id) == ids and found is not None and name.epoch >= found.since


def epochs_of_log(
    ids: tuple[str, str], partitions: Iterable[int], commits: Mapping[int, Commit]
) -> Mapping[int, CopiedEpochs]:
    """For each partition, the backup's present epochs that belong to the log with this cluster and topic id; an empty
    range if it has no copy of the log. ``commits`` are the backup's by shard."""
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
    """The offsets to erase from a backup's file: those of the log or, for an older epoch, whose offsets may be of
    another log, those that a search found."""
    name = BackupFileName.parse(file.path)
    partition = name.range.topic_partition.partition
    ids = erasure.cluster_id, erasure.topic_id
    if (known := erasure.copied.get(partition)) and name.epoch >= known.since:
        # A log that is gone never returns. So if the backup still has this log, all epochs in between belong to it.
        is_of_log = name.epoch <= known.epoch or (commit.cluster_id, commit.topic_id) == ids
    else:
        is_of_log = is_present(ids, commit, file)
    if is_of_log:
        found = erasure.partitions.get(partition)
        return found.offsets if found else ()
    return erasure.copies.get(f"{partition}/{name.epoch}", ())


def rewritten(commit: Commit, *, old: StagedFile, new: StagedFile, erased: int, number: int) -> Commit:
    """A backup's commit with the new file, which lacks the erased records, and with these counted. Unchanged if it no
    longer lists the old file, or if its merge ``number`` differs (PROTOCOL B10), because a clean-up may have deleted
    the new file then."""
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
