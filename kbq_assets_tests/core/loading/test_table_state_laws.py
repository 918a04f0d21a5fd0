"""Transitions of a table's state: each changes only what it names, and laws hold for any sequence of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbq_assets.core.errors_replay.intents import ReplayIntent
from kbq_assets.core.loading import table_state
from kbq_assets.core.loading.merging import MergedFile
from kbq_assets.core.loading.mismatches import RowMismatch
from kbq_assets.core.loading.replacing import Replacing
from kbq_assets.core.loading.table_state import (
    Accepted,
    Definition,
    Failures,
    JobInFlight,
    Parked,
    QuarantinedFile,
    TableState,
)
from kbq_assets.core.ordering.table_order import OrderRule, TableOrder
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.waits import ParkReason
from kbq_assets_tests.strategies import staged_file

FRESH = TableState("u")
FILES = tuple(staged_file(5 * n, 5 * n + 5) for n in range(4))
A, B, C, D = FILES
KEY = table_state.mark_key(A)


def bad(file: StagedFile, *, retry: bool = False, dropped: bool = False) -> QuarantinedFile:
    return QuarantinedFile(file, "broken", retry, dropped)


def loading(*files: StagedFile, state: TableState = FRESH) -> TableState:
    return table_state.begin_job(state, files, "p", "l")


def job_of(state: TableState) -> JobInFlight:
    assert state.in_flight is not None
    return state.in_flight


INTENT = ReplayIntent("j", TableReference("d", "t"), (A,), 0, (0, 1))


@pytest.mark.parametrize(
    ("state", "stored"),
    [
        (FRESH, codec.FORMAT),
        (loading(A), codec.FORMAT),
        (dataclasses.replace(FRESH, order=TableOrder(OrderRule("offset"))), codec.ORDERED),
        (dataclasses.replace(FRESH, definition=Definition(replacing=Replacing(1, "j"))), codec.ORDERED),
        (
            table_state.begin_job(FRESH, (A, B), "p", "l", merged=(MergedFile(C, (0, 1)),)),
            codec.MERGED,
        ),
        (dataclasses.replace(FRESH, definition=Definition(replaying=INTENT)), codec.REPLAYING),
        (dataclasses.replace(loading(A), definition=Definition(replaying=INTENT)), codec.REPLAYING),
    ],
    ids=["fresh", "loading", "ordered", "replaced", "merged", "replaying", "replaying while it loads"],
)
def test_older_releases_refuse_a_state_that_they_would_damage(state: TableState, stored: int) -> None:
    assert state.stored_format == stored
    assert codec.loads(TableState, codec.dumps(state), "p") == state


def test_a_job_reads_merged_files_in_the_place_of_their_parts() -> None:
    merged = MergedFile(staged_file(0, 5, attempt="m"), (0, 2))
    job = job_of(table_state.begin_job(FRESH, FILES, "p", "l", merged=(merged,)))
    assert job.sources == (merged.file, B, D)
    assert (job.files, job.rows) == (FILES, 20)
    assert job_of(loading(A, B)).sources == (A, B)


def test_a_job_without_its_bad_files_reads_no_merged_one() -> None:
    state = table_state.begin_job(FRESH, FILES, "p", "l", merged=(MergedFile(A, (0, 1)),))
    isolated = job_of(table_state.isolate(state, [bad(B)]))
    assert (isolated.files, isolated.merged, isolated.job_id) == ((A, C, D), (), "kbq-u-2")
    again = table_state.isolate(table_state.isolate(state, [bad(B)]), [bad(D)])
    assert [q.file for q in job_of(again).quarantined] == [B, D]


@pytest.mark.parametrize(
    ("output_rows", "mismatches"),
    [
        (5, ()),
        (4, (RowMismatch("kbq-u-1", 5, 4),)),
        (6, (RowMismatch("kbq-u-1", 5, 6),)),
        (0, (RowMismatch("kbq-u-1", 5, 0),)),
    ],
)
def test_any_other_number_of_rows_is_a_mismatch(
    output_rows: int, mismatches: tuple[RowMismatch, ...]
) -> None:
    state = table_state.record_success(loading(A), output_rows)
    assert (state.mismatches, state.new_mismatches, dict(state.rows)) == (
        mismatches,
        mismatches,
        {"t/0/1": 5},
    )


def test_a_mark_never_moves_back() -> None:
    ahead = dataclasses.replace(FRESH, marks={KEY: 50})
    assert table_state.record_success(loading(A, state=ahead), 5).marks == {KEY: 50}


def test_rows_add_up_by_partition_and_epoch_whatever_the_schema() -> None:
    files = (A, staged_file(0, 3, schema_id=2), staged_file(0, 2, epoch=2), staged_file(0, 1, partition=1))
    state = table_state.record_success(loading(*files), 11)
    assert state.rows == {"t/0/1": 8, "t/0/2": 2, "t/1/1": 1}
    assert state.marks == {"t/0/1/1": 5, "t/0/1/2": 3, "t/0/2/1": 2, "t/1/1/1": 1}


@pytest.mark.parametrize(
    ("before", "files", "lost", "after"),
    [
        (Failures(2, 1), (A,), (), Failures(0, 0)),
        (Failures(2, 1), (A,), (B,), Failures(0, 0)),
        (Failures(2, 1), (), (B,), Failures(0, 2)),
    ],
    ids=["a success", "a part of the batch", "nothing of the batch"],
)
def test_only_a_batch_that_loads_something_ends_a_row_of_lost_ones(
    before: Failures, files: tuple[StagedFile, ...], lost: tuple[StagedFile, ...], after: Failures
) -> None:
    state = dataclasses.replace(FRESH, failed=before, accepted=Accepted(loss=True))
    running = loading(*files, *lost, state=state)
    job = dataclasses.replace(job_of(running), files=files, quarantined=tuple(map(bad, lost)))
    done = table_state.record_success(dataclasses.replace(running, in_flight=job), 5 * len(files))
    assert done.failed == after
    assert done.accepted.loss == (not files)


def test_a_retried_file_leaves_quarantine_once_a_job_decided_about_it() -> None:
    records = (bad(A), bad(B, retry=True), bad(C, retry=True), bad(D, dropped=True))
    state = dataclasses.replace(FRESH, quarantined=records, accepted=Accepted(quarantined=3))
    done = table_state.record_success(loading(B, state=state), 5)
    assert done.quarantined == (records[0], *records[2:])
    assert done.accepted.quarantined == 2
    again = dataclasses.replace(staged_file(10, 15, attempt="b"), restaged=1)
    lost = table_state.isolate(loading(again, state=done), [bad(again)])
    assert lost.quarantined == (records[0], records[3], bad(again))
    assert (lost.accepted.quarantined, lost.new_quarantined) == (1, (bad(again),))


def test_nobody_has_to_see_a_file_whose_rows_were_given_up() -> None:
    records = (bad(A), bad(B, dropped=True), bad(C))
    state = dataclasses.replace(FRESH, quarantined=records, accepted=Accepted(quarantined=1))
    assert state.new_quarantined == (bad(C),)


@pytest.mark.parametrize(
    ("seen", "accepts", "after"),
    [((0, 0), (2, 1), (2, 1)), ((2, 2), (1, 1), (2, 2)), ((0, 0), (9, 0), (2, 0)), ((1, 0), (0, 0), (1, 0))],
    ids=["both", "fewer than before", "more jobs than there are", "nothing"],
)
def test_what_an_operator_accepted_stays_accepted(
    seen: tuple[int, int], accepts: tuple[int, int], after: tuple[int, int]
) -> None:
    mismatches = (RowMismatch("a", 5, 4), RowMismatch("b", 5, 4))
    state = dataclasses.replace(
        FRESH, mismatches=mismatches, accepted=Accepted(mismatches=seen[0], quarantined=seen[1])
    )
    accepted = table_state.accept(state, *accepts).accepted
    assert (accepted.mismatches, accepted.quarantined) == after


def test_automatic_tries_are_counted_until_a_job_succeeds() -> None:
    first = table_state.park(FRESH, ParkReason.LOAD_FAILED, "no", 10)
    assert first.parked == Parked("load_failed", "no", 0, 10)
    trying = table_state.restart(first)
    assert (trying.parked, trying.restarting) == (None, first.parked)
    second = table_state.park(trying, ParkReason.LOAD_FAILED, "no", 20)
    assert (second.parked, second.restarting) == (Parked("load_failed", "no", 1, 20), None)
    third = table_state.park(table_state.restart(second), ParkReason.LOAD_FAILED, "no", 30)
    assert third.parked == Parked("load_failed", "no", 2, 30)
    done = table_state.record_success(loading(A, state=table_state.restart(third)), 5)
    assert done.restarting is None
    assert table_state.end_restart(table_state.restart(third)) == FRESH


@pytest.mark.parametrize(
    ("reason", "keeps_job"),
    [(ParkReason.FOREIGN_JOB, False), (ParkReason.OLD_JOB, True), (ParkReason.LOAD_FAILED, True)],
)
def test_only_a_foreign_job_is_dropped_when_a_table_goes_on(reason: ParkReason, keeps_job: bool) -> None:
    state = dataclasses.replace(table_state.retry(loading(A)), accepted=Accepted(rows=3))
    resumed = table_state.unpark(table_state.park(state, reason, "no"))
    assert (resumed.in_flight == state.in_flight) == keeps_job
    assert (resumed.failed.jobs, resumed.parked, resumed.accepted) == (0, None, Accepted(rows=3))
    assert table_state.unpark(state, accepts_loss=True).accepted == Accepted(rows=3, loss=True)


@pytest.mark.parametrize(
    ("reason", "given_up"), [(ParkReason.TABLE_GONE, 7), (ParkReason.FOREIGN_ROWS, 0), (None, 0)]
)
def test_rows_are_given_up_only_with_a_table_that_is_gone(reason: ParkReason | None, given_up: int) -> None:
    state = dataclasses.replace(FRESH, rows={"a": 4, "b": 3})
    parked = table_state.park(state, reason, "no") if reason else state
    after = table_state.give_up_rows(parked)
    assert after.accepted.rows == given_up
    assert (after.parked is None) == (given_up > 0 or reason is None)


def test_a_burned_job_keeps_its_id_until_it_is_given_up() -> None:
    state = loading(A, B)
    burned = table_state.burn(state)
    assert job_of(burned) == dataclasses.replace(job_of(state), burning=True)
    gone = table_state.give_up(burned)
    assert (gone.in_flight, gone.sequence, table_state.next_job_id(gone)) == (None, 1, "kbq-u-2")


def test_a_retry_counts_a_failure_and_loads_the_same_files() -> None:
    state = table_state.retry(table_state.retry(loading(A, B)))
    assert (job_of(state).files, job_of(state).job_id, state.failed.jobs) == ((A, B), "kbq-u-3", 2)


def test_an_ordered_table_counts_each_batch_even_one_that_lost_all_files() -> None:
    state = dataclasses.replace(FRESH, order=TableOrder(OrderRule("offset"), settled=3))
    assert table_state.record_success(loading(A, state=state), 5).order.settled == 4
    assert table_state.isolate(loading(A, state=state), [bad(A)]).order.settled == 4
    unordered = dataclasses.replace(FRESH, order=TableOrder(settled=3))
    assert table_state.record_success(loading(A, state=unordered), 5).order.settled == 3


def test_counts_of_jobs_are_separate_from_the_files() -> None:
    state = table_state.count_job(loading(A), 3_600_000, 2, [5])
    assert (state.jobs.submitted.used(3_600_000), state.jobs.submitted.changed(3_600_000)) == (1, 2)
    failed = table_state.count_failure(state)
    succeeded = table_state.count_success(failed, job_of(failed), 70)
    assert dataclasses.replace(succeeded, jobs=FRESH.jobs) == loading(A)
    assert len({codec.dumps(each) for each in (state, failed, succeeded)}) == 3


STEPS: dict[str, Callable[[TableState], TableState]] = {
    "retry": table_state.retry,
    "burn": table_state.burn,
    "give up": table_state.give_up,
    "lose the first": lambda s: table_state.isolate(s, [bad(job_of(s).files[0])]),
    "lose all": lambda s: table_state.isolate(s, [bad(f) for f in job_of(s).files]),
    "succeed": lambda s: table_state.record_success(s, job_of(s).rows),
    "park": lambda s: table_state.park(s, ParkReason.LOAD_FAILED, "no"),
    "resume": table_state.unpark,
}


@settings(max_examples=60)
@given(st.lists(st.sampled_from(sorted(STEPS)), max_size=25), st.integers(1, 3))
def test_whatever_happens_a_file_is_loaded_or_lost_once_and_no_id_returns(
    steps: list[str], most: int
) -> None:
    state, ids = FRESH, list[str]()
    for step in steps:
        pending = [file for file in FILES if not state.is_loaded(file)]
        before = state.in_flight
        if before is None:
            if not pending:
                break
            state = loading(*pending[:most], state=state)
        else:
            state = STEPS[step](state)
        if state.in_flight and (before is None or state.in_flight.job_id != before.job_id):
            ids.append(state.in_flight.job_id)
    assert len(ids) == len(set(ids)) == state.sequence
    settled = [file for file in FILES if state.is_loaded(file)]
    lost = [record.file for record in state.quarantined]
    assert len({file.path for file in lost}) == len(lost)
    assert sum(state.rows.values()) == 5 * (len(settled) - len(lost))
    assert settled == list(FILES[: len(settled)])
    assert state.mismatches == ()
