"""A table that waits for a replacement continues after it, and counts its rows once."""

from __future__ import annotations

import dataclasses

import pytest

from kbq_assets.core.loading import table_state
from kbq_assets.core.loading.replacements import begin_replacing, end_replacing
from kbq_assets.core.loading.replacing import Replacing, change_of, replacing_words
from kbq_assets.core.loading.table_state import Accepted, TableState
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.waits import ParkReason

LOADED = TableState("u", rows={"t/0/1": 10, "t/1/1": 0})
CHANGE = Replacing(7, "job-7", {"t/0/1": -4, "t/0/2": 3, "t/0/3": 0})
WAITING = begin_replacing(LOADED, CHANGE)


def test_a_table_that_waits_is_stored_so_that_older_releases_do_not_load_it() -> None:
    assert WAITING.definition.replacing == CHANGE
    assert (LOADED.stored_format, WAITING.stored_format) == (codec.FORMAT, codec.ORDERED)


def test_a_replacement_that_is_done_changes_the_rows_once() -> None:
    done = end_replacing(WAITING, "job-7", done=True)
    assert done == dataclasses.replace(LOADED, rows={"t/0/1": 6, "t/1/1": 0, "t/0/2": 3})
    assert end_replacing(done, "job-7", done=True) == done


def test_a_replacement_that_is_given_up_changes_nothing() -> None:
    assert end_replacing(WAITING, "job-7", done=False) == LOADED


@pytest.mark.parametrize("done", [True, False])
def test_the_end_of_another_replacement_changes_nothing(done: bool) -> None:
    assert end_replacing(WAITING, "job-6", done=done) == WAITING
    assert end_replacing(LOADED, "job-7", done=done) == LOADED


@pytest.mark.parametrize(("given_up", "restored", "left"), [(10, 4, 6), (10, 10, 0), (3, 10, 0), (0, 0, 0)])
def test_restored_rows_are_given_up_no_more(given_up: int, restored: int, left: int) -> None:
    state = dataclasses.replace(LOADED, accepted=Accepted(rows=given_up, mismatches=2))
    change = dataclasses.replace(CHANGE, restored=restored)
    ended = end_replacing(begin_replacing(state, change), "job-7", done=True)
    assert ended.accepted == Accepted(rows=left, mismatches=2)


@pytest.mark.parametrize(
    ("reason", "done", "goes_on"),
    [
        (ParkReason.TABLE_GONE, True, True),
        (ParkReason.TABLE_GONE, False, False),
        (ParkReason.LOAD_FAILED, True, False),
    ],
)
def test_a_table_that_was_gone_is_loaded_again(reason: ParkReason, done: bool, goes_on: bool) -> None:
    parked = table_state.park(WAITING, reason, "no")
    assert (end_replacing(parked, "job-7", done=done).parked is None) == goes_on


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Replacing(7, "j"), "replay 7 replaces rows of it; next: kbq replay continue 7"),
        (Replacing(0, "j", erasure=3), "erasure 3 deletes rows of it; next: kbq erase resume 3"),
    ],
)
def test_a_table_says_what_it_waits_for_and_how_that_ends(found: Replacing, words: str) -> None:
    assert replacing_words(found) == words


@pytest.mark.parametrize(
    ("loaded", "present", "former", "new", "change"),
    [
        (10, 10, 10, 10, (0, 0)),
        (10, 10, 4, 7, (3, 0)),
        (10, 10, 7, 4, (-3, 0)),
        (10, 0, 0, 10, (0, 10)),
        (10, 6, 0, 3, (0, 3)),
        (10, 6, 0, 9, (5, 4)),
        (10, 12, 0, 5, (5, 0)),
        (10, 0, 5, 3, (-2, 0)),
    ],
    ids=[
        "the same rows",
        "more rows",
        "fewer rows",
        "a lost table comes back",
        "a part of what was lost",
        "all of what was lost, and more",
        "more rows than were loaded",
        "fewer rows restore nothing",
    ],
)
def test_rows_that_were_lost_with_the_table_count_already(
    loaded: int, present: int, former: int, new: int, change: tuple[int, int]
) -> None:
    assert change_of(loaded, present, former, new) == change
