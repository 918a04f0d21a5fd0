"""The hours or days by which a lake's tables are compacted, as partitions of assets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import dagster as dg

from kbq_assets.core.compaction.model import ChosenFiles, CompactionPlan
from kbq_assets.core.loading.partitions import HOUR

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_HOUR: Final = timedelta(hours=1)


@dataclass(frozen=True)
class Periods:
    """Partitions of ``hours`` hours each. Hours before the first partition are compacted only by the job."""

    definition: dg.TimeWindowPartitionsDefinition
    hours: int

    def chosen(self, partitions: Iterable[str]) -> ChosenFiles:
        starts = (self.definition.start_time_for_partition_key(each) for each in partitions)
        numbers = frozenset((start - _EPOCH) // (_HOUR * self.hours) for start in starts)
        return ChosenFiles(hours=numbers) if self.hours == 1 else ChosenFiles(days=numbers)

    def partitions(self, hours: Iterable[int]) -> list[str]:
        """The partitions of some hours since 1970. Hours without a partition are skipped."""
        first = (self.definition.start - _EPOCH) // _HOUR
        now = (datetime.now(UTC) - _EPOCH) // _HOUR
        starts = sorted({hour // self.hours * self.hours for hour in hours})
        times = (_EPOCH + start * _HOUR for start in starts if first <= start <= now)
        return [time.strftime(self.definition.fmt) for time in times]

    def asked_for(self, plan: CompactionPlan) -> list[str]:
        """The partitions whose files a plan merges. Only the job merges the hours of whole days."""
        groups = (group for group in plan.groups if self.hours > 1 or not group.coarse)
        return self.partitions(hour for group in groups for hour in group.hours)


#: Dagster supports 100,000 partitions of an asset: the hours from 2020 to 2031.
_BY_DAY: Final = Periods(dg.DailyPartitionsDefinition("2015-01-01", end_offset=2), 24)
_BY_HOUR: Final = Periods(dg.HourlyPartitionsDefinition("2020-01-01-00:00", end_offset=2), 1)


def periods_of(unit: str) -> Periods:
    """Hours for a table that is partitioned by hour, otherwise days. A month is compacted with its last day."""
    return _BY_HOUR if unit == HOUR else _BY_DAY
