"""One snapshot of the stored commits and the broker. Plans, checks, status and metrics all use it.

Commits are read before the broker's offsets, so no position lies beyond the offsets that it is compared with.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from kbq_assets.core.backup.areas import has_tables
from kbq_assets.core.errors import ConfigurationError, KbqError, NotFound, StateError, TransientError
from kbq_assets.core.extraction.planning import ExtractionPlan, TopicSnapshot, plan_extraction
from kbq_assets.core.extraction.stops import PartitionStop, commit_stop, entry_stops, gone_stops
from kbq_assets.core.extraction.throttle import ReadLimits
from kbq_assets.core.extraction.units import WindowLimits
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.names import TOPIC_REGISTRY, commit_path, shard_of
from kbq_assets.core.protocol.offsets import BrokerOffsets, TopicDescription, TopicPartition
from kbq_assets.core.protocol.topic_registry import TopicEntry, TopicRegistry
from kbq_assets.core.topics.source_list import SourceEntry, select_topics
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.done_files import has_done_files
from kbq_assets.pipelines.protocol.outages import everything_waits_for
from kbq_assets.pipelines.protocol.refusals import end_if_all
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.pipelines.threads import parallel
from kbq_assets.ports.kafka import OffsetReader
from kbq_assets.ports.object_store import ObjectStore

#: Commits by path, or the error of each unusable one.
StoredCommits: TypeAlias = Mapping[str, Versioned[Commit] | KbqError]


@dataclass(frozen=True)
class Snapshot:
    """Selected topics with their commits, and the broker's offsets of their partitions."""

    topics: tuple[TopicSnapshot, ...]
    offsets: Mapping[TopicPartition, BrokerOffsets]
    cluster_id: str
    #: topics of the broker that the source list does not select
    others: tuple[str, ...] = ()
    #: stops of topics that are not selected: their entries have mistakes, or their commits cannot be used
    unselected: tuple[PartitionStop, ...] = ()
    #: topics on the broker that an operator had marked as deleted
    returned: tuple[str, ...] = ()

    @property
    def settings(self) -> dict[str, TopicSettings]:
        return {topic.description.topic: topic.settings for topic in self.topics}

    def plan(
        self,
        limits: WindowLimits | None = None,
        run: ReadLimits | None = None,
        ripe: Collection[TopicPartition] = (),
        now_ms: int = 0,
    ) -> ExtractionPlan:
        """The plan of an extraction (core/extraction/planning.py)."""
        planned = plan_extraction(self.topics, self.offsets, self.cluster_id, limits, run, ripe, now_ms)
        announced = (
            (t.description.topic, s) for t in self.topics for s in t.entry.creating if s in t.commits
        )
        stops = (*planned.stops, *self.unselected)
        return replace(planned, stops=stops, returned=self.returned, announced=tuple(announced))


def read_snapshot(
    store: ObjectStore,
    reader: OffsetReader,
    sources: Iterable[SourceEntry],
    *,
    only: frozenset[str] | None = None,
    known: tuple[TopicRegistry, StoredCommits] | None = None,
    output: Callable[[TopicSettings], bool] = has_tables,
    survives_silence: bool = False,
) -> Snapshot:
    """Read the commits of the topics that the source list selects, then the broker's offsets.

    ``only`` limits the snapshot to some topics; ``output`` limits it to topics that feed tables, or a backup.
    ``known`` commits, from a view, are not read again. If there are no topics at all, only file batches, the broker is
    not called. Raises MissingState, Unavailable; with ``survives_silence``, not for a commit that the store does not
    give now: it is the problem of its topic.
    """
    with everything_waits_for(TOPIC_REGISTRY):
        registry, stored = known or (state.topic_registry(store), None)
    entries = tuple(sources)
    if not entries and not registry.topics:
        return Snapshot((), {}, "")
    described = reader.topics()
    selected = select_topics(entries, described)
    others = tuple(sorted(described.keys() - selected.keys()))
    wanted = {
        topic: found for topic, found in selected.items() if (only is None or topic in only) and output(found)
    }
    topics = topic_snapshots(store, wanted, described, registry, stored, survives_silence=survives_silence)
    offsets = reader.offsets(partitions_of(described[topic] for topic in wanted))
    stops = [] if known is None else [*_lost(registry, known[1], selected)]
    stops += entry_stops(entries, described.keys() | registry.topics.keys())
    expected = [name for name, entry in registry.topics.items() if entry.active and not entry.gone]
    stops += gone_stops(entries, expected, described)
    chosen = tuple(stop for stop in stops if only is None or stop.topic_partition.topic in only)
    returned = tuple(name for name, entry in registry.topics.items() if entry.gone and name in described)
    return Snapshot(topics, offsets, reader.cluster_id(), others, chosen, returned)


