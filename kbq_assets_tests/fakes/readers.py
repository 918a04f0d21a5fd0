"""Read grants in memory (`ports.readers`)."""

from __future__ import annotations

from collections.abc import Collection

from kbq_assets.core.catalog.readers import OBJECTS, GrantReading, ReadablePlace
from kbq_assets.core.errors import NotFound, Unavailable


class FakeReaders:
    """Every place exists but those in ``absent``. ``is_away``: nothing answers."""

    def __init__(self, absent: Collection[ReadablePlace] = ()) -> None:
        self.held: dict[ReadablePlace, frozenset[str]] = {}
        self.absent = {*absent}
        self.is_away = False

    def readers(self, place: ReadablePlace) -> frozenset[str] | None:
        """Those of the place, and of prefixes that hold it."""
        if self.is_away:
            raise Unavailable(f"{place}: no answer")
        if place in self.absent:
            return None
        wider = (
            members
            for other, members in self.held.items()
            if other == place
            or (
                (place.kind == other.kind == OBJECTS and place.owner == other.owner)
                and place.name.startswith(other.name)
            )
        )
        return frozenset().union(*wider)

    def grant(self, change: GrantReading) -> None:
        """Add them."""
        if self.readers(change.place) is None:
            raise NotFound(f"{change.place} does not exist")
        self.held[change.place] = self.held.get(change.place, frozenset()) | {*change.members}
