"""Clean-up: orphans (PROTOCOL E6), superseded done files (L4, L7), what dead local writers left."""

from __future__ import annotations

from dataclasses import dataclass

from kbq_assets.core.names import STAGING
from kbq_assets.core.planning import plan_sweep, superseded_done_files
from kbq_assets.pipelines import state
from kbq_assets.pipelines.done_files import list_done_files
from kbq_assets.ports.object_store import ObjectStore


@dataclass(frozen=True)
class CleaningReport:
    """How much was deleted, and what could not be."""

    orphans: int
    done_files: int
    temporary: int
    failures: tuple[str, ...] = ()


def clean(store: ObjectStore) -> CleaningReport:
    """Delete what no commit, backlog or flight needs. Safe beside running extractions and loads."""
    # Listing first, commits second: a file that is committed in between is seen as committed (E6).
    staged = [entry.path for entry in store.list(STAGING)]
    names = list(list_done_files(store))
    commits = state.read_commits(store, state.topic_registry(store))
    in_use = state.files_in_use(store, commits)
    orphans = plan_sweep(staged, [c.value for c in commits], frozenset(in_use))
    superseded = superseded_done_files(names, frozenset(file.done for file in in_use.values()))
    failures = {**store.delete_many(orphans), **store.delete_many([n.format() for n in superseded])}
    return CleaningReport(
        len(orphans),
        len(superseded),
        store.sweep_temporary(),
        tuple(f"{p}: {e}" for p, e in failures.items()),
    )
