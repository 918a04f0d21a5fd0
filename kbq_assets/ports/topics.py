"""The broker's topics, for the catalog's commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from kbq_assets.core.catalog.access import LiveAccess
from kbq_assets.core.catalog.changes import Change, LiveTopic


class TopicAdmin(Protocol):
    """Guarantees: a change is done, or an error is raised that names the topic; nothing is ever deleted."""

    def topics(self) -> Mapping[str, LiveTopic]:
        """All topics that the credentials may see, except internal ones, with their settings. Raises Unavailable."""

    def access(self) -> LiveAccess:
        """All ACLs, or why they cannot be read: no authorizer, no permission. Raises Unavailable."""

    def apply(self, change: Change) -> None:
        """Make a change; does nothing if it is already made. Raises Unavailable, Refused."""
