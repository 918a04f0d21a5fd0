"""What a load cycle plans from: states, then commits, then backlogs, each as old as the next or older (PROTOCOL L1).

A batch moves its table's mark beyond everything below, so nothing pending may be missing below a file that is seen:

1. *States first.* The swap that enters a flight names the state's generation. If it succeeds, the table was neither
   loaded nor parked since, so all files that left the commits after that moment were loaded or set aside before it.
2. *Commits second.* What was pending when a commit was read is in it, or was in the backlog by then. Marks may be
   older than the commits, never newer than the state that is swapped.
3. *Backlogs last.* A file moved between the two reads is in both or in the second. One that is in the backlog alone
   left its commit before that was read, and then the chunks before it had been created too; or it was published
   later, and who set it aside saw the table parked later than the state, whose swap then fails. So a listing that is
   no snapshot of a moment will do.

Hence a view is planned from once per table, and only with the state it has: after a swap a table waits for the next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar

from kbq_assets.core.errors import CorruptState, KbqError, MissingState, NotFound, UnsupportedFormat
from kbq_assets.core.extraction.pruning import BacklogChunk
from kbq_assets.core.loading.table_state import TableRegistry, TableState
from kbq_assets.core.observation.checks import LoadBlock
from kbq_assets.core.protocol.commits import Commit, StagedFile
from kbq_assets.core.protocol.names import (
    BACKLOG,
    COMMITS,
    TABLE_REGISTRY,
    TABLES,
    TOPIC_REGISTRY,
    TableReference,
    commit_path,
    table_state_path,
)
from kbq_assets.core.protocol.topic_registry import TopicEntry, TopicRegistry
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.pipelines.protocol.state_cache import StateCache
from kbq_assets.ports.object_store import ObjectEntry

T = TypeVar("T")


@dataclass(frozen=True)
class LoadView:
    """One read of everything that loading looks at.

    ``states`` are those of registered tables, or why one cannot be used (L6); a table that is being created may have
    none yet. ``committed`` are the commits' files per table, loaded or not. ``backlog`` are listed chunks.
    ``topics`` and ``commit_objects`` are what commits there are, by path: each, or why it cannot be used (E1).
    ``holds`` are the topics whose files wait, and why (L9).
    """

    cache: StateCache = field(repr=False)
    registry: TableRegistry
    states: Mapping[TableReference, Versioned[TableState] | KbqError]
    commits: tuple[Commit, ...]
    committed: Mapping[TableReference, list[StagedFile]]
    given_up: frozenset[str]
    backlog: Mapping[str, Mapping[str, ObjectEntry]]
    topics: TopicRegistry = field(default_factory=TopicRegistry)
    commit_objects: Mapping[str, Versioned[Commit] | KbqError] = field(default_factory=dict)
    blocks: Mapping[str, LoadBlock] = field(default_factory=dict)

    @property
    def tables(self) -> list[TableReference]:
        """Tables with files in commits, and all tables ever loaded: any may have a flight or a backlog."""
        return sorted({*self.committed, *self.registry.tables})

    def commit_paths(self, topic: str) -> list[str]:
        """The commit objects that a topic has, by the registry."""
        entry = self.topics.topics.get(topic, TopicEntry())
        return [commit_path(topic, shard) for shard in (*entry.active, *entry.creating)]

    def state_of(self, table: TableReference) -> TableState:
        """A table's state, a fresh one where there is none. Raises what makes it unusable."""
        found = self.states.get(table)
        if isinstance(found, KbqError):
            raise found
        return found.value if found else TableState("")

    def chunks(self, table: TableReference) -> list[Versioned[BacklogChunk]]:
        """A table's backlog chunks, read now; those that are gone are loaded. Raises Unavailable, CorruptState."""
        listed = self.backlog.get(str(table), {})
        return _present(self.cache.read(BacklogChunk, listed, listed), NotFound)

    def files(self, table: TableReference) -> list[StagedFile]:
        """A table's files, of commits and backlog; one may be in both."""
        waiting = (file for chunk in self.chunks(table) for file in chunk.value.files)
        return [*self.committed.get(table, ()), *waiting]


#: Decides which topics' files wait, and why (L9).
FindBlocks: TypeAlias = Callable[[LoadView], Mapping[str, LoadBlock]]


def read_view(cache: StateCache, blocks: FindBlocks | None = None) -> LoadView:
    """Read what changed since the last view. ``blocks`` decides what waits. Raises MissingState, Unavailable."""
    registry, states = read_states(cache)
    topics, objects = _read_commits(cache)
    commits = tuple(c.value for c in _present(objects.values(), NotFound, CorruptState, UnsupportedFormat))
    view = LoadView(
        cache,
        registry,
        states,
        commits,
        state.by_table(commits),
        frozenset(path for commit in commits for path in commit.given_up),
        _backlog(cache.listing(BACKLOG)),
        topics,
        objects,
    )
    return view if blocks is None else replace(view, blocks=blocks(view))


def read_states(
    cache: StateCache,
) -> tuple[TableRegistry, dict[TableReference, Versioned[TableState] | KbqError]]:
    """The registered tables and their states, or why one cannot be used (L6)."""
    listed = cache.listing(TABLES)
    # The registry before the states: a table that is active by then has one.
    registry = _registry(cache, TableRegistry, TABLE_REGISTRY, listed) or state.table_registry(cache.store)
    tables = registry.tables
    paths = [table_state_path(table) for table in tables]
    found: dict[TableReference, Versioned[TableState] | KbqError] = dict(
        zip(tables, cache.read(TableState, paths, listed), strict=True)
    )
    for table, value in list(found.items()):
        if isinstance(value, NotFound):
            found.pop(table)
            if str(table) in registry.active:
                found[table] = missing_state(table)
    return registry, found


def missing_state(table: TableReference) -> MissingState:
    """The error of a table whose registered state is not there (L6)."""
    return MissingState(
        f"{table_state_path(table)} is registered but missing", next_step="restore it from a backup (L6)"
    )


def _read_commits(
    cache: StateCache,
) -> tuple[TopicRegistry, dict[str, Versioned[Commit] | KbqError]]:
    """Every registered commit, by path. A missing or unreadable one stops its own topic only (E1)."""
    listed = cache.listing(COMMITS)
    registry = _registry(cache, TopicRegistry, TOPIC_REGISTRY, listed) or state.topic_registry(cache.store)
    paths = [commit_path(t, shard) for t, e in registry.topics.items() for shard in (*e.active, *e.creating)]
    return registry, dict(zip(paths, cache.read(Commit, paths, listed), strict=True))


def _registry(cache: StateCache, cls: type[T], path: str, listed: Mapping[str, ObjectEntry]) -> T | None:
    """A listed registry; None where there is none, which may be well or not."""
    return _present(cache.read(cls, [path], listed))[0].value if path in listed else None


def _present(found: Iterable[Versioned[T] | KbqError], *left_out: type[KbqError]) -> list[Versioned[T]]:
    present = []
    for value in found:
        if isinstance(value, Versioned):
            present.append(value)
        elif not isinstance(value, left_out):
            raise value
    return present


def _backlog(listed: Mapping[str, ObjectEntry]) -> dict[str, dict[str, ObjectEntry]]:
    """Chunks per table: `backlog/<dataset>.<table>/<chunk>`."""
    chunks: dict[str, dict[str, ObjectEntry]] = defaultdict(dict)
    for path, entry in listed.items():
        chunks[path.removeprefix(BACKLOG).partition("/")[0]][path] = entry
    return dict(chunks)
