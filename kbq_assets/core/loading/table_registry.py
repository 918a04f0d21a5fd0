"""The registry of tables: the states that exist, and the id of the staging area (PROTOCOL L6, L12)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.names import TableReference


@dataclass(frozen=True)
class TableRegistry(codec.Stored):
    """`tables/_tables.json`: the table states that exist (L6), with the uuid of each.

    The registry has the uuid before the state is created. Otherwise a delayed create could revive a state with another
    uuid, and its job ids would not collide with those of jobs that already ran.
    """

    active: Mapping[str, str] = field(default_factory=dict)
    creating: Mapping[str, str] = field(default_factory=dict)
    #: the staging area's id, "" if an older version wrote this; use `staging_id`
    staging: str = ""
    #: in the first warehouse's registry: the other warehouses, as active or removed (PROTOCOL W1)
    warehouses: Mapping[str, str] = field(default_factory=dict)

    @property
    def staging_id(self) -> str:
        """The staging area's id: the uuid of its first table; "" before there is one (L12)."""
        return self.staging or next(
            (uuid for _, uuid in sorted({**self.active, **self.creating}.items())), ""
        )

    @property
    def tables(self) -> list[TableReference]:
        """All registered tables, in order."""
        return sorted(map(TableReference.parse, {**self.active, **self.creating}))

    def announce(self, table: TableReference, uuid: str) -> TableRegistry:
        """Record that a table's state is about to be created."""
        if str(table) in self.active or str(table) in self.creating:
            return self
        creating = {**self.creating, str(table): uuid}
        return dataclasses.replace(self, creating=creating, staging=self.staging_id or uuid)

    def activate(self, table: TableReference) -> TableRegistry:
        """Record that a table's state exists. From now on, a missing object is an error."""
        if str(table) in self.active:
            return self
        creating = dict(self.creating)
        uuid = creating.pop(str(table))
        return dataclasses.replace(self, active={**self.active, str(table): uuid}, creating=creating)
