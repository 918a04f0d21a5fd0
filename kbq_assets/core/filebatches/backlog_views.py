"""`_backlog/` and `_bqlock` at a table prefix, as in Google's tool. They are views of the state, and a way to make a
decision about a failed batch (PROTOCOL F9).
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from kbq_assets.core.filebatches.discovery import BACKFILL, BACKLOG_FOLDER, LOCK, SourceListing
from kbq_assets.core.filebatches.planning import BatchState, PlannedBatch
from kbq_assets.core.filebatches.table_batches import BatchInFlight, FailedFileBatch, FileTableState

_PENDING = (BatchState.WAITS, BatchState.READY, BatchState.IN_FLIGHT, BatchState.RETRIES, BatchState.BLOCKED)


def pointer_path(prefix: str, batch: str, success: str) -> str:
    """The pointer of a batch: `shop/orders/_backlog/2020/01/02/_SUCCESS` for `shop/orders/2020/01/02`."""
    below = batch.removeprefix(prefix).strip("/")
    return "/".join(filter(None, (prefix, BACKLOG_FOLDER, below, success)))


def pointers(state: FileTableState, planned: Iterable[PlannedBatch]) -> set[str]:
    """Paths of ordered batches that should have a pointer. A failed batch's pointer is written only once, because
    deleting it means to skip the batch."""
    return {
        each.path
        for each in planned
        if each.ordered
        and (each.state in _PENDING or (each.state is BatchState.FAILED and not _is_shown(state, each)))
    }


def _is_shown(state: FileTableState, planned: PlannedBatch) -> bool:
    failed = state.failure_of(planned.path)
    return failed is not None and failed.shown


def holder(state: FileTableState) -> BatchInFlight | FailedFileBatch | None:
    """The ordered batch that blocks the table: one in flight, or one that failed for good."""
    running = (each for each in state.in_flight if each.ordered)
    return next(running, None) or next(
        (each for each in state.failed if each.ordered and not each.retry_at_ms), None
    )


def lock_text(state: FileTableState, held: BatchInFlight | FailedFileBatch) -> bytes:
    """The content of `_bqlock`."""
    why = held.end.error if isinstance(held, BatchInFlight) else held.error
    error = {"error": why} if why else {}
    return json.dumps({"job_id": held.job_id, "batch": held.path, "kbq": state.uuid, **error}).encode()


def is_own_lock(data: bytes, uuid: str) -> bool:
    """Whether a `_bqlock` was written for this state."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and bool(uuid) and document.get("kbq") == uuid


def decision_of(prefix: str, failed: FailedFileBatch, listing: SourceListing, success: str) -> str:
    """The decision about a failed batch that somebody made by means of objects: `retry`, `skip`, or "" for none yet.
    Once the lock is deleted, a new `_BACKFILL` means retry, or skip if the pointer was deleted too. Objects count as
    deleted only if KBQ recorded that it wrote them."""
    if not failed.shown or listing.sign(prefix, LOCK):
        return ""
    if listing.sign(prefix, BACKFILL) in (0, failed.backfill):
        return ""
    return "retry" if pointer_path(prefix, failed.path, success) in listing.signs else "skip"
