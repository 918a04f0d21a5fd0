"""Operators' decisions about batches: each names its batch, and cannot be made at the wrong time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from kbq_assets.core.errors import Refused
from kbq_assets.core.loading import table_state
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.ordering import transitions
from kbq_assets.core.ordering.table_order import AuditEntry, FailedBatch, Hold, OrderRule, TableOrder
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.waits import ParkReason
from kbq_assets_tests.strategies import staged_file

ENTRY = AuditEntry(70, "", 0, reason="ticket 5", by="ann")
FILES = (staged_file(0, 5), staged_file(5, 9), staged_file(0, 3, schema_id=2))
RULE = OrderRule("offset", ("rows", "person"))


def ordered(rule: OrderRule = RULE, settled: int = 6) -> TableState:
    return TableState("u", order=TableOrder(rule, settled=settled, validated=settled))


def failed(files: tuple[StagedFile, ...] = FILES) -> TableState:
    return transitions.fail_batch(ordered(), ParkReason.BATCH_FAILED, "no", files, 40)


def applied() -> TableState:
    """A table whose seventh batch is applied, and waits for its gates."""
    return dataclasses.replace(ordered(), order=ordered().order.with_settled())


def parked(state: TableState, reason: ParkReason) -> TableState:
    return table_state.park(state, reason, "waits", 50)


def last_decision(state: TableState) -> AuditEntry:
    return state.order.audit[-1]


def test_a_batch_that_fails_parks_its_table_under_the_next_number() -> None:
    state = failed()
    assert state.order.failed == FailedBatch(7, "", "no", FILES)
    assert state.parked == table_state.Parked(
        "batch_failed", transitions.named(FailedBatch(7, "", "no", FILES)), 0, 40
    )
    assert state.marks == {}


def test_the_batch_of_a_job_in_flight_fails_with_the_jobs_id() -> None:
    loading = table_state.begin_job(ordered(), FILES, "p", "l")
    state = transitions.fail_batch(loading, ParkReason.BATCH_FAILED, "no", FILES, 40, bad=(FILES[1].path,))
    assert state.order.failed == FailedBatch(7, "kbq-u-1", "no", FILES, (FILES[1].path,))
    assert state.in_flight == loading.in_flight


def test_a_table_without_an_order_has_no_failed_batch() -> None:
    state = transitions.fail_batch(TableState("u"), ParkReason.LOAD_FAILED, "no", FILES, 40)
    assert state == table_state.park(TableState("u"), ParkReason.LOAD_FAILED, "no", 40)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (FailedBatch(1, "", "no", FILES[:1]), f"batch 1: no (files: {FILES[0].path})"),
        (FailedBatch(2, "j", "no", FILES[:1]), f"batch 2, job j: no (files: {FILES[0].path})"),
        (FailedBatch(2, "", "no", FILES, ("b",)), "batch 2: no (files: b)"),
        (FailedBatch(2, "", "no", (), ("a", "b", "c")), "batch 2: no (files: a, b, c)"),
        (FailedBatch(2, "", "no", (), ("a", "b", "c", "d")), "batch 2: no (files: a, b, c and 1 more)"),
    ],
    ids=["one file", "with a job", "bad files alone", "three", "four"],
)
def test_a_failed_batch_names_its_first_files(batch: FailedBatch, words: str) -> None:
    assert transitions.named(batch) == words


def test_a_failed_batch_can_be_decided_about_only_once_its_job_has_ended() -> None:
    assert transitions.failed_batch(ordered()) == 0
    assert transitions.failed_batch(failed()) == 7
    assert transitions.failed_batch(table_state.begin_job(failed(), FILES, "p", "l")) == 0


def test_a_retry_lets_the_table_go_on_with_the_same_batch() -> None:
    state = transitions.retry(failed(), ENTRY)
    assert (state.parked, state.order.next, state.marks) == (None, 7, {})
    assert state.order.failed == failed().order.failed
    assert last_decision(state) == dataclasses.replace(ENTRY, action="retry", batch=7)


def test_a_skip_gives_the_files_up_and_moves_the_marks_beyond_them() -> None:
    state = transitions.skip(failed(), 7, ENTRY)
    assert all(map(state.is_loaded, FILES))
    assert [(bad.file, bad.error, bad.dropped) for bad in state.quarantined] == [
        (file, "skipped: ticket 5", True) for file in FILES
    ]
    assert (state.parked, state.order.failed, state.order.settled, dict(state.rows)) == (None, None, 7, {})
    expected = dataclasses.replace(ENTRY, action="skip", batch=7, files=3, rows=12)
    assert last_decision(state) == expected


def test_a_skip_keeps_what_was_in_quarantine_and_never_moves_a_mark_back() -> None:
    beyond = {table_state.mark_key(FILES[0]): 50}
    former = table_state.QuarantinedFile(staged_file(40, 50), "bad")
    state = dataclasses.replace(failed(), marks=beyond, quarantined=(former,))
    skipped = transitions.skip(state, 7, ENTRY)
    assert skipped.marks == {**beyond, table_state.mark_key(FILES[2]): 3}
    assert skipped.quarantined[0] == former
    assert len(skipped.quarantined) == 4


def test_the_batch_after_a_skipped_one_passes_the_gates_for_both() -> None:
    assert transitions.skip(failed(), 7, ENTRY).order.unvalidated == 7


@pytest.mark.parametrize(
    ("state", "decide", "message", "next_step"),
    [
        (ordered(), transitions.retry, "no batch has failed", "kbq order status"),
        (ordered(), lambda s, e: transitions.skip(s, 7, e), "no batch has failed", "kbq order status"),
        (failed(), lambda s, e: transitions.skip(s, 6, e), "batch 7 failed, not 6", "kbq order status"),
        (failed(), lambda s, e: transitions.skip(s, 8, e), "batch 7 failed, not 8", "kbq order status"),
        (
            table_state.begin_job(failed(), FILES, "p", "l"),
            lambda s, e: transitions.skip(s, 7, e),
            "job kbq-u-1 is loading it again",
            "kbq load",
        ),
        (
            table_state.begin_job(failed(), FILES, "p", "l"),
            transitions.retry,
            "job kbq-u-1 is loading it again",
            "kbq load",
        ),
        (ordered(), transitions.release, "nothing holds the table", "kbq order status"),
        (ordered(), transitions.go_on, "no gate is open", "kbq order status"),
        (ordered(OrderRule("offset")), transitions.go_on, "no gate", "kbq order"),
    ],
    ids=[
        "retry of nothing",
        "skip of nothing",
        "skip of the one before",
        "skip of the one after",
        "skip while it loads",
        "retry while it loads",
        "release of nothing",
        "continue of nothing",
        "continue without gates",
    ],
)
def test_a_decision_about_nothing_is_refused(
    state: TableState,
    decide: Callable[[TableState, AuditEntry], TableState],
    message: str,
    next_step: str,
) -> None:
    with pytest.raises(Refused, match=message) as refused:
        decide(state, ENTRY)
    assert next_step in refused.value.next_step


def test_a_hold_keeps_the_job_in_flight_and_says_why() -> None:
    loading = table_state.begin_job(ordered(), FILES, "p", "l")
    held = transitions.hold(loading, ENTRY)
    assert held.in_flight == loading.in_flight
    assert held.order.hold == Hold("ticket 5", 70)
    assert last_decision(held) == dataclasses.replace(ENTRY, action="hold", batch=7)


def test_a_release_ends_a_hold_and_a_wait_for_a_marker_alike() -> None:
    rule = OrderRule("offset", hold_until="history")
    held = parked(transitions.hold(ordered(rule), ENTRY), ParkReason.HELD)
    released = transitions.release(held, ENTRY)
    assert (released.parked, released.order.hold, released.order.released) == (None, None, "history")
    assert released.order.why_held == ""
    assert last_decision(released) == dataclasses.replace(ENTRY, action="release", batch=7)


@pytest.mark.parametrize(
    ("reason", "goes_on"),
    [
        (ParkReason.HELD, True),
        (ParkReason.WAITS_FOR_MARKER, True),
        (ParkReason.BATCH_FAILED, False),
        (ParkReason.GATE_RED, False),
        (ParkReason.LOAD_FAILED, False),
    ],
)
def test_a_release_ends_no_other_wait(reason: ParkReason, goes_on: bool) -> None:
    state = parked(transitions.hold(ordered(), ENTRY), reason)
    assert (transitions.release(state, ENTRY).parked is None) == goes_on


def test_a_marker_that_is_there_is_recorded_with_its_name() -> None:
    state = transitions.marked(ordered(OrderRule("offset", hold_until="history")), 90)
    assert (state.order.released, state.order.why_held) == ("history", "")
    assert last_decision(state) == AuditEntry(90, "release", 7, "the marker history exists")


def test_a_red_gate_parks_the_table_and_a_green_one_does_not() -> None:
    red = transitions.judge(applied(), "rows", False, "2 rows are bad", 60, seen=4)
    assert red.parked is not None
    assert (red.parked.reason, red.parked.last_ms) == (ParkReason.GATE_RED, 60)
    assert red.parked.error == "batch 7 is applied and not validated: rows: 2 rows are bad"
    found = red.order.result("rows")
    assert found is not None
    assert (found.green, found.at_ms, found.seen) == (False, 60, 4)
    green = transitions.judge(applied(), "rows", True, "", 60)
    assert (green.parked, green.order.open_gates()) == (None, ("person",))


@pytest.mark.parametrize(
    ("wait", "reason", "words"),
    [
        (lambda s: transitions.await_person(s, 60), ParkReason.GATE_WAITS, "it waits for a person"),
        (lambda s: transitions.ask_later(s, "no Dagster", 60), ParkReason.GATE_RED, "no Dagster"),
    ],
    ids=["a person", "a later load"],
)
def test_a_batch_waits_for_a_gate_under_its_own_number(
    wait: Callable[[TableState], TableState], reason: ParkReason, words: str
) -> None:
    state = wait(applied())
    assert state.parked == table_state.Parked(reason, f"batch 7 is applied and not validated: {words}", 0, 60)
    assert state.order == applied().order


@pytest.mark.parametrize(("by", "who"), [("ann", "ann"), ("", "a person")])
def test_whoever_lets_a_table_go_on_passes_every_open_gate(by: str, who: str) -> None:
    waiting = transitions.judge(applied(), "rows", False, "2 rows are bad", 60)
    state = transitions.go_on(waiting, dataclasses.replace(ENTRY, by=by))
    assert (state.parked, state.order.validated, state.order.open_gates()) == (None, 7, ())
    assert [(r.gate, r.green, r.message, r.at_ms) for r in state.order.gates] == [
        ("rows", True, f"passed by {who}", 70),
        ("person", True, f"passed by {who}", 70),
    ]
    assert last_decision(state) == dataclasses.replace(ENTRY, action="continue", batch=7, by=by)


@pytest.mark.parametrize("reason", [ParkReason.HELD, ParkReason.BATCH_FAILED, ParkReason.LOAD_FAILED])
def test_passed_gates_end_no_other_wait(reason: ParkReason) -> None:
    state = transitions.go_on(parked(applied(), reason), ENTRY)
    assert state.parked is not None
    assert state.order.open_gates() == ()


def test_late_rows_are_let_in_for_the_next_batch_alone() -> None:
    waiting = parked(applied(), ParkReason.LATE_ROWS)
    state = transitions.go_on(waiting, ENTRY)
    assert (state.parked, state.order.late_allowed) == (None, 8)
    assert state.order.open_gates() == ("rows", "person")
    assert last_decision(state) == dataclasses.replace(ENTRY, action="continue", batch=8)


def test_rows_behind_later_offsets_are_noted_with_the_last_settled_batch() -> None:
    state = transitions.let_in(ordered(), ENTRY)
    assert last_decision(state) == dataclasses.replace(ENTRY, action="out_of_order", batch=6)
    assert dataclasses.replace(state, order=ordered().order) == ordered()


def test_a_note_is_kept_as_it_is() -> None:
    assert last_decision(transitions.note(ordered(), ENTRY)) == ENTRY
