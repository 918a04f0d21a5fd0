"""Staged files of a topic that a warehouse lacks, in its commits and in the backlogs of parked tables."""

from __future__ import annotations

from dataclasses import dataclass

from kbq_assets.core.loading.warehouses import WarehouseStates
from kbq_assets.core.protocol import commits
from kbq_assets.core.protocol.commits import Commit, StagedFile
from kbq_assets.core.protocol.names import shard_of
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.object_store import ObjectStore


@dataclass(frozen=True)
class Pending:
    """Judges files by table states that were read before the commits (L1)."""

    store: ObjectStore
    states: WarehouseStates

    @classmethod
    def read(cls, store: ObjectStore) -> Pending:
        """With the table states of all warehouses as they are now."""
        return cls(store, state.warehouse_states(store))

    def pruned(self, commit: Commit) -> Commit:
        """A commit without loaded windows, as the next extraction leaves it: they are not pending (E7, E9)."""
        return commits.prune(commit, self.states.is_loaded)

    def backlog(self, commit: Commit) -> tuple[StagedFile, ...]:
        """Files of a commit's partitions that wait in backlogs alone. Reads them now: read the commit first."""
        known = {*commit.given_up, *(file.path for file in commit.files)}
        chunks = (c for area in state.areas(self.store).values() for c in state.read_backlogs(area))
        waiting = {file.path: file for chunk in chunks for file in chunk.value.files}
        return tuple(
            file
            for file in waiting.values()
            if file.name.topic_partition.topic == commit.topic
            and shard_of(file.name.topic_partition.partition) == commit.shard
            and file.path not in known
            and not self.states.is_loaded(file)
        )
