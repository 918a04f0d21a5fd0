"""Stops a partition whose tasks keep dying because workers are killed or run out of memory (PROTOCOL E10).

A task that dies returns nothing, and the next run reads its ranges again, as after any transient fault. The commit
counts consecutive deaths at a position. After the first death, the range gets its own task, so the next run clears the
ranges that merely shared the task. A published window resets the count.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from kbq_assets.core.extraction.units import UnitOutcome
from kbq_assets.core.protocol import commits
from kbq_assets.core.protocol.commits import Commit, Stop
from kbq_assets.core.protocol.waits import StopReason

#: Consecutive deaths that stop a partition.
MOST_DEATHS: Final = 3
_ADVICE: Final = (
    "give tasks more memory (on a cluster KBQ_SPARK_CONF_spark.executor.memoryOverhead, on one machine fewer tasks at"
    " once: KBQ_SPARK_MASTER), or the topic smaller windows (window_bytes, window_records)"
)


def stop_of(outcome: UnitOutcome, now_ms: int) -> Stop:
    """The stop for a unit whose tasks keep dying. ``now_ms`` is the store's time."""
    range_ = outcome.unit.range
    message = f"{MOST_DEATHS} tasks in a row died while they read {range_}: {outcome.failure}; {_ADVICE}"
    return Stop(StopReason.TASK_DIED, message, range_.from_offset, range_.until_offset, last_ms=now_ms)


def count_death(commit: Commit, partition: int, why: Stop) -> Commit:
    """The commit with one more death at the partition's position. At `MOST_DEATHS` the partition stops with ``why``.

    If the reply to the swap is lost, the death counts twice, and the partition stops one run earlier.
    """
    state = commit.partitions[partition]
    counted = commit.with_partition(partition, dataclasses.replace(state, deaths=state.deaths + 1))
    return counted if state.deaths + 1 < MOST_DEATHS else commits.stop(counted, partition, why)
