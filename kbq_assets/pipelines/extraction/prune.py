"""Done files that a dead run did not write (E5), then pruning and backlogs (E7)."""

from __future__ import annotations

from kbq_assets.core.errors import PreconditionFailed
from kbq_assets.core.extraction.pruning import expected_done_files, plan_pruning
from kbq_assets.core.loading.warehouses import WarehouseStates
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.names import commit_path, shard_of
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.done_files import list_done_files, write_done_files
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.ports.object_store import ObjectStore


def repair_and_prune(store: ObjectStore) -> None:
    """Write missing done files (E5), then drop loaded windows and set parked tables' files aside (E7).

    In this order: a partition's highest done file exists before its window can leave the commit (L7). If one cannot
    be written now, a later run prunes its commit.
    """
    current = state.read_commits(store, state.topic_registry(store))
    states = state.warehouse_states(store)
    existing = frozenset(list_done_files(store))
    expected = [name for c in current for name in expected_done_files(c.value, states)]
    missing = write_done_files(store, [name for name in expected if name not in existing])
    kept = {commit_path(tp.topic, shard_of(tp.partition)) for tp in missing}
    state.parallel(lambda commit: _prune(store, commit, states), [c for c in current if c.path not in kept])


def _prune(store: ObjectStore, commit: Versioned[Commit], states: WarehouseStates) -> None:
    planned = plan_pruning(commit.value, states)
    for path, chunk in planned.chunks.items():
        state.create(store, path, chunk)
    try:
        state.swap(store, commit, planned.commit)
    except PreconditionFailed:
        return  # somebody extracts: pruning is theirs too
