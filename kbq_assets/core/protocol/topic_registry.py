"""Lists the commits that exist, so that KBQ detects a missing one (PROTOCOL E1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kbq_assets.core.protocol.codec import Stored


@dataclass(frozen=True)
class TopicEntry(Stored):
    """A topic's shards: ``active`` ones must exist, ``creating`` ones may not exist yet. ``gone``: an operator
    confirmed that the topic was deleted on purpose, so KBQ does not expect it until the broker lists it again (PROTOCOL
    E2)."""

    active: tuple[int, ...] = ()
    creating: tuple[int, ...] = ()
    gone: bool = False


@dataclass(frozen=True)
class TopicRegistry(Stored):
    """`commits/_topics.json`."""

    topics: Mapping[str, TopicEntry] = field(default_factory=dict)
    #: warehouses besides the first, as active or removed (PROTOCOL W1)
    warehouses: Mapping[str, str] = field(default_factory=dict)

    def announce(self, topic: str, shard: int) -> TopicRegistry:
        """Record that a shard is about to be created."""
        entry = self.topics.get(topic, TopicEntry())
        if shard in entry.active or shard in entry.creating:
            return self
        return self._with(topic, dataclasses.replace(entry, creating=(*entry.creating, shard)))

    def activate(self, topic: str, shard: int) -> TopicRegistry:
        """Record that a shard exists. From now on, a missing object is an error."""
        entry = self.topics.get(topic, TopicEntry())
        if shard in entry.active:
            return self
        creating = tuple(s for s in entry.creating if s != shard)
        active = (*entry.active, shard)
        return self._with(topic, dataclasses.replace(entry, active=active, creating=creating))

    def marked(self, topics: Iterable[str], *, gone: bool) -> TopicRegistry:
        """Record that topics were deleted on purpose, or that the broker lists them again."""
        known = {topic: self.topics[topic] for topic in topics if topic in self.topics}
        noted = {topic: dataclasses.replace(entry, gone=gone) for topic, entry in known.items()}
        return dataclasses.replace(self, topics={**self.topics, **noted})

    def _with(self, topic: str, entry: TopicEntry) -> TopicRegistry:
        return dataclasses.replace(self, topics={**self.topics, topic: entry})
