"""The broker's topics, as the catalogue's commands look at and change them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from kbq_assets.core.catalog.access import LiveAccess
from kbq_assets.core.catalog.changes import Change, LiveTopic


class TopicAdmin(Protocol):
    """Guarantees: a change is done, or an error is raised that names the topic; nothing is ever deleted."""

    def topics(self) -> Mapping[str, LiveTopic]:
        """All topics the credentials may see, internal ones left out, and what is set for each. Raises Unavailable."""

    def access(self) -> LiveAccess:
        """All ACLs; or why there are none to be seen: no authorizer, no permission. Raises Unavailable."""

    def apply(self, change: Change) -> None:
        """Make a change. What is there already is left alone. Raises Unavailable, Refused."""
