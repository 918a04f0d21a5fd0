"""Statements are billed at most a given number of bytes per table and day (PROTOCOL S9)."""

from __future__ import annotations

import pytest

from kbq_assets.core.errors import JobFailed
from kbq_assets.core.statements.table_statements import TableStatements, excess
from kbq_assets.pipelines.operate.commands import propose_resume_table
from kbq_assets_tests.fakes.script import Script
from kbq_assets_tests.pipelines.bench import A
from kbq_assets_tests.pipelines.statements.bench import StatementBench, staged

DAY_MS = 86_400_000


def limited(limit: int, price: int) -> StatementBench:
    bench = staged(1, 1)
    bench.bytes_per_day, bench.warehouse.statements.price = limit, price
    return bench


def more(bench: StatementBench) -> None:
    bench.produce(1)
    bench.extract()
    bench.load()


def why_parked(bench: StatementBench) -> str:
    parked = bench.table().parked
    return f"{parked.reason}: {parked.error}" if parked else ""


def test_statements_within_the_limit_run_and_their_bytes_are_counted() -> None:
    bench = limited(200, 100)
    bench.load()
    more(bench)
    found = bench.table().definition.statements
    assert (bench.offsets(A), why_parked(bench)) == ([0, 1, 2], "")
    assert (found.billed, found.billed_in_all, found.billed_that_day) == (100, 200, 200)


def test_a_statement_beyond_the_limit_waits_with_its_batch_loaded_and_runs_the_next_day() -> None:
    bench = limited(199, 100)
    bench.load()
    more(bench)
    assert why_parked(bench) == (
        "bytes_limit: batch 2: its statement would be billed 100 bytes; 100 were billed today, and bytes_per_day=199"
    )
    assert (bench.offsets(A), len(bench.scratch())) == ([0, 1], 1)
    bench.store.time_ms += 3_600_000
    bench.load()
    assert "bytes_limit" in why_parked(bench)
    bench.store.time_ms += DAY_MS
    bench.load()
    assert (bench.offsets(A), why_parked(bench), bench.scratch()) == ([0, 1, 2], "", [])
    assert bench.table().definition.statements.billed_that_day == 100


def test_a_limit_that_is_raised_lets_the_statement_run_once() -> None:
    bench = limited(99, 100)
    bench.load()
    assert why_parked(bench).endswith("bytes_per_day=99: it never fits")
    propose_resume_table(bench.store, A).apply()
    bench.load()
    assert "never fits" in why_parked(bench)
    bench.bytes_per_day = 100
    propose_resume_table(bench.store, A).apply()
    bench.load()
    assert bench.offsets(A) == [0, 1]
    assert bench.warehouse.statements.applied[A] == [1]


def test_the_limit_is_checked_at_the_next_try_if_the_scratch_table_is_gone() -> None:
    bench = limited(99, 100)
    bench.load()
    for table in bench.warehouse.statements.scratch_tables(A.dataset):
        bench.warehouse.statements.drop_scratch(table)
    bench.bytes_per_day = 0
    propose_resume_table(bench.store, A).apply()
    bench.load()
    assert (bench.offsets(A), bench.scratch()) == ([0, 1], [])


def test_a_text_that_the_dry_run_refuses_fails_as_a_statement_and_not_as_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = limited(99, 100)

    def refuse(*_: object) -> int:
        raise JobFailed("no such column", next_step="correct it")

    monkeypatch.setattr(type(bench.warehouse.view("x").statements), "bytes_billed", refuse)
    bench.warehouse.statements.refuse = 1
    bench.load()
    assert why_parked(bench).startswith("statement_failed: batch 1, job ")
    assert ": the text is refused" in why_parked(bench)


def test_a_table_without_a_limit_asks_for_no_dry_run() -> None:
    bench = limited(0, 100)
    asked: list[object] = []
    bench.faults = Script("bytes_billed", before=lambda: asked.append(1))
    bench.load()
    assert (bench.offsets(A), asked) == ([0, 1], [])


@pytest.mark.parametrize(
    ("wanted", "used", "limit", "is_over"),
    [(5, 0, 0, False), (5, 5, 10, False), (5, 6, 10, True), (11, 0, 10, True), (0, 99, 10, True)],
)
def test_a_statement_exceeds_a_limit_together_with_the_bytes_of_its_day(
    wanted: int, used: int, limit: int, is_over: bool
) -> None:
    assert bool(excess(wanted, used, limit)) == is_over


def test_bytes_count_for_their_own_day_and_a_clock_that_goes_back_forgets_none() -> None:
    found = TableStatements(day=10, billed_that_day=7)
    assert [found.billed_on(day) for day in (9, 10, 11)] == [7, 7, 0]
