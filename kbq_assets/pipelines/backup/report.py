"""A run's report about backups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kbq_assets.core.extraction.stops import PartitionStop
from kbq_assets.core.protocol.commits import Window
from kbq_assets.core.protocol.offsets import TopicPartition


@dataclass(frozen=True)
class BackupReport:
    """The windows that a run added to backups, its stops and its failures. ``refused``: partitions with a failure that
    only a person can end."""

    windows: Mapping[TopicPartition, tuple[Window, ...]] = field(default_factory=dict)
    stops: tuple[PartitionStop, ...] = ()
    failures: Mapping[TopicPartition, str] = field(default_factory=dict)
    refused: frozenset[TopicPartition] = frozenset()

    @property
    def records(self) -> int:
        return sum(window.counts.records for each in self.windows.values() for window in each)
