"""Positions that Kafka no longer has are read from the backup, as far as its files are contiguous."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from kbq_assets.core.backup.backup_names import BackupFileName
from kbq_assets.core.backup.below_log_start import (
    below_log_start,
    copies_of,
    is_same_log,
    unit_of,
    with_copies,
)
from kbq_assets.core.extraction.planning import ExtractionPlan, RecordedGap
from kbq_assets.core.extraction.stops import PartitionStop
from kbq_assets.core.extraction.units import Copies, Unit, WindowLimits
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, StagedFile, Window
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.core.protocol.waits import StopReason
from kbq_assets.core.topics.options import ExtractionOptions
from kbq_assets.core.topics.topic_settings import TopicSettings

P0, P1, P2 = (TopicPartition("t", n) for n in range(3))
SETTINGS = TopicSettings()


def copy(first: int, until: int, epoch: int = 2) -> Window:
    path = BackupFileName(OffsetRange(P0, first, until), epoch, "a").format()
    return Window(first, until, Counts(), (StagedFile(path, first, until, 1, 1, 1, "", "", content="x"),))


def backup_of(*windows: Window) -> Commit:
    return Commit("t", 0, "c", "id", 2, {0: PartitionCommit(40, leader_epoch=6, windows=windows)})


OLD = copy(0, 90, epoch=1)
ADJOINING = [copy(0, 10), copy(10, 20), copy(20, 30)]


@pytest.mark.parametrize(
    ("windows", "first", "used", "until"),
    [
        (ADJOINING, 0, [0, 10, 20], 30),
        (ADJOINING, 9, [0, 10, 20], 30),
        (ADJOINING, 10, [10, 20], 30),
        (ADJOINING, 29, [20], 30),
        (ADJOINING, 30, [], 30),
        (ADJOINING, 31, [], 31),
        (ADJOINING[1:], 9, [], 9),
        ([ADJOINING[0], ADJOINING[2]], 5, [0], 10),
        ([OLD, *ADJOINING], 15, [10, 20], 30),
        ([OLD], 15, [], 15),
        ([], 4, [], 4),
    ],
    ids=[
        "from the beginning",
        "within a copy",
        "at a copy's beginning",
        "the last position",
        "at the end",
        "beyond the end",
        "one position before the first copy",
        "up to a gap",
        "an older epoch is left out",
        "an older epoch alone",
        "no copies",
    ],
)
def test_copies_are_used_as_far_as_they_adjoin(
    windows: list[Window], first: int, used: list[int], until: int
) -> None:
    found = copies_of(backup_of(*windows), 0, first)
    assert [file.window for file in found.files] == used
    assert (found.until, found.leader_epoch) == (until, 6)


@pytest.mark.parametrize(
    ("cluster", "topic_id", "same"),
    [("c", "id", True), ("c", "", True), ("c", "other", False), ("d", "id", False), ("d", "", False)],
)
def test_a_backup_of_another_log_is_none(cluster: str, topic_id: str, same: bool) -> None:
    assert is_same_log(Commit("t", 0, cluster, topic_id, 1), backup_of()) == same


def stop(tp: TopicPartition, reason: str = StopReason.RETENTION_LOSS) -> PartitionStop:
    return PartitionStop(tp, reason, "lost", ())


def gap(tp: TopicPartition) -> RecordedGap:
    return RecordedGap(tp, 1, 9, "retention")


def unit(tp: TopicPartition, first: int = 0, until: int = 9, **changes: Any) -> Unit:
    made = Unit(OffsetRange(tp, first, until), 1, SETTINGS, 3, first)
    return dataclasses.replace(made, **changes)


def test_retention_overtook_the_partitions_that_stop_for_it_or_record_a_gap() -> None:
    planned = ExtractionPlan(
        stops=(stop(P2), stop(P1, StopReason.TRUNCATED)), gaps=(gap(P0), gap(P2)), units=(unit(P1),)
    )
    assert below_log_start(planned) == [P0, P2]
    assert below_log_start(ExtractionPlan()) == []


def test_the_unit_of_copies_begins_at_the_tables_position_and_ends_with_the_copies() -> None:
    state = PartitionCommit(5, 0, 1, 3, 4, accept_errors_until=8, deaths=1)
    settings = TopicSettings(extraction=ExtractionOptions(window_records=50))
    copies = Copies((), 6, 30)
    made = unit_of(Commit("t", 0, "c", "id", 4, {0: state}), 0, settings, copies, WindowLimits())
    assert made == Unit(
        OffsetRange(P0, 5, 30),
        4,
        settings,
        3,
        4,
        8,
        WindowLimits(records=50),
        alone=True,
        copies=copies,
    )
    calm = dataclasses.replace(state, deaths=0)
    assert not unit_of(Commit("t", 0, "c", "id", 4, {0: calm}), 0, settings, copies, WindowLimits()).alone


def test_units_of_copies_take_the_place_of_stops_gaps_and_units_of_their_partitions() -> None:
    planned = ExtractionPlan(
        stops=(stop(P0), stop(P2)), gaps=(gap(P0), gap(P1)), units=(unit(P0), unit(P1)), idle=3
    )
    copied = unit(P0, 0, 30, copies=Copies((), 6, 30))
    assert with_copies(planned, [copied]) == ExtractionPlan(
        stops=(stop(P2),), gaps=(gap(P1),), units=(copied, unit(P1)), idle=3
    )
    assert with_copies(planned, []) == planned
