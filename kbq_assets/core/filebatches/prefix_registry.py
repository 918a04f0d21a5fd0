"""The registry of table prefixes: which states exist (PROTOCOL F2, L6)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from kbq_assets.core.protocol.codec import Stored


@dataclass(frozen=True)
class PrefixRegistry(Stored):
    """`filebatches/_tables.json`: table prefixes whose states exist, or are about to be created, with the uuid of each.
    The uuid is chosen here, so that a late create of a state cannot revive job ids of another one."""

    active: Mapping[str, str] = field(default_factory=dict)
    creating: Mapping[str, str] = field(default_factory=dict)

    @property
    def prefixes(self) -> dict[str, str]:
        """The uuid of each registered prefix."""
        return {**self.creating, **self.active}

    def announce(self, prefix: str, uuid: str) -> PrefixRegistry:
        """Note that a state is about to be created."""
        if prefix in self.prefixes:
            return self
        return dataclasses.replace(self, creating={**self.creating, prefix: uuid})

    def activate(self, prefix: str) -> PrefixRegistry:
        """Note that a state exists. From now on it is an error if it is missing."""
        if prefix in self.active:
            return self
        creating = dict(self.creating)
        uuid = creating.pop(prefix)
        return dataclasses.replace(self, active={**self.active, prefix: uuid}, creating=creating)
