"""Staged files of a topic that some warehouse has not loaded: in commits and in the backlogs of parked tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kbq_assets.core.errors import CorruptState, Refused
from kbq_assets.core.extraction.pruning import BacklogChunk
from kbq_assets.core.loading.file_warehouses import WarehouseStates
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol import codec, commits
from kbq_assets.core.protocol.commits import Commit, StagedFile
from kbq_assets.core.protocol.names import BACKLOG, shard_of
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.pipelines.threads import parallel
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


@dataclass(frozen=True)
class Backlogs:
    """All backlog chunks, read after a topic's commits: a file is in its backlog before it leaves its commit (E7)."""

    store: ObjectStore
    commits: Mapping[int, Commit]
    chunks: Sequence[Versioned[BacklogChunk] | DamagedChunk]

    @classmethod
    def read(cls, store: ObjectStore, commits: Mapping[int, Commit]) -> Backlogs:
        """Read every chunk. ``commits`` by shard were read before."""
        areas = state.areas(store).values()
        return cls(store, commits, [chunk for area in areas for chunk in _chunks(area)])

    def after(self, commit: Commit) -> Iterator[StagedFile]:
        """The files of readable chunks, read after a commit; if it changed meanwhile, they are read again."""
        is_known = self.commits.get(commit.shard) == commit
        found = self if is_known else Backlogs.read(self.store, {})
        for chunk in found.chunks:
            if not isinstance(chunk, DamagedChunk):
                yield from chunk.value.files

    def damaged(self, topic: str, shards: Collection[int], gives_up: bool) -> list[DamagedChunk]:
        """Unreadable chunks of a topic's commits. Raises Refused unless the operator gives them up."""
        found = [chunk for chunk in self.chunks if isinstance(chunk, DamagedChunk)]
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


def _chunks(area: ObjectStore) -> list[Versioned[BacklogChunk] | DamagedChunk]:
    def read(path: str) -> Versioned[BacklogChunk] | DamagedChunk | None:
        try:
            return state.find(area, BacklogChunk, path)
        except CorruptState:
            return DamagedChunk(area, path)

    return [chunk for chunk in parallel(read, area.paths(BACKLOG)) if chunk is not None]


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

    def backlog(self, commit: Commit, backlogs: Backlogs) -> tuple[StagedFile, ...]:
        """Files of a commit's partitions that wait only in readable backlogs."""
        known = {*commit.given_up, *(file.path for file in commit.files)}
        waiting = {file.path: file for file in backlogs.after(commit)}
        return tuple(
            file
            for file in waiting.values()
            if file.name.topic_partition.topic == commit.topic
            and shard_of(file.name.topic_partition.partition) == commit.shard
            and file.path not in known
            and not self.states.is_loaded(file)
        )


def backlog_lines(waiting: Collection[StagedFile], gives_up: bool) -> Iterable[str]:
    """What a reset does with files in backlogs."""
    for table in sorted({file.table for file in waiting}):
        rows = sum(file.rows for file in waiting if file.table == table)
        becomes = "gives up" if gives_up else "keeps, for the resumed table,"
        yield f"{becomes} {counted(rows, 'staged row')} in the backlog of {table}"


def unread_lines(given_up: Collection[StagedFile], starts: Collection[int]) -> Iterable[str]:
    """Partitions that lose rows although the reset does not read them: they share a commit with one that it does."""
    for tp in sorted({file.name.topic_partition for file in given_up}):
        files = [file for file in given_up if file.name.topic_partition == tp and file.rows]
        if tp.partition not in starts and files:
            rows, first = sum(file.rows for file in files), min(file.name.first_offset for file in files)
            yield f"does not read {tp} again: {counted(rows, 'row')} of these, from offset {first} on"
