"""The real code with one rule of statements removed (PROTOCOL, Statements). The simulator must notice each."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from kbq_assets.core.loading import table_state
from kbq_assets.core.loading.table_state import TableState
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.statements import steps, switching, table_statements
from kbq_assets.pipelines.loading import job_start
from kbq_assets.pipelines.loading.ports import CONTINUE, Turn
from kbq_assets.pipelines.loading.table_run import TableRun
from kbq_assets.pipelines.loading.view import LoadView
from kbq_assets.pipelines.statements import apply, prepare
from kbq_assets.ports.statements import LedgerRow, StatementJob
from kbq_assets.ports.warehouse import JobError
from kbq_assets_tests.fakes.statements import FakeStatements
from kbq_assets_tests.simulation.mutants import Mutant

_settle, _run, _retry = apply.settle, FakeStatements.run, table_state.retry
_begin = steps.begin_statement


def _without_ledger(statements: FakeStatements, job: StatementJob) -> JobError | None:
    """A statement that does not raise the ledger: the loader does it later."""
    before = statements.ledgers.get(job.target)
    error = _run(statements, job)
    if before is not None:
        statements.ledgers[job.target] = before
    return error


def _raise_afterwards(run: TableRun, current: Any, entry: Any) -> Turn:
    job = run.ports.warehouse.get_job(entry.job_id, entry.project, entry.location, run.table)
    statements: Any = run.ports.warehouse.statements
    ledger = statements.read_ledger(run.table)
    if (
        job is not None
        and job.state == "DONE"
        and job.error is None
        and ledger.batch < entry.statement.number
    ):
        statements._statements.ledgers[run.table] = LedgerRow(entry.statement.number, False, job.statement)
    return _settle(run, current, entry)


def _by_status(run: TableRun, current: Any, entry: Any) -> Turn:
    """Believes the job: an error means that nothing took effect."""
    job = run.ports.warehouse.get_job(entry.job_id, entry.project, entry.location, run.table)
    if job is None or job.state != "DONE" or job.error is None:
        return _settle(run, current, entry)
    number = entry.statement.number + 1
    again = dataclasses.replace(
        current.value,
        in_flight=dataclasses.replace(entry, statement=dataclasses.replace(entry.statement, number=number)),
    )
    statements: Any = run.ports.warehouse.statements
    ledger = statements.read_ledger(run.table)
    run.swap(current, table_state.retry(again if ledger.batch == entry.statement.number else current.value))
    return CONTINUE


def _same_id(state: TableState) -> TableState:
    found = _retry(state)
    assert state.in_flight is not None and found.in_flight is not None
    if state.in_flight.statement is None:
        return found
    return dataclasses.replace(
        found, in_flight=dataclasses.replace(found.in_flight, job_id=state.in_flight.job_id)
    )


def _any_skip(run: TableRun, current: Any, entry: Any) -> Turn:
    """Takes a skip of the batch's number for one of its statement."""
    statements: Any = run.ports.warehouse.statements
    ledger = statements.read_ledger(run.table)
    if ledger is None or not ledger.skipped or ledger.batch != entry.statement.number:
        return _settle(run, current, entry)
    return apply._record(run, current, apply._in_flight(run, entry), None, skipped=True)


#: For `run_late_skip`.
ANY_SKIP: Final = Mutant(
    "a skip counts for any statement of its number",
    "S5",
    ((apply, "settle", _any_skip),),
)


def _one_scratch(target: TableReference, job_id: str) -> TableReference:
    return TableReference(target.dataset, f"_kbq_batch_{target.table}")


def _marks_first(state: TableState, rows: int) -> TableState:
    """Moves the marks when the load job is done, before the statement took effect."""
    found = _begin(state, rows)
    entry = found.in_flight
    marked = table_state.record_success(state, rows)
    return dataclasses.replace(marked, sequence=found.sequence, in_flight=entry)


def _all_at_once(state: TableState, files: Any, given_up: Any) -> Any:
    """The windows from before a change and after it."""
    return files


def _as_asked(state: TableState, asked: Any, files: Any) -> Any:
    """The rule that the topic asks for, whichever windows a batch has."""
    return asked


#: Schedules whose topic asks for other loads notice these.
SWITCH_MUTANTS: Final = [
    Mutant(
        "a change of load is not recorded",
        "S10: recorded before its first batch",
        ((switching, "in_force", lambda state: None),),
    ),
    Mutant(
        "a change of load is taken before earlier windows are loaded",
        "S10: windows before it first",
        ((job_start, "in_turn", _all_at_once), (prepare, "rule_of_batch", _as_asked)),
    ),
    Mutant(
        "windows before and after a change share a batch",
        "S10: a batch is before a change or after it",
        ((job_start, "in_turn", _all_at_once),),
    ),
]
#: For schedules whose topic leaves the list.
FORGOTTEN_RULE: Final = Mutant(
    "the first batch of a topic without an entry is appended",
    "S10: the commit remembers the rule",
    ((LoadView, "committed_rules", lambda view, topics: frozenset()),),
)
STATEMENT_MUTANTS: Final = [
    Mutant(
        "ledger raised outside the transaction",
        "S1",
        ((FakeStatements, "run", _without_ledger), (apply, "settle", _raise_afterwards)),
        seed=1,
    ),
    Mutant("the job's status decides", "S2", ((apply, "settle", _by_status),)),
    Mutant("a statement runs again under its id", "S6", ((table_state, "retry", _same_id),)),
    Mutant(
        "one scratch table for all batches",
        "S3",
        ((table_statements, "scratch_table", _one_scratch),),
        seed=2,
    ),
    Mutant(
        "marks move with the load job",
        "S4",
        ((steps, "begin_statement", _marks_first),),
    ),
]
