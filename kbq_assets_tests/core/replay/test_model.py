"""A replay reads the rows of one epoch again, while no other replay changes them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from kbq_assets.core.errors import InvalidName, Refused
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.commits import Commit, PartitionCommit
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import OffsetRange, TopicPartition
from kbq_assets.core.replay.model import (
    Bounds,
    Phase,
    Replay,
    ReplayProgress,
    check_alone,
    check_epoch,
    check_latest,
    check_own,
    epoch_of,
    is_shadow,
    parse_replay_path,
    replay_path,
)

TABLE = TableReference("d", "orders")
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
REPLAY = Replay(7, "t", 2, {0: Bounds(10, 20), 1: Bounds(5, 5)}, turn=3, tables=("d.orders",))


def other(number: int = 8, **changes: Any) -> Replay:
    """Another replay, by default of the same positions."""
    return dataclasses.replace(REPLAY, number=number, **changes)


def test_a_range_without_positions_is_not_read() -> None:
    assert REPLAY.ranges == (OffsetRange(P0, 10, 20),)
    assert REPLAY.positions == 10
    both = dataclasses.replace(REPLAY, bounds={1: Bounds(0, 5), 0: Bounds(3, 4)})
    assert both.ranges == (OffsetRange(P0, 3, 4), OffsetRange(P1, 0, 5))


def test_its_tables_and_files_are_its_own() -> None:
    assert REPLAY.area == "replayed/7"
    assert REPLAY.shadow(TABLE) == TableReference("d", "_kbq_replay_7_orders")
    assert REPLAY.former(TABLE) == TableReference("d", "_kbq_former_7_orders")
    for own in (REPLAY.shadow(TABLE), REPLAY.former(TABLE)):
        assert is_shadow(own)
        assert check_own(own) == own


@pytest.mark.parametrize(
    "name", ["orders", "kbq_replay_7_orders", "x_kbq_replay_7_orders", "_KBQ_REPLAY_7_orders"]
)
def test_no_other_table_is_ever_dropped(name: str) -> None:
    assert not is_shadow(TableReference("d", name))
    with pytest.raises(Refused, match="is not a replay's table"):
        check_own(TableReference("d", name))


def test_a_name_that_becomes_too_long_is_refused() -> None:
    with pytest.raises(InvalidName):
        REPLAY.shadow(TableReference("d", "x" * 1020))


def test_chosen_tables_are_the_only_ones() -> None:
    assert (REPLAY.chosen, REPLAY.covers(TABLE)) == (None, True)
    some = dataclasses.replace(REPLAY, only=("d.orders",))
    assert some.chosen == frozenset({TABLE})
    assert (some.covers(TABLE), some.covers(TableReference("d", "items"))) == (True, False)


@pytest.mark.parametrize(
    ("changes", "stored"),
    [
        ({}, codec.FORMAT),
        ({"only": ("d.orders",)}, codec.CHOSEN),
        ({"warehouse": "lake"}, codec.ELSEWHERE),
        ({"warehouse": "lake", "only": ("d.orders",)}, codec.ELSEWHERE),
    ],
)
def test_older_releases_do_not_touch_what_they_would_damage(changes: dict[str, Any], stored: int) -> None:
    assert other(**changes).stored_format == stored


@pytest.mark.parametrize(
    ("phase", "is_changing", "is_ended", "ended"),
    [
        (Phase.READING, False, False, 4),
        (Phase.READ, False, False, 4),
        (Phase.PROMOTING, True, False, 3),
        (Phase.PROMOTED, False, False, 4),
        (Phase.ROLLING_BACK, True, False, 3),
        (Phase.ROLLED_BACK, False, False, 4),
        (Phase.ACCEPTED, False, True, 4),
        (Phase.DROPPED, False, True, 4),
    ],
)
def test_each_phase_says_whether_tables_change(
    phase: Phase, is_changing: bool, is_ended: bool, ended: int
) -> None:
    replay = dataclasses.replace(REPLAY, attempt=4).at(phase)
    assert (replay.is_changing, replay.is_ended, replay.ended) == (is_changing, is_ended, ended)


PROMOTING: dict[str, Any] = {"phase": str(Phase.PROMOTING)}
PROMOTED: dict[str, Any] = {"phase": str(Phase.PROMOTED), "turn": 4}
ACCEPTED: dict[str, Any] = {"phase": str(Phase.ACCEPTED), "turn": 4}
APART: dict[str, Any] = {"bounds": {0: Bounds(20, 30)}}


@pytest.mark.parametrize(
    ("beside", "refused"),
    [
        (other(**PROMOTING), True),
        (other(phase=str(Phase.ROLLING_BACK)), True),
        (other(**PROMOTED), False),
        (other(number=7, **PROMOTING), False),
        (other(warehouse="lake", **PROMOTING), False),
        (other(topic="u", **PROMOTING), False),
        (other(epoch=3, **PROMOTING), False),
        (other(bounds={0: Bounds(20, 30)}, **PROMOTING), False),
        (other(bounds={0: Bounds(0, 10)}, **PROMOTING), False),
        (other(bounds={0: Bounds(19, 30)}, **PROMOTING), True),
        (other(bounds={0: Bounds(0, 11)}, **PROMOTING), True),
        (other(bounds={1: Bounds(0, 90)}, **PROMOTING), False),
    ],
    ids=[
        "promotes",
        "rolls back",
        "has promoted",
        "is itself",
        "another warehouse",
        "another topic",
        "another epoch",
        "begins where it ends",
        "ends where it begins",
        "shares the last position",
        "shares the first position",
        "an empty range overlaps nothing",
    ],
)
def test_a_replay_waits_while_another_one_changes_its_rows(beside: Replay, refused: bool) -> None:
    if not refused:
        return check_alone(REPLAY, [beside])
    with pytest.raises(Refused, match=f"replay {beside.number} is replacing rows of its range") as error:
        check_alone(REPLAY, [beside])
    assert error.value.next_step == "kbq replay continue 8, then kbq replay promote 7"
    return None


@pytest.mark.parametrize(
    ("beside", "words", "next_step"),
    [
        (other(**PROMOTING), "is replacing rows of its range or keys", "kbq replay continue 8, then"),
        (other(**PROMOTED), "was promoted later", "kbq replay rollback 8, then kbq replay rollback 7"),
        (other(**ACCEPTED), "and accepted", "kbq replay accept 7"),
        (other(**{**PROMOTED, "turn": 3}), "was promoted later", "kbq replay rollback 8"),
        (other(6, **{**PROMOTED, "turn": 3}), "", ""),
        (other(**{**PROMOTED, "turn": 2}), "", ""),
        (other(**{**ACCEPTED, "turn": 2}), "", ""),
        (other(phase=str(Phase.ROLLED_BACK), turn=4), "", ""),
        (other(phase=str(Phase.READ), turn=4), "", ""),
        (other(**PROMOTED, **APART), "", ""),
        (other(**PROMOTED, warehouse="lake"), "", ""),
        (other(7, **PROMOTED), "", ""),
    ],
    ids=[
        "changes now",
        "promoted later",
        "accepted later",
        "a higher number at one turn",
        "a lower number at one turn",
        "promoted earlier",
        "accepted earlier",
        "rolled back",
        "only read",
        "apart",
        "another warehouse",
        "itself",
    ],
)
def test_the_last_promotion_is_rolled_back_first(beside: Replay, words: str, next_step: str) -> None:
    if not words:
        return check_latest(REPLAY, [beside])
    with pytest.raises(Refused, match=f"replay 7 cannot be rolled back: replay 8 .*{words}") as error:
        check_latest(REPLAY, [beside])
    assert error.value.next_step.startswith(next_step)
    return None


def test_in_keyed_tables_any_two_ranges_overlap() -> None:
    later = other(**PROMOTED, **APART)
    with pytest.raises(Refused, match="promoted later"):
        check_latest(REPLAY, [later], frozenset({TABLE}))
    check_latest(REPLAY, [dataclasses.replace(later, tables=("d.items",))], frozenset({TABLE}))
    check_latest(REPLAY, [later], frozenset({TableReference("d", "items")}))


@pytest.mark.parametrize("number", [0, 7, 10**12])
def test_a_path_has_the_number(number: int) -> None:
    assert parse_replay_path(replay_path(number)) == number


@pytest.mark.parametrize(
    "path", ["replays/x.json", "replays/7", "replay/7.json", "replays/07.json", "replays/-1.json"]
)
def test_another_path_is_refused(path: str) -> None:
    with pytest.raises(InvalidName):
        parse_replay_path(path)


def commit(epoch: int = 3, since: int = 1) -> Commit:
    return Commit("t", 0, "c", "id", epoch, {n: PartitionCommit(99, since=since) for n in (0, 1)})


def marks(**ends: int) -> dict[str, int]:
    """Marks of partition 0 by epoch, of two schemas: `e1=20`; and a partition whose name begins alike."""
    found = {f"t/0/{epoch[1:]}/5": end for epoch, end in ends.items()}
    low = {f"t/0/{epoch[1:]}/6": end // 2 for epoch, end in ends.items()}
    return {**found, **low, "t/01/1/5": 900, "t/1/1/5": 0}


@pytest.mark.parametrize(
    ("first", "until", "since", "ends", "epoch"),
    [
        (0, 10, 1, marks(), 3),
        (0, 10, 1, marks(e1=10), 1),
        (10, 20, 1, marks(e1=10), 3),
        (0, 10, 1, marks(e1=50, e2=20), 1),
        (50, 60, 1, marks(e1=50, e2=60), 2),
        (0, 10, 2, marks(e1=50), 3),
        (0, 10, 0, marks(e1=10), 1),
    ],
    ids=[
        "nothing was loaded",
        "the whole range in the first epoch",
        "behind the first epoch",
        "a later epoch began anew",
        "in the second epoch",
        "before the partition's epoch",
        "of a commit that notes no epoch",
    ],
)
def test_the_epoch_of_a_range_is_that_of_its_rows(
    first: int, until: int, since: int, ends: dict[str, int], epoch: int
) -> None:
    assert epoch_of([OffsetRange(P0, first, until)], [commit(since=since)], ends) == epoch


def test_a_range_of_several_epochs_is_refused_with_the_parts_of_each() -> None:
    ranges = [OffsetRange(P0, 0, 20), OffsetRange(P1, 0, 5)]
    with pytest.raises(Refused, match="rows of several epochs") as error:
        epoch_of(ranges, [commit()], marks(e1=10))
    assert "epoch 1: t[0] [0, 20); epoch 3: t[0] [0, 20), t[1] [0, 5)" in error.value.message
    assert error.value.next_step == "start one replay for each epoch"


def test_an_empty_range_has_no_epoch() -> None:
    with pytest.raises(Refused, match="the range is empty") as error:
        epoch_of([], [commit()], {})
    assert error.value.next_step == "choose an earlier --from or a later --until"


@pytest.mark.parametrize(
    ("ends", "refused"),
    [(marks(), False), (marks(e2=90), False), (marks(e1=10), False), (marks(e1=11), True)],
    ids=["nothing loaded", "its own epoch", "an epoch up to the range", "an epoch of the range"],
)
def test_rows_that_an_earlier_epoch_loaded_since_are_not_doubled(ends: dict[str, int], refused: bool) -> None:
    if not refused:
        return check_epoch(REPLAY, [commit()], ends)
    with pytest.raises(Refused, match=r"t\[0\] \[10, 20\) has rows of epoch 1") as error:
        check_epoch(REPLAY, [commit()], ends)
    assert error.value.next_step == "kbq replay drop 7, then start it again"
    return None


def test_a_partition_that_no_commit_has_any_more_has_the_replays_epoch() -> None:
    check_epoch(REPLAY, [], marks(e1=50))


@pytest.mark.parametrize(
    ("progress", "is_done"),
    [
        (ReplayProgress(), True),
        (ReplayProgress(10, 10), True),
        (ReplayProgress(10, 9), False),
        (ReplayProgress(10, 10, waiting=1), False),
        (ReplayProgress(10, 10, stops=("x",)), False),
    ],
)
def test_a_replay_is_done_once_everything_is_read_and_loaded(progress: ReplayProgress, is_done: bool) -> None:
    assert progress.is_done == is_done
