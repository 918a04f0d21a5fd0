"""Rows that a warehouse was never given, and that a promotion brings: commits count them once, and a rollback takes
them back (PROTOCOL R13)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kbq_assets.core.protocol.commits import Commit, PartitionCommit
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.names import FIRST_WAREHOUSE
from kbq_assets.core.replay.brought import given_by_windows, lacking
from kbq_assets.core.replay.promotion import replaced

#: Ten records: eight rows, an error row, and one that was skipped.
TOTALS = Counts(positions=10, records=10, skipped=1, errors=1, rows={"d.A": 8})
#: What the lake was given of them: the last two.
LATE = Counts(positions=2, records=2, rows={"d.A": 2})
FOUND = PartitionCommit(10, totals=TOTALS, delivered={"lake": LATE})
JOB = "kbq-replay-s-7-1"


def promoted(found: PartitionCommit, job: str, counts: Counts, passed_over: int | None) -> PartitionCommit:
    commit = Commit("t", 0, "c", "i", 1, {0: found})
    over = None if passed_over is None else {0: passed_over}
    return replaced(commit, job, 1, {0: counts}, "lake", over).partitions[0]


def moved(rows: int, errors: int = 0) -> Counts:
    """The change of a range's rows, as a promotion counts it."""
    return Counts(skipped=-rows - errors, errors=errors, rows={"d.A": rows})


def test_a_warehouse_lacks_what_no_window_gave_it() -> None:
    assert (given_by_windows(FOUND, "lake"), lacking(FOUND, "lake")) == (LATE, 7)
    assert (given_by_windows(FOUND, FIRST_WAREHOUSE), lacking(FOUND, FIRST_WAREHOUSE)) == (TOTALS, 0)
    assert (given_by_windows(FOUND, "sea"), lacking(FOUND, "sea")) == (Counts(), 9)
    withheld = replace(FOUND, withheld=replace(LATE, rows={"d.A": 2}))
    assert lacking(withheld, FIRST_WAREHOUSE) == 2


@pytest.mark.parametrize(
    ("change", "passed_over", "skipped"),
    [
        (moved(6, 1), 1, 1),  # as extraction made them: one of the eight is skipped
        (moved(7, 1), 0, 0),  # today it is a row
        (moved(5, 1), 2, 2),  # today another one is skipped, too
    ],
)
def test_a_promotion_of_all_that_a_warehouse_lacks_makes_it_whole(
    change: Counts, passed_over: int, skipped: int
) -> None:
    once = promoted(FOUND, JOB, change, passed_over)
    assert lacking(once, "lake") == 0
    own = once.totals_for("lake")
    own.check("after a promotion")
    assert own.staged + own.errors == 2 + change.staged + change.errors
    # What is compared with the broker then: all records, less those that are skipped today.
    assert (once.totals + once.changes_of("lake")[JOB]).skipped == skipped
    assert promoted(once, JOB, change, passed_over) == once
    assert lacking(once, FIRST_WAREHOUSE) == 0 and once.totals_for(FIRST_WAREHOUSE) == TOTALS


def test_a_rollback_takes_back_what_its_promotions_brought() -> None:
    once = promoted(FOUND, JOB, moved(6, 1), 1)
    back = promoted(once, "kbq-replay-s-7-2", moved(-6, -1), None)
    assert (lacking(back, "lake"), back.totals_for("lake").rows) == (7, {"d.A": 2})
    other = promoted(once, "kbq-replay-s-17-2", moved(-6, -1), None)
    assert lacking(other, "lake") == 0
    again = promoted(back, "kbq-replay-s-7-3", moved(6, 1), 1)
    assert lacking(again, "lake") == 0


def test_rows_that_move_or_go_bring_nothing() -> None:
    for change in (Counts(rows={"d.A": -2, "d.B": 2}), moved(-2), moved(0)):
        assert lacking(promoted(FOUND, JOB, change, 3), "lake") == 7
    # A rollback brings former rows back, which the warehouse was given.
    gone = promoted(FOUND, JOB, moved(-2), 2)
    assert lacking(promoted(gone, "kbq-replay-s-7-2", moved(2), None), "lake") == 7


def test_a_warehouse_that_was_given_all_lacks_nothing_whatever_a_promotion_adds() -> None:
    whole = replace(FOUND, delivered={"lake": TOTALS})
    once = promoted(whole, JOB, moved(1), 0)
    assert (lacking(once, "lake"), once.totals_for("lake").skipped) == (0, 0)
    assert once.changes_of("lake")[JOB] == moved(1)
