"""A single read serves tables and backup if both begin at the same position of the same log."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from kbq_assets.core.backup.sharing import with_backups, without_backup
from kbq_assets.core.extraction.planning import ExtractionPlan
from kbq_assets.core.extraction.stops import PartitionStop
from kbq_assets.core.extraction.units import Unit
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.core.protocol.waits import StopReason
from kbq_assets.core.topics.topic_settings import TopicSettings

P0, P1, P2 = (TopicPartition("t", n) for n in range(3))
STOPPED = PartitionStop(P2, StopReason.TRUNCATED, "lost", ())


def unit(tp: TopicPartition, first: int = 0, until: int = 9, **changes: Any) -> Unit:
    made = Unit(OffsetRange(tp, first, until), 1, TopicSettings(), 3, first)
    return dataclasses.replace(made, **changes)


def shared(tables: list[Unit], backups: list[Unit]) -> tuple[list[int], list[Unit]]:
    """The backups' epochs that the tables' units serve, and the units that only the backup has."""
    planned = with_backups(
        ExtractionPlan(units=tuple(tables)), {"regular": ExtractionPlan(units=tuple(backups))}
    )
    return [each.backup_epoch for each in planned.units], list(planned.backups["regular"].units)


@pytest.mark.parametrize(
    "changes",
    [
        {"range": OffsetRange(P0, 1, 9)},
        {"range": OffsetRange(P1, 0, 9)},
        {"leader_epoch": 4},
        {"leader_epoch": -1},
        {"epoch_until": 5},
    ],
    ids=["another position", "another partition", "a later leader epoch", "an unknown one", "known further"],
)
def test_a_unit_that_differs_is_read_for_the_backup_alone(changes: dict[str, Any]) -> None:
    other = unit(P0, epoch=7, **changes)
    assert shared([unit(P0)], [other]) == ([0], [dataclasses.replace(other, tables=False)])


def test_one_reading_serves_both_if_both_begin_at_one_position_of_the_same_log() -> None:
    longer = unit(P0, 0, 40, epoch=7)
    assert shared([unit(P0), unit(P1)], [longer]) == ([7, 0], [])
    assert shared([], [longer]) == ([], [dataclasses.replace(longer, tables=False)])
    assert shared([], []) == ([], [])


def test_the_rest_of_a_backups_plan_stays() -> None:
    stopped = ExtractionPlan(stops=(STOPPED,), units=(unit(P0, epoch=7),), idle=2)
    planned = with_backups(ExtractionPlan(units=(unit(P0),), idle=5), {"personal": stopped})
    assert planned.backups == {"personal": dataclasses.replace(stopped, units=())}
    assert planned.idle == 5


def test_a_unit_can_be_read_for_its_tables_alone() -> None:
    assert without_backup(unit(P0, backup_epoch=7)) == unit(P0)
    alone = unit(P0)
    assert without_backup(alone) is alone
