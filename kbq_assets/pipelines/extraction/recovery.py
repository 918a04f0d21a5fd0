"""Repairs before a run plans: write done files that a dead run did not write (E5), then prune commits (E7).

Both steps read the windows in the heads of commits, and only a few manifests: those whose done files may be missing,
and the oldest ones until some must stay. So the cost of a run does not depend on how much waits to be loaded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Concatenate, Final, ParamSpec, TypeVar

from kbq_assets.core.errors import ConfigurationError, Defect, PreconditionFailed, TransientError
from kbq_assets.core.extraction.pruning import PATIENCE, files_to_announce, may_leave, plan_pruning
from kbq_assets.core.extraction.stops import PartitionStop, refused_stop
from kbq_assets.core.loading.file_warehouses import WarehouseStates
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.done_files import DoneFileName, done_path
from kbq_assets.core.protocol.manifests import CommitParts, Manifest, packed, whole
from kbq_assets.core.protocol.names import DONE, commit_path_of
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.done_files import NO_DONE_FILES, write_done_files
from kbq_assets.pipelines.protocol.manifests import LostManifest, read_manifest
from kbq_assets.pipelines.protocol.refusals import end_if_all
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.pipelines.threads import parallel
from kbq_assets.ports.object_store import ObjectStore

#: After this many manifests that cannot leave the commit yet, newer ones are not read.
MOST_STUCK: Final = 8
_LOGGER: Final = logging.getLogger("kbq.extract")
T = TypeVar("T")
P = ParamSpec("P")


def repair_and_prune(store: ObjectStore, *, done_files: bool = True) -> list[PartitionStop]:
    """Write missing done files (E5), then drop loaded windows and set parked tables' files aside (E7).

    The order matters: a partition's highest done file must exist before its window leaves the commit (L7). If a done
    file cannot be written now, a later run prunes that commit. Returns a stop for each topic whose done files the
    store refuses.
    """
    heads = state.read_heads(store, state.topic_registry(store))
    states = state.warehouse_states(store, skips_failed=True)
    refused: list[PartitionStop] = []
    found = parallel(lambda head: _alone(_examined, head, store, states), heads)
    current = [commit for commit in found if commit is not None]
    if done_files:
        existing = frozenset(store.paths(DONE))
        expected = {c.path: _alone(_expected, c, states, existing) for c in current}
        wanted = [name for names in expected.values() for name in names or ()]
        failed = write_done_files(store, wanted)
        end_if_all(failed.values())
        refusals = {tp.topic: error for tp, error in failed.items() if isinstance(error, ConfigurationError)}
        refused = [refused_stop(topic, NO_DONE_FILES, error) for topic, error in refusals.items()]
        missing = {commit_path_of(tp) for tp in failed}
        current = [c for c in current if expected[c.path] is not None and c.path not in missing]
    parallel(lambda commit: _alone(_prune, commit, store, states), current)
    return refused


def _alone(
    function: Callable[Concatenate[Versioned[Commit], P], T],
    commit: Versioned[Commit],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T | None:
    """The result of a function for one commit. Log an error and return None: it stops no other commit."""
    try:
        return function(commit, *args, **kwargs)
    except TransientError as error:
        _LOGGER.warning("%s is not pruned yet: %s", commit.path, error.message)
        return None
    except Exception as error:
        trace = None if isinstance(error, ConfigurationError) else error
        _LOGGER.error("%s is not pruned: %s", commit.path, Defect.of(error), exc_info=trace)
        return None


def _expected(
    commit: Versioned[Commit], states: WarehouseStates, existing: frozenset[str]
) -> list[DoneFileName]:
    """Names of a commit's missing done files."""
    files = files_to_announce(commit.value, states)
    return [file.done for file in files if done_path(file.path, file.until) not in existing]


def _examined(
    head: Versioned[Commit], store: ObjectStore, states: WarehouseStates
) -> Versioned[Commit] | None:
    """A commit with the windows of its head and of the manifests that matter; None if one of them is gone."""
    read: dict[str, Manifest] = {}
    stuck = 0
    for entry in head.value.manifests:
        if entry.windows and (stuck < MOST_STUCK or not entry.done):
            try:
                read[entry.name] = read_manifest(store, head.value, entry)
            except LostManifest as lost:
                # If another extraction dropped it, that one prunes too. If it is lost, readers stop (M4).
                _LOGGER.warning("%s is not pruned: %s", head.path, lost.message)
                return None
            stuck += not may_leave(read[entry.name].files, states)
    parts = CommitParts(head.value, read)
    return replace(head, value=whole(parts), parts=parts)


def _is_settled(parts: CommitParts) -> bool:
    """Whether a head needs no swap as long as no window leaves: manifests are marked, and no gap or given-up file is
    listed."""
    is_marked = all(entry.done or entry.name not in parts.manifests for entry in parts.head.manifests)
    has_gaps = any(partition.accepted_gaps for partition in parts.head.partitions.values())
    return is_marked and not has_gaps and not parts.head.given_up


def _prune(commit: Versioned[Commit], store: ObjectStore, states: WarehouseStates) -> None:
    """Prune one commit. If the store fails, a later run does it."""
    assert commit.parts is not None
    unread = sum(e.windows for e in commit.parts.head.manifests if e.name not in commit.parts.manifests)
    patience = max(0, PATIENCE - unread // max(1, len(commit.value.partitions)))
    planned = plan_pruning(commit.value, states, patience)
    if planned.commit == commit.value and _is_settled(commit.parts):
        return
    draft = packed(commit.parts, planned.commit, rewrite=False, done=commit.parts.manifests.keys())
    try:
        for path, chunk in planned.chunks.items():
            state.create(store, path, chunk)
        state.swap_commit(store, commit, planned.commit, draft)
    except PreconditionFailed:
        return  # another extraction is running, and prunes too
    except TransientError as error:
        _LOGGER.warning("%s is not pruned yet: %s", commit.path, error.message)
