"""`_backlog/` and `_bqlock` at a table prefix, as Google's tool has them: views of the state, and a way to decide about
a failed batch (PROTOCOL F9).
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from kbq_assets.core.filebatches.discovery import BACKFILL, BACKLOG_FOLDER, LOCK, SourceListing
from kbq_assets.core.filebatches.planning import BatchState, PlannedBatch
from kbq_assets.core.filebatches.table_batches import BatchInFlight, FailedFileBatch, FileTableState

_PENDING = (BatchState.WAITS, BatchState.READY, BatchState.IN_FLIGHT, BatchState.RETRIES, BatchState.BLOCKED)


def pointer_path(prefix: str, batch: str, success: str) -> str:
    """`shop/orders/_backlog/2020/01/02/_SUCCESS` of the batch `shop/orders/2020/01/02`."""
    below = batch.removeprefix(prefix).strip("/")
    return "/".join(filter(None, (prefix, BACKLOG_FOLDER, below, success)))


def pointers(state: FileTableState, planned: Iterable[PlannedBatch]) -> set[str]:
    """Ordered batches that have a pointer. One of a failed batch is written once: who deletes it wants to skip."""
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
    """The ordered batch that holds the table: in flight, or failed and not shown yet."""
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
    """Whether a `_bqlock` is the view of this state."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and bool(uuid) and document.get("kbq") == uuid


def decision_of(prefix: str, failed: FailedFileBatch, listing: SourceListing, success: str) -> str:
    """The decision about a failed batch that somebody made by objects: without its lock, a new `_BACKFILL` means
    retry, or skip if its pointer is gone too; "" for nothing yet. Only what KBQ recorded writing can be missing."""
    if not failed.shown or listing.sign(prefix, LOCK):
        return ""
    if listing.sign(prefix, BACKFILL) in (0, failed.backfill):
        return ""
    return "retry" if pointer_path(prefix, failed.path, success) in listing.signs else "skip"
