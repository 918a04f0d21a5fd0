"""Statements in a table's state: changes of `load`, batches in two jobs, failures, skips, and what was billed."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from kbq_assets.core.errors import Refused
from kbq_assets.core.loading.table_state import TableState, begin_job, park
from kbq_assets.core.ordering.table_order import AuditEntry, FailedBatch, OrderRule, TableOrder
from kbq_assets.core.ordering.transitions import failed_batch
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.protocol.offsets import TopicPartition
from kbq_assets.core.protocol.waits import ParkReason
from kbq_assets.core.statements import steps, switching
from kbq_assets.core.statements.load_switch import LoadSwitch
from kbq_assets.core.statements.rules import StatementRule
from kbq_assets.core.statements.side_tables import deleted_table, ledger_table, scratch_number, scratch_table
from kbq_assets.core.statements.table_statements import (
    SCRATCH,
    BatchStatement,
    TableStatements,
    after_append,
    applied,
    digest_of,
    excess,
)
from kbq_assets_tests.strategies import staged_file

T = TableReference("d", "t")
APPEND, UPSERT, HISTORY = StatementRule(), StatementRule("upsert", ("id",)), StatementRule("scd2", ("id",))
FILES = (staged_file(0, 5), staged_file(5, 9))
ENTRY = AuditEntry(7, "", 0, "why", "me")


def state_of(rule: StatementRule = APPEND, *, rows: int = 0, **more: Any) -> TableState:
    statements = TableStatements(rule, **more)
    state = TableState("u", rows={"t/1": rows} if rows else {})
    return dataclasses.replace(state, definition=dataclasses.replace(state.definition, statements=statements))


def statements_of(state: TableState) -> TableStatements:
    return state.definition.statements


def switch(
    before: StatementRule, after: StatementRule, *, taken: bool = False, **at: tuple[int, int]
) -> LoadSwitch:
    return LoadSwitch(before, after, {key.replace("_", "/"): value for key, value in at.items()}, 5, taken)


OPEN, TAKEN = switch(APPEND, UPSERT, t_0=(1, 5)), switch(APPEND, UPSERT, taken=True)


@pytest.mark.parametrize(
    ("state", "rule"),
    [
        pytest.param(state_of(), None, id="nothing is loaded"),
        pytest.param(state_of(rows=5), APPEND, id="rows were appended"),
        pytest.param(state_of(UPSERT, appended=False), UPSERT, id="a statement was applied"),
        pytest.param(state_of(UPSERT, appended=True), APPEND, id="rows were appended since"),
        pytest.param(state_of(UPSERT), None, id="an earlier release did not say"),
        pytest.param(state_of(rows=5, switch=OPEN), APPEND, id="a change waits"),
        pytest.param(state_of(UPSERT, appended=False, switch=TAKEN), UPSERT, id="a change was taken"),
    ],
)
def test_the_rule_in_force_is_that_of_the_last_batches(state: TableState, rule: StatementRule | None) -> None:
    assert switching.in_force(state) == rule
    assert switching.is_unruled(state) is (rule is None and statements_of(state).rule.appends)


@pytest.mark.parametrize(
    ("state", "asked", "is_change"),
    [
        (state_of(), UPSERT, False),
        (state_of(rows=5), APPEND, False),
        (state_of(rows=5), UPSERT, True),
        (state_of(rows=5, switch=OPEN), UPSERT, False),
        (state_of(rows=5, switch=OPEN), StatementRule("upsert", ("other",)), False),
        (state_of(rows=5, switch=OPEN), APPEND, True),
        (state_of(rows=5, switch=OPEN), HISTORY, True),
        (state_of(UPSERT, appended=False, switch=TAKEN), UPSERT, False),
        (state_of(UPSERT, appended=False, switch=TAKEN), APPEND, True),
    ],
)
def test_another_load_than_the_state_expects_is_a_change(
    state: TableState, asked: StatementRule, is_change: bool
) -> None:
    assert switching.is_change(state, asked) is is_change


@pytest.mark.parametrize(
    ("state", "rule"),
    [
        (state_of(rows=5, switch=OPEN), UPSERT),
        (state_of(rows=5), APPEND),
        (state_of(UPSERT), UPSERT),
        (state_of(), APPEND),
    ],
)
def test_a_table_without_topics_expects_its_change_or_its_last_rule(
    state: TableState, rule: StatementRule
) -> None:
    assert switching.expected(state) == rule


def test_a_change_records_the_positions_before_it_and_can_be_taken_back() -> None:
    positions = {TopicPartition("t", 1): (1, 9), TopicPartition("t", 0): (1, 5)}
    changed = switching.with_change(state_of(rows=5), UPSERT, positions, 77)
    found = switching.open_switch(changed)
    assert found == LoadSwitch(APPEND, UPSERT, {"t/0": (1, 5), "t/1": (1, 9)}, 77)
    assert [(e.action, e.at_ms, e.batch, e.reason) for e in changed.order.audit] == [
        ("load", 77, 0, str(found))
    ]
    back = switching.with_change(changed, APPEND, {}, 88)
    assert switching.open_switch(back) is None
    assert back.order.audit[-1].reason == "load=append as before: its change is reverted"


MARKED = dataclasses.replace(UPSERT, deletes="mark")


def failed_under(rule: StatementRule) -> TableState:
    """A table that was upserted, and whose last statement failed."""
    state = state_of(UPSERT, appended=False)
    return steps.fail_statement(begin_job(state, FILES, "p", "l", BatchStatement(3, rule, "")))


@pytest.mark.parametrize(
    ("state", "asked", "before"),
    [
        pytest.param(state_of(MARKED, appended=False), APPEND, MARKED, id="the last statement"),
        pytest.param(failed_under(MARKED), APPEND, MARKED, id="a statement that failed"),
        pytest.param(failed_under(HISTORY), APPEND, UPSERT, id="one of another kind"),
        pytest.param(state_of(UPSERT, appended=True), UPSERT, APPEND, id="rows were appended since"),
    ],
)
def test_rows_before_a_change_have_the_latest_options_of_their_kind(
    state: TableState, asked: StatementRule, before: StatementRule
) -> None:
    found = switching.open_switch(switching.with_change(state, asked, {}, 1))
    assert found is not None
    assert found.before == before
    assert switching.rule_of_batch(state, asked, FILES) == before


@pytest.mark.parametrize(
    ("epoch", "until", "is_before"),
    [(1, 4, True), (1, 5, True), (1, 6, False), (2, 1, False), (0, 99, True)],
)
def test_files_below_the_positions_of_a_change_are_loaded_as_before(
    epoch: int, until: int, is_before: bool
) -> None:
    assert OPEN.is_before(staged_file(0, until, epoch=epoch)) is is_before
    assert not OPEN.is_before(staged_file(0, until, epoch=epoch, partition=1))


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "load=upsert, load=append before"),
        (1, "load=upsert from t/0 0 on, load=append before"),
        (5, "load=upsert from t/0 0, t/1 1, t/2 2, t/3 3, t/4 4 on, load=append before"),
        (7, "load=upsert from t/0 0, t/1 1, t/2 2, t/3 3, t/4 4 and 2 more on, load=append before"),
    ],
)
def test_a_change_is_shown_with_a_few_of_its_positions(count: int, text: str) -> None:
    assert str(LoadSwitch(APPEND, UPSERT, {f"t/{n}": (1, n) for n in range(count)})) == text


WAITING = state_of(rows=5, switch=OPEN)
EARLY, LATE = staged_file(0, 5), staged_file(5, 9)


@pytest.mark.parametrize(
    ("state", "files", "given_up", "turn"),
    [
        pytest.param(state_of(rows=5), [EARLY, LATE], (), [EARLY, LATE], id="no change"),
        pytest.param(WAITING, [EARLY, LATE], (), [EARLY], id="before the change"),
        pytest.param(WAITING, [LATE], (), [LATE], id="none is left"),
        pytest.param(WAITING, [EARLY, LATE], (EARLY.path,), [EARLY, LATE], id="given up"),
        pytest.param(dataclasses.replace(WAITING, marks={"t/0/1/1": 5}), [EARLY, LATE], (), [EARLY, LATE], id="loaded"),
    ],
)  # fmt: skip
def test_files_before_a_change_come_first(
    state: TableState, files: list[StagedFile], given_up: tuple[str, ...], turn: list[StagedFile]
) -> None:
    assert switching.in_turn(state, files, frozenset(given_up)) == turn


@pytest.mark.parametrize(
    ("state", "asked", "files", "rule"),
    [
        pytest.param(state_of(), UPSERT, [EARLY], UPSERT, id="the first batch"),
        pytest.param(state_of(rows=5), UPSERT, [LATE], APPEND, id="a change that is not recorded"),
        pytest.param(WAITING, UPSERT, [EARLY], APPEND, id="before"),
        pytest.param(WAITING, UPSERT, [EARLY, LATE], APPEND, id="both"),
        pytest.param(WAITING, UPSERT, [LATE], UPSERT, id="after"),
        pytest.param(WAITING, HISTORY, [LATE], APPEND, id="another change"),
        pytest.param(WAITING, APPEND, [EARLY], APPEND, id="taken back"),
    ],
)
def test_a_batch_has_one_rule(
    state: TableState, asked: StatementRule, files: list[StagedFile], rule: StatementRule
) -> None:
    assert switching.rule_of_batch(state, asked, files) == rule


@pytest.mark.parametrize(
    ("state", "pending", "words"),
    [
        (state_of(rows=5), [EARLY], ""),
        (WAITING, [LATE], f"{OPEN}; the next batch is the first one"),
        (WAITING, [EARLY, LATE], f"{OPEN}; to load first: 5 rows of 1 file"),
    ],
)
def test_a_change_that_waits_says_for_what(state: TableState, pending: list[StagedFile], words: str) -> None:
    assert switching.waiting_words(state, pending) == words


@pytest.mark.parametrize(
    ("state", "wanted", "rule"),
    [
        (state_of(), [], APPEND),
        (state_of(rows=5), [APPEND], APPEND),
        (state_of(UPSERT, appended=False), [UPSERT], UPSERT),
        (state_of(UPSERT, appended=False), [], UPSERT),
    ],
)
def test_a_rule_that_lasts_is_that_of_the_last_batch_and_of_the_next(
    state: TableState, wanted: list[StatementRule], rule: StatementRule
) -> None:
    assert switching.lasting_rule(T, state, wanted) == rule


@pytest.mark.parametrize(
    ("state", "wanted"),
    [
        (state_of(rows=5), [UPSERT]),
        (WAITING, [APPEND]),
        (state_of(UPSERT, appended=True), [UPSERT]),
        (state_of(UPSERT, appended=False), [APPEND]),
        (state_of(UPSERT, appended=False), [UPSERT, HISTORY]),
    ],
)
def test_a_rule_that_is_about_to_change_does_not_last(state: TableState, wanted: list[StatementRule]) -> None:
    with pytest.raises(Refused, match=r"^d\.t: its next batch will be the first one") as caught:
        switching.lasting_rule(T, state, wanted)
    assert caught.value.next_step == "kbq load, then replay again"


def test_a_table_without_a_batch_may_never_get_one_so_its_records_are_read_again() -> None:
    with pytest.raises(Refused) as caught:
        switching.lasting_rule(T, TableState(""), [UPSERT])
    assert "kbq reset --topic T --at earliest" in str(caught.value.next_step)


def test_positions_of_a_change_come_from_commits_or_the_files_that_wait() -> None:
    known = {TopicPartition("t", 0): (1, 3), TopicPartition("other", 0): (1, 8)}
    files = [staged_file(0, 5), staged_file(2, 9, partition=1), staged_file(0, 7, partition=1, epoch=2)]
    assert switching.committed(files, known, frozenset({"t"})) == {
        TopicPartition("t", 0): (1, 3),
        TopicPartition("t", 1): (2, 7),
    }


BATCH = BatchStatement(3, UPSERT, f"MERGE {SCRATCH}")


def in_flight(state: TableState | None = None) -> TableState:
    """A table whose load job fills the scratch table of batch 3."""
    return begin_job(state or state_of(UPSERT, appended=False, applied=2), FILES, "p", "l", BATCH)


def job_of(state: TableState) -> tuple[str, str, int]:
    """The job's id, that of the load job before it, and the rows that this one loaded."""
    assert state.in_flight is not None and state.in_flight.statement is not None
    return state.in_flight.job_id, state.in_flight.statement.loaded_by, state.in_flight.statement.rows


