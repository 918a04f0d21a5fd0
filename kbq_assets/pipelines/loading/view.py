"""The view of a load cycle: states, then commits, then backlogs, read in this order (PROTOCOL L1).

A batch moves its table's mark past everything below it. So if a view shows a file, it must also show every pending file
below that one:

1. *States first.* The swap that enters a job names the state's generation. If it succeeds, the table was neither loaded
   nor parked since the view. So every file that left the commits after that read was loaded or moved before it.
2. *Commits second.* A file that was pending when its commit was read is in the commit, or already in the backlog. Marks
   may be older than the commits, but never newer than the state that is swapped.
3. *Backlogs last.* A file that moved between the two reads is in both or only in the backlog. If a file is only in the
   backlog, there are two cases. It left its commit before the commit was read: then all earlier chunks existed too. Or
   it was published later: then it lies at or above the commit's position, and is left to the next view (W5). So the
   listing need not be a snapshot of one moment.

Hence each table plans at most once per view, with the view's own state. After a swap it waits for the next view.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, TypeAlias, TypeVar

from kbq_assets.core.errors import (
    ConfigurationError,
    CorruptState,
    InvalidName,
    KbqError,
    MissingState,
    NotFound,
    StateError,
    TransientError,
)
from kbq_assets.core.extraction.pruning import BacklogChunk
from kbq_assets.core.loading.table_registry import TableRegistry
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.observation.check_names import PARTITIONS_RUN
from kbq_assets.core.observation.checks import LoadBlock
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.commits import Commit, StagedFile
from kbq_assets.core.protocol.names import (
    BACKLOG,
    COMMITS,
    FIRST_WAREHOUSE,
    TABLE_REGISTRY,
    TABLES,
    TOPIC_REGISTRY,
    TableReference,
    backlog_prefix,
    commit_path,
    commit_topic,
    shard_of,
    table_state_path,
)
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.protocol.topic_registry import TopicEntry, TopicRegistry
from kbq_assets.core.statements.rules import StatementRule
from kbq_assets.pipelines.loading.verification import StagedContents
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.outages import everything_waits_for
from kbq_assets.pipelines.protocol.refusals import end_if_all, is_refusal
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.pipelines.protocol.state_cache import StateCache
from kbq_assets.pipelines.protocol.warehouse_store import warehouse_of
from kbq_assets.ports.object_store import ObjectEntry

K = TypeVar("K")
T = TypeVar("T")
#: Errors of a state or backlog that do not pass by themselves (L6): it is lost, damaged, of a newer release or refused.
UNUSABLE: Final = (StateError, ConfigurationError)


@dataclass(frozen=True)
class LoadView:
    """One read of all state that a load needs."""

    cache: StateCache = field(repr=False)
    registry: TableRegistry
    #: states of registered tables, or their errors (L6); a table that is being created may have none yet
    states: Mapping[TableReference, Versioned[TableState] | KbqError]
    #: the readable commits
    commits: tuple[Commit, ...]
    #: the commits' files per table, loaded or not
    committed: Mapping[TableReference, list[StagedFile]]
    #: paths of files that resets gave up
    given_up: frozenset[str]
    #: listed backlog chunks per table
    backlog: Mapping[str, Mapping[str, ObjectEntry]]
    topics: TopicRegistry = field(default_factory=TopicRegistry)
    #: every registered commit by path, or its error (E1)
    commit_objects: Mapping[str, Versioned[Commit] | KbqError] = field(default_factory=dict)
    #: topics whose files wait, with the reason (L9)
    blocks: Mapping[str, LoadBlock] = field(default_factory=dict)

    @property
    def warehouse(self) -> str:
        return warehouse_of(self.cache.store)

    @cached_property
    def refused(self) -> Mapping[str, str]:
        """The store's refusals by commit path. The files of these topics wait."""
        return {path: str(found) for path, found in self.commit_objects.items() if is_refusal(found)}

    @cached_property
    def unavailable(self) -> Mapping[str, str]:
        """Commits that the store does not give now, by path, each with the error. The files of these topics wait."""
        found = self.commit_objects.items()
        return {path: str(error) for path, error in found if isinstance(error, TransientError)}

    @cached_property
    def silent_tables(self) -> Mapping[TableReference, KbqError]:
        """Tables whose state or backlog the store does not give now, each with the error."""
        found = dict[TableReference, KbqError]()
        for table in self.tables:
            try:
                self.state_of(table)
                self.chunks(table)
            except TransientError as error:
                found[table] = error
            except UNUSABLE:
                continue
        return found

    @cached_property
    def silent(self) -> Mapping[str, str]:
        """Commits, states and backlogs that the store does not give now, by path, each with the error."""
        paths = {
            backlog_prefix(t) if isinstance(self.states.get(t), Versioned) else table_state_path(t): error
            for t, error in self.silent_tables.items()
        }
        return {**self.unavailable, **{path: str(error) for path, error in paths.items()}}

    def without(self, tables: Collection[TableReference]) -> LoadView:
        """The view as if there were none of these tables."""
        names = {str(table) for table in tables}
        registry = replace(
            self.registry,
            active={name: uuid for name, uuid in self.registry.active.items() if name not in names},
            creating={name: uuid for name, uuid in self.registry.creating.items() if name not in names},
        )
        return replace(
            self,
            registry=registry,
            states={table: found for table, found in self.states.items() if table not in tables},
            committed={table: files for table, files in self.committed.items() if table not in tables},
            backlog={name: chunks for name, chunks in self.backlog.items() if name not in names},
        )

    @cached_property
    def refusals(self) -> Mapping[str, KbqError]:
        """Topics with a refused commit, each with one of the refusals."""
        found = {path: self.commit_objects[path] for path in self.refused}
        return {commit_topic(path): error for path, error in found.items() if isinstance(error, KbqError)}

    @cached_property
    def staged(self) -> StagedContents:
        """Sizes and checksums of staged files, for the job submissions of this view (L11)."""
        return StagedContents(self.cache.store)

    @cached_property
    def generations(self) -> object:
        """The generation or the error of every object that was read. Views with equal generations are equal."""
        states, commits = _generations(self.states), _generations(self.commit_objects)
        return states, commits, self.registry, self.topics, self.backlog

    def once(self, name: str, compute: Callable[[], T]) -> T:
        """A result that depends only on this view's objects. It is computed again if one of them has changed."""
        return self.cache.derived(name, self.generations, compute)

    @property
    def tables(self) -> list[TableReference]:
        """Tables with files in commits or backlogs, and all tables ever loaded, because each may have a job in flight.

        If the other warehouses were ahead, a table that this one never loaded may be only in its backlog (W3)."""
        waiting = (TableReference.parse(name) for name in self.backlog)
        return sorted({*self.committed, *self.registry.tables, *waiting})

    def commit_paths(self, topic: str) -> list[str]:
        entry = self.topics.topics.get(topic, TopicEntry())
        return [commit_path(topic, shard) for shard in (*entry.active, *entry.creating)]

    def state_of(self, table: TableReference) -> TableState:
        """A table's state, or an empty one if it has none. Raises the error of an unusable state."""
        found = self.states.get(table)
        if isinstance(found, KbqError):
            raise found
        return found.value if found else TableState("")

    def chunks(self, table: TableReference) -> list[Versioned[BacklogChunk]]:
        """A table's backlog chunks, read now. A chunk that is gone was loaded. Raises Unavailable, CorruptState."""
        listed = self.backlog.get(str(table), {})
        return _present(self.cache.read(BacklogChunk, listed, listed), NotFound)

    def files(self, table: TableReference) -> list[StagedFile]:
        """A table's files, from commits and backlog; one may be in both. Files committed after the view's commits are
        left out (W5)."""
        waiting = (file for chunk in self.chunks(table) for file in chunk.value.files)
        return [*self.committed.get(table, ()), *filter(self._is_in_commit, waiting)]

    def whole_chunks(self, table: TableReference) -> list[str]:
        """Paths of the table's backlog chunks that `files` returns completely."""
        return [c.path for c in self.chunks(table) if all(map(self._is_in_commit, c.value.files))]

    def _is_in_commit(self, file: StagedFile) -> bool:
        """Whether a file lies below the position of its commit as it was read.

        True for an unreadable commit, because nobody changes it. False for a commit that the store does not give to
        this process, because others may change it.
        """
        name = file.name
        topic, partition = name.topic_partition
        path = commit_path(topic, shard_of(partition))
        if path in self.refused or path in self.unavailable:
            return False
        epoch, position = self.positions.get(name.topic_partition, (name.epoch, file.until))
        return name.epoch < epoch or (name.epoch == epoch and file.until <= position)

    def committed_rules(self, topics: Iterable[str]) -> frozenset[StatementRule]:
        """The load rules that topics had when their last windows were committed (S10)."""
        wanted = frozenset(topics)
        latest: dict[str, Commit] = {}
        for commit in self.commits:
            known = latest.get(commit.topic, commit)
            if commit.topic in wanted and commit.published.last_ms >= known.published.last_ms:
                latest[commit.topic] = commit
        return frozenset(commit.load for commit in latest.values())

    @property
    def unknown(self) -> frozenset[str]:
        """Topics whose options were unknown when the view was read (L9)."""
        return frozenset(topic for topic, block in self.blocks.items() if block.check == PARTITIONS_RUN)

    @cached_property
    def positions(self) -> Mapping[TopicPartition, tuple[int, int]]:
        """Epoch and position of each partition with a readable commit."""
        return {
            commit.topic_partition(number): (commit.epoch, partition.next)
            for commit in self.commits
            for number, partition in commit.partitions.items()
        }


