"""The plan of an extraction, and the small partitions that no longer wait for more records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Final

from kbq_assets.core.backup.sharing import with_backups
from kbq_assets.core.extraction.backlog import Waiting
from kbq_assets.core.extraction.planning import ExtractionPlan, TopicSnapshot
from kbq_assets.core.extraction.restarts import may_restart
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.topics.source_list import SourceEntry
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.pipelines.backup.below import read_below
from kbq_assets.pipelines.backup.plan import OpenArea, plan_backups
from kbq_assets.pipelines.extraction.ports import ExtractionLimits, no_backups
from kbq_assets.pipelines.protocol.outages import guarded
from kbq_assets.pipelines.protocol.snapshot import Snapshot, read_snapshot
from kbq_assets.ports.kafka import OffsetReader
from kbq_assets.ports.object_store import ObjectStore

#: If a record's time is this far in the future, a clock is wrong, so its partition does not wait.
_CLOCK_SKEW_MS: Final = 60_000


def plan(
    store: ObjectStore,
    reader: OffsetReader,
    sources: Iterable[SourceEntry],
    *,
    now_ms: int = 0,
    only: frozenset[str] | None = None,
    limits: ExtractionLimits | None = None,
    open_backup: OpenArea = no_backups,
) -> ExtractionPlan:
    """What `extract` would do now. Changes nothing. Without ``now_ms``, small partitions keep waiting.

    The `failures` of the plan are of topics whose commit the store does not give now. Raises MissingState, and
    Unavailable for the registry of topics or the broker.
    """
    limits, sources, store = limits or ExtractionLimits(), tuple(sources), guarded(store)

    def open_area(area: str) -> ObjectStore:
        return guarded(open_backup(area))

    def plan_output(store: ObjectStore, output: Callable[[TopicSettings], bool]) -> ExtractionPlan:
        return _plan_output(
            read_snapshot(store, reader, sources, only=only, output=output, survives_silence=True),
            store, reader, now_ms, limits,
        )  # fmt: skip

    found = read_snapshot(store, reader, sources, only=only, survives_silence=True)
    tables = _plan_output(found, store, reader, now_ms, limits)
    tables = read_below(tables, found, open_area, limits.window)
    return with_backups(tables, plan_backups(sources, reader, open_area, plan_output, only))


def _plan_output(
    found: Snapshot, store: ObjectStore, reader: OffsetReader, now_ms: int, limits: ExtractionLimits
) -> ExtractionPlan:
    # Reading the store's time costs a request, and only stopped partitions that may restart need it.
    store_ms = store.now_ms() if any(map(_may_restart, found.topics)) else 0
    planned = found.plan(limits.window, limits.total, now_ms=store_ms)
    if not planned.waiting:
        return planned
    ripe = _ripe(reader, planned.waiting, now_ms)
    return found.plan(limits.window, limits.total, ripe, store_ms)


def _may_restart(snapshot: TopicSnapshot) -> bool:
    stops = (p.stop for commit in snapshot.commits.values() for p in commit.partitions.values())
    return any(may_restart(stop, snapshot.settings) for stop in stops if stop is not None)


def _ripe(reader: OffsetReader, waiting: Iterable[Waiting], now_ms: int) -> set[TopicPartition]:
    """Waiting partitions that are due: their hour has ended by their data clock, or the Kafka timestamp of their oldest
    unread record is old enough.

    If the local clock and that timestamp contradict each other, the partition does not wait.
    """
    first = {w.topic_partition: w.first for w in waiting}
    groups: dict[int, list[TopicPartition]] = defaultdict(list)
    for w in waiting:
        groups[w.due_before(now_ms)].append(w.topic_partition)
    later = reader.offsets_for_time(list(first), now_ms + _CLOCK_SKEW_MS)
    ripe = {tp for tp in first if later.get(tp, first[tp]) <= first[tp]}
    ripe |= {w.topic_partition for w in waiting if w.is_closed(now_ms)}
    for due_before, partitions in groups.items():
        young = reader.offsets_for_time(partitions, due_before)
        ripe |= {tp for tp in partitions if young.get(tp, first[tp] + 1) > first[tp]}
    return ripe
