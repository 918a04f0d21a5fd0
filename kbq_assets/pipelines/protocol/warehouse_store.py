"""The staging area as one warehouse sees it (PROTOCOL W1): its tables, backlogs and quarantine under their usual names.

Code that loads, checks or repairs tables uses such a view, so it works on one warehouse. Commits, staged files and
everything else are the same objects in every view.
"""

from __future__ import annotations

from kbq_assets.core.protocol.names import FIRST_WAREHOUSE, own_path, warehouse_path
from kbq_assets.pipelines.protocol.mapped_store import MappedStore
from kbq_assets.ports.object_store import ObjectStore


def warehouse_of(store: ObjectStore) -> str:
    """The warehouse whose view a store is; the first one for a plain store."""
    return store.warehouse if isinstance(store, WarehouseStore) else FIRST_WAREHOUSE


def beneath(store: ObjectStore) -> ObjectStore:
    """The store under the first warehouse's view. Views of other warehouses are returned unchanged."""
    return store.shared if isinstance(store, WarehouseStore) and not store.warehouse else store


class WarehouseStore(MappedStore):
    """An ObjectStore over ``shared`` for one warehouse."""

    def __init__(self, shared: ObjectStore, warehouse: str = FIRST_WAREHOUSE) -> None:
        super().__init__(shared)
        self.warehouse = warehouse

    @classmethod
    def of(cls, store: ObjectStore, warehouse: str = FIRST_WAREHOUSE) -> WarehouseStore:
        """The view of a warehouse; ``store`` may be the view of another one."""
        return cls(store.shared if isinstance(store, WarehouseStore) else store, warehouse)

    def _path(self, path: str) -> str:
        return warehouse_path(path, self.warehouse)

    def _own(self, path: str) -> str | None:
        return own_path(path, self.warehouse)