def _generations(found: Mapping[K, Versioned[T] | KbqError]) -> dict[K, int | str]:
    return {k: v.generation if isinstance(v, Versioned) else str(v) for k, v in found.items()}


#: Decides which topics' files wait, and why (L9).
FindBlocks: TypeAlias = Callable[[LoadView], Mapping[str, LoadBlock]]


def read_view(
    cache: StateCache, blocks: FindBlocks | None = None, *, survives_silence: bool = False
) -> LoadView:
    """Read a view; only changed objects are read again. ``blocks`` decides which topics' files wait. Raises
    MissingState, Unavailable; with ``survives_silence``, not for a commit that the store does not give now."""
    registry, states = read_states(cache)
    topics, objects = _read_commits(cache)
    silence = (TransientError,) if survives_silence else ()
    left_out = (NotFound, CorruptState, ConfigurationError, *silence)
    commits = tuple(found.value for found in _present(objects.values(), *left_out))
    view = LoadView(
        cache=cache,
        registry=registry,
        states=states,
        commits=commits,
        committed=_by_table(commits, warehouse_of(cache.store)),
        given_up=frozenset(path for commit in commits for path in commit.given_up),
        backlog=_backlog(cache.listing(BACKLOG)),
        topics=topics,
        commit_objects=objects,
    )
    return view if blocks is None else replace(view, blocks=blocks(view))


