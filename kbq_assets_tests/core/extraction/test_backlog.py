"""Waiting is decided by estimates, and records that retention may soon delete never wait."""

from __future__ import annotations

from typing import Any

import pytest

from kbq_assets.core.extraction.backlog import Averages, headroom, too_little
from kbq_assets.core.extraction.planning import ExtractionPlan, TopicSnapshot, plan_extraction
from kbq_assets.core.extraction.throttle import ReadLimits
from kbq_assets.core.protocol.commits import Commit, PartitionCommit
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.offsets import BrokerOffsets, TopicDescription, TopicPartition
from kbq_assets.core.protocol.topic_registry import TopicEntry
from kbq_assets.core.topics.source_list import parse_source_list
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets_tests.core.catalog.documents import mistake_of

#: Half of the positions held a record of 10 bytes.
PAST = Counts(positions=100, records=50, bytes=500)


def snapshot(*partitions: PartitionCommit, **options: Any) -> TopicSnapshot:
    settings = TopicSettings.of(**options)
    commit = Commit("t", 0, "c", "id", 1, dict(enumerate(partitions)))
    return TopicSnapshot(
        settings, TopicDescription("t", "id", len(partitions)), TopicEntry((0,)), {0: commit}
    )


def planned(topic: TopicSnapshot, *broker: BrokerOffsets, run: ReadLimits | None = None) -> ExtractionPlan:
    offsets = {TopicPartition("t", p): o for p, o in enumerate(broker)}
    return plan_extraction([topic], offsets, "c", run=run)


def sizes(plan: ExtractionPlan) -> dict[int, int]:
    return {u.range.topic_partition.partition: u.range.positions for u in plan.units}


@pytest.mark.parametrize(
    ("totals", "averages"),
    [
        (PAST, Averages(0.5, 5.0)),
        (Counts(positions=100, records=10, bytes=100, lost=90), Averages(1.0, 10.0)),
        (Counts(), Averages()),
        (Counts(positions=9, lost=9), Averages()),
    ],
)
def test_averages_are_those_of_the_positions_that_were_read(totals: Counts, averages: Averages) -> None:
    assert Averages.of(totals) == averages


@pytest.mark.parametrize(
    ("position", "broker", "room"),
    [
        (0, BrokerOffsets(0, 100), 1.0),  # nothing was ever deleted
        (50, BrokerOffsets(50, 150), 0.0),
        (75, BrokerOffsets(50, 150), 0.25),
        (150, BrokerOffsets(50, 150), 1.0),
        (50, BrokerOffsets(50, 50), 1.0),
    ],
)
def test_headroom_is_the_share_of_the_log_that_may_still_go(
    position: int, broker: BrokerOffsets, room: float
) -> None:
    assert headroom(position, broker) == room


@pytest.mark.parametrize(
    ("options", "positions", "waits"),
    [
        ({}, 1, False),
        ({"min_records": 50}, 99, True),
        ({"min_records": 50}, 100, False),
        ({"min_bytes": 500}, 99, True),
        ({"min_bytes": 500}, 100, False),
        ({"min_records": 10, "min_bytes": 5000}, 99, False),
        ({"min_records": 1000, "min_bytes": 5000}, 99, True),
        ({"quiet_seconds": 900}, 199, True),
        ({"quiet_seconds": 900}, 200, False),
        ({"quiet_seconds": 900, "min_records": 50}, 100, False),
    ],
)
def test_a_minimum_is_held_against_estimates(options: dict[str, Any], positions: int, waits: bool) -> None:
    settings = TopicSettings.of(**options)
    assert bool(too_little(settings, positions, Averages.of(PAST))) == waits


def test_a_partition_that_was_never_read_waits_for_nothing_where_hours_are_to_close() -> None:
    settings = TopicSettings.of(min_records=50, close_hours=True)
    assert too_little(settings, 1, Averages.of(PAST))
    assert not too_little(settings, 1, Averages.of(PAST), is_known=False)


def test_little_data_waits_unless_it_is_ripe_or_close_to_being_lost() -> None:
    topic = snapshot(*[PartitionCommit(next=100, totals=PAST)] * 3, min_records=50)
    broker = [BrokerOffsets(0, 120), BrokerOffsets(99, 120), BrokerOffsets(0, 300)]
    plan = planned(topic, *broker)
    assert sizes(plan) == {1: 20, 2: 200}
    assert [(w.topic_partition.partition, w.message) for w in plan.waiting] == [(0, "about 10 of 50 records")]
    offsets = {TopicPartition("t", p): o for p, o in enumerate(broker)}
    assert plan_extraction([topic], offsets, "c", ripe={TopicPartition("t", 0)}).waiting == ()


def test_units_are_ordered_by_danger_then_length() -> None:
    topic = snapshot(*[PartitionCommit(next=100)] * 4)
    plan = planned(
        topic, BrokerOffsets(0, 110), BrokerOffsets(100, 120), BrokerOffsets(0, 130), BrokerOffsets(99, 120)
    )
    assert list(sizes(plan)) == [1, 3, 2, 0]


def test_a_topic_that_just_started_on_a_log_that_is_being_deleted_goes_first() -> None:
    new = TopicSnapshot(TopicSettings(), TopicDescription("new", "x", 1))
    old = snapshot(PartitionCommit(next=100))
    offsets = {
        TopicPartition("new", 0): BrokerOffsets(1000, 1100),
        TopicPartition("t", 0): BrokerOffsets(0, 9000),
    }
    plan = plan_extraction([old, new], offsets, "c")
    assert [u.range.topic_partition.topic for u in plan.units] == ["new", "t"]


def test_limits_cut_units_and_the_plan_says_what_is_left() -> None:
    topic = snapshot(*[PartitionCommit(next=0, totals=PAST)] * 2, max_records=30)
    plan = planned(topic, BrokerOffsets(0, 100), BrokerOffsets(0, 10))
    assert sizes(plan) == {0: 20, 1: 10}
    assert [(t.topic_partition.partition, t.positions) for t in plan.throttled] == [(0, 80)]
    assert plan.ends == {TopicPartition("t", 0): 100, TopicPartition("t", 1): 10}


def test_a_limit_of_bytes_counts_by_the_average_record_so_far() -> None:
    topic = snapshot(PartitionCommit(next=0, totals=PAST))
    plan = planned(topic, BrokerOffsets(0, 100), run=ReadLimits(bytes=200))
    assert sizes(plan) == {0: 40}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("t max_records=-1", "0 or more"),
        ("t max_bytes=1000", "raise max_bytes"),
        ("t priority=urgent", "high, normal, low"),
        ("t priority=101", "from 1 to 100"),
        ("t priority=0", "from 1 to 100"),
    ],
)
def test_options_that_could_never_work_are_refused(line: str, message: str) -> None:
    found = mistake_of(line)
    assert ("list:1" in found, message in found) == (True, True), found


@pytest.mark.parametrize(("priority", "weight"), [("high", 8), ("normal", 4), ("low", 1), ("17", 17)])
def test_a_priority_is_a_name_or_a_number(priority: str, weight: int) -> None:
    [entry] = parse_source_list(f"t priority={priority}", "x")
    assert entry.settings.extraction.priority == weight
