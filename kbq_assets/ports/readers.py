"""Datasets, tables and buckets that members of Google may read."""

from __future__ import annotations

from typing import Protocol

from kbq_assets.core.catalog.readers import GrantReading, ReadablePlace


class Readers(Protocol):
    """Guarantees: `grant` takes nothing from anybody and is harmless twice; all else of a policy stays as it is."""

    def readers(self, place: ReadablePlace) -> frozenset[str] | None:
        """Members who may read the place by a grant on it, with addresses in lower case; None if it does not exist.
        Raises ConfigurationError, Unavailable."""

    def grant(self, change: GrantReading) -> None:
        """Let the members read the place. Raises ConfigurationError, NotFound if the place does not exist, Unavailable
        if others keep changing its policy."""
