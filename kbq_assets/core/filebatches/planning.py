"""Decides which batches of a table prefix to enter next, and why the others wait (PROTOCOL F6 to F8)."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kbq_assets.core.filebatches.discovery import FoundBatch
from kbq_assets.core.filebatches.table_batches import FailedFileBatch, FileTableState

#: Most jobs in flight per table prefix.
MOST_JOBS = 10


class BatchState(enum.StrEnum):
    """The state of a batch that is not applied."""

    READY = "ready"
    WAITS = "waits"  # for an earlier batch, a marker, a validation or a free slot
    RETRIES = "retries"  # after a pause
    FAILED = "failed"
    BLOCKED = "blocked"  # by its configuration
    REUPLOADED = "reuploaded"
    LATE = "late"
    IN_FLIGHT = "in flight"


#: Batches that a rule set aside. Other batches do not wait for them.
_ASIDE = (BatchState.REUPLOADED, BatchState.LATE)


@dataclass(frozen=True)
class PendingBatch:
    """A batch that is not applied. ``problem`` is the reason that its configuration is unusable, if any."""

    found: FoundBatch
    ordered: bool
    problem: str = ""


@dataclass(frozen=True)
class BatchRules:
    """The rules of a table prefix. ``held`` is the reason that ordered batches wait, "" if they do not. ``validates``:
    the reason is that a person must validate the last batch."""

    apply_reuploads: bool = False
    park_late: bool = False
    held: str = ""
    validates: bool = False


@dataclass(frozen=True)
class PlannedBatch:
    """A batch, its state, and the reason as text. ``by_person``: it waits until a person validates the last batch."""

    path: str
    generation: int
    ordered: bool
    state: BatchState
    why: str = ""
    uploaded_ms: int = 0
    by_person: bool = False


def plan_batches(
    state: FileTableState,
    applied: Mapping[str, int],
    pending: Sequence[PendingBatch],
    rules: BatchRules,
    now_ms: int,
) -> list[PlannedBatch]:
    """All batches that are not applied, ordered by path. Those in state READY may be entered now. ``applied`` has the
    newest settled generation by path."""
    places = MOST_JOBS - len(state.in_flight)
    before = _stop(state, rules, now_ms)
    planned: list[PlannedBatch] = []
    for each in sorted(pending, key=lambda each: each.found.path):
        if applied.get(each.found.path) == each.found.generation and not _is_wanted(state, each.found):
            continue
        own = _state_of(state, applied, each, rules, now_ms)
        if own[0] is BatchState.READY and each.ordered and before:
            own = BatchState.WAITS, before
        elif own[0] is BatchState.READY and places <= 0:
            own = BatchState.WAITS, f"{MOST_JOBS} jobs are in flight"
        if own[0] is BatchState.READY:
            places -= 1
        if each.ordered and own[0] not in _ASIDE:
            before = before or f"{each.found.path} comes first"
        batch = each.found
        by_person = own[0] is BatchState.WAITS and rules.validates and own[1] == rules.held
        planned.append(
            PlannedBatch(batch.path, batch.generation, each.ordered, *own, batch.uploaded_ms, by_person)
        )
    found = {each.found.path for each in pending}
    return sorted([*planned, *_lost(state, found)], key=lambda each: each.path)


def _stop(state: FileTableState, rules: BatchRules, now_ms: int) -> str:
    """The reason that no ordered batch may be entered, "" if one may."""
    for running in state.in_flight:
        if running.ordered:
            return f"{running.path} is in flight"
    for failed in state.failed:
        if failed.ordered and _of_failed(failed, now_ms)[0] is not BatchState.READY:
            return f"{failed.path} failed"
    return rules.held


def _state_of(
    state: FileTableState, applied: Mapping[str, int], each: PendingBatch, rules: BatchRules, now_ms: int
) -> tuple[BatchState, str]:
    path, generation = each.found.path, each.found.generation
    if (running := state.running_batch(path)) is not None:
        return BatchState.IN_FLIGHT, f"job {running.job_id}"
    if (failed := state.failure_of(path)) is not None and (failed.generation == generation or each.ordered):
        return _of_failed(failed, now_ms)
    if each.problem:
        return BatchState.BLOCKED, each.problem
    if _is_wanted(state, each.found):
        return BatchState.READY, ""
    if path in applied and not rules.apply_reuploads:
        return (
            BatchState.REUPLOADED,
            "it was applied before and uploaded again (KBQ_FILES_ON_REUPLOAD=refuse)",
        )
    if each.ordered and rules.park_late and path not in applied and path < state.last_ordered:
        return (
            BatchState.LATE,
            f"it sorts before {state.last_ordered}, which is applied (KBQ_FILES_ON_LATE=park)",
        )
    return BatchState.READY, ""


def _of_failed(failed: FailedFileBatch, now_ms: int) -> tuple[BatchState, str]:
    if failed.retry_at_ms and now_ms >= failed.retry_at_ms:
        return BatchState.READY, ""
    return BatchState.RETRIES if failed.retry_at_ms else BatchState.FAILED, failed.error


def _is_wanted(state: FileTableState, found: FoundBatch) -> bool:
    return state.wanted.get(found.path) == found.generation


def _lost(state: FileTableState, found: set[str]) -> list[PlannedBatch]:
    """Batches in flight or failed whose success object is gone."""
    running = [
        PlannedBatch(each.path, each.generation, each.ordered, BatchState.IN_FLIGHT, f"job {each.job_id}")
        for each in state.in_flight
        if each.path not in found
    ]
    return running + [
        PlannedBatch(each.path, each.generation, each.ordered, BatchState.FAILED, each.error)
        for each in state.failed
        if each.path not in found
    ]
