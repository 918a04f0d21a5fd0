"""Rows that a warehouse was not given by any window, and that a promotion brings (PROTOCOL R13): its topic was added
there later. Pure."""

from __future__ import annotations

from kbq_assets.core.protocol.commits import PartitionCommit
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.names import FIRST_WAREHOUSE


def given_by_windows(found: PartitionCommit, warehouse: str) -> Counts:
    """The counts of the windows that a warehouse was given since the partition began."""
    if warehouse == FIRST_WAREHOUSE:
        return found.totals - found.withheld
    return found.delivered.get(warehouse, Counts())


def lacking(found: PartitionCommit, warehouse: str) -> int:
    """Rows of a partition that a warehouse was never given: not by a window, and not by a promotion."""
    brought = sum(each.records for each in found.changes_of(warehouse).values())
    return _rows(found.totals) - _rows(given_by_windows(found, warehouse)) - brought


def with_brought(
    counts: Counts, found: PartitionCommit, job_id: str, warehouse: str, passed_over: int | None
) -> Counts:
    """The change of a partition's counts by a replacement. Rows that the warehouse was never given are records of it
    now, and were none that it skipped. ``passed_over`` are records of the range that the replay made no rows of; None
    for a rollback, which takes back what its promotions brought.

    Nobody knows which records a warehouse was given. If it lacks some, a promotion that adds rows brings these first.
    """
    if passed_over is None:
        replay = job_id.rpartition("-")[0]
        known = found.changes_of(warehouse).items()
        brought = -sum(each.records for job, each in known if job.rpartition("-")[0] == replay)
    else:
        more = _rows(counts)
        brought = min(more + passed_over, lacking(found, warehouse)) if more > 0 else 0
    return counts + Counts(positions=brought, records=brought, skipped=brought)


def _rows(counts: Counts) -> int:
    return counts.staged + counts.errors
