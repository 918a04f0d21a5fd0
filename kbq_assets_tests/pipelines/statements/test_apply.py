"""A statement applies each batch once, whatever happens to its calls (PROTOCOL, Statements)."""

from __future__ import annotations

import contextlib
import dataclasses
import json

import pytest

from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.names import table_state_path
from kbq_assets.core.statements import steps
from kbq_assets.core.statements.rules import StatementRule
from kbq_assets.core.statements.side_tables import scratch_table
from kbq_assets.pipelines.operate.commands import propose_resume_table
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.statements.statement_job import statement_job
from kbq_assets.ports.statements import LedgerRow, StatementJob
from kbq_assets.ports.warehouse import JobError
from kbq_assets_tests.fakes.faults import Crash, Outcome
from kbq_assets_tests.fakes.script import Script
from kbq_assets_tests.fakes.statements import Failure
from kbq_assets_tests.fakes.warehouse import TRANSIENT
from kbq_assets_tests.pipelines.bench import A
from kbq_assets_tests.pipelines.statements.bench import StatementBench, staged

REFUSED = JobError("invalidQuery", "no such column", transient=False)


def fail_once(bench: StatementBench, error: JobError, when: Failure) -> None:
    """The next statement fails."""

    def errors(job: StatementJob) -> tuple[JobError, Failure]:
        bench.warehouse.statements.errors = None
        return error, when

    bench.warehouse.statements.errors = errors


def test_a_batch_takes_a_load_job_and_a_statement_and_leaves_no_scratch_table() -> None:
    bench = staged(1, 1)
    report = bench.load()
    assert (report.rows, bench.offsets(A), bench.scratch()) == (2, [0, 1], [])
    found = bench.table()
    assert (found.sequence, found.definition.statements.applied, found.in_flight) == (2, 1, None)
    assert bench.paths("staging/") == []


def test_interleaved_schemas_and_later_batches_are_numbered_in_turn() -> None:
    bench = staged(1, 2, 1)
    bench.load()
    bench.produce(1)
    bench.extract()
    bench.load()
    assert sorted(bench.offsets(A)) == [0, 1, 2, 3]
    assert bench.warehouse.statements.applied[A] == [1, 2, 3]


@pytest.mark.parametrize(
    "outcome",
    [Outcome.LOST_REPLY, Outcome.LATE, Outcome.CRASH_BEFORE, Outcome.CRASH_AFTER, Outcome.CRASH_LATE],
)
@pytest.mark.parametrize(
    ("operation", "target", "nth"),
    [
        ("open_ledger", "", 1),
        ("create_scratch", "", 1),
        ("insert_job", "", 1),
        ("swap", "tables/d.A", 2),
        ("swap", "tables/d.A", 3),
        ("swap", "tables/d.A", 4),
        ("insert_statement", "", 1),
        ("read_ledger", "", 2),
        ("drop_scratch", "", 1),
    ],
)
def test_a_call_that_fails_or_kills_its_loader_applies_the_batch_once(
    operation: str, target: str, nth: int, outcome: Outcome
) -> None:
    bench = staged(1, 1)
    bench.faults = Script(operation, target, outcome, nth)
    with contextlib.suppress(Crash):
        bench.load()
    bench.faults = lambda call: Outcome.OK
    bench.load()
    bench.land()
    bench.produce(1)
    bench.extract()
    bench.load()
    assert bench.offsets(A) == [0, 1, 2]
    assert bench.table().definition.statements.applied == 2
    assert bench.scratch() == []


@pytest.mark.parametrize("when", list(Failure))
@pytest.mark.parametrize("error", [TRANSIENT, REFUSED])
def test_an_error_after_the_commit_counts_as_applied_and_one_before_does_not(
    error: JobError, when: Failure
) -> None:
    bench = staged(1, 1)
    fail_once(bench, error, when)
    bench.load()
    is_parked = error is REFUSED and when is Failure.BEFORE
    assert bench.offsets(A) == ([] if is_parked else [0, 1])
    assert (bench.table().parked is not None) == is_parked


def test_a_statement_that_is_refused_parks_its_table_and_a_resume_renders_it_anew() -> None:
    bench = staged(1, 1)
    fail_once(bench, REFUSED, Failure.BEFORE)
    bench.load()
    found = bench.table()
    assert found.parked is not None
    assert (found.parked.reason, found.in_flight) == ("statement_failed", None)
    assert bench.load().rows == 0
    propose_resume_table(bench.store, A).apply()
    bench.load()
    assert bench.offsets(A) == [0, 1]
    assert bench.scratch() == []


def test_an_insert_that_is_refused_is_burned_before_the_table_parks() -> None:
    bench = staged(1, 1)
    bench.warehouse.statements.refuse = 1
    bench.load()
    parked = bench.table().parked
    assert parked is not None
    assert "the text is refused" in parked.error
    found = bench.warehouse.get_job(f"kbq-{bench.table().uuid}-2", "local", "local")
    assert found is not None
    assert found.source_uris == ()
    propose_resume_table(bench.store, A).apply()
    bench.load()
    assert bench.offsets(A) == [0, 1]


def test_a_second_loader_is_fenced_by_the_swap_of_the_statement() -> None:
    bench = staged(1, 1)

    def aside() -> None:
        bench.faults = lambda call: Outcome.OK
        bench.load()

    bench.faults = Script("swap", "tables/d.A", nth=3, before=aside)
    bench.load()
    assert bench.offsets(A) == [0, 1]
    assert bench.warehouse.statements.applied[A] == [1]


