"""State objects in the store: read, create, swap, with the registry's rules (PROTOCOL E1, L6).

A registered object is *announced* before it is created, and *active* before it is used. A crash in between leaves an
announcement that the next run completes. If an active object is missing, that is an error; KBQ never assumes it was
empty.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Generic, TypeVar, cast

from kbq_assets.core.erasure.model import ErasureLog, log_path, raised
from kbq_assets.core.errors import (
    ConfigurationError,
    CorruptState,
    KbqError,
    MissingState,
    NotFound,
    PreconditionFailed,
    TransientError,
    Unavailable,
    UnknownOutcome,
    UnsupportedFormat,
)
from kbq_assets.core.extraction.pruning import BacklogChunk
from kbq_assets.core.loading.file_warehouses import ACTIVE, REMOVED, WarehouseStates
from kbq_assets.core.loading.table_registry import TableRegistry
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.commits import Commit, StagedFile
from kbq_assets.core.protocol.manifests import CommitParts, HeadDraft, packed, sealed, whole
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
    table_state_path,
)
from kbq_assets.core.protocol.topic_registry import TopicRegistry
from kbq_assets.pipelines.protocol import manifests
from kbq_assets.pipelines.protocol.manifests import LostManifest, ManifestCache
from kbq_assets.pipelines.protocol.warehouse_store import WarehouseStore, beneath
from kbq_assets.pipelines.threads import parallel
from kbq_assets.ports.object_store import ObjectStore

T = TypeVar("T")
#: Attempts of a read-modify-write while others are faster. One without an answer takes minutes, and counts for several.
_SWAP_ATTEMPTS, _UNANSWERED = 20, 7


@dataclass(frozen=True)
class Versioned(Generic[T]):
    """A state object as read. ``updated_ms`` is the store's time of its last change. ``parts`` are the head and the
    manifests of a whole commit; a commit without ``parts`` is only a head."""

    path: str
    value: T
    generation: int
    updated_ms: int = 0
    parts: CommitParts | None = field(default=None, compare=False, repr=False)


def read(store: ObjectStore, cls: type[T], path: str, kept: ManifestCache | None = None) -> Versioned[T]:
    """Read a state object. A commit is read with its manifests, which ``kept`` caches. Raises NotFound, CorruptState,
    UnsupportedFormat, Unavailable."""
    if cls is Commit:
        return cast("Versioned[T]", _read_whole(store, path, kept))
    return _read(store, cls, path)


def read_head(store: ObjectStore, path: str) -> Versioned[Commit]:
    """Read only the head of a commit: positions, and the latest windows."""
    return _read(store, Commit, path)


def _read(store: ObjectStore, cls: type[T], path: str) -> Versioned[T]:
    stored = store.get(path)
    return Versioned(path, codec.loads(cls, stored.data, path), stored.generation, stored.updated_ms)


def _read_whole(store: ObjectStore, path: str, kept: ManifestCache | None) -> Versioned[Commit]:
    """A head and its manifests. If a manifest is missing, it may have left the head meanwhile, so the head is read
    again. If it still names the manifest, that is lost (M4)."""
    lost: LostManifest | None = None
    while True:
        head = read_head(store, path)
        if lost is not None and lost.names(head.value):
            raise lost
        try:
            parts = manifests.read_parts(store, head.value, head.value.manifests, kept)
            return replace(head, value=whole(parts), parts=parts)
        except LostManifest as error:
            lost = error


def check_manifests(store: ObjectStore, head: Versioned[Commit]) -> None:
    """Raise LostManifest if the store lacks a manifest that the head names. Takes one listing (M4)."""
    for lost in manifests.missing(store, head.value):
        if lost.names(read_head(store, head.path).value):
            raise lost


def find(store: ObjectStore, cls: type[T], path: str) -> Versioned[T] | None:
    """Read a state object that may not exist."""
    try:
        return read(store, cls, path)
    except NotFound:
        return None


def create(store: ObjectStore, path: str, value: object) -> None:
    """Create a state object unless it exists. Raises UnknownOutcome: create it again."""
    with suppress(PreconditionFailed):
        store.create(path, codec.dumps(value))


def swap(store: ObjectStore, old: Versioned[T], value: T) -> Versioned[T]:
    """Replace a state object if it has not changed. Raises PreconditionFailed, UnknownOutcome: read it again."""
    if value == old.value:
        return old
    if isinstance(value, Commit):
        return cast("Versioned[T]", swap_commit(store, cast("Versioned[Commit]", old), value))
    generation = store.swap(old.path, codec.dumps(value), old.generation)
    return Versioned(old.path, value, generation)


def swap_commit(
    store: ObjectStore, old: Versioned[Commit], value: Commit, draft: HeadDraft | None = None
) -> Versioned[Commit]:
    """Replace a commit, whole or only its head, by ``value``. ``draft`` overrides how it is stored. Windows that do not
    fit into the head go to manifests first (M1). Raises the same errors as `swap`."""
    if draft is None and old.parts is not None:
        draft = packed(old.parts, value)
    elif draft is None:
        draft = HeadDraft(replace(value, manifests=()), value.manifests)
    head, held = manifests.write(store, sealed(draft, manifests.LIMITS), old.generation)
    if head == (old.value if old.parts is None else old.parts.head):
        return old
    generation = store.swap(old.path, codec.dumps(head), old.generation)
    if old.parts is None:
        return Versioned(old.path, head, generation)
    return Versioned(old.path, value, generation, parts=CommitParts(head, {**old.parts.manifests, **held}))


def change(store: ObjectStore, cls: type[T], path: str, function: Callable[[T], T]) -> Versioned[T]:
    """Read, modify and swap until it succeeds. Errors of ``function`` propagate.

    After a conflict (perhaps with its own retried swap) or an unknown outcome, it first looks for the intended value.
    """
    return _change(lambda: read(store, cls, path), lambda old, value: swap(store, old, value), function)


def change_head(store: ObjectStore, path: str, function: Callable[[Commit], Commit]) -> Versioned[Commit]:
    """Like `change`, for the head of a commit: positions, stops, gaps. Writes no manifest."""

    def swap_as_it_is(old: Versioned[Commit], value: Commit) -> Versioned[Commit]:
        if value == old.value:
            return old
        return Versioned(path, value, store.swap(path, codec.dumps(value), old.generation))

    return _change(lambda: read_head(store, path), swap_as_it_is, function)


def _change(
    read_now: Callable[[], Versioned[T]],
    swap_now: Callable[[Versioned[T], T], Versioned[T]],
    function: Callable[[T], T],
) -> Versioned[T]:
    intended: T | None = None
    why, left = f"others changed it {_SWAP_ATTEMPTS} times", _SWAP_ATTEMPTS
    while True:
        old = read_now()
        if intended is not None and old.value == intended:
            return old
        if left <= 0:
            raise Unavailable(f"{old.path} could not be changed: {why}", next_step="run the command again")
        value = function(old.value)
        try:
            return swap_now(old, value)
        except PreconditionFailed:
            left -= 1
        except UnknownOutcome as error:
            why, left = error.message, left - _UNANSWERED
        intended = value


def topic_registry(store: ObjectStore) -> TopicRegistry:
    """The registry of topics; empty if nothing was ever committed. Raises MissingState."""
    return _registry(store, TopicRegistry, TOPIC_REGISTRY, COMMITS)


def table_registry(store: ObjectStore) -> TableRegistry:
    """The registry of tables; empty if no table was ever loaded. Raises MissingState."""
    return _registry(store, TableRegistry, TABLE_REGISTRY, TABLES)


def _registry(store: ObjectStore, cls: type[T], path: str, prefix: str) -> T:
    found = find(store, cls, path)
    if found is not None:
        return found.value
    # The first warehouse's registry lists the others, so another warehouse's folder shows that it existed (W1).
    if any(other != path for other in beneath(store).paths(prefix)):
        # Another process may have created it between the two reads.
        found = find(store, cls, path)
        if found is None:
            raise MissingState(f"{path} is missing but {prefix} is not empty", next_step=codec.RESTORE)
        return found.value
    return cls()


def _establish(store: ObjectStore, cls: type[T], path: str, prefix: str) -> None:
    """Create an empty registry if there is none. Reading a registry never creates it. Raises MissingState."""
    if _registry(store, cls, path, prefix) == cls():
        create(store, path, cls())


def set_warehouses(
    store: ObjectStore, cls: type[TableRegistry] | type[TopicRegistry], statuses: Mapping[str, str]
) -> None:
    """Write the statuses of warehouses other than the first to a registry (W1)."""
    path, prefix = (TABLE_REGISTRY, TABLES) if cls is TableRegistry else (TOPIC_REGISTRY, COMMITS)
    _establish(store, cls, path, prefix)
    change(store, cls, path, lambda now: replace(now, warehouses={**now.warehouses, **statuses}))


def create_commit(store: ObjectStore, commit: Commit) -> Versioned[Commit]:
    """Announce, create and activate a shard of a topic's commit. An existing one is returned unchanged."""
    return create_commits(store, [commit])[0]


