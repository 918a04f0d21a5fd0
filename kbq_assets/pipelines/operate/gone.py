"""Topics that were deleted on purpose: KBQ no longer expects them (PROTOCOL E2)."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from functools import partial

from kbq_assets.core.errors import Refused
from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol.names import TOPIC_REGISTRY
from kbq_assets.core.protocol.topic_registry import TopicRegistry
from kbq_assets.pipelines.operate.commands import Proposal
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.kafka import OffsetReader
from kbq_assets.ports.object_store import ObjectStore


def propose_gone(stores: Iterable[ObjectStore], reader: OffsetReader, pattern: str) -> Proposal:
    """Mark topics that match a pattern and that the broker does not have as deleted on purpose. Their staged files are
    still loaded, and their rows stay. ``stores`` are the staging area and those of backups. Raises Refused if there is
    no such topic."""
    described = reader.topics()
    found: list[tuple[ObjectStore, list[str]]] = []
    for store in stores:
        topics = state.topic_registry(store).topics.items()
        gone = [
            topic
            for topic, entry in topics
            if entry.active
            and not entry.gone
            and topic not in described
            and fnmatch.fnmatchcase(topic, pattern)
        ]
        found += [(store, gone)] if gone else []
    names = sorted({topic for _, topics in found for topic in topics})
    if not names:
        raise Refused(
            f"no topic matches {pattern} that was read before and is gone from the broker",
            next_step="kbq status shows topics that are gone",
        )

    def apply() -> None:
        for store, topics in found:
            state.change(
                store, TopicRegistry, TOPIC_REGISTRY, partial(TopicRegistry.marked, topics=topics, gone=True)
            )

    lines = (f"{topic}: it was deleted on purpose; its rows stay" for topic in names)
    return Proposal(f"stop expecting {counted(len(names), 'topic')}", tuple(lines), apply)
