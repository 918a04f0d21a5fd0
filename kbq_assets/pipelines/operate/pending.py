"""Staged files of a topic that some warehouse has not loaded: in commits and in the backlogs of parked tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from kbq_assets.core.errors import CorruptState, Refused
from kbq_assets.core.extraction.pruning import BacklogChunk
from kbq_assets.core.loading.file_warehouses import WarehouseStates
from kbq_assets.core.protocol import codec, commits
from kbq_assets.core.protocol.commits import Commit, StagedFile
from kbq_assets.core.protocol.names import BACKLOG, shard_of
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.ports.object_store import ObjectStore


@dataclass(frozen=True)
class DamagedChunk:
    """A backlog chunk that cannot be read. Its name shows which window's files wait there."""

    area: ObjectStore
    path: str

    def is_of(self, topic: str, shards: Collection[int]) -> bool:
        window = self.path[self.path.rindex("/") + 1 :].partition("-")[2]
        of_topic, _, rest = window.removesuffix(".json").rpartition(".")[0].rpartition(".")
        return of_topic == topic and rest.isdecimal() and shard_of(int(rest)) in shards

    def __str__(self) -> str:
        return f"gives up the files of {self.path}, which cannot be read"


def damaged_chunks(
    store: ObjectStore, topic: str, shards: Collection[int], gives_up: bool
) -> list[DamagedChunk]:
    """Unreadable backlog chunks of a topic's commits. Raises Refused unless the operator gives them up."""
    found = [c for area in state.areas(store).values() for c in _chunks(area) if isinstance(c, DamagedChunk)]
    own = [chunk for chunk in found if chunk.is_of(topic, shards)]
    if own and not gives_up:
        raise Refused(
            f"{own[0].path} cannot be read: rows of {topic} wait there",
            next_step=f"{codec.RESTORE}; or pass --give-up-pending to lose them",
        )
    return own


def give_up_chunks(damaged: Iterable[DamagedChunk]) -> None:
    """Replace chunks by empty ones. The next load of their tables deletes them."""
    for chunk in damaged:
        found = chunk.area.get(chunk.path)
        chunk.area.swap(chunk.path, codec.dumps(BacklogChunk(())), found.generation)


def _chunks(area: ObjectStore) -> Iterator[Versioned[BacklogChunk] | DamagedChunk]:
    for path in area.paths(BACKLOG):
        try:
            if (chunk := state.find(area, BacklogChunk, path)) is not None:
                yield chunk
        except CorruptState:
            yield DamagedChunk(area, path)


@dataclass(frozen=True)
class Pending:
    """Decides which files are pending, by table states that were read before the commits (L1)."""

    store: ObjectStore
    states: WarehouseStates

    @classmethod
    def read(cls, store: ObjectStore) -> Pending:
        """Read the current table states of all warehouses."""
        return cls(store, state.warehouse_states(store))

    def pruned(self, commit: Commit) -> Commit:
        """A commit without its loaded windows, as the next extraction would leave it (E7, E9)."""
        return commits.prune(commit, self.states.is_loaded)

    def backlog(self, commit: Commit) -> tuple[StagedFile, ...]:
        """Files of a commit's partitions that wait only in readable backlogs. Read the commit first."""
        known = {*commit.given_up, *(file.path for file in commit.files)}
        chunks = (
            c
            for area in state.areas(self.store).values()
            for c in _chunks(area)
            if not isinstance(c, DamagedChunk)
        )
        waiting = {file.path: file for chunk in chunks for file in chunk.value.files}
        return tuple(
            file
            for file in waiting.values()
            if file.name.topic_partition.topic == commit.topic
            and shard_of(file.name.topic_partition.partition) == commit.shard
            and file.path not in known
            and not self.states.is_loaded(file)
        )
