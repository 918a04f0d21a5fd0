"""A few bad files go to quarantine, and come back or are dropped as an operator says."""

from __future__ import annotations

import dataclasses

import pytest

from kbq_assets.core.loading import table_state
from kbq_assets.core.loading.quarantine import drop_quarantined, loses_too_much, retry_quarantined
from kbq_assets.core.loading.table_state import Accepted, Failures, QuarantinedFile, TableState
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets_tests.strategies import staged_file

FILES = tuple(staged_file(n, n + 1) for n in range(10))


def bad(*files: StagedFile, retry: bool = False, dropped: bool = False) -> tuple[QuarantinedFile, ...]:
    return tuple(QuarantinedFile(file, "broken", retry, dropped) for file in files)


def loading(files: int, *, lost: int = 0, batches: int = 0, accepts: bool = False) -> TableState:
    """A table whose job has lost some files already, and whose last batches lost all of theirs."""
    state = TableState("u", failed=Failures(batches=batches), accepted=Accepted(loss=accepts))
    state = table_state.begin_job(state, FILES[:files], "p", "l")
    assert state.in_flight is not None
    known = bad(*FILES[files : files + lost])
    return dataclasses.replace(state, in_flight=dataclasses.replace(state.in_flight, quarantined=known))


@pytest.mark.parametrize(
    ("state", "refused", "why"),
    [
        (loading(1), 1, ""),
        (loading(2), 1, ""),
        (loading(4), 2, ""),
        (loading(3), 2, "2 of 3 files are refused"),
        (loading(2), 2, "2 of 2 files are refused"),
        (loading(3, lost=1), 1, ""),
        (loading(2, lost=1), 1, "2 of 3 files are refused"),
        (loading(1, lost=4), 0, "4 of 5 files are refused"),
        (loading(1, batches=1), 1, ""),
        (loading(1, batches=2), 1, "3 batches in a row lost all of their files"),
        (loading(1, batches=7), 1, "3 batches in a row lost all of their files"),
        (loading(2, batches=2), 1, ""),
        (loading(3, accepts=True), 3, ""),
        (loading(1, batches=2, accepts=True), 1, ""),
    ],
    ids=[
        "a batch of one file",
        "one of two",
        "half of four",
        "more than half",
        "all of two",
        "two of four, one of them before",
        "two of three, one of them before",
        "four of five, all of them before",
        "the second lost batch",
        "the third lost batch",
        "a later one",
        "a batch that keeps a file",
        "an operator accepted more",
        "an operator accepted the third",
    ],
)
def test_a_table_parks_before_too_much_is_lost(state: TableState, refused: int, why: str) -> None:
    assert loses_too_much(state, bad(*FILES[:refused])) == why


def test_a_file_comes_back_unless_its_rows_were_given_up() -> None:
    kept, dropped, other = *bad(FILES[0]), *bad(FILES[1], dropped=True), *bad(FILES[2])
    state = TableState("u", quarantined=(kept, dropped, other))
    again = retry_quarantined(state, {FILES[0].path, FILES[1].path, "unknown"})
    assert again.quarantined == (*bad(FILES[0], retry=True), dropped, other)
    assert again.retried == bad(FILES[0], retry=True)


def test_a_file_whose_rows_are_given_up_is_loaded_no_more() -> None:
    state = TableState("u", quarantined=bad(FILES[0], FILES[1], retry=True))
    given_up = drop_quarantined(state, {FILES[0].path})
    assert given_up.quarantined == (*bad(FILES[0], dropped=True), *bad(FILES[1], retry=True))
    assert given_up.new_quarantined == bad(FILES[1], retry=True)


def test_a_file_that_a_job_loads_right_now_is_not_given_up() -> None:
    copy = dataclasses.replace(staged_file(0, 1, attempt="b"), restaged=1)
    state = TableState("u", quarantined=bad(FILES[0], FILES[1], retry=True))
    running = table_state.begin_job(state, (copy,), "p", "l")
    assert drop_quarantined(running, {FILES[0].path, FILES[1].path}).quarantined == (
        *bad(FILES[0], retry=True),
        *bad(FILES[1], dropped=True),
    )


def test_a_job_of_the_same_positions_protects_no_file_that_nobody_brought_back() -> None:
    running = table_state.begin_job(TableState("u", quarantined=bad(FILES[0])), FILES[:1], "p", "l")
    assert drop_quarantined(running, {FILES[0].path}).quarantined == bad(FILES[0], dropped=True)
