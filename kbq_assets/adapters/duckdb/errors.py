"""Permanent failures of a load job."""

from __future__ import annotations

from typing import ClassVar

from kbq_assets.core.errors import JobFailed


class LoadError(JobFailed):
    """The job's files, or its table, cannot be loaded: the job ends DONE with a permanent error."""

    reason: ClassVar[str] = "invalid"


class BadFile(LoadError):
    """A file with wrong or damaged content."""


class MissingSource(LoadError):
    """A file or table that does not exist."""

    reason: ClassVar[str] = "notFound"