def test_a_batch_has_a_load_job_and_then_a_statement_each_under_a_fresh_id() -> None:
    loading = in_flight()
    assert job_of(loading) == ("kbq-u-1", "", 0)
    applying = steps.begin_statement(loading, 9)
    assert job_of(applying) == ("kbq-u-2", "kbq-u-1", 9)
    assert job_of(steps.load_again(applying)) == ("kbq-u-3", "", 0)


def test_a_statement_uses_the_scratch_table_of_its_load_job() -> None:
    applying = steps.begin_statement(in_flight(), 9).in_flight
    assert applying is not None and applying.statement is not None
    assert (
        applying.statement.scratch(T, applying.job_id)
        == BATCH.scratch(T, "kbq-u-1")
        == scratch_table(T, "kbq-u-1")
    )
    assert applying.statement.sql("d.scratch") == "MERGE d.scratch"


def test_a_recorded_statement_moves_marks_and_counts_its_rows() -> None:
    done = steps.record_statement(steps.begin_statement(in_flight(), 9), skipped=False, billed=100, day=7)
    assert (done.in_flight, done.marks, sum(done.rows.values())) == (None, {"t/0/1/1": 9}, 9)
    assert statements_of(done) == TableStatements(UPSERT, 3, 0, 100, 100, 7, 100, False)


