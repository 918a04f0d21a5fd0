"""The views that Google's tool has of a table prefix, and the decisions that people make with them."""

from __future__ import annotations

import dataclasses
import json

import pytest

from kbq_assets.core.filebatches.backlog_views import (
    decision_of,
    holder,
    is_own_lock,
    lock_text,
    pointer_path,
    pointers,
)
from kbq_assets.core.filebatches.discovery import SourceListing
from kbq_assets.core.filebatches.planning import BatchState, PlannedBatch
from kbq_assets.core.filebatches.table_batches import (
    BatchFile,
    BatchInFlight,
    FailedFileBatch,
    FileTableState,
    FileTarget,
    JobEnd,
)

PREFIX = "shop/orders"
BATCH = "shop/orders/2020/01"
STATE = FileTableState(PREFIX, "u")
RUNNING = BatchInFlight(BATCH, 1, "kbq-u-1", "p", "l", FileTarget("shop", "orders"), (BatchFile("a", 1, 1),))
ORDERED = dataclasses.replace(RUNNING, job_id="kbq-u-2", ordered=True)
FAILED = FailedFileBatch(BATCH, 1, "bad row", "kbq-u-3", ordered=True)
SHOWN = dataclasses.replace(FAILED, shown=True, backfill=4)


@pytest.mark.parametrize(
    ("prefix", "batch", "path"),
    [
        (PREFIX, BATCH, "shop/orders/_backlog/2020/01/_SUCCESS"),
        (PREFIX, PREFIX, "shop/orders/_backlog/_SUCCESS"),
        ("", "2020/01", "_backlog/2020/01/_SUCCESS"),
        ("", "", "_backlog/_SUCCESS"),
    ],
    ids=["below a prefix", "the prefix itself", "below the root", "the root"],
)
def test_a_pointer_has_the_path_of_its_batch(prefix: str, batch: str, path: str) -> None:
    assert pointer_path(prefix, batch, "_SUCCESS") == path


@pytest.mark.parametrize(
    ("batch_state", "has_pointer"),
    [
        (BatchState.WAITS, True),
        (BatchState.READY, True),
        (BatchState.IN_FLIGHT, True),
        (BatchState.RETRIES, True),
        (BatchState.BLOCKED, True),
        (BatchState.FAILED, True),
        (BatchState.REUPLOADED, False),
        (BatchState.LATE, False),
    ],
)
def test_ordered_batches_have_pointers_until_a_rule_sets_them_aside(
    batch_state: BatchState, has_pointer: bool
) -> None:
    planned = [PlannedBatch(BATCH, 1, True, batch_state), PlannedBatch("other", 1, False, batch_state)]
    assert pointers(STATE, planned) == ({BATCH} if has_pointer else set())


@pytest.mark.parametrize(("failed", "has_pointer"), [(FAILED, True), (SHOWN, False)])
def test_a_pointer_that_was_shown_is_never_written_again(failed: FailedFileBatch, has_pointer: bool) -> None:
    state = dataclasses.replace(STATE, failed=(failed,))
    assert bool(pointers(state, [PlannedBatch(BATCH, 1, True, BatchState.FAILED)])) == has_pointer


@pytest.mark.parametrize(
    ("state", "held"),
    [
        (STATE, None),
        (dataclasses.replace(STATE, in_flight=(RUNNING,)), None),
        (dataclasses.replace(STATE, in_flight=(RUNNING, ORDERED)), ORDERED),
        (dataclasses.replace(STATE, failed=(FAILED,)), FAILED),
        (dataclasses.replace(STATE, in_flight=(ORDERED,), failed=(FAILED,)), ORDERED),
        (dataclasses.replace(STATE, failed=(dataclasses.replace(FAILED, ordered=False),)), None),
        (dataclasses.replace(STATE, failed=(dataclasses.replace(FAILED, retry_at_ms=5),)), None),
    ],
    ids=[
        "nothing",
        "unordered",
        "ordered",
        "failed",
        "both",
        "unordered and failed",
        "failed and tried again",
    ],
)
def test_the_ordered_batch_in_flight_or_failed_holds_the_table(
    state: FileTableState, held: BatchInFlight | FailedFileBatch | None
) -> None:
    assert holder(state) == held


BURNING = dataclasses.replace(ORDERED, end=JobEnd(True, "gone"))


@pytest.mark.parametrize(
    ("held", "job", "error"),
    [(ORDERED, "kbq-u-2", None), (BURNING, "kbq-u-2", "gone"), (FAILED, "kbq-u-3", "bad row")],
    ids=["in flight", "given up", "failed"],
)
def test_a_lock_names_job_batch_and_error(
    held: BatchInFlight | FailedFileBatch, job: str, error: str | None
) -> None:
    text = lock_text(STATE, held)
    named = {"job_id": job, "batch": BATCH, "kbq": "u"}
    assert json.loads(text) == ({**named, "error": error} if error else named)
    assert is_own_lock(text, "u")
    assert not is_own_lock(text, "v")


@pytest.mark.parametrize(
    "data",
    [b"", b"kbq", b"[]", b'"u"', b"null", b'{"kbq": null}', b"{}", b"\xff\xfe", b"[" * 100_000],
    ids=["empty", "text", "a list", "a string", "null", "null inside", "no key", "no UTF-8", "too deep"],
)
def test_a_lock_of_somebody_else_is_not_ours(data: bytes) -> None:
    assert not is_own_lock(data, "u")
    assert not is_own_lock(data, "")


POINTER = {"shop/orders/_backlog/2020/01/_SUCCESS": 1}
LOCK = {"shop/orders/_bqlock": 1}


@pytest.mark.parametrize(
    ("failed", "signs", "decision"),
    [
        (SHOWN, {**POINTER, "shop/orders/_BACKFILL": 5}, "retry"),
        (SHOWN, {"shop/orders/_BACKFILL": 5}, "skip"),
        (SHOWN, {**POINTER, **LOCK, "shop/orders/_BACKFILL": 5}, ""),
        (SHOWN, {**POINTER, "shop/orders/_BACKFILL": 4}, ""),
        (SHOWN, {}, ""),
        (SHOWN, POINTER, ""),
        (FAILED, {"shop/orders/_BACKFILL": 5}, ""),
        (dataclasses.replace(SHOWN, backfill=0), {"shop/orders/_BACKFILL": 5}, "skip"),
    ],
    ids=[
        "a new _BACKFILL",
        "and no pointer",
        "the lock is there",
        "the same _BACKFILL",
        "everything is gone",
        "no _BACKFILL",
        "not shown yet",
        "the first _BACKFILL",
    ],
)
def test_a_decision_needs_a_new_backfill_and_no_lock(
    failed: FailedFileBatch, signs: dict[str, int], decision: str
) -> None:
    assert decision_of(PREFIX, failed, SourceListing(signs=signs), "_SUCCESS") == decision
