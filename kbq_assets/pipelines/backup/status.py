"""Progress and stops of backups, for checks, status and metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from kbq_assets.core.backup.areas import area_of
from kbq_assets.core.extraction.planning import ExtractionPlan
from kbq_assets.core.extraction.stops import PartitionStop
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.topics.source_list import SourceEntry, select_topics
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.backup.plan import OpenArea, plan_backups
from kbq_assets.pipelines.protocol.snapshot import Snapshot, read_snapshot
from kbq_assets.ports.kafka import OffsetReader
from kbq_assets.ports.object_store import ObjectStore


@dataclass(frozen=True)
class BackupStatus:
    """The progress of a partition's backup. ``lag`` counts positions up to the broker's last stable offset."""

    topic_partition: TopicPartition
    epoch: int
    start: int
    position: int
    lag: int
    totals: Counts


@dataclass(frozen=True)
class BackupsStatus:
    """The backups of all topics, and their stops. ``topics`` are those on the broker that should have a backup;
    ``late`` has the lags above ``max_lag_records``."""

    partitions: tuple[BackupStatus, ...] = ()
    stops: tuple[PartitionStop, ...] = ()
    topics: tuple[str, ...] = ()
    late: Mapping[str, int] = field(default_factory=dict)


def read_backups(sources: Iterable[SourceEntry], reader: OffsetReader, open_area: OpenArea) -> BackupsStatus:
    """The status of all backups. An area that does not answer has a stop per topic and no positions. If no topic has a
    backup, nothing is read. Raises Unavailable if the broker does not answer."""
    sources = tuple(sources)
    if not any(area_of(entry.settings) for entry in sources):
        return BackupsStatus()
    partitions: list[BackupStatus] = []

    def plan_output(store: ObjectStore, output: Callable[[TopicSettings], bool]) -> ExtractionPlan:
        found = read_snapshot(store, reader, sources, output=output)
        planned = found.plan()
        partitions.extend(_partitions(found))
        return planned

    plans = plan_backups(sources, reader, open_area, plan_output, None).values()
    topics = {t: found for t, found in select_topics(sources, reader.topics()).items() if area_of(found)}
    stops = tuple(stop for each in plans for stop in each.stops)
    return BackupsStatus(tuple(partitions), stops, tuple(sorted(topics)), _late(topics, partitions))


def _late(topics: Mapping[str, TopicSettings], partitions: Iterable[BackupStatus]) -> Mapping[str, int]:
    lags = Counter[str]()
    for each in partitions:
        lags[each.topic_partition.topic] += each.lag
    return {t: lags[t] for t, found in sorted(topics.items()) if 0 < found.checks.max_lag_records < lags[t]}


def _partitions(found: Snapshot) -> Iterator[BackupStatus]:
    for commit in (commit for topic in found.topics for commit in topic.commits.values()):
        for number, each in sorted(commit.partitions.items()):
            tp = commit.topic_partition(number)
            broker = found.offsets.get(tp)
            lag = max(0, broker.latest - each.next) if broker else 0
            yield BackupStatus(tp, commit.epoch, each.start, each.next, lag, each.totals)