def test_rows_of_a_skipped_batch_do_not_count_and_its_files_are_given_up() -> None:
    failed = park(steps.fail_statement(in_flight()), ParkReason.STATEMENT_FAILED, "no")
    entered = steps.begin_skip(failed, 3, ENTRY)
    assert entered.in_flight == failed.definition.failed
    assert steps.begin_skip(entered, 3, ENTRY) is entered
    done = steps.end_skip(entered, "kbq-u-1", skipped=True)
    assert (done.rows, done.marks, done.parked) == ({}, {"t/0/1/1": 9}, None)
    assert [(bad.file, bad.error, bad.dropped) for bad in done.quarantined] == [
        (file, "skipped: why", True) for file in FILES
    ]
    assert (statements_of(done).applied, statements_of(done).skipped_rows) == (3, 9)
    assert [(e.action, e.batch, e.files, e.rows) for e in done.order.audit] == [("skip", 3, 2, 9)]
    assert steps.end_skip(done, "kbq-u-1", skipped=True) is done


def test_a_statement_that_fails_leaves_its_files_pending_and_can_be_tried_again() -> None:
    failed = steps.fail_statement(in_flight())
    assert (failed.in_flight, failed.marks) == (None, {})
    parked = park(failed, ParkReason.STATEMENT_FAILED, "no")
    retried = steps.retry_statement(parked, ENTRY)
    assert retried.parked is None
    assert [(e.action, e.batch, e.reason) for e in retried.order.audit] == [("retry", 3, "why")]


