"""A view of an object store under other names: it shows a part of the store as a whole one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import BinaryIO

from kbq_assets.ports.object_store import ObjectEntry, ObjectStore, ObjectWriter, StoredFile, StoredObject


class MappedStore(ABC):
    """An ObjectStore over ``shared``, where its objects have other paths. Objects outside the view are not listed."""

    def __init__(self, shared: ObjectStore) -> None:
        self.shared = shared

    @abstractmethod
    def _path(self, path: str) -> str:
        """The path in ``shared``."""

    @abstractmethod
    def _own(self, path: str) -> str | None:
        """The inverse of `_path`; None for an object outside the view."""

    def get(self, path: str) -> StoredObject:
        return self.shared.get(self._path(path))

    def create(self, path: str, data: bytes) -> int:
        return self.shared.create(self._path(path), data)

    def create_empty(self, paths: Iterable[str]) -> Mapping[str, Exception]:
        own = {self._path(path): path for path in paths}
        return {own[path]: error for path, error in self.shared.create_empty(own).items()}

    def swap(self, path: str, data: bytes, generation: int) -> int:
        return self.shared.swap(self._path(path), data, generation)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectEntry]:
        for entry in self.shared.list(self._path(prefix), start_after and self._path(start_after)):
            if (own := self._own(entry.path)) is not None:
                yield entry if own == entry.path else replace(entry, path=own)

    def paths(self, prefix: str, start_after: str = "") -> Iterator[str]:
        for path in self.shared.paths(self._path(prefix), start_after and self._path(start_after)):
            if (own := self._own(path)) is not None:
                yield own

    def checksums(self, prefix: str) -> Iterator[StoredFile]:
        for stored in self.shared.checksums(self._path(prefix)):
            if (own := self._own(stored.path)) is not None:
                yield stored if own == stored.path else replace(stored, path=own)

    def delete(self, path: str) -> None:
        self.shared.delete(self._path(path))

    def delete_many(self, paths: Iterable[str]) -> Mapping[str, Exception]:
        own = {self._path(path): path for path in paths}
        return {own[path]: error for path, error in self.shared.delete_many(own).items()}

    def copy(self, source: str, target: str) -> None:
        self.shared.copy(self._path(source), self._path(target))

    def open_write(self, path: str) -> ObjectWriter:
        return self.shared.open_write(self._path(path))

    def open_read(self, path: str) -> BinaryIO:
        return self.shared.open_read(self._path(path))

    def uri(self, path: str) -> str:
        return self.shared.uri(self._path(path))

    def now_ms(self) -> int:
        return self.shared.now_ms()

    def sweep_temporary(self) -> int:
        return self.shared.sweep_temporary()
