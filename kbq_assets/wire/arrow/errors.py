"""Permanent failures of a load job."""

from __future__ import annotations

from typing import ClassVar

from kbq_assets.core.errors import JobFailed
from kbq_assets.core.loading.verification import DAMAGED


class LoadError(JobFailed):
    """The job's files or table cannot be loaded, so the job ends DONE with a permanent error."""

    reason: ClassVar[str] = "invalid"


class BadFile(LoadError):
    """A file with wrong or damaged content."""


class DamagedSource(LoadError):
    """A file whose bytes differ from the commit's entry."""

    reason: ClassVar[str] = DAMAGED


class MissingSource(LoadError):
    """A file or table that does not exist."""

    reason: ClassVar[str] = "notFound"


class TooManyValues(Exception):
    """Not a failure: the values of several blocks would take too much memory, so fewer blocks must be decoded at
    once."""
