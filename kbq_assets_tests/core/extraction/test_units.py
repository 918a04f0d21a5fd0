"""A unit's fetch range, its reader, and its progress."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from kbq_assets.core.extraction.units import Copies, Unit, UnitOutcome, WindowLimits
from kbq_assets.core.protocol.commits import Stop, Window
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.core.topics.check_options import CheckOptions
from kbq_assets.core.topics.options import ExtractionOptions
from kbq_assets.core.topics.ordering_options import OrderingOptions
from kbq_assets.core.topics.topic_settings import TopicSettings

TP = TopicPartition("t", 0)
UNIT = Unit(OffsetRange(TP, 100, 200), 3, TopicSettings(), leader_epoch=7, epoch_until=100)
LIMITS = WindowLimits(bytes=500, records=50, seconds=5.0, file_bytes=200, late_before=4)


def topic(order: str = "none", **limits: Any) -> TopicSettings:
    return TopicSettings(
        extraction=ExtractionOptions(**limits),
        ordering=OrderingOptions(order),
        checks=CheckOptions(complete_after_seconds=900),
    )


@pytest.mark.parametrize(
    ("settings", "changed"),
    [
        (topic(), {}),
        (topic(window_bytes=70), {"bytes": 70}),
        (topic(window_records=7), {"records": 7}),
        (topic(window_seconds=70), {"seconds": 70}),
        (topic("offset", window_bytes=300), {"bytes": 300}),
        (topic("hour"), {"bytes": 200}),
        (topic("hour", window_bytes=300), {"bytes": 200}),
        (topic("hour", window_bytes=70), {"bytes": 70}),
    ],
    ids=["none", "bytes", "records", "seconds", "offset", "hour", "hour, too large", "hour, small"],
)
def test_a_topics_own_limits_win_and_files_of_hours_are_not_divided(
    settings: TopicSettings, changed: dict[str, Any]
) -> None:
    assert LIMITS.of_topic(settings) == dataclasses.replace(LIMITS, **changed)


@pytest.mark.parametrize(
    ("leader_epoch", "epoch_until", "first", "read_epoch"),
    [
        (7, 100, 100, 7),
        (7, 90, 90, 7),
        (7, 0, 0, 7),
        (7, 101, 100, 7),
        (7, -1, 100, -1),
        (-1, 90, 100, -1),
        (-1, -1, 100, -1),
    ],
    ids=[
        "known up to the range",
        "positions without a record before it",
        "none with a record",
        "known beyond",
        "retention deleted the last record",
        "no broker named it",
        "nothing is known",
    ],
)
def test_fetching_begins_where_the_leader_epoch_is_known(
    leader_epoch: int, epoch_until: int, first: int, read_epoch: int
) -> None:
    unit = dataclasses.replace(UNIT, leader_epoch=leader_epoch, epoch_until=epoch_until)
    assert unit.read_range == OffsetRange(TP, first, 200)
    assert unit.read_epoch == read_epoch


def test_copies_are_read_from_the_position_alone() -> None:
    unit = dataclasses.replace(UNIT, epoch_until=90, copies=Copies((), 7, 200))
    assert unit.read_range == UNIT.range


def test_a_partition_is_read_in_order_for_its_tables_and_for_its_backup() -> None:
    alone = dataclasses.replace(UNIT, tables=False)
    assert (UNIT.lane, alone.lane) == ((TP, True), (TP, False))


def test_a_unit_with_two_outputs_is_one_for_tables_and_one_for_the_backup() -> None:
    assert UNIT.outputs == (UNIT,)
    both = dataclasses.replace(UNIT, backup_epoch=9)
    assert both.outputs == (both, dataclasses.replace(UNIT, tables=False, epoch=9))


def window(first: int, until: int, epoch_until: int = 0) -> Window:
    return Window(first, until, Counts(), epoch_until=epoch_until)


STOP = Stop("failed", "no", 100, 200)
READ = UnitOutcome(UNIT, (window(100, 120, 119), window(120, 130)))


def test_a_unit_came_as_far_as_its_last_window() -> None:
    assert (READ.position, READ.epoch_until) == (130, 119)
    assert (UnitOutcome(UNIT).position, UnitOutcome(UNIT).epoch_until) == (100, 0)


@pytest.mark.parametrize(
    ("changes", "ended"),
    [
        ({}, False),
        ({"stop": STOP}, True),
        ({"failure": "no route"}, True),
        ({"superseded": True}, True),
        ({"has_died": True}, False),
    ],
)
def test_a_unit_ends_by_stop_failure_or_a_faster_attempt(changes: dict[str, Any], ended: bool) -> None:
    assert dataclasses.replace(READ, **changes).has_ended == ended


@pytest.mark.parametrize(
    ("backup", "follows"),
    [
        (None, False),
        (READ, True),
        (dataclasses.replace(READ, windows=READ.windows[:1]), False),
        (dataclasses.replace(READ, failure="no"), False),
        (dataclasses.replace(READ, stop=STOP), False),
    ],
    ids=["none", "at the same position", "behind", "failed", "stopped"],
)
def test_a_backup_follows_its_tables_if_it_came_as_far(backup: UnitOutcome | None, follows: bool) -> None:
    assert dataclasses.replace(READ, backup=backup).backup_follows == follows
