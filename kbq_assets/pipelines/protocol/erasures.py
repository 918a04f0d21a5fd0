"""The erasure log: records that must never be read again. Every commit stores its version (PROTOCOL X1, X2)."""

from __future__ import annotations

from kbq_assets.core.erasure.model import Erasure, ErasureLog, log_path, raised, with_erasure
from kbq_assets.core.erasure.offset_sets import Offsets
from kbq_assets.core.errors import NotFound, Unavailable
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.names import commit_path
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.object_store import ObjectStore


def read_log(store: ObjectStore, topic: str) -> ErasureLog | None:
    """The erasure log of a topic; None if nothing of the topic was ever erased."""
    path = log_path(topic)
    try:
        return codec.loads(ErasureLog, store.get(path).data, path)
    except NotFound:
        return None


def enter(store: ObjectStore, erasure: Erasure) -> int:
    """Enter an erasure into its topic's log unless it is there; return the log's version."""
    path = log_path(erasure.topic)
    state.create(store, path, ErasureLog(erasure.topic, erasure.cluster_id, erasure.topic_id))
    return state.change(store, ErasureLog, path, lambda log: with_erasure(log, erasure)).value.version


def raise_commits(store: ObjectStore, topic: str, version: int) -> None:
    """Raise the log version in a topic's commits: units that read an older log cannot publish any more.

    Raises Unavailable if a commit is announced but not written, because its writer may have read an older log.
    """
    entry = state.topic_registry(store).topics.get(topic)
    for shard in (*entry.active, *entry.creating) if entry else ():
        try:
            state.change_head(store, commit_path(topic, shard), lambda commit: raised(commit, version))
        except NotFound as error:
            raise Unavailable(
                f"{commit_path(topic, shard)} is announced but not written",
                next_step=f"kbq extract --topic {topic}",
            ) from error


def erased_of(store: ObjectStore, commit: Commit, partition: int) -> Offsets:
    log = read_log(store, commit.topic) if commit.erasures else None
    return log.of(commit, partition) if log else ()
