"""The registry of table prefixes, which lists the states that exist, and the names of state objects (PROTOCOL F2,
L6)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from kbq_assets.core.protocol.codec import Stored
from kbq_assets.core.protocol.names import FILE_BATCHES, FIRST_WAREHOUSE


@dataclass(frozen=True)
class PrefixRegistry(Stored):
    """`filebatches/_tables.json`: table prefixes whose states exist or are about to be created, with the uuid of each.
    The registry has the uuid first, so that a delayed create of a state cannot revive job ids of another state."""

    active: Mapping[str, str] = field(default_factory=dict)
    creating: Mapping[str, str] = field(default_factory=dict)

    @property
    def prefixes(self) -> dict[str, str]:
        """The uuid of each registered prefix."""
        return {**self.creating, **self.active}

    def announce(self, prefix: str, uuid: str) -> PrefixRegistry:
        """Record that a state is about to be created."""
        if prefix in self.prefixes:
            return self
        return dataclasses.replace(self, creating={**self.creating, prefix: uuid})

    def activate(self, prefix: str) -> PrefixRegistry:
        """Record that a state exists. From now on, a missing object is an error."""
        if prefix in self.active:
            return self
        creating = dict(self.creating)
        uuid = creating.pop(prefix)
        return dataclasses.replace(self, active={**self.active, prefix: uuid}, creating=creating)


def file_registry_path(area: str = FIRST_WAREHOUSE) -> str:
    """Path of the registry of a warehouse's table prefixes."""
    return f"{_area(area)}_tables.json"


def file_state_path(prefix: str, area: str = FIRST_WAREHOUSE) -> str:
    """`filebatches/tables/shop%2Forders.json`: the state of a table prefix."""
    return f"{_area(area)}tables/{quote(prefix, safe='')}.json"


def applied_path(prefix: str, first: int, area: str = FIRST_WAREHOUSE) -> str:
    """Path of an archive of applied batches that begins with number ``first``."""
    return f"{_area(area)}applied/{quote(prefix, safe='')}/{first}.json"


def decisions_path(prefix: str, first: int, area: str = FIRST_WAREHOUSE) -> str:
    """Path of an archive of decisions that begins with number ``first``."""
    return f"{_area(area)}decisions/{quote(prefix, safe='')}/{first}.json"


def _area(name: str) -> str:
    return f"{FILE_BATCHES}@{name}/" if name else FILE_BATCHES
