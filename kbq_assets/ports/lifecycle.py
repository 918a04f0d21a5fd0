"""Bucket rules that move old objects to cheaper storage classes."""

from __future__ import annotations

from typing import Protocol

from kbq_assets.core.catalog.lifecycle import SetTransitions, Transition


class BucketLifecycles(Protocol):
    """Guarantees: `change` either keeps all other rules of a bucket, or fails."""

    def transitions(self, bucket: str) -> tuple[Transition, ...]:
        """The bucket's rules that are a `Transition`. Raises ConfigurationError, Unavailable."""

    def change(self, change: SetTransitions) -> None:
        """Add the wanted transitions and remove the replaced ones. Raises ConfigurationError, PreconditionFailed if the
        bucket was changed meanwhile, Unavailable, UnknownOutcome."""
