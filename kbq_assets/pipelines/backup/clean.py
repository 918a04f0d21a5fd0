"""Applies the retention of backups, and deletes their orphans (PROTOCOL B6)."""

from __future__ import annotations

from kbq_assets.core.backup import commits as backup
from kbq_assets.core.backup.backup_names import BACKUP
from kbq_assets.core.backup.merging import voided
from kbq_assets.core.errors import PreconditionFailed
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.names import commit_path
from kbq_assets.pipelines.operate.clean import CleaningReport, listed_manifests, orphan_manifests
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.ports.object_store import ObjectStore


def clean_backups(store: ObjectStore, days: int, replaced_ms: int = backup.DAY_MS) -> CleaningReport:
    """Drop windows older than ``days`` (0: none), then delete files and manifests that no commit lists. Files that a
    merge has replaced stay for ``replaced_ms``, for readers. Safe while extractions run. If a newer release works here,
    raises UnsupportedFormat and deletes nothing."""
    # List the files before reading commits: a file that is committed in between counts as committed.
    listed = {e.path: e.updated_ms for e in store.list(BACKUP) if e.path.startswith(BACKUP)}
    manifests = listed_manifests(store)
    commits = state.read_commits(store, skips=())
    if days:
        before_ms = store.now_ms() - days * backup.DAY_MS
        commits = [_expired(store, commit, listed, before_ms) for commit in commits]
    since_ms = store.now_ms() - replaced_ms if replaced_ms else 2**63
    orphans = backup.orphans(listed, [commit.value for commit in commits], since_ms)
    orphans += [name.format() for name in orphan_manifests(manifests, commits)]
    failures = store.delete_many(orphans)
    return CleaningReport(
        len(orphans) - len(failures),
        0,
        store.sweep_temporary(),
        tuple(f"{path}: {error}" for path, error in failures.items()),
    )


def void_merges(store: ObjectStore, topic: str) -> None:
    """End running merges of a topic without effect. The files that they wrote become orphans (PROTOCOL B10)."""
    registry = state.topic_registry(store)
    for shard in registry.topics[topic].active if topic in registry.topics else ():
        state.change_head(store, commit_path(topic, shard), voided)


def _expired(
    store: ObjectStore, commit: Versioned[Commit], listed: dict[str, int], before_ms: int
) -> Versioned[Commit]:
    """Swap a commit without its old windows, and return it. If another process was faster, the next clean-up does
    it."""
    try:
        return state.swap(store, commit, backup.expire(commit.value, listed, before_ms))
    except PreconditionFailed:
        return commit