FAILED = park(steps.fail_statement(in_flight()), ParkReason.STATEMENT_FAILED, "no")


def test_a_failed_statement_is_named_by_the_number_that_a_skip_takes() -> None:
    """The order's numbers may differ from the ledger's, and its failed batch is kept until one succeeds."""
    order = TableOrder(OrderRule("offset"), failed=FailedBatch(1, "kbq-u-0", "no such column", FILES))
    failed = dataclasses.replace(FAILED, order=order)
    assert failed_batch(FAILED) == failed_batch(failed) == 3
    assert steps.begin_skip(failed, 3, ENTRY).in_flight == failed.definition.failed
    assert failed_batch(park(failed, ParkReason.BATCH_FAILED, "no")) == 1
    assert failed_batch(in_flight(failed)) == 0


@pytest.mark.parametrize(
    ("state", "batch", "message"),
    [
        (state_of(UPSERT), 3, "no statement has failed"),
        (FAILED, 4, "batch 3 failed, not 4"),
        (in_flight(FAILED), 3, "job kbq-u-2 loads its files again"),
    ],
)
def test_a_skip_of_anything_else_is_refused(state: TableState, batch: int, message: str) -> None:
    with pytest.raises(Refused, match=message) as caught:
        steps.begin_skip(state, batch, ENTRY)
    assert caught.value.next_step


@pytest.mark.parametrize(
    "state", [state_of(UPSERT), steps.fail_statement(in_flight()), park(in_flight(), ParkReason.HELD, "")]
)
def test_a_retry_needs_a_table_that_is_parked_for_a_failed_statement(state: TableState) -> None:
    with pytest.raises(Refused, match="no statement has failed"):
        steps.retry_statement(state, ENTRY)


def test_batches_are_numbered_from_the_ledger_on_once() -> None:
    parked = park(in_flight(), ParkReason.LEDGER_DIFFERS, "7, not 2")
    after = steps.follow_ledger(parked, 7)
    assert (statements_of(after).applied, after.in_flight, after.parked) == (7, None, None)
    assert steps.follow_ledger(after, 9) is after


KNOWN = TableStatements(UPSERT, 2, 1, 10, 30, 7, 20, False)


