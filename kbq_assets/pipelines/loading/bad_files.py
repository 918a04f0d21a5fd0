"""Find the bad files of a failed job by loading halves into a scratch table (PROTOCOL L5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kbq_assets.core.errors import Unavailable
from kbq_assets.core.loading.table_state import QuarantinedFile
from kbq_assets.core.loading.verification import DAMAGED
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.ports.warehouse import JobError, LoadJob, Warehouse

#: With more bad files than this single files are not the cause: the search ends, and the table is parked.
MAX_BAD_FILES: Final = 20
#: Tries of a probe. A transient error proves nothing about its files.
_TRIES: Final = 3


def find_bad_files(
    warehouse: Warehouse,
    files: tuple[StagedFile, ...],
    job_of: Callable[[tuple[StagedFile, ...]], LoadJob],
) -> list[QuarantinedFile]:
    """The files that do not load, with their errors; at most one more than `MAX_BAD_FILES`.

    Takes about two probes per halving and bad file. Raises Unavailable if the warehouse gives no verdict.
    """
    bad: list[QuarantinedFile] = []
    stack = [files]
    while stack and len(bad) <= MAX_BAD_FILES:
        files = stack.pop()
        error = _verdict(warehouse, job_of(files))
        if error is None:
            continue
        if len(files) == 1:
            bad.append(QuarantinedFile(files[0], f"{error.reason}: {error.message}"))
            continue
        half = len(files) // 2
        stack.extend((files[half:], files[:half]))
    return bad


def _verdict(warehouse: Warehouse, job: LoadJob) -> JobError | None:
    for _ in range(_TRIES):
        error = warehouse.probe(job)
        # Bytes that differ from the commit's are no verdict about the file: it never goes to quarantine (L11).
        if error is None or not (error.transient or error.reason == DAMAGED):
            return error
    raise Unavailable(
        f"job {job.job_id} failed, and its files could not be probed one by one: {error and error.message}",
        next_step="the next load tries again",
    )
