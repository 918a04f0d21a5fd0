"""Records of a table's jobs in the table's properties (PROTOCOL, The lake): pure functions.

A job id ends with its sequence number: ``kbq-<uuid>-<n>``. All ids of a series share one property, which has the
highest number that ended and the last few jobs. So all lower numbers have ended too, whether their jobs ran or were
skipped, and the property does not grow. Properties survive compaction and the expiry of snapshots.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from kbq_assets.core.erasure.model import JOB_PREFIX
from kbq_assets.core.errors import CorruptState
from kbq_assets.ports.warehouse import JobError

PREFIX: Final = "kbq.jobs."
#: Number of jobs that a series records in full. Only one is in flight at a time.
REMEMBERED: Final = 4
#: The series of all erasures. Erasures of different topics may run in any order. So the series records more of them,
#: and an id without a record may run.
ERASURES: Final = JOB_PREFIX.removesuffix("-")
REMEMBERED_ERASURES: Final = 64
_MESSAGE: Final = 500
_NUMBERED: Final = re.compile(r"(.+)-(\d{1,18})")


@dataclass(frozen=True)
class JobRecord:
    """A job that ended. ``sources`` is the file that lists its source URIs, or "" for a burned id. ``commit`` is unique
    to one attempt."""

    job_id: str
    commit: str
    sources: str = ""
    rows: int = 0
    at_ms: int = 0
    reason: str = ""
    message: str = ""
    transient: bool = False

    @property
    def error(self) -> JobError | None:
        """Why the job failed; None if it succeeded."""
        return JobError(self.reason, self.message, self.transient) if self.reason else None


def series_of(job_id: str) -> tuple[str, int]:
    """The series of a job id, and its number, 0 if it has none."""
    if job_id.startswith(JOB_PREFIX):
        return ERASURES, 0
    numbered = _NUMBERED.fullmatch(job_id)
    return (numbered[1], int(numbered[2])) if numbered else (job_id, 0)


def find(properties: Mapping[str, str], job_id: str) -> JobRecord | None:
    """The record of an ended job; None if its id may still run. An id below the last number has ended; if it has no
    record, it counts as burned. Raises CorruptState for a damaged property."""
    series, number = series_of(job_id)
    last, jobs = _stored(properties, series)
    if number > last:
        return None
    burned = None if series == ERASURES else JobRecord(job_id, "")
    return next((job for job in jobs if job.job_id == job_id), burned)


def recorded(
    properties: Mapping[str, str], record: JobRecord
) -> tuple[dict[str, str], tuple[JobRecord, ...]]:
    """The property with a job's record added, and the records that it drops."""
    series, number = series_of(record.job_id)
    _, jobs = _stored(properties, series)
    record = JobRecord(**{**asdict(record), "message": record.message[:_MESSAGE]})
    kept = (*jobs, record)[-(REMEMBERED_ERASURES if series == ERASURES else REMEMBERED) :]
    value = {"last": number, "jobs": [{k: v for k, v in asdict(job).items() if v} for job in kept]}
    return {PREFIX + series: json.dumps(value, separators=(",", ":"))}, jobs[: len(jobs) + 1 - len(kept)]


def last_of(properties: Mapping[str, str], series: str) -> int:
    """The highest number of a series that ended; -1 if there is none."""
    return _stored(properties, series)[0]


def source_lists(properties: Mapping[str, str]) -> set[str]:
    """The files with source URIs to which records refer."""
    series = (name.removeprefix(PREFIX) for name in properties if name.startswith(PREFIX))
    return {job.sources for each in series for job in _stored(properties, each)[1] if job.sources}


def _stored(properties: Mapping[str, str], series: str) -> tuple[int, tuple[JobRecord, ...]]:
    text = properties.get(PREFIX + series)
    if text is None:
        return -1, ()
    known = JobRecord.__dataclass_fields__
    try:
        value: Any = json.loads(text)
        jobs = ({k: v for k, v in {"commit": "", **job}.items() if k in known} for job in value["jobs"])
        return int(value["last"]), tuple(JobRecord(**job) for job in jobs)
    except (ValueError, TypeError, LookupError) as error:
        raise CorruptState(
            f"the property {PREFIX}{series}, which records load jobs, is damaged: {type(error).__name__}: {error}",
            next_step="restore it from the table's earlier metadata, in its metadata log",
        ) from error
