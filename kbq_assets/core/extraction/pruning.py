"""What leaves commits, staging and done files, and when (PROTOCOL E5 to E7, L4, L7)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kbq_assets.core.errors import InvalidName
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol import commits
from kbq_assets.core.protocol.codec import Stored
from kbq_assets.core.protocol.commits import Commit, StagedFile
from kbq_assets.core.protocol.done_files import DoneFileName
from kbq_assets.core.protocol.names import StagedFileName, TableReference, backlog_path, shard_of
from kbq_assets.core.protocol.offsets import TopicPartition


@dataclass(frozen=True)
class BacklogChunk(Stored):
    """Files of one window in a table's backlog (E7)."""

    files: tuple[StagedFile, ...]


@dataclass(frozen=True)
class PruningPlan:
    """Backlog chunks to create first, then the commit to swap in (E7): the old one if nothing changes."""

    chunks: Mapping[str, BacklogChunk]
    commit: Commit


def plan_pruning(commit: Commit, states: Mapping[TableReference, TableState]) -> PruningPlan:
    """Drop loaded windows; move files of parked tables to their backlogs (E7)."""

    def loaded(file: StagedFile) -> bool:
        state = states.get(file.table)
        return state is not None and state.is_loaded(file)

    def is_set_aside(file: StagedFile) -> bool:
        state = states.get(file.table)
        return state is not None and state.parked is not None and not state.is_loaded(file)

    pruned = commits.prune(commit, loaded)
    # Chunks are created in offset order, so a loader that sees one sees all before it.
    chunks: dict[str, list[StagedFile]] = defaultdict(list)
    for file in filter(is_set_aside, pruned.files):
        name = file.name
        chunks[backlog_path(file.table, name.epoch, name.topic_partition, file.window)].append(file)
    kept = commits.drop_files(pruned, is_set_aside) if chunks else pruned
    # A window may now have only loaded files left.
    return PruningPlan({p: BacklogChunk(tuple(f)) for p, f in chunks.items()}, commits.prune(kept, loaded))


def expected_done_files(
    commit: Commit, states: Mapping[TableReference, TableState]
) -> Iterator[DoneFileName]:
    """Done files that must exist (E5): those of unloaded files, and of each partition's last pending window.

    The last window's done files must exist even if they are loaded: a partition's highest one is never missing (L7).
    """
    for partition in commit.partitions.values():
        for window in partition.windows:
            is_last = window is partition.windows[-1]
            for file in window.files:
                state = states.get(file.table)
                if is_last or state is None or not state.is_loaded(file):
                    yield file.done


def plan_sweep(listed: Iterable[str], commits_: Iterable[Commit], in_use: frozenset[str]) -> list[str]:
    """Staged files to delete (E6). List them before reading commits, backlogs and states."""
    by_shard = {(c.topic, c.shard): c for c in commits_}
    return [path for path in listed if path not in in_use and _is_orphan(path, by_shard)]


def _is_orphan(path: str, by_shard: Mapping[tuple[str, int], Commit]) -> bool:
    try:
        name = StagedFileName.parse(path)
    except InvalidName:
        return False  # not a file of KBQ
    tp = name.topic_partition
    commit = by_shard.get((tp.topic, shard_of(tp.partition)))
    if commit is None or tp.partition not in commit.partitions:
        return False
    older = name.epoch < commit.epoch
    return older or (name.epoch == commit.epoch and name.first_offset < commit.partitions[tp.partition].next)


def superseded_done_files(
    names: Iterable[DoneFileName], in_use: frozenset[DoneFileName]
) -> list[DoneFileName]:
    """Done files to delete: their file is loaded and the partition has a higher one (L4, L7)."""
    names = list(names)
    highest: dict[TopicPartition, int] = {}
    for name in names:
        highest[name.topic_partition] = max(highest.get(name.topic_partition, -1), name.last_offset)
    return [n for n in names if n.last_offset < highest[n.topic_partition] and n not in in_use]