@pytest.mark.parametrize(
    ("known", "day", "billed_that_day"),
    [(KNOWN, 7, 25), (KNOWN, 8, 5), (KNOWN, 6, 25), (TableStatements(), 7, 5)],
)
def test_what_was_billed_is_counted_per_day_and_in_all(
    known: TableStatements, day: int, billed_that_day: int
) -> None:
    done = applied(known, BATCH, skipped=False, rows=9, billed=5, day=day)
    assert (done.billed, done.billed_in_all) == (5, known.billed_in_all + 5)
    assert (done.day, done.billed_that_day) == (max(day, known.day), billed_that_day)
    assert done.billed_on(done.day + 1) == 0


@pytest.mark.parametrize(
    ("known", "skipped", "rule", "appended", "converts", "kind"),
    [
        (TableStatements(), False, UPSERT, False, False, "upsert"),
        (TableStatements(), True, APPEND, None, True, "append"),
        (TableStatements(UPSERT, appended=True), False, UPSERT, False, False, "upsert"),
        (TableStatements(UPSERT, appended=True), True, UPSERT, True, True, "append"),
    ],
)
def test_a_skipped_batch_converts_no_row(
    known: TableStatements,
    skipped: bool,
    rule: StatementRule,
    appended: bool | None,
    converts: bool,
    kind: str,
) -> None:
    done = applied(known, BATCH, skipped=skipped, rows=9, billed=0)
    assert (done.rule, done.appended, done.converts, done.kind) == (rule, appended, converts, kind)
    assert done.skipped_rows == (9 if skipped else 0)


@pytest.mark.parametrize(
    ("before", "after", "is_taken"),
    [(APPEND, UPSERT, True), (APPEND, HISTORY, False), (UPSERT, APPEND, False)],
)
def test_a_change_is_taken_by_the_first_batch_of_its_kind(
    before: StatementRule, after: StatementRule, is_taken: bool
) -> None:
    known = TableStatements(before, switch=LoadSwitch(before, after))
    done = applied(known, BATCH, skipped=False, rows=9, billed=0).switch
    kept = applied(known, BATCH, skipped=True, rows=9, billed=0).switch
    appended = after_append(known).switch
    assert done is not None and kept is not None and appended is not None
    assert (done.taken, kept.taken, appended.taken) == (is_taken, False, after.appends)


def test_only_a_table_with_a_statement_remembers_that_rows_were_appended() -> None:
    assert after_append(TableStatements()) == TableStatements()
    assert after_append(KNOWN).appended is True


@pytest.mark.parametrize(
    ("wanted", "used", "limit", "text"),
    [
        (5, 0, 0, ""),
        (5, 5, 10, ""),
        (0, 11, 10, "its statement would be billed 0 bytes; 11 were billed today, and bytes_per_day=10"),
        (6, 5, 10, "its statement would be billed 6 bytes; 5 were billed today, and bytes_per_day=10"),
        (2000, 0, 1000, "its statement would be billed 2,000 bytes; bytes_per_day=1,000: it never fits"),
    ],
)
def test_a_statement_beyond_the_limit_of_a_day_says_so(wanted: int, used: int, limit: int, text: str) -> None:
    assert excess(wanted, used, limit) == text


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("_kbq_batch_u_17", 17),
        ("_kbq_batch_u_", None),
        ("_kbq_batch_v_17", None),
        ("_kbq_batch_u_1x", None),
        ("_kbq_batch_u_²", None),
        ("x_kbq_batch_u_17", None),
    ],
)
def test_only_a_scratch_table_of_this_state_has_a_number(name: str, number: int | None) -> None:
    assert scratch_number(name, "u") == number


def test_tables_next_to_a_target_have_names_of_their_own() -> None:
    assert str(scratch_table(T, "kbq-a-b-17")) == "d._kbq_batch_a_b_17"
    assert (str(ledger_table(T)), str(deleted_table(T))) == ("d._kbq_ledger_t", "d._kbq_deleted_t")


@pytest.mark.parametrize("size", [187, 188, 189, 200])
def test_a_long_target_has_a_ledger_of_its_own(size: int) -> None:
    one, other = (ledger_table(TableReference("d", "t" * (size - 1) + end)) for end in "ab")
    assert one != other
    assert len(one.table) <= 200


def test_a_text_is_known_by_its_digest() -> None:
    assert digest_of("a") == digest_of("a") != digest_of("b")
    assert len(digest_of("")) == 32
