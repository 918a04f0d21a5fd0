"""The number of Cloud Storage operations that a plan needs, and their list price.

Writes and lists are class A, reads are class B; deletes are free. https://cloud.google.com/storage/pricing
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from kbq_assets.core.extraction.planning import ExtractionPlan
from kbq_assets.core.extraction.units import WindowLimits
from kbq_assets.core.loading.batches import LoadBatch
from kbq_assets.core.protocol.names import shard_of
from kbq_assets.core.protocol.offsets import TopicPartition

#: USD per 1,000 operations: class A in a region, class A in a multi- or dual-region, and class B.
CLASS_A_REGION: Final = 0.005
CLASS_A_REGIONS: Final = 0.01
CLASS_B: Final = 0.0004
#: The date of these prices.
PRICES_OF: Final = "November 2026"
_MONTH_SECONDS: Final = 30.4 * 86_400
#: Names per page of a list.
_PAGE: Final = 1000


@dataclass(frozen=True)
class Operations:
    """Operations of one cycle. ``done_files`` are part of ``writes``."""

    writes: int = 0
    lists: int = 0
    reads: int = 0
    done_files: int = 0

    def __add__(self, other: Operations) -> Operations:
        return Operations(
            self.writes + other.writes,
            self.lists + other.lists,
            self.reads + other.reads,
            self.done_files + other.done_files,
        )

    def __mul__(self, times: float) -> Operations:
        counts = (self.writes, self.lists, self.reads, self.done_files)
        return Operations(*(round(count * times) for count in counts))

    @property
    def class_a(self) -> int:
        """Writes and lists."""
        return self.writes + self.lists

    def dollars(self, class_a_price: float = CLASS_A_REGION) -> float:
        """Their list price in USD."""
        return (self.class_a * class_a_price + self.reads * CLASS_B) / 1000


def of_extraction(
    planned: ExtractionPlan, commits: int, tables: int, window: WindowLimits, *, done_files: bool = True
) -> Operations:
    """The operations of a planned extraction with ``commits`` commit objects and ``tables`` table states.

    Assumes one file per window. Topics with several tables, and windows that close early because of their size, write
    more: a record's tables are known only after it is read.
    """
    files = sum(max(1, -(-unit.range.positions // window.records)) for unit in planned.units)
    shards = {_shard(unit.range.topic_partition) for unit in planned.units}
    hints = files if done_files else 0
    # Per commit: a swap to add windows, a swap to remove loaded ones, a manifest, a task's schema. One for the run's
    # costs.
    writes = files + hints + 4 * len(shards) + 1
    lists = 1 + files // _PAGE if done_files else 0
    return Operations(writes, lists, 4 * commits + len(shards) + tables + 4, hints)


def of_load(batches: Sequence[LoadBatch], commits: int, tables: int) -> Operations:
    """The operations of a load of one batch per table. Each job takes two swaps, reads of its state and schema, and a
    listing that verifies its files; each run reads the view before and after. BigQuery's own reads of files are not
    counted."""
    pages = sum(1 + len(batch.files) // _PAGE for batch in batches)
    reads = 2 * commits + 2 * tables + 6 * len(batches) + 4
    return Operations(2 * len(batches), 7 + pages, reads)


def per_month(cycle: Operations, every_seconds: float) -> Operations:
    return cycle * (_MONTH_SECONDS / max(1.0, every_seconds))


def commits_of(planned: ExtractionPlan) -> int:
    """The number of commit objects of the plan's partitions."""
    units = (unit.range.topic_partition for unit in planned.units)
    return len({_shard(tp) for tp in (*planned.log_ends, *units)})


def tables_of(batches: Collection[LoadBatch]) -> int:
    return len({batch.table for batch in batches})


def _shard(tp: TopicPartition) -> tuple[str, int]:
    return tp.topic, shard_of(tp.partition)
