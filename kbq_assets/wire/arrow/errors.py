"""Permanent failures of a load job."""

from __future__ import annotations

from typing import ClassVar

from kbq_assets.core.errors import JobFailed
from kbq_assets.core.loading.verification import DAMAGED


class LoadError(JobFailed):
    """The job's files, or its table, cannot be loaded: the job ends DONE with a permanent error."""

    reason: ClassVar[str] = "invalid"


class BadFile(LoadError):
    """A file with wrong or damaged content."""


class DamagedSource(LoadError):
    """A file whose bytes are not those that the commit lists."""

    reason: ClassVar[str] = DAMAGED


class MissingSource(LoadError):
    """A file or table that does not exist."""

    reason: ClassVar[str] = "notFound"


class TooManyValues(Exception):
    """No failure: blocks whose values would take too much memory at once. Fewer of them are decoded."""
