"""Readings of the service: changed state, the broker's offsets, the age of unread records.

A reading is complete or fails. The caller keeps the last complete one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kbq_assets.core.errors import KbqError, NotFound
from kbq_assets.core.extraction.planning import ExtractionPlan
from kbq_assets.core.extraction.stops import entry_stops
from kbq_assets.core.observation.run_totals import KINDS, RUNS, RunTotals, SignOfLife, totals_path
from kbq_assets.core.protocol.names import DONE, STAGING
from kbq_assets.core.protocol.offsets import BrokerOffsets, TopicDescription, TopicPartition
from kbq_assets.core.topics.source_list import SourceEntry, select_topics
from kbq_assets.pipelines.loading.view import FindBlocks, LoadView, read_view
from kbq_assets.pipelines.observation.run_log import SIGN_SECONDS
from kbq_assets.pipelines.protocol.snapshot import Snapshot, partitions_of, topic_snapshots
from kbq_assets.pipelines.protocol.state import Versioned
from kbq_assets.pipelines.protocol.state_cache import StateCache
from kbq_assets.ports.clock import Clock
from kbq_assets.ports.kafka import OffsetReader
from kbq_assets.ports.object_store import ObjectStore

#: Steps of the age of an unread record, in seconds. Each step takes one request to the broker; the steps end when no
#: partition has older records.
AGES: Final = (15, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 21_600, 43_200, 86_400, 172_800, 604_800)
_COUNT_SECONDS: Final = 60.0
#: A run without a sign of life for this long (in milliseconds) counts as dead.
_SILENT_MS: Final = int(4 * SIGN_SECONDS * 1000)


@dataclass(frozen=True)
class StateReading:
    """The staging area at one time. ``signs`` are those of live runs."""

    view: LoadView
    totals: Mapping[str, RunTotals]
    signs: tuple[SignOfLife, ...]
    staged_files: int
    done_files: int
    now_ms: int

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The position of every partition."""
        commits = self.view.commits
        return {c.topic_partition(p): found.next for c in commits for p, found in c.partitions.items()}


@dataclass(frozen=True)
class BrokerReading:
    """The broker at one time. ``ages`` are lower bounds, in seconds, of the age of the first unread record."""

    cluster_id: str
    described: Mapping[str, TopicDescription]
    offsets: Mapping[TopicPartition, BrokerOffsets]
    ages: Mapping[TopicPartition, int] = field(default_factory=dict)


class FileCount:
    """The numbers of staged and done files. They are listed at most once a minute, because listings cost money."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._due = 0.0
        self._counts = (0, 0)

    def now(self) -> tuple[int, int]:
        """The numbers of staged and done files, at most a minute old. Raises Unavailable."""
        now = self._clock.monotonic()
        if now >= self._due:
            staged, done = (sum(1 for _ in self._store.paths(prefix)) for prefix in (STAGING, DONE))
            self._counts, self._due = (staged, done), now + _COUNT_SECONDS
        return self._counts


def read_state(cache: StateCache, blocks: FindBlocks, files: tuple[int, int]) -> StateReading:
    """Read the staging area. ``files`` are its numbers of staged and done files. Raises MissingState, Unavailable."""
    now_ms = cache.store.now_ms()
    view = read_view(cache, blocks)
    staged, done = files
    listed = cache.listing(RUNS)
    alive = [path for path, entry in listed.items() if now_ms - entry.updated_ms < _SILENT_MS]
    signs = [sign.value for sign in cache.read(SignOfLife, alive, listed) if isinstance(sign, Versioned)]
    return StateReading(view, _totals(cache), tuple(signs), staged, done, now_ms)


def _totals(cache: StateCache) -> dict[str, RunTotals]:
    """Totals of runs. Raises the error of an unreadable one, so that a counter never decreases."""
    found = cache.read(RunTotals, [totals_path(kind) for kind in KINDS], {})
    for error in found:
        if isinstance(error, KbqError) and not isinstance(error, NotFound):
            raise error
    totals = [total.value if isinstance(total, Versioned) else RunTotals() for total in found]
    return dict(zip(KINDS, totals, strict=True))


def read_broker(
    reader: OffsetReader,
    sources: Iterable[SourceEntry],
    positions: Mapping[TopicPartition, int],
    now_ms: int,
) -> BrokerReading:
    """Read the broker. ``positions`` are those in the state, if known. Raises Unavailable."""
    described = reader.topics()
    selected = select_topics(sources, described)
    offsets = reader.offsets(partitions_of(described[topic] for topic in selected))
    lagging = [tp for tp in positions if tp in offsets and offsets[tp].latest > positions[tp]]
    ages = _ages(reader, lagging, positions, now_ms)
    return BrokerReading(reader.cluster_id(), described, offsets, ages)


def _ages(
    reader: OffsetReader,
    lagging: Collection[TopicPartition],
    positions: Mapping[TopicPartition, int],
    now_ms: int,
) -> dict[TopicPartition, int]:
    """The highest step of `AGES` that each partition's first unread record has reached, by Kafka timestamps."""
    ages = dict.fromkeys(lagging, 0)
    for seconds in AGES:
        if not lagging:
            break
        later = reader.offsets_for_time(lagging, now_ms - seconds * 1000)
        # If the first record of that age or younger lies beyond the position, the record at the position is older.
        lagging = [tp for tp in lagging if later.get(tp, 0) > positions[tp]]
        ages.update(dict.fromkeys(lagging, seconds))
    return ages


def plan_of(state: StateReading, broker: BrokerReading, sources: Iterable[SourceEntry]) -> ExtractionPlan:
    view, entries = state.view, tuple(sources)
    selected, stored = select_topics(entries, broker.described), view.commit_objects
    topics = topic_snapshots(view.cache.store, selected, broker.described, view.topics, stored)
    wrong = entry_stops(entries, broker.described.keys() | view.topics.topics.keys())
    return Snapshot(topics, broker.offsets, broker.cluster_id, unselected=tuple(wrong)).plan()
