"""Mismatches of a table: a bounded list. Only what an operator has seen counts as accepted."""

from __future__ import annotations

from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from kbq_assets.core.loading.mismatches import (
    MOST_MISMATCHES,
    RowMismatch,
    jobs_of,
    records_of,
    with_mismatch,
)


def test_of_more_than_100_the_oldest_are_added_up() -> None:
    records: tuple[RowMismatch, ...] = ()
    for number in range(MOST_MISMATCHES + 2):
        records, _ = with_mismatch(records, 0, RowMismatch(f"j{number}", 10, 9 + 2 * (number % 2)))
    assert str(records[0]) == "3 jobs up to j2 loaded 29 rows of files with 30"
    assert str(records[1]) == "job j3 loaded 11 rows of files with 10"
    assert len(records) == MOST_MISMATCHES


@mock.patch("kbq_assets.core.loading.mismatches.MOST_MISMATCHES", 3)
@given(st.lists(st.booleans()))
def test_an_operator_accepts_exactly_the_jobs_that_he_saw(steps: list[bool]) -> None:
    """A step is a job, or that an operator who looked before the last job accepts what he saw."""
    records: tuple[RowMismatch, ...] = ()
    accepted = seen = jobs = before = 0
    for number, is_job in enumerate(steps):
        if is_job:
            before, jobs = jobs, jobs + 1
            records, accepted = with_mismatch(records, accepted, RowMismatch(f"j{number}", 5, 4))
        else:
            seen, accepted = max(seen, before), max(accepted, records_of(records, before))
        assert jobs_of(records[:accepted]) <= seen
        assert (jobs_of(records), sum(r.expected - r.actual for r in records)) == (jobs, jobs)
        assert len(records) <= 3
