"""Staged files of a topic that no table has yet, in its commits and in the backlogs of parked tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol import commits
from kbq_assets.core.protocol.commits import Commit, StagedFile
from kbq_assets.core.protocol.names import TableReference, shard_of
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.object_store import ObjectStore


@dataclass(frozen=True)
class Pending:
    """Judges files by table states that were read before the commits (L1)."""

    store: ObjectStore
    states: Mapping[TableReference, TableState]

    @classmethod
    def read(cls, store: ObjectStore) -> Pending:
        """With the table states as they are now."""
        found = state.read_table_states(store, state.table_registry(store))
        return cls(store, {table: versioned.value for table, versioned in found.items()})

    def pruned(self, commit: Commit) -> Commit:
        """A commit without loaded windows, as the next extraction leaves it: they are not pending (E7, E9)."""
        return commits.prune(commit, self._is_loaded)

    def backlog(self, commit: Commit) -> tuple[StagedFile, ...]:
        """Files of a commit's partitions that wait in backlogs alone. Reads them now: read the commit first."""
        known = {*commit.given_up, *(file.path for file in commit.files)}
        waiting = (file for chunk in state.read_backlogs(self.store) for file in chunk.value.files)
        return tuple(
            file
            for file in waiting
            if file.name.topic_partition.topic == commit.topic
            and shard_of(file.name.topic_partition.partition) == commit.shard
            and file.path not in known
            and not self._is_loaded(file)
        )

    def _is_loaded(self, file: StagedFile) -> bool:
        return file.table in self.states and self.states[file.table].is_loaded(file)
