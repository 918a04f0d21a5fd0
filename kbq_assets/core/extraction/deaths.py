"""When a partition stops since its tasks die: killed workers, or memory that does not suffice (PROTOCOL E10).

A task that dies returns nothing, and the next run reads its ranges again, as after any passing fault. The commit counts
deaths in a row at a position. After the first, the range has a task of its own, so the ranges that shared a task are
cleared by the next run. A published window ends the count.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from kbq_assets.core.extraction.units import UnitOutcome
from kbq_assets.core.protocol import commits
from kbq_assets.core.protocol.commits import Commit, Stop
from kbq_assets.core.protocol.waits import StopReason

#: The partition stops at this many deaths in a row.
MOST_DEATHS: Final = 3
_ADVICE: Final = (
    "give tasks more memory (KBQ_SPARK_CONF_spark.executor.memoryOverhead), or the topic smaller windows (window_bytes,"
    " window_records)"
)


def stop_of(outcome: UnitOutcome, now_ms: int) -> Stop:
    """The stop of a unit whose tasks die. ``now_ms`` is the store's time."""
    range_ = outcome.unit.range
    message = f"{MOST_DEATHS} tasks in a row died while they read {range_}: {outcome.failure}; {_ADVICE}"
    return Stop(StopReason.TASK_DIED, message, range_.from_offset, range_.until_offset, last_ms=now_ms)


def count_death(commit: Commit, partition: int, why: Stop) -> Commit:
    """The commit after a task died that read from its position. It stops for ``why`` after `MOST_DEATHS` of them.

    If the reply of the swap was lost, a death counts twice: the partition then stops a run earlier.
    """
    state = commit.partitions[partition]
    counted = commit.with_partition(partition, dataclasses.replace(state, deaths=state.deaths + 1))
    return counted if state.deaths + 1 < MOST_DEATHS else commits.stop(counted, partition, why)
