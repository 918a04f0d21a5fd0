"""End marks for partitions that have nothing to read (docs/completeness.md)."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Collection, Mapping

from kbq_assets.core.errors import (
    ConfigurationError,
    NotFound,
    PreconditionFailed,
    StateError,
    TransientError,
)
from kbq_assets.core.protocol.names import commit_path, shard_of
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.protocol.watermarks import LogEnd, Shard, due_shards, mark_ends
from kbq_assets.pipelines.protocol.state import read_head, swap
from kbq_assets.pipelines.threads import parallel
from kbq_assets.ports.clock import Clock
from kbq_assets.ports.object_store import ObjectStore


def mark_idle(
    store: ObjectStore,
    clock: Clock,
    ends: Mapping[TopicPartition, LogEnd],
    asked_ms: int,
    marked: Collection[Shard] = (),
    seconds: float = math.inf,
) -> None:
    """Renew old marks of partitions that have nothing to read, the oldest first. Skip the commits in ``marked``.

    No swap begins after ``seconds``. Failures are ignored: only complete hours depend on the marks, and a later run
    renews them.
    """
    oldest: dict[Shard, int] = defaultdict(lambda: asked_ms)
    for tp, end in ends.items():
        if end.position == end.until:
            shard = tp.topic, shard_of(tp.partition)
            oldest[shard] = min(end.marked_ms, oldest[shard])
    deadline = clock.monotonic() + seconds

    def mark(shard: Shard) -> None:
        if clock.monotonic() < deadline:
            with contextlib.suppress(
                NotFound, PreconditionFailed, TransientError, StateError, ConfigurationError
            ):
                current = read_head(store, commit_path(*shard))
                swap(store, current, mark_ends(current.value, ends, asked_ms))

    parallel(mark, sorted((s for s in due_shards(ends, asked_ms) if s not in marked), key=oldest.__getitem__))
