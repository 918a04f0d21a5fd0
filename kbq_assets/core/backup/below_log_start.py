"""Reads positions below Kafka's log start from the backup, so that tables do not lose them (PROTOCOL B9)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from kbq_assets.core.backup.commits import windows_of
from kbq_assets.core.extraction.planning import ExtractionPlan, is_other_topic
from kbq_assets.core.extraction.units import Copies, Unit, WindowLimits
from kbq_assets.core.protocol.commits import Commit, StagedFile
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.core.protocol.waits import StopReason
from kbq_assets.core.topics.topic_settings import TopicSettings


def below_log_start(planned: ExtractionPlan) -> list[TopicPartition]:
    """The partitions that retention overtook, whether they stop or give up the positions."""
    stops = [s.topic_partition for s in planned.stops if s.reason == StopReason.RETENTION_LOSS]
    return sorted({*stops, *(gap.topic_partition for gap in planned.gaps)})


def copies_of(backup: Commit, partition: int, first: int) -> Copies:
    """The copies from a position on, up to the first gap. Uses only the backup's present epoch, because an older one
    may be of another log."""
    position = first
    files: list[StagedFile] = []
    for window in windows_of(backup, partition, backup.epoch):
        if window.until > first and window.first <= position:
            files += window.files
            position = window.until
    return Copies(tuple(files), backup.partitions[partition].leader_epoch, position)


def is_same_log(backup: Commit, tables: Commit) -> bool:
    """Whether a backup and the tables read one topic of one cluster."""
    return backup.cluster_id == tables.cluster_id and not is_other_topic(backup.topic_id, tables.topic_id)


def unit_of(
    commit: Commit, partition: int, settings: TopicSettings, copies: Copies, limits: WindowLimits
) -> Unit:
    """The unit that reads a partition of the tables from its position to the end of the copies."""
    state = commit.partitions[partition]
    return Unit(
        range=OffsetRange(commit.topic_partition(partition), state.next, copies.until),
        epoch=commit.epoch,
        settings=settings,
        leader_epoch=state.leader_epoch,
        epoch_until=state.epoch_known_until,
        accept_errors_until=state.accept_errors_until,
        limits=limits.of_topic(settings),
        alone=state.deaths > 0,
        copies=copies,
    )


def with_copies(planned: ExtractionPlan, units: Iterable[Unit]) -> ExtractionPlan:
    """The plan with these units instead of their partitions' stops, gaps and units that read from Kafka. The next run
    continues after the copies."""
    own: Mapping[TopicPartition, Unit] = {unit.range.topic_partition: unit for unit in units}
    stops = (s for s in planned.stops if s.topic_partition not in own)
    gaps = (g for g in planned.gaps if g.topic_partition not in own)
    kept = (u for u in planned.units if u.range.topic_partition not in own)
    return replace(planned, stops=tuple(stops), gaps=tuple(gaps), units=(*own.values(), *kept))
