"""An operator gives up a batch whose statement failed: first in the ledger, then in the state (PROTOCOL S5)."""

from __future__ import annotations

import contextlib

import pytest

from kbq_assets.core.errors import KbqError, Refused
from kbq_assets.core.ordering.table_order import AuditEntry
from kbq_assets.core.statements.steps import retry_statement
from kbq_assets.pipelines.operate import adopt
from kbq_assets.pipelines.operate.commands import propose_resume_table
from kbq_assets.pipelines.ordering.decisions import decide
from kbq_assets.pipelines.statements.skip import propose_skip
from kbq_assets.pipelines.statements.statement_job import statement_job
from kbq_assets.ports.statements import LedgerRow
from kbq_assets.ports.warehouse import JobError
from kbq_assets_tests.fakes.faults import Crash, Outcome
from kbq_assets_tests.fakes.script import Script
from kbq_assets_tests.fakes.statements import Failure
from kbq_assets_tests.pipelines.bench import A
from kbq_assets_tests.pipelines.statements.bench import StatementBench, staged

REFUSED = JobError("invalidQuery", "no such column", transient=False)


def parked() -> StatementBench:
    """Two rows whose statement, of batch 1, fails."""
    bench = staged(1, 1)
    bench.warehouse.statements.errors = lambda job: (REFUSED, Failure.BEFORE)
    bench.load()
    bench.warehouse.statements.errors = None
    found = bench.table().parked
    assert found is not None
    failed = bench.table().definition.failed
    assert failed is not None
    assert found.reason == "statement_failed"
    assert found.error == (
        f"batch 1, job {failed.job_id}: invalidQuery: no such column (files: {failed.files[0].path})"
    )
    return bench


def skip(bench: StatementBench, batch: int = 1) -> None:
    store, warehouse = bench.store.view("operator"), bench.warehouse.view("operator")
    propose_skip(store, warehouse, A, batch, AuditEntry(0, "", 0, "ticket 12", "ann")).apply()


def digest(bench: StatementBench) -> str:
    """What identifies the statement that failed."""
    failed = bench.table().definition.failed
    assert failed is not None
    return statement_job(bench.warehouse.statements, A, failed).digest


def two_more(bench: StatementBench) -> None:
    bench.produce(1, 1)
    bench.extract()
    bench.load()


def assert_skipped(bench: StatementBench) -> None:
    """The first two rows are given up, with the reason; every later one is applied."""
    found = bench.table()
    ledger = bench.warehouse.statements.ledgers[A]
    assert (ledger.batch, ledger.skipped) == (1, True)
    assert (found.parked, found.in_flight, found.definition.failed) == (None, None, None)
    assert (found.rows, found.definition.statements.skipped_rows) == ({}, 2)
    assert [(bad.error, bad.dropped) for bad in found.quarantined] == [("skipped: ticket 12", True)]
    [entry] = found.order.audit
    assert (entry.action, entry.batch, entry.rows, entry.by) == ("skip", 1, 2, "ann")
    two_more(bench)
    assert (bench.offsets(A), bench.table().definition.statements.applied) == ([2, 3], 2)


def test_a_batch_whose_statement_failed_is_skipped_in_ledger_and_state_and_the_next_one_follows() -> None:
    bench = parked()
    skip(bench)
    assert_skipped(bench)


@pytest.mark.parametrize("goes_on", ["the command", "a loader"])
@pytest.mark.parametrize("outcome", [Outcome.CRASH_BEFORE, Outcome.CRASH_AFTER, Outcome.LOST_REPLY])
@pytest.mark.parametrize(
    ("operation", "target", "nth"), [("swap", "tables/d.A", 1), ("skip", "", 1), ("swap", "tables/d.A", 2)]
)
def test_a_command_that_dies_anywhere_is_ended_by_its_repetition_or_by_a_loader_and_no_other_row_is_lost(
    operation: str, target: str, nth: int, outcome: Outcome, goes_on: str
) -> None:
    bench = parked()
    bench.faults = Script(operation, target, outcome, nth)
    with contextlib.suppress(Crash, KbqError):
        skip(bench)
    bench.land()
    bench.produce(1)  # rows that the skipped batch does not have
    bench.extract()
    if goes_on == "a loader":
        for _ in range(2):  # the first one may find the statement that failed, and nothing skipped
            if bench.table().parked is not None:
                propose_resume_table(bench.store, A).apply()
            bench.load()
        skipped = bench.table().definition.statements.skipped_rows
        assert (bench.offsets(A), skipped) in (([2], 2), ([0, 1, 2], 0))
    else:
        if bench.table().parked is not None:
            skip(bench)
        bench.load()
        assert bench.offsets(A) == [2]
        assert len(bench.table().order.audit) == 1
        assert bench.table().definition.statements.skipped_rows == 2