def test_a_batch_whose_scratch_table_is_gone_is_loaded_again() -> None:
    bench = staged(1, 1)

    def drop() -> None:
        for name in bench.warehouse.statements.scratch_tables(A.dataset):
            bench.warehouse.statements.drop_scratch(name)

    bench.faults = Script("insert_statement", before=drop)
    bench.load()
    bench.load()
    assert bench.offsets(A) == [0, 1]


def test_marks_move_with_the_statement_and_not_with_the_load_job() -> None:
    bench = staged(1, 1)
    bench.faults = Script("insert_statement", outcome=Outcome.CRASH_BEFORE)
    with pytest.raises(Crash):
        bench.load()
    found = bench.table()
    assert (found.marks, bench.offsets(A)) == ({}, [])
    assert found.in_flight is not None
    assert found.in_flight.statement is not None
    assert found.in_flight.statement.loaded_by.endswith("-1")
    assert len(bench.paths("staging/")) == 1


def test_a_batch_that_an_operator_skips_is_recorded_as_skipped_and_its_rows_do_not_count() -> None:
    bench = staged(1, 1)
    bench.faults = Script("insert_statement", outcome=Outcome.CRASH_LATE)
    with pytest.raises(Crash):
        bench.load()
    bench.faults = lambda call: Outcome.OK
    entry = bench.table().in_flight
    assert entry is not None
    statements = bench.warehouse.statements
    digest = statement_job(statements, A, entry).digest
    assert statements.skip(A, 1, digest) == LedgerRow(1, True, digest)
    bench.land()
    bench.load()
    found = bench.table()
    assert (found.rows, found.definition.statements.skipped_rows) == ({}, 2)
    assert bench.offsets(A) == []
    bench.produce(1)
    bench.extract()
    bench.load()
    assert bench.offsets(A) == [2]


@pytest.mark.parametrize(
    "ledger", [None, LedgerRow(7), LedgerRow(1, False, "other"), LedgerRow(1, True, "other")]
)
def test_a_ledger_that_somebody_changed_parks_the_table(ledger: LedgerRow | None) -> None:
    bench = staged(1, 1)

    def change() -> None:
        ledgers = bench.warehouse.statements.ledgers
        del ledgers[A]
        if ledger is not None:
            ledgers[A] = ledger

    bench.faults = Script("insert_statement", before=change)
    bench.load()
    found = bench.table().parked
    assert found is not None
    assert found.reason == "ledger_differs"


def test_another_job_under_the_id_of_a_statement_parks_the_table() -> None:
    bench = staged(1, 1)
    bench.faults = Script("insert_statement", outcome=Outcome.CRASH_BEFORE)
    with pytest.raises(Crash):
        bench.load()
    bench.faults = lambda call: Outcome.OK
    entry = bench.table().in_flight
    assert entry is not None
    other = StatementJob(entry.job_id, "local", "local", A, 99, "SELECT 1", "other")
    bench.warehouse.statements.insert(other)
    bench.load()
    found = bench.table().parked
    assert found is not None
    assert found.reason == "foreign_job"
    propose_resume_table(bench.store, A).apply()
    bench.load()
    assert bench.offsets(A) == [0, 1]


def test_a_scratch_table_of_a_lost_call_goes_with_the_next_batch() -> None:
    bench = staged(1, 1)
    bench.load()
    uuid = bench.table().uuid
    late, foreign = scratch_table(A, f"kbq-{uuid}-1"), scratch_table(A, "kbq-another-1")
    future = scratch_table(A, f"kbq-{uuid}-99")
    for table in (late, foreign, future):
        bench.warehouse.statements.create_scratch(table, ())
    bench.produce(1)
    bench.extract()
    bench.load()
    assert bench.scratch() == sorted([foreign.table, future.table])


def test_a_bad_file_goes_to_quarantine_and_the_others_are_applied() -> None:
    bench = staged(1, 2)
    bench.warehouse.bad_paths.add(bench.paths("staging/")[0])
    bench.load()
    assert len(bench.offsets(A)) == 1
    assert len(bench.table().quarantined) == 1


def test_a_table_keeps_its_key() -> None:
    bench = staged(2)
    bench.load()
    bench.rule = StatementRule("upsert", ("y",))
    bench.produce(2)
    bench.extract()
    [report] = [each for each in bench.load().tables if each.table == A]
    assert (report.state, bench.offsets(A)) == ("parked", [0])
    assert "revert `load`, `key`, `version` and `deletes`" in report.message


def test_a_warehouse_without_statements_refuses_the_rule_and_loads_nothing() -> None:
    bench = staged(1)
    bench.runs_statements = False
    [report] = [each for each in bench.load().tables if each.table == A]
    assert (report.state, bench.offsets(A)) == ("parked", [])
    assert "runs no statements" in report.message


def test_an_earlier_release_refuses_the_state_of_a_table_with_a_statement() -> None:
    bench = staged(1)
    bench.faults = Script("insert_job", outcome=Outcome.CRASH_AFTER)
    with pytest.raises(Crash):
        bench.load()
    for _ in range(2):
        stored = bench.store.get(table_state_path(A)).data
        assert json.loads(stored)["format"] == 4
        bench.faults = lambda call: Outcome.OK
        bench.load()
    assert dataclasses.replace(bench.table(), definition=TableState("u").definition).stored_format == 3


def test_the_statement_of_a_state_is_stored_and_read_again() -> None:
    bench = staged(1)
    bench.faults = Script("insert_statement", outcome=Outcome.CRASH_BEFORE)
    with pytest.raises(Crash):
        bench.load()
    found = state.read(bench.store, TableState, table_state_path(A)).value
    assert codec.loads(TableState, codec.dumps(found), "x") == found
    assert steps.load_again(found).in_flight is not None