def _lost(
    registry: TopicRegistry, stored: StoredCommits, selected: Collection[str]
) -> Iterator[PartitionStop]:
    for topic, entry in registry.topics.items():
        if topic in selected:
            continue
        found = {shard: stored.get(commit_path(topic, shard)) for shard in entry.active}
        missing = [shard for shard, f in found.items() if f is None or isinstance(f, NotFound)]
        problem = _problem(found.values())
        if stop := commit_stop(topic, None if isinstance(problem, TransientError) else problem, missing):
            yield stop


def _problem(found: Iterable[Versioned[Commit] | KbqError | None]) -> KbqError | None:
    """The error of an existing commit that cannot be used."""
    return next((f for f in found if isinstance(f, KbqError) and not isinstance(f, NotFound)), None)


def topic_snapshots(
    store: ObjectStore,
    selected: Mapping[str, TopicSettings],
    described: Mapping[str, TopicDescription],
    registry: TopicRegistry,
    stored: StoredCommits | None,
    *,
    survives_silence: bool = False,
) -> tuple[TopicSnapshot, ...]:
    """Each topic with its commits. If ``stored`` is None, the commits are read now. For ``survives_silence``, see
    `read_snapshot`."""
    known = frozenset(described)
    silence = (TransientError,) if survives_silence else ()
    find: Callable[[str], Versioned[Commit] | KbqError | None] = (
        stored.get if stored is not None else _reader(store, silence)
    )

    stored_now = list[Versioned[Commit] | KbqError | None]()

    def snapshot(topic: str) -> TopicSnapshot:
        entry = registry.topics.get(topic, TopicEntry())
        shards = (*entry.active, *entry.creating)
        found = {shard: find(commit_path(topic, shard)) for shard in shards}
        stored_now.extend(found.values())
        commits = {shard: c.value for shard, c in found.items() if isinstance(c, Versioned)}
        # A commit that is only announced may be that of a bootstrap, which was interrupted.
        begun = {*entry.active, *commits}
        is_new = shard_of(described[topic].partitions - 1) not in begun or not begun.issuperset(shards)
        try:
            has_done = is_new and has_done_files(store, topic, known, begun)
        except silence as error:
            return TopicSnapshot(selected[topic], described[topic], entry, problem=error)
        return TopicSnapshot(
            selected[topic], described[topic], entry, commits, has_done, _problem(found.values())
        )

    topics = tuple(parallel(snapshot, selected))
    end_if_all(stored_now)
    return topics


def _reader(
    store: ObjectStore, silence: tuple[type[TransientError], ...]
) -> Callable[[str], Versioned[Commit] | KbqError]:
    unusable: tuple[type[KbqError], ...] = (NotFound, StateError, ConfigurationError, *silence)

    def read(path: str) -> Versioned[Commit] | KbqError:
        try:
            head = state.read_head(store, path)  # a plan needs no windows
            state.check_manifests(store, head)
            return head
        except unusable as error:
            # The planner decides: a shard that is missing, or that the store refuses, stops its topic.
            return error

    return read


def partitions_of(described: Iterable[TopicDescription]) -> list[TopicPartition]:
    return [TopicPartition(topic.topic, p) for topic in described for p in range(topic.partitions)]
