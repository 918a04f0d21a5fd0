"""The staging area as one warehouse sees it (PROTOCOL W1): its tables, backlogs and quarantine under today's names.

Whoever loads, checks or repairs tables works on such a view, and so on one warehouse. Commits, staged files and
everything else are the same objects in every view.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import BinaryIO

from kbq_assets.core.protocol.names import FIRST_WAREHOUSE, own_path, warehouse_path
from kbq_assets.ports.object_store import ObjectEntry, ObjectStore, ObjectWriter, StoredFile, StoredObject


def warehouse_of(store: ObjectStore) -> str:
    """The warehouse that a store is a view of, by default the first."""
    return store.warehouse if isinstance(store, WarehouseStore) else FIRST_WAREHOUSE


def beneath(store: ObjectStore) -> ObjectStore:
    """A store without the first warehouse's view of it; the view of another warehouse as it is."""
    return store.shared if isinstance(store, WarehouseStore) and not store.warehouse else store


class WarehouseStore:
    """An ObjectStore over ``shared`` for one warehouse."""

    def __init__(self, shared: ObjectStore, warehouse: str = FIRST_WAREHOUSE) -> None:
        self.shared = shared
        self.warehouse = warehouse

    @classmethod
    def of(cls, store: ObjectStore, warehouse: str = FIRST_WAREHOUSE) -> WarehouseStore:
        """The view of a warehouse; ``store`` may be the view of another one."""
        return cls(store.shared if isinstance(store, WarehouseStore) else store, warehouse)

    def _path(self, path: str) -> str:
        return warehouse_path(path, self.warehouse)

    def get(self, path: str) -> StoredObject:
        """As the port says."""
        return self.shared.get(self._path(path))

    def create(self, path: str, data: bytes) -> int:
        """As the port says."""
        return self.shared.create(self._path(path), data)

    def swap(self, path: str, data: bytes, generation: int) -> int:
        """As the port says."""
        return self.shared.swap(self._path(path), data, generation)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectEntry]:
        """As the port says, without the objects of other warehouses."""
        for entry in self.shared.list(self._path(prefix), start_after and self._path(start_after)):
            if (own := own_path(entry.path, self.warehouse)) is not None:
                yield entry if own == entry.path else replace(entry, path=own)

    def checksums(self, prefix: str) -> Iterator[StoredFile]:
        """As the port says, without the objects of other warehouses."""
        for stored in self.shared.checksums(self._path(prefix)):
            if (own := own_path(stored.path, self.warehouse)) is not None:
                yield stored if own == stored.path else replace(stored, path=own)

    def delete(self, path: str) -> None:
        """As the port says."""
        self.shared.delete(self._path(path))

    def delete_many(self, paths: Iterable[str]) -> Mapping[str, Exception]:
        """As the port says."""
        own = {self._path(path): path for path in paths}
        return {own[path]: error for path, error in self.shared.delete_many(own).items()}

    def copy(self, source: str, target: str) -> None:
        """As the port says."""
        self.shared.copy(self._path(source), self._path(target))

    def open_write(self, path: str) -> ObjectWriter:
        """As the port says. Only staged files are streamed."""
        return self.shared.open_write(self._path(path))

    def open_read(self, path: str) -> BinaryIO:
        """As the port says."""
        return self.shared.open_read(self._path(path))

    def uri(self, path: str) -> str:
        """As the port says."""
        return self.shared.uri(self._path(path))

    def now_ms(self) -> int:
        """As the port says."""
        return self.shared.now_ms()

    def sweep_temporary(self) -> int:
        """As the port says."""
        return self.shared.sweep_temporary()
