"""Retention and orphans of backups (PROTOCOL B6)."""

from __future__ import annotations

from kbq_assets.core.backup import commits as backup
from kbq_assets.core.backup.names import BACKUP
from kbq_assets.core.errors import PreconditionFailed
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.pipelines.operate.clean import CleaningReport, listed_manifests, orphan_manifests
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.ports.object_store import ObjectStore


def clean_backups(store: ObjectStore, days: int) -> CleaningReport:
    """Drop windows that are older than ``days`` (0: none), then delete files and manifests that no commit lists. Safe
    while extractions run. Raises UnsupportedFormat, and deletes nothing, if a newer release works here."""
    # Listing first, commits second: what is committed in between counts as committed.
    listed = {e.path: e.updated_ms for e in store.list(BACKUP) if e.path.startswith(BACKUP)}
    manifests = listed_manifests(store)
    commits = state.read_commits(store, state.topic_registry(store), skips_newer=False)
    if days:
        before_ms = store.now_ms() - days * backup.DAY_MS
        commits = [_expired(store, commit, listed, before_ms) for commit in commits]
    orphans = backup.orphans(listed.keys(), [commit.value for commit in commits])
    orphans += [name.format() for name in orphan_manifests(manifests, commits)]
    failures = store.delete_many(orphans)
    return CleaningReport(
        len(orphans) - len(failures),
        0,
        store.sweep_temporary(),
        tuple(f"{path}: {error}" for path, error in failures.items()),
    )


def _expired(
    store: ObjectStore, commit: Versioned[Commit], listed: dict[str, int], before_ms: int
) -> Versioned[Commit]:
    """A commit without its old windows, after its swap. If somebody else was faster, the next clean-up does it."""
    try:
        return state.swap(store, commit, backup.expire(commit.value, listed, before_ms))
    except PreconditionFailed:
        return commit
