"""Files in quarantine: decides when a batch would lose too many, and retries or drops them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Final

from kbq_assets.core.loading.table_state import QuarantinedFile, TableState, identity_of

#: A table parks before this many consecutive batches lose all of their files to quarantine.
LOST_BATCHES: Final = 3


def loses_too_much(state: TableState, bad: Sequence[QuarantinedFile]) -> str:
    """Why a batch's bad files must park its table instead of going to quarantine (L5); "" if they may go."""
    job = state.in_flight
    assert job is not None
    lost, total = len(job.quarantined) + len(bad), len(job.quarantined) + len(job.files)
    if state.accepted.loss:
        return ""
    if lost >= 2 and 2 * lost > total:
        return f"{lost} of {total} files are refused"
    if lost == total and state.failed.batches + 1 >= LOST_BATCHES:
        return f"{LOST_BATCHES} batches in a row lost all of their files"
    return ""


def retry_quarantined(state: TableState, paths: Collection[str]) -> TableState:
    """Mark files in quarantine to be loaded again (L13)."""
    return _changed(state, paths, lambda bad: dataclasses.replace(bad, retry=not bad.dropped))


def drop_quarantined(state: TableState, paths: Collection[str]) -> TableState:
    """Give up the rows of files in quarantine (L13), except files that a job is loading now."""
    loading = {identity_of(file) for file in state.in_flight.files} if state.in_flight else set()

    def drop(bad: QuarantinedFile) -> QuarantinedFile:
        is_loading = bad.retry and identity_of(bad.file) in loading
        return bad if is_loading else dataclasses.replace(bad, retry=False, dropped=True)

    return _changed(state, paths, drop)


def _changed(
    state: TableState, paths: Collection[str], change: Callable[[QuarantinedFile], QuarantinedFile]
) -> TableState:
    quarantined = (change(bad) if bad.file.path in paths else bad for bad in state.quarantined)
    return dataclasses.replace(state, quarantined=tuple(quarantined))
