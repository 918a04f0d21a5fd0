"""Applies a batch of files to a warehouse, by a load job or by a statement over an external table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from kbq_assets.core.filebatches.table_batches import FileTarget
from kbq_assets.core.loading.batches import LoadLimits
from kbq_assets.ports.warehouse import JobStatus


@dataclass(frozen=True)
class FileJob:
    """The job of one batch: all rows of its files become visible at once, or none. ``config`` has BigQuery's keys for a
    load job or, with ``sql``, for the external table `temp_ext`. ``sizes`` are the files' sizes by URI. ``patterns``
    replace the URIs if there are more files than a job may list. With ``fail_on_zero``, a statement that changes no row
    fails: either the job itself, or by its `JobStatus.changed_rows`."""

    job_id: str
    project: str
    location: str
    target: FileTarget
    sizes: Mapping[str, int]
    config: Mapping[str, Any] = field(default_factory=dict)
    sql: str = ""
    digest: str = ""
    fail_on_zero: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    patterns: tuple[str, ...] = ()

    @property
    def source_uris(self) -> tuple[str, ...]:
        """The URIs of the files, or the patterns that match them."""
        return self.patterns or tuple(self.sizes)


class FileJobs(Protocol):
    """The part of `ports.warehouse.Warehouse` that file batches use."""

    project: str
    location: str
    limits: LoadLimits

    def get_job(self, job_id: str, project: str, location: str) -> JobStatus | None:
        """A job's status, None if the id was never inserted. Raises Unavailable."""

    def burn_job(self, job_id: str, project: str, location: str) -> None:
        """Insert a no-op job under this id. Raises JobAlreadyExists, UnknownOutcome, Unavailable."""


class FileLoads(Protocol):
    """Submits jobs with ids that run once, as in `ports.warehouse.Warehouse`; its `get_job` and `burn_job` cover them
    too. A load job's status has its files, a statement's has the digest."""

    def check(self, config: Mapping[str, Any], sql: str) -> None:
        """Raises ConfigurationError that names the first key or format that the warehouse does not support."""

    def insert(self, job: FileJob) -> None:
        """Submit a job. Raises as `Warehouse.insert_job`."""
