"""Tells which warehouses load a staged file, and which of them have it (PROTOCOL, Several warehouses)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from kbq_assets.core.loading.table_state import JobInFlight, TableState
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import TableReference

#: Registry values for a warehouse besides the first.
ACTIVE: Final = "active"
REMOVED: Final = "removed"
_NO_STATES: Final[Mapping[TableReference, TableState]] = {}


@dataclass(frozen=True)
class WarehouseStates:
    """Table states by warehouse. A file waits for a warehouse without a state, unless the warehouse was removed."""

    by_name: Mapping[str, Mapping[TableReference, TableState]]
    removed: frozenset[str] = frozenset()

    def is_loaded(self, file: StagedFile) -> bool:
        """Whether every warehouse that should load the file has it (W3)."""
        return not self.waiting(file)

    def waiting(self, file: StagedFile) -> list[str]:
        """The warehouses that still need a file."""
        table, found = file.name.table, []
        for name in self._wanting(file):  # few calls: a run asks about tens of thousands of files
            state = self.by_name.get(name, _NO_STATES).get(table)
            if state is None or not state.is_loaded(file):
                found.append(name)
        return found

    def is_ahead(self, file: StagedFile) -> bool:
        """Whether some warehouse has a file, and so must not wait for the others."""
        return any(self.has(name, file) for name in self._wanting(file))

    def has(self, warehouse: str, file: StagedFile) -> bool:
        """Whether the marks of one warehouse cover a file."""
        state = self._state(warehouse, file)
        return state is not None and state.is_loaded(file)

    @cached_property
    def has_parked(self) -> bool:
        """Whether any table is parked in any warehouse."""
        return any(state.parked is not None for tables in self.by_name.values() for state in tables.values())

    def is_parked(self, warehouse: str, file: StagedFile) -> bool:
        state = self._state(warehouse, file)
        return state is not None and state.parked is not None

    def jobs_in_flight(self, table: TableReference) -> list[JobInFlight]:
        states = (tables[table] for tables in self.by_name.values() if table in tables)
        return [state.in_flight for state in states if state.in_flight is not None]

    def is_done_with(self, file: StagedFile) -> bool:
        """Whether no warehouse still needs a staged file (W4)."""
        states = [self._state(name, file) for name in self._wanting(file)]
        return all(state is not None and is_done_with(state, file) for state in states)

    def _wanting(self, file: StagedFile) -> list[str]:
        return [name for name in file.wanted_by if name not in self.removed]

    def _state(self, warehouse: str, file: StagedFile) -> TableState | None:
        tables = self.by_name.get(warehouse)
        return tables.get(file.table) if tables else None


def is_done_with(state: TableState, file: StagedFile) -> bool:
    """Whether a warehouse no longer needs a staged file: its marks cover the file, and no operator brings it back
    (W4)."""
    return state.is_loaded(file) and all(bad.file.path != file.path for bad in state.retried)
