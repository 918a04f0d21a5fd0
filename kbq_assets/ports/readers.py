"""Read access of members to Google Cloud datasets, tables and buckets."""

from __future__ import annotations

from typing import Protocol

from kbq_assets.core.catalog.readers import GrantReading, ReadablePlace


class Readers(Protocol):
    """Guarantees: `grant` removes no access and is idempotent; the rest of a policy does not change."""

    def readers(self, place: ReadablePlace) -> frozenset[str] | None:
        """Members with a grant on the place that lets them read it, in lower case; None if the place does not exist.
        Raises ConfigurationError, Unavailable."""

    def grant(self, change: GrantReading) -> None:
        """Grant the members read access. Raises ConfigurationError, NotFound if the place does not exist, Unavailable
        if other writers keep changing its policy."""