def create_commits(store: ObjectStore, commits: Sequence[Commit]) -> list[Versioned[Commit]]:
    """`create_commit` for many commits, in two swaps of the registry: GCS allows one change per object and second. A
    commit that is not created stays announced."""
    created = create_each_commit(store, commits)
    for found in created:
        if isinstance(found, KbqError):
            raise found
    return [found for found in created if isinstance(found, Versioned)]


def create_each_commit(
    store: ObjectStore, commits: Sequence[Commit], log_store: ObjectStore | None = None
) -> list[Versioned[Commit] | KbqError]:
    """`create_commits`, but a commit that the store refuses, or does not create now, yields its error. ``log_store`` is
    the store of the erasure logs if it is not ``store``."""
    if not commits:
        return []
    _establish(store, TopicRegistry, TOPIC_REGISTRY, COMMITS)
    keys = [(commit.topic, commit.shard) for commit in commits]
    change(store, TopicRegistry, TOPIC_REGISTRY, lambda r: reduce(lambda r, k: r.announce(*k), keys, r))

    def create_one(commit: Commit) -> Versioned[Commit] | KbqError:
        path = commit_path(commit.topic, commit.shard)
        try:
            # Read the log after the announcement: an erasure raises the version of announced commits (X2).
            log = find(log_store or store, ErasureLog, log_path(commit.topic))
            create(store, path, raised(commit, log.value.version if log else 0))
            return read(store, Commit, path)
        except (ConfigurationError, TransientError) as error:
            return error

    created = parallel(create_one, commits)
    made = [key for key, found in zip(keys, created, strict=True) if isinstance(found, Versioned)]
    change(store, TopicRegistry, TOPIC_REGISTRY, lambda r: reduce(lambda r, k: r.activate(*k), made, r))
    return created


