"""Clean-up: deletes orphans (PROTOCOL E6), superseded done files (L4, L7), old costs, and leftovers of dead runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kbq_assets.core.extraction.cost import COSTS, oldest_kept
from kbq_assets.core.extraction.pruning import plan_manifest_sweep, plan_sweep, superseded_done_files
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.observation.run_totals import RUNS
from kbq_assets.core.protocol.commits import Commit, StagedFile
from kbq_assets.core.protocol.names import (
    MANIFESTS,
    QUARANTINE,
    STAGING,
    ManifestName,
    StagedFileName,
    quarantine_path,
    staged_path,
    warehouse_path,
)
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.done_files import list_done_files
from kbq_assets.pipelines.protocol.manifests import names_of
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.ports.object_store import ObjectStore

#: If a run has given no sign of life for this long, it is dead, and its sign is deleted.
_DEAD_MS: Final = 3_600_000


@dataclass(frozen=True)
class CleaningReport:
    """Numbers of deleted objects, and failed deletions."""

    orphans: int
    done_files: int
    temporary: int
    failures: tuple[str, ...] = ()

    def __add__(self, other: CleaningReport) -> CleaningReport:
        return CleaningReport(
            self.orphans + other.orphans,
            self.done_files + other.done_files,
            self.temporary + other.temporary,
            self.failures + other.failures,
        )


def clean(store: ObjectStore) -> CleaningReport:
    """Delete objects that no commit, backlog or load job in flight needs. Safe while extractions and loads run. If a
    newer release works here, raises UnsupportedFormat and deletes nothing: this release does not know what that needs.
    """
    # List the files before reading commits: a file that is committed in between counts as committed (E6, M3).
    staged = list(store.paths(STAGING))
    copied = _copied(store)
    names = list(list_done_files(store))
    listed = listed_manifests(store)
    commits = state.read_commits(store, skips=())
    in_use = state.files_in_use(store, commits)
    values = [commit.value for commit in commits]
    orphans = plan_sweep(staged, values, frozenset(in_use))
    superseded = superseded_done_files(names, frozenset(file.done for file in in_use.values()))
    orphans += [name.format() for name in orphan_manifests(listed, commits)]
    orphans += _orphan_copies(store, copied, values, in_use)
    kept_orphans = store.delete_many(orphans)
    kept_done = store.delete_many([name.format() for name in superseded])
    failures = {**kept_orphans, **kept_done, **store.delete_many([*_dead_signs(store), *_old_costs(store)])}
    return CleaningReport(
        len(orphans) - len(kept_orphans),
        len(superseded) - len(kept_done),
        store.sweep_temporary(),
        tuple(f"{p}: {e}" for p, e in failures.items()),
    )


def _copied(store: ObjectStore) -> Mapping[str, list[str]]:
    """By warehouse, the staged files that have a copy in its quarantine."""
    areas = state.areas(store).items()
    return {name: [staged_path(path) for path in area.paths(QUARANTINE)] for name, area in areas}


def _orphan_copies(
    store: ObjectStore,
    copied: Mapping[str, list[str]],
    commits: Sequence[Commit],
    in_use: Mapping[str, StagedFile],
) -> Iterable[str]:
    """Copies in quarantine that their table does not list and that no job may still load (E6). If a table's state
    cannot be read, its copies stay (L6)."""
    for name, area in state.areas(store).items():
        if not (files := copied.get(name)):
            continue
        states = state.read_table_states(area)
        for path in plan_sweep(files, commits, frozenset()):
            found = states.get(StagedFileName.parse(path).table)
            if found is not None and not _may_decide(found.value, path, in_use.get(path)):
                yield warehouse_path(quarantine_path(path), name)


def _may_decide(table: TableState, path: str, file: StagedFile | None) -> bool:
    """Whether a table lists a file as quarantined, or one of its jobs loads the file or may load it."""
    job = table.in_flight
    listed = [bad.file.path for bad in table.quarantined if not bad.dropped]
    loading = [each.path for each in (*job.files, *job.sources)] if job else []
    return path in listed or path in loading or (file is not None and not table.is_loaded(file))


def listed_manifests(store: ObjectStore) -> list[ManifestName]:
    return list(names_of(store.paths(MANIFESTS)))


def orphan_manifests(
    listed: Iterable[ManifestName], commits: Iterable[Versioned[Commit]]
) -> list[ManifestName]:
    """Listed manifests that no commit names and that no swap can name later (M3)."""
    heads = {
        (c.value.topic, c.value.shard): (c.generation, frozenset(e.name for e in c.parts.head.manifests))
        for c in commits
        if c.parts is not None
    }
    return plan_manifest_sweep(listed, heads)


def _old_costs(store: ObjectStore) -> Iterable[str]:
    """Cost records that are too old. Their names begin with the day, so the listing ends at the first one to keep."""
    oldest = oldest_kept(store.now_ms())
    return list(itertools.takewhile(lambda path: path < oldest, store.paths(COSTS)))


def _dead_signs(store: ObjectStore) -> Iterable[str]:
    """Signs of life of runs that were killed."""
    signs = list(store.list(RUNS))
    now_ms = store.now_ms() if signs else 0
    return [sign.path for sign in signs if now_ms - sign.updated_ms > _DEAD_MS]
