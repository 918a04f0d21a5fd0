"""Reads records from backups that Kafka deleted before the tables had them (PROTOCOL B9)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from kbq_assets.core.backup import below_log_start as below
from kbq_assets.core.backup.areas import area_of
from kbq_assets.core.errors import KbqError
from kbq_assets.core.extraction.planning import ExtractionPlan
from kbq_assets.core.extraction.units import Copies, Unit, WindowLimits
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.names import commit_path_of, shard_of
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.pipelines.backup.plan import OpenArea
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.snapshot import Snapshot

_LOGGER: Final = logging.getLogger("kbq.extract")


def read_below(
    planned: ExtractionPlan, found: Snapshot, open_area: OpenArea, limits: WindowLimits
) -> ExtractionPlan:
    """The plan, with positions that retention deleted read from backups. Positions without a copy still stop."""
    return below.with_copies(planned, _units(below.below_log_start(planned), found, open_area, limits))


def _units(
    partitions: list[TopicPartition], found: Snapshot, open_area: OpenArea, limits: WindowLimits
) -> Iterator[Unit]:
    topics = {topic.description.topic: topic for topic in found.topics}
    for tp in partitions:
        topic = topics[tp.topic]
        commit = topic.commits[shard_of(tp.partition)]
        if area := area_of(topic.settings):
            copies = _copies(open_area, area, commit, tp)
            if copies is None:
                continue
            # A replay's log ends at the end of its range (R9).
            copies = replace(copies, until=min(copies.until, found.offsets[tp].latest))
            if copies.until > commit.partitions[tp.partition].next:
                yield below.unit_of(commit, tp.partition, topic.settings, copies, limits)


def _copies(open_area: OpenArea, area: str, commit: Commit, tp: TopicPartition) -> Copies | None:
    """The copies of a partition from the tables' position on; None if the backup cannot be used."""
    try:
        backup = state.read(open_area(area), Commit, commit_path_of(tp)).value
    except KbqError as error:
        _LOGGER.warning("%s: its backup cannot be read: %s", tp, error.message)
        return None
    if tp.partition not in backup.partitions or not below.is_same_log(backup, commit):
        return None
    return below.copies_of(backup, tp.partition, commit.partitions[tp.partition].next)
