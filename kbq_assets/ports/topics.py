"""The broker's topics, for the catalog's commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from kbq_assets.core.catalog.access import LiveAccess
from kbq_assets.core.catalog.changes import Change, LiveTopic


class TopicAdmin(Protocol):
    """Guarantees: each change is either made, or raises an error that names the topic; nothing is ever deleted."""

    def topics(self) -> Mapping[str, LiveTopic]:
        """All topics that the credentials may see, with their settings, except internal ones. Raises Unavailable."""

    def access(self) -> LiveAccess:
        """All ACLs, or the reason that they cannot be read, such as no authorizer or no permission. Raises
        Unavailable."""

    def apply(self, change: Change) -> None:
        """Make a change, unless it is already made. Raises Unavailable, Refused."""