def read_states(
    cache: StateCache,
) -> tuple[TableRegistry, dict[TableReference, Versioned[TableState] | KbqError]]:
    """The registered tables with their states, or with the errors of unusable ones (L6)."""
    listed = cache.listing(TABLES)
    # Read the registry before the states: a table that is active by then has a state.
    with everything_waits_for(TABLE_REGISTRY):
        registry = _registry(cache, TableRegistry, TABLE_REGISTRY, listed) or state.table_registry(
            cache.store
        )
    tables = registry.tables
    paths = [table_state_path(table) for table in tables]
    found: dict[TableReference, Versioned[TableState] | KbqError] = dict(
        zip(tables, cache.read(TableState, paths, listed), strict=True)
    )
    end_if_all(found.values())
    for table, value in list(found.items()):
        if isinstance(value, NotFound):
            found.pop(table)
            if str(table) in registry.active:
                found[table] = missing_state(table)
    return registry, found


def missing_state(table: TableReference) -> MissingState:
    """The error for a table whose registered state does not exist (L6)."""
    return MissingState(f"{table_state_path(table)} is registered but missing (L6)", next_step=codec.RESTORE)


def _read_commits(
    cache: StateCache,
) -> tuple[TopicRegistry, dict[str, Versioned[Commit] | KbqError]]:
    """Every registered commit, by path. A missing or unreadable one stops only its own topic (E1)."""
    listed = cache.listing(COMMITS)
    with everything_waits_for(TOPIC_REGISTRY):
        registry = _registry(cache, TopicRegistry, TOPIC_REGISTRY, listed) or state.topic_registry(
            cache.store
        )
    paths = [commit_path(t, shard) for t, e in registry.topics.items() for shard in (*e.active, *e.creating)]
    found = cache.read(Commit, paths, listed)
    end_if_all(found)
    return registry, dict(zip(paths, found, strict=True))


def _registry(cache: StateCache, cls: type[T], path: str, listed: Mapping[str, ObjectEntry]) -> T | None:
    """A registry; None if it is not listed. The caller must decide what that means."""
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
    """Chunks per table: `backlog/<dataset>.<table>/<chunk>`. Folders of other warehouses are skipped (W1)."""
    chunks: dict[str, dict[str, ObjectEntry]] = defaultdict(dict)
    for path, entry in listed.items():
        with suppress(InvalidName):
            table = TableReference.parse(path.removeprefix(BACKLOG).partition("/")[0])
            chunks[str(table)][path] = entry
    return dict(chunks)


def _by_table(
    commits: Iterable[Commit], warehouse: str = FIRST_WAREHOUSE
) -> Mapping[TableReference, list[StagedFile]]:
    tables: dict[TableReference, list[StagedFile]] = {}
    for commit in commits:
        for file in filter(lambda file: warehouse in file.wanted_by, commit.files):
            tables.setdefault(file.table, []).append(file)
    return tables
