"""Counts rows that a warehouse never got from a window, because the topic was added there later, and that a promotion
brings (PROTOCOL R13). Pure functions."""

from __future__ import annotations

from kbq_assets.core.protocol.commits import PartitionCommit
from kbq_assets.core.protocol.counts import Counts
from kbq_assets.core.protocol.names import FIRST_WAREHOUSE


def given_by_windows(found: PartitionCommit, warehouse: str) -> Counts:
    """The counts of the windows given to a warehouse since the partition began."""
    if warehouse == FIRST_WAREHOUSE:
        return found.totals - found.withheld
    return found.delivered.get(warehouse, Counts())


def lacking(found: PartitionCommit, warehouse: str) -> int:
    """The number of rows of a partition that a warehouse never got, neither from a window nor from a promotion."""
    brought = sum(each.records for each in found.changes_of(warehouse).values())
    return _rows(found.totals) - _rows(given_by_windows(found, warehouse)) - brought


def with_brought(
    counts: Counts, found: PartitionCommit, job_id: str, warehouse: str, passed_over: int | None
) -> Counts:
    """The change of a partition's counts by a replacement, including rows that it brings to the warehouse. Such rows
    now count as records of the warehouse, not as skipped.

    ``passed_over`` is the number of records in the range for which the replay has no rows; None for a rollback, which
    reverts what its promotions brought. It is not recorded which records a warehouse got. So if it lacks some, a
    promotion that adds rows is assumed to bring these first.
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