def create_table_state(store: ObjectStore, table: TableReference, uuid: str) -> Versioned[TableState]:
    """Announce, create and activate a table's state. An existing one is returned unchanged.

    ``uuid`` is used only by the first announcement.
    """
    return create_table_states(store, {table: uuid})[table]


def create_table_states(
    store: ObjectStore, uuids: Mapping[TableReference, str]
) -> dict[TableReference, Versioned[TableState]]:
    """`create_table_state` for many, in two swaps of the registry: GCS allows one change per object and second."""
    if not uuids:
        return {}
    _establish(store, TableRegistry, TABLE_REGISTRY, TABLES)
    announced = change(
        store, TableRegistry, TABLE_REGISTRY, lambda r: reduce(lambda r, i: r.announce(*i), uuids.items(), r)
    ).value
    known = {**announced.active, **announced.creating}

    def create_one(table: TableReference) -> Versioned[TableState]:
        path = table_state_path(table)
        create(store, path, TableState(known[str(table)]))
        return read(store, TableState, path)

    created = dict(zip(uuids, parallel(create_one, uuids), strict=True))
    change(store, TableRegistry, TABLE_REGISTRY, lambda r: reduce(lambda r, t: r.activate(t), uuids, r))
    return created


def read_commits(
    store: ObjectStore,
    registry: TopicRegistry | None = None,
    *,
    skips: Collection[type[KbqError]] = (UnsupportedFormat,),
) -> list[Versioned[Commit]]:
    """Every registered commit that can be read. A missing or unreadable one stops only its own topic (E1). For
    ``registry`` and ``skips``, see `read_table_states`."""
    paths = _commit_paths(registry or topic_registry(store))
    found = parallel(lambda path: _readable(lambda: read(store, Commit, path), *skips), paths)
    return [commit for commit in found if commit is not None]


