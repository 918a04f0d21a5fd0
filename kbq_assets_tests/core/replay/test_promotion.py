"""What prevents a replacement, and what a replacement changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kbq_assets.core.errors import Refused
from kbq_assets.core.loading.replacements import begin_replacing, end_replacing
from kbq_assets.core.loading.replacing import Replacing, change_of
from kbq_assets.core.loading.table_state import Parked, QuarantinedFile, TableState, mark_key
from kbq_assets.core.loading.tables import Column
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.commits import Commit, PartitionCommit, StagedFile
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.names import FIRST_WAREHOUSE, TableReference
from kbq_assets.core.protocol.waits import ParkReason
from kbq_assets.core.replay.model import Bounds, Replay, check_alone, check_latest
from kbq_assets.core.replay.promotion import changes_of, check_settled, merged_columns, overlaps, replaced

TABLE = TableReference("d", "A")
REPLAY = Replay(7, "t", 2, {0: Bounds(10, 20), 1: Bounds(5, 5)})


def staged(first: int, until: int, *, partition: int = 0, epoch: int = 2, topic: str = "t") -> StagedFile:
    path = f"staging/{epoch}-a/{topic}.{partition}.d.A.1.{first}.avro"
    return StagedFile(path, first, until, 1, 1, 1, "", "")


@pytest.mark.parametrize(
    ("file", "meets"),
    [
        (staged(5, 11), True),
        (staged(19, 30), True),
        (staged(0, 99), True),
        (staged(5, 10), False),
        (staged(20, 30), False),
        (staged(10, 20, epoch=1), False),
        (staged(10, 20, topic="u"), False),
        (staged(4, 6, partition=1), False),
        (staged(10, 20, partition=2), False),
    ],
)
def test_a_file_overlaps_by_topic_partition_epoch_and_offsets(file: StagedFile, meets: bool) -> None:
    assert overlaps(REPLAY, file) == meets
    state = TableState("u")
    if meets:
        with pytest.raises(Refused, match="not loaded"):
            check_settled(REPLAY, TABLE, state, [file])
    loaded = replace(state, marks={mark_key(file): file.until})
    check_settled(REPLAY, TABLE, loaded, [file])


@pytest.mark.parametrize("dropped", [True, False])
def test_a_file_in_quarantine_is_decided_about(dropped: bool) -> None:
    state = TableState("u", quarantined=(QuarantinedFile(staged(12, 13), "bad", dropped=dropped),))
    if dropped:
        check_settled(REPLAY, TABLE, state, [])
        return
    with pytest.raises(Refused, match="quarantine"):
        check_settled(REPLAY, TABLE, state, [])


@pytest.mark.parametrize(
    ("loaded", "present", "former", "new", "expected"),
    [
        (9, 9, 3, 0, (-3, 0)),
        (9, 9, 0, 3, (3, 0)),
        (9, 9, 3, 3, (0, 0)),
        (9, 0, 0, 9, (0, 9)),
        (9, 0, 0, 12, (3, 9)),
        (9, 6, 2, 4, (0, 2)),
        (9, 6, 4, 2, (-2, 0)),
    ],
)
def test_rows_that_were_lost_with_a_table_count_already(
    loaded: int, present: int, former: int, new: int, expected: tuple[int, int]
) -> None:
    assert change_of(loaded, present, former, new) == expected


def test_a_table_counts_its_change_once_and_goes_on() -> None:
    state = TableState("u", rows={"t/0/2": 5, "u/0/1": 1})
    waiting = begin_replacing(state, Replacing(7, "job", {"t/0/2": -2, "t/1/2": 4}))
    assert (waiting.stored_format, state.stored_format) == (codec.ORDERED, codec.FORMAT)
    assert codec.loads(TableState, codec.dumps(waiting), "x") == waiting
    assert end_replacing(waiting, "another", done=True) == waiting
    done = end_replacing(waiting, "job", done=True)
    assert done.rows == {"t/0/2": 3, "t/1/2": 4, "u/0/1": 1}
    assert end_replacing(done, "job", done=True) == done
    assert end_replacing(waiting, "job", done=False) == state


def test_a_restored_table_is_loaded_again() -> None:
    gone = TableState("u", rows={"t/0/2": 5}, parked=Parked(str(ParkReason.TABLE_GONE), "gone"))
    found = end_replacing(begin_replacing(gone, Replacing(7, "job", {}, 5)), "job", done=True)
    assert (found.parked, found.rows) == (None, {"t/0/2": 5})


def test_commits_count_a_change_once_and_records_stay() -> None:
    errors = TableReference("d", "kbq_errors")
    changes = changes_of({TABLE: {"t/0/2": 3, "t/1/2": 1}, errors: {"t/0/2": -2}})
    assert changes == {
        0: Counts(skipped=-1, errors=-2, rows={"d.A": 3}),
        1: Counts(skipped=-1, rows={"d.A": 1}),
    }
    totals = Counts(positions=9, records=9, skipped=2, errors=3, rows={"d.A": 4})
    commit = Commit(
        "t", 0, "c", "i", 3, {0: PartitionCommit(9, totals=totals), 1: PartitionCommit(9, since=3)}
    )
    once = replaced(commit, "job", 2, changes)
    assert replaced(once, "job", 2, {0: Counts(errors=1)}) == once
    assert once.partitions[1] == commit.partitions[1]
    given = once.partitions[0].totals_for(FIRST_WAREHOUSE)
    assert given == Counts(positions=9, records=9, skipped=1, errors=1, rows={"d.A": 7})
    given.check("after a promotion")
    assert codec.loads(Commit, codec.dumps(once), "x") == once


def test_columns_of_a_promotion() -> None:
    number = Column("_kbq_replay", "INT64")
    live = (Column("x", "INT64", "REQUIRED"), Column("s", "STRUCT", fields=(Column("a", "INT64"),)))
    new = (Column("X", "INT64"), Column("y", "STRING", "REQUIRED"))
    assert merged_columns(TABLE, live, new) == (new[0], replace(new[1], mode="NULLABLE"), number)
    assert merged_columns(TABLE, None, new) == (*new, number)
    assert merged_columns(TABLE, live, None) == (number,)
    for other in (Column("x", "STRING"), Column("x", "INT64", "REPEATED")):
        with pytest.raises(Refused, match="column x"):
            merged_columns(TABLE, live, [other])
    with pytest.raises(Refused, match="column s"):
        merged_columns(TABLE, live, [Column("s", "STRUCT", fields=(Column("a", "STRING"),))])


@pytest.mark.parametrize(
    ("phase", "turn", "bounds", "first"),
    [
        ("promoted", 4, Bounds(19, 30), "kbq replay rollback 8, then kbq replay rollback 7"),
        ("promoting", 0, Bounds(0, 11), "kbq replay continue 8"),
        ("rolling_back", 1, Bounds(0, 11), "kbq replay continue 8"),
        ("accepted", 4, Bounds(0, 11), "kbq replay accept 7"),
        ("promoted", 2, Bounds(19, 30), ""),
        ("rolled_back", 4, Bounds(19, 30), ""),
        ("read", 0, Bounds(19, 30), ""),
        ("promoted", 4, Bounds(20, 30), ""),
    ],
)
def test_a_rollback_waits_for_later_promotions_of_its_rows(
    phase: str, turn: int, bounds: Bounds, first: str
) -> None:
    replay = replace(REPLAY, turn=3)
    other = Replay(8, "t", 2, {0: bounds}, phase=phase, turn=turn)
    check_latest(replay, [replay, replace(other, topic="u"), replace(other, epoch=1)])
    if not first:
        check_latest(replay, [other])
        return
    with pytest.raises(Refused) as refused:
        check_latest(replay, [other])
    assert first in refused.value.next_step


def test_replays_of_two_warehouses_do_not_know_each_other() -> None:
    replay = replace(REPLAY, turn=3, tables=("d.A",))
    other = Replay(
        8, "t", 2, {0: Bounds(19, 30)}, phase="promoted", turn=4, tables=("d.A",), warehouse="lake"
    )
    check_latest(replay, [other], frozenset([TABLE]))
    check_alone(replay, [replace(other, phase="promoting")])
    own = replace(replay, warehouse="lake")
    with pytest.raises(Refused, match="replay 8 was promoted later"):
        check_latest(own, [other])
    with pytest.raises(Refused, match="replay 8 is replacing rows of its range"):
        check_alone(own, [replace(other, phase="promoting")])


def test_a_commit_counts_the_promotions_of_each_warehouse_by_itself() -> None:
    totals = Counts(positions=9, records=9, errors=3, rows={"d.A": 6})
    commit = Commit("t", 0, "c", "i", 2, {0: PartitionCommit(9, totals=totals, delivered={"lake": totals})})
    changes = {0: Counts(errors=-1, rows={"d.A": 1})}
    for warehouse in ("lake", FIRST_WAREHOUSE):
        commit = replaced(commit, "kbq-replay-s-7-1", 2, changes, warehouse, {})
        commit = replaced(commit, "kbq-replay-s-7-1", 2, changes, warehouse, {})
    for warehouse in ("lake", FIRST_WAREHOUSE):
        assert commit.partitions[0].totals_for(warehouse) == totals + changes[0]


def test_releases_that_know_no_warehouse_refuse_the_replay_of_another_one() -> None:
    lake = replace(REPLAY, warehouse="lake", only=("d.A",))
    assert [each.stored_format for each in (REPLAY, replace(lake, warehouse=""), lake)] == [3, 5, 9]
    assert codec.loads(Replay, codec.dumps(lake), "x") == lake
    assert b"warehouse" not in codec.dumps(REPLAY)
