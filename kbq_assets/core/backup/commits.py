"""Changes to a backup's commit other than by extraction: reset (B5) and retention (B6). Pure functions."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Mapping

from kbq_assets.core.backup.backup_names import BackupFileName
from kbq_assets.core.errors import InvalidName
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, Window, starting_at
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition

DAY_MS = 86_400_000


def reset(
    commit: Commit,
    starts: Mapping[int, int],
    leader_epochs: Mapping[int, int],
    cluster_id: str,
    topic_id: str,
) -> Commit:
    """The commit with a new epoch, in which the given partitions begin at ``starts``. Keeps all windows (PROTOCOL
    B5)."""
    partitions = dict(commit.partitions)
    for partition, start in starts.items():
        begun = starting_at(start, leader_epochs.get(partition, -1), commit.epoch + 1)
        old = partitions.get(partition, PartitionCommit(start))
        kept = dataclasses.replace(
            begun, windows=old.windows, totals=old.totals, accepted_gaps=old.accepted_gaps
        )
        partitions[partition] = kept
    return dataclasses.replace(
        commit, epoch=commit.epoch + 1, cluster_id=cluster_id, topic_id=topic_id, partitions=partitions
    )


def expire(commit: Commit, ages: Mapping[str, int], before_ms: int) -> Commit:
    """The commit without the windows at a partition's beginning whose files were written before a time (PROTOCOL B6).
    ``ages`` are the times of the store's files. A window whose file is gone is dropped together with the window after
    it."""
    partitions = {n: _expired(state, ages, before_ms) for n, state in commit.partitions.items()}
    return commit if partitions == commit.partitions else dataclasses.replace(commit, partitions=partitions)


def _expired(state: PartitionCommit, ages: Mapping[str, int], before_ms: int) -> PartitionCommit:
    first = 0
    for number, window in enumerate(state.windows):
        written = [window.written_ms or ages[file.path] for file in window.files if file.path in ages]
        if written and max(written) >= before_ms:
            break
        first = number + 1 if written else first
    return dataclasses.replace(state, windows=state.windows[first:]) if first else state


def orphans(listed: Mapping[str, int], commits: Collection[Commit], replaced_since_ms: int) -> list[str]:
    """The files to delete: those that no commit lists, of an older epoch or below ``next`` (PROTOCOL B6). ``listed``
    has the time when each was written. Keeps files of a merge under way, and files replaced by a merge after
    ``replaced_since_ms`` (PROTOCOL B10)."""
    named = {file.path for commit in commits for file in commit.files}
    of_partition = {
        c.topic_partition(n): (c, state.next) for c in commits for n, state in c.partitions.items()
    }
    merged: dict[tuple[TopicPartition, int], list[OffsetRange]] = defaultdict(list)
    for path in named:
        name = BackupFileName.parse(path)
        if name.merge and listed.get(path, 0) >= replaced_since_ms:
            merged[name.range.topic_partition, name.epoch].append(name.range)
    found = []
    for path in sorted(listed.keys() - named):
        try:
            name = BackupFileName.parse(path)
        except InvalidName:
            continue
        tp, first = name.range.topic_partition, name.range.from_offset
        commit, position = of_partition.get(tp, (None, 0))
        if commit is None or (name.epoch, first) >= (commit.epoch, position):
            continue
        is_replaced = any(r.from_offset <= first < r.until_offset for r in merged[tp, name.epoch])
        if not is_replaced and not (name.merge and name.merge == commit.merges):
            found.append(path)
    return found


def windows_of(commit: Commit, partition: int, epoch: int) -> tuple[Window, ...]:
    """The windows of one partition in one epoch, in order."""
    state = commit.partitions.get(partition, PartitionCommit(0))
    return tuple(
        w for w in state.windows if any(BackupFileName.parse(f.path).epoch == epoch for f in w.files)
    )
