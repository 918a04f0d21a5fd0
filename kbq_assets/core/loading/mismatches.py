"""Jobs whose number of output rows differs from their batch's (PROTOCOL L4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kbq_assets.core.plurals import counted
from kbq_assets.core.protocol import codec

#: Most records per table; beyond that, the oldest are combined.
MOST_MISMATCHES: Final = 100


@dataclass(frozen=True)
class RowMismatch(codec.Stored):
    """A job whose number of output rows differs from its batch's. It counts as loaded, is never repeated, and fails a
    check."""

    job_id: str
    expected: int
    actual: int
    #: the number of jobs combined in this record; ``job_id`` is the last one's
    jobs: int = 1

    def __str__(self) -> str:
        what = f"job {self.job_id}" if self.jobs == 1 else f"{self.jobs:,} jobs up to {self.job_id}"
        return f"{what} loaded {counted(self.actual, 'row')} of files with {self.expected:,}"


def with_mismatch(
    known: tuple[RowMismatch, ...], accepted: int, new: RowMismatch
) -> tuple[tuple[RowMismatch, ...], int]:
    """The records with one more, and the number of leading records that an operator has accepted. Accepted records are
    combined only with accepted ones, so no operator accepts a record unseen.
    """
    records = (*known, new)
    while len(records) > MOST_MISMATCHES:
        first = 0 if accepted > 1 else accepted
        both = _added_up(*records[first : first + 2])
        records, accepted = (*records[:first], both, *records[first + 2 :]), accepted - (accepted > 1)
    return records, accepted


def _added_up(one: RowMismatch, other: RowMismatch) -> RowMismatch:
    return RowMismatch(
        other.job_id, one.expected + other.expected, one.actual + other.actual, one.jobs + other.jobs
    )


def jobs_of(records: tuple[RowMismatch, ...]) -> int:
    """The number of jobs in the records."""
    return sum(record.jobs for record in records)


def records_of(records: tuple[RowMismatch, ...], jobs: int) -> int:
    """The number of leading records that together have at most ``jobs`` jobs."""
    count = 0
    while count < len(records) and jobs_of(records[: count + 1]) <= jobs:
        count += 1
    return count
