"""Decides when commits drop entries, and when staged files and done files are deleted (PROTOCOL E5 to E7, L4, L7)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kbq_assets.core.errors import InvalidName
from kbq_assets.core.loading.file_warehouses import WarehouseStates
from kbq_assets.core.protocol import commits
from kbq_assets.core.protocol.codec import Stored
from kbq_assets.core.protocol.commits import Commit, StagedFile, Window
from kbq_assets.core.protocol.done_files import DoneFileName
from kbq_assets.core.protocol.names import (
    ManifestName,
    StagedFileName,
    backlog_path,
    shard_of,
    warehouse_path,
)
from kbq_assets.core.protocol.offsets import TopicPartition

#: Windows per partition that a commit keeps for slower warehouses after another warehouse has loaded them.
PATIENCE: Final = 24


@dataclass(frozen=True)
class BacklogChunk(Stored):
    """Files of one window in a table's backlog (E7)."""

    files: tuple[StagedFile, ...]


@dataclass(frozen=True)
class PruningPlan:
    """Backlog chunks to create first, then the commit to swap in (E7). It is the old commit if nothing changes."""

    chunks: Mapping[str, BacklogChunk]
    commit: Commit


def plan_pruning(commit: Commit, states: WarehouseStates, patience: int | None = None) -> PruningPlan:
    """Drop loaded windows; move files that parked tables or slower warehouses still need to their backlogs (E7, W3).
    After one warehouse has loaded a file, the commit keeps it for the others for ``patience`` more windows of its
    partition, by default `PATIENCE`.
    """
    patience = PATIENCE if patience is None else patience
    # Look at each file only once: a run has tens of thousands.
    waiting = {file.path: lacking for file in commit.files if (lacking := states.waiting(file))}
    pruned = commits.prune(commit, lambda file: file.path not in waiting)
    late = {(commit.topic_partition(number), window.first) for number, window in _late(pruned, patience)}
    if not late and not states.has_parked:  # as in most runs
        return PruningPlan({}, pruned)

    def may_wait_aside(file: StagedFile) -> bool:
        is_late = bool(late) and (file.name.topic_partition, file.window) in late and states.is_ahead(file)
        return is_late or all(states.is_parked(warehouse, file) for warehouse in waiting[file.path])

    chunks: dict[str, list[StagedFile]] = defaultdict(list)
    aside: set[str] = set()
    # Chunks are created in offset order, so a loader that sees one chunk sees all earlier ones.
    for file in _moving([file for file in pruned.files if file.path in waiting], may_wait_aside):
        aside.add(file.path)
        for warehouse in waiting[file.path]:
            chunks[warehouse_path(_chunk_path(file), warehouse)].append(file)
    if not aside:
        return PruningPlan({}, pruned)
    kept = commits.drop_files(pruned, lambda file: file.path in aside)
    # A window may now have only loaded files left.
    found = {path: BacklogChunk(tuple(files)) for path, files in chunks.items()}
    return PruningPlan(found, commits.prune(kept, lambda file: file.path not in waiting))


def _moving(waiting: list[StagedFile], may_wait_aside: Callable[[StagedFile], bool]) -> list[StagedFile]:
    """The waiting files to move to backlogs. The files of one chunk move together: a chunk is written once, so a file
    that moved later would be in no list (W3)."""
    if not any(map(may_wait_aside, waiting)):
        return []
    stay = {_chunk_path(file) for file in waiting if not may_wait_aside(file)}
    return [file for file in waiting if _chunk_path(file) not in stay]


def _chunk_path(file: StagedFile) -> str:
    name = file.name
    return backlog_path(file.table, name.epoch, name.topic_partition, file.window)


def _late(commit: Commit, patience: int) -> Iterator[tuple[int, Window]]:
    """Windows with at least ``patience`` newer ones of their partition."""
    for number, partition in commit.partitions.items():
        for window in partition.windows[: max(0, len(partition.windows) - patience)]:
            yield number, window


def may_leave(files: Iterable[StagedFile], states: WarehouseStates) -> bool:
    """Whether `plan_pruning` removes all of these files with any patience."""
    return all(states.is_parked(name, file) for file in files for name in states.waiting(file))


def files_to_announce(commit: Commit, states: WarehouseStates) -> Iterator[StagedFile]:
    """Files whose done files must exist (E5): unloaded files, and all files of each partition's last pending window.
    The last window counts even if it is loaded, because a partition's highest done file must never be missing (L7).
    """
    for partition in commit.partitions.values():
        for window in partition.windows:
            is_last = window is partition.windows[-1]
            for file in window.files:
                if is_last or not states.is_loaded(file):
                    yield file


def plan_sweep(listed: Iterable[str], commits_: Iterable[Commit], in_use: frozenset[str]) -> list[str]:
    """Staged files to delete (E6). List them before reading commits, backlogs and states."""
    by_shard = {(c.topic, c.shard): c for c in commits_}
    return [path for path in listed if path not in in_use and _is_orphan(path, by_shard)]


def plan_manifest_sweep(
    listed: Iterable[ManifestName], heads: Mapping[tuple[str, int], tuple[int, frozenset[str]]]
) -> list[ManifestName]:
    """Manifests to delete (M3). List them before reading ``heads``: each head's generation and the manifests that it
    names, by topic and shard. A manifest with a head's present generation in its name is kept: the next swap may still
    name it.
    """
    orphans = []
    for name in listed:
        head = heads.get((name.topic, name.shard))
        if head is not None and name.base not in head[1] and name.generation != head[0]:
            orphans.append(name)
    return orphans


def _is_orphan(path: str, by_shard: Mapping[tuple[str, int], Commit]) -> bool:
    try:
        name = StagedFileName.parse(path)
    except InvalidName:
        return False  # not a file of KBQ
    tp = name.topic_partition
    commit = by_shard.get((tp.topic, shard_of(tp.partition)))
    if commit is None:
        return False
    if name.epoch < commit.epoch:
        return True  # even if a reset dropped the partition
    partition = commit.partitions.get(tp.partition)
    return partition is not None and name.epoch == commit.epoch and name.first_offset < partition.next


def superseded_done_files(
    names: Iterable[DoneFileName], in_use: frozenset[DoneFileName]
) -> list[DoneFileName]:
    """Done files to delete: their file is loaded, and their partition has a higher done file (L4, L7)."""
    names = list(names)
    highest: dict[TopicPartition, int] = {}
    for name in names:
        highest[name.topic_partition] = max(highest.get(name.topic_partition, -1), name.last_offset)
    return [n for n in names if n.last_offset < highest[n.topic_partition] and n not in in_use]