def test_a_statement_that_was_faster_counts_as_applied() -> None:
    bench = parked()
    bench.warehouse.statements.ledgers[A] = LedgerRow(1, False, digest(bench))
    skip(bench)
    found = bench.table()
    assert (found.parked, found.definition.statements.skipped_rows, found.quarantined) == (None, 0, ())
    assert sum(found.rows.values()) == 2


@pytest.mark.parametrize(
    "ledger", [None, LedgerRow(7), LedgerRow(1, False, "other"), LedgerRow(1, True, "other")]
)
def test_a_ledger_that_somebody_changed_is_named_and_the_next_load_says_how_to_go_on(
    ledger: LedgerRow | None,
) -> None:
    bench = parked()
    del bench.warehouse.statements.ledgers[A]
    if ledger is not None:
        bench.warehouse.statements.ledgers[A] = ledger
    with pytest.raises(Refused, match="nothing is skipped"):
        skip(bench)
    propose_resume_table(bench.store, A).apply()
    bench.load()
    found = bench.table().parked
    assert found is not None
    assert found.reason == "ledger_differs"


def test_another_batch_or_one_that_is_tried_again_is_not_skipped() -> None:
    bench = parked()
    with pytest.raises(Refused, match="batch 1 failed, not 2"):
        skip(bench, 2)
    propose_resume_table(bench.store, A).apply()
    bench.load()
    assert bench.offsets(A) == [0, 1]
    with pytest.raises(Refused, match="no statement has failed"):
        skip(bench)


def test_a_loader_that_tries_the_batch_again_meanwhile_is_never_overruled() -> None:
    bench = parked()

    def aside() -> None:
        bench.faults = lambda call: Outcome.OK
        propose_resume_table(bench.store, A).apply()
        bench.load()

    bench.faults = Script("swap", "tables/d.A", before=aside)
    with pytest.raises(Refused):
        skip(bench)
    assert bench.offsets(A) == [0, 1]


def test_a_ledger_that_alone_counts_the_skip_keeps_its_number_from_other_files() -> None:
    bench = parked()
    bench.warehouse.statements.skip(A, 1, digest(bench))
    propose_resume_table(bench.store, A).apply()
    bench.produce(1)
    bench.extract()
    [report] = [each for each in bench.load().tables if each.table == A]
    assert (report.state, bench.offsets(A)) == ("failed", [])
    assert "batch 1 as skipped" in report.message
    skip(bench)
    bench.load()
    assert bench.offsets(A) == [2]


@pytest.mark.parametrize("arrives", ["before the load job", "before the statement"])
def test_a_skip_that_arrives_late_gives_up_no_rows_that_nobody_decided_about(arrives: str) -> None:
    bench = parked()
    bench.faults = Script("skip", outcome=Outcome.CRASH_LATE)
    with pytest.raises(Crash):
        skip(bench)
    bench.faults = lambda call: Outcome.OK
    propose_resume_table(bench.store, A).apply()
    bench.load()  # finds the statement that failed, and nothing skipped
    assert bench.table().jobs.ended.failed == 1
    propose_resume_table(bench.store, A).apply()
    bench.produce(1)
    bench.extract()
    operation = "insert_job" if arrives == "before the load job" else "insert_statement"
    bench.faults = Script(operation, before=bench.land)
    bench.load()
    found = bench.table()
    assert (bench.offsets(A), found.quarantined, found.definition.statements.skipped_rows) == ([], (), 0)
    assert found.parked is not None
    assert found.parked.reason == "ledger_differs"
    assert "by a skip of another statement" in found.parked.error
    adopt.propose(bench.store.view("operator"), bench.warehouse.view("operator"), A).apply()
    bench.load()
    assert bench.offsets(A) == [0, 1, 2]


def test_an_operator_retries_a_batch_whose_statement_failed_and_the_decision_is_kept() -> None:
    bench = parked()
    decide(bench.store, A, lambda now: retry_statement(now, AuditEntry(0, "", 0, "", "ann")))
    bench.load()
    assert bench.offsets(A) == [0, 1]
    [entry] = bench.table().order.audit
    assert (entry.action, entry.batch, entry.by) == ("retry", 1, "ann")
    with pytest.raises(Refused, match="no statement has failed"):
        retry_statement(bench.table(), AuditEntry(0, "", 0))