def read_heads(store: ObjectStore, registry: TopicRegistry) -> list[Versioned[Commit]]:
    """The heads of all registered commits, except those that cannot be read, now or at all."""
    skips = ConfigurationError, TransientError
    found = parallel(lambda path: _readable(lambda: read_head(store, path), *skips), _commit_paths(registry))
    return [head for head in found if head is not None]


def _commit_paths(registry: TopicRegistry) -> list[str]:
    return [commit_path(t, shard) for t, e in registry.topics.items() for shard in (*e.active, *e.creating)]


def read_table_states(
    store: ObjectStore,
    registry: TableRegistry | None = None,
    *,
    skips: Collection[type[KbqError]] = (UnsupportedFormat,),
) -> dict[TableReference, Versioned[TableState]]:
    """The states of all registered tables that exist and can be read. An unreadable one stops only its own table (L6).
    ``registry`` saves reading it. Raises MissingState; unless ``skips`` has them, UnsupportedFormat for a state of a
    newer release, and ConfigurationError for one that the store refuses."""
    tables = (registry or table_registry(store)).tables
    states = parallel(
        lambda table: _readable(lambda: read(store, TableState, table_state_path(table)), *skips), tables
    )
    return {table: state for table, state in zip(tables, states, strict=True) if state is not None}


def _readable(read_now: Callable[[], Versioned[T]], *skipped: type[KbqError]) -> Versioned[T] | None:
    left_out: tuple[type[KbqError], ...] = (NotFound, CorruptState, *skipped)
    try:
        return read_now()
    except left_out:
        return None


def read_backlog(store: ObjectStore, table: TableReference) -> list[Versioned[BacklogChunk]]:
    """A table's backlog chunks. Read them after the commits (L1)."""
    return _read_chunks(store, backlog_prefix(table))


def read_backlogs(store: ObjectStore) -> list[Versioned[BacklogChunk]]:
    """The backlog chunks of all tables. Read them after the commits (L1)."""
    return _read_chunks(store, BACKLOG)


def _read_chunks(store: ObjectStore, prefix: str) -> list[Versioned[BacklogChunk]]:
    chunks = parallel(lambda path: find(store, BacklogChunk, path), store.paths(prefix))
    return [chunk for chunk in chunks if chunk is not None]


def areas(store: ObjectStore, registry: TableRegistry | None = None) -> dict[str, WarehouseStore]:
    """The staging area as each warehouse sees it, without removed warehouses. ``registry`` is the first one's."""
    registry = registry or table_registry(WarehouseStore.of(store))
    others = [name for name, status in sorted(registry.warehouses.items()) if status == ACTIVE]
    return {name: WarehouseStore.of(store, name) for name in (FIRST_WAREHOUSE, *others)}


def warehouse_states(store: ObjectStore, *, skips_failed: bool = False) -> WarehouseStates:
    """The readable table states of every warehouse. Unless ``skips_failed``, raises ConfigurationError for a state that
    the store refuses, and Unavailable for one that it does not give now."""
    first = table_registry(WarehouseStore.of(store))
    skips, states = (UnsupportedFormat, *([ConfigurationError, TransientError] if skips_failed else [])), {}
    for name, area in areas(store, first).items():
        registry = first if name == FIRST_WAREHOUSE else table_registry(area)
        found = read_table_states(area, registry, skips=skips)
        states[name] = {table: versioned.value for table, versioned in found.items()}
    removed = (name for name, status in first.warehouses.items() if status == REMOVED)
    return WarehouseStates(states, frozenset(removed))


def files_in_use(store: ObjectStore, commits: Iterable[Versioned[Commit]]) -> dict[str, StagedFile]:
    """Files in use, by path: those of commits and, in every warehouse, of backlogs, of jobs in flight, and those back
    from quarantine. Read ``commits`` before this call (E6). Raises UnsupportedFormat for one of a newer release."""
    files: list[StagedFile] = [file for commit in commits for file in commit.value.files]
    for area in areas(store).values():
        files.extend(file for chunk in read_backlogs(area) for file in chunk.value.files)
        for state in read_table_states(area, skips=()).values():
            if (job := state.value.in_flight) is not None:
                files.extend((*job.files, *job.sources))
            files.extend(bad.file for bad in state.value.retried)
    return {file.path: file for file in files}
