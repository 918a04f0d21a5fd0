"""A partition stops after exactly three deaths in a row at the same position."""

from __future__ import annotations

import dataclasses

from kbq_assets.core.extraction.deaths import MOST_DEATHS, count_death, stop_of
from kbq_assets.core.extraction.units import Unit, UnitOutcome
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, Stop, publish
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.core.protocol.waits import StopReason
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets_tests.strategies import staged_file, window

TP = TopicPartition("t", 0)
COMMIT = Commit("t", 0, "c", "id", 1, {0: PartitionCommit(0), 1: PartitionCommit(0)})
OUTCOME = UnitOutcome(
    Unit(OffsetRange(TP, 0, 50), 1, TopicSettings()), failure="exit code 137", has_died=True
)
WHY = stop_of(OUTCOME, 70)


def died(times: int) -> Commit:
    commit = COMMIT
    for _ in range(times):
        commit = count_death(commit, 0, WHY)
    return commit


def test_the_stop_names_range_cause_and_settings() -> None:
    assert dataclasses.replace(WHY, message="") == Stop(StopReason.TASK_DIED, "", 0, 50, last_ms=70)
    assert WHY.message.startswith("3 tasks in a row died while they read t[0] [0, 50): exit code 137; ")
    assert "on a cluster KBQ_SPARK_CONF_spark.executor.memoryOverhead" in WHY.message
    assert "on one machine fewer tasks at once: KBQ_SPARK_MASTER" in WHY.message


def test_only_the_last_death_stops_the_partition() -> None:
    stops = [died(times).partitions[0].stop for times in range(MOST_DEATHS + 1)]
    assert stops == [None] * MOST_DEATHS + [WHY]
    assert [died(times).partitions[0].deaths for times in range(3)] == [0, 1, 2]
    assert died(MOST_DEATHS).partitions[1] == COMMIT.partitions[1]


def test_a_published_window_ends_the_count() -> None:
    read = publish(died(MOST_DEATHS - 1), 0, 1, [window(0, 5, staged_file(0, 5))])
    assert count_death(read, 0, WHY).partitions[0].stop is None
