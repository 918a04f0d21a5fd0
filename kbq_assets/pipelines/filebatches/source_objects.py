"""Reads the source: control objects in one listing, and the files of a batch when it is entered."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from kbq_assets.core.errors import ConfigurationError, NotFound
from kbq_assets.core.filebatches.discovery import (
    FoundBatch,
    ListedObject,
    SourceListing,
    files_of,
    find_batches,
)
from kbq_assets.ports.object_store import ObjectEntry, ObjectStore

#: Largest size of a configuration, in bytes.
_MOST_BYTES: Final = 1 << 20


class BatchObjects(NamedTuple):
    """The files of a batch, and the paths of all other objects below its directory."""

    files: tuple[ListedObject, ...]
    others: tuple[str, ...]


class FileSource:
    """A bucket or folder of batches. ``success`` is the name of success objects; ``steering`` has the names of all
    control objects. Configurations are cached by generation."""

    def __init__(self, store: ObjectStore, success: str, steering: frozenset[str]) -> None:
        self.store = store
        self.success = success
        self._steering = steering
        self._texts: dict[tuple[str, int], bytes] = {}

    def listing(self) -> SourceListing:
        """A listing of the source. Raises Unavailable."""
        signs = self._steering - {self.success}
        return find_batches(map(_listed, self.store.list("")), self.success, signs)

    def read(self, listed: ListedObject) -> bytes:
        """A configuration's content. Raises ConfigurationError if it is large, NotFound, Unavailable."""
        if listed.size > _MOST_BYTES:
            raise ConfigurationError(
                f"{listed.path} has more than {_MOST_BYTES >> 20} MB", next_step="shorten it"
            )
        key = listed.path, listed.generation
        if key not in self._texts:
            found = self.store.get(listed.path)
            if found.generation != listed.generation:
                raise NotFound(f"{listed.path} was replaced meanwhile", next_step="the next run reads it")
            self._texts[key] = found.data
        return self._texts[key]

    def check(self, batch: FoundBatch) -> None:
        """Raise InvalidName for a directory whose objects KBQ cannot read."""
        self.store.uri(self._success_of(batch))

    def _success_of(self, batch: FoundBatch) -> str:
        return f"{batch.path}/{self.success}" if batch.path else self.success

    def files(self, batch: FoundBatch, listing: SourceListing) -> BatchObjects | None:
        """The current objects of a batch; None if its success object has changed. Raises Unavailable."""
        objects = [_listed(each) for each in self.store.list(f"{batch.path}/" if batch.path else "")]
        success = self._success_of(batch)
        if not any(each.path == success and each.generation == batch.generation for each in objects):
            return None
        files = files_of(batch.path, objects, listing.batches, self._steering)
        own = {each.path for each in files}
        return BatchObjects(files, tuple(each.path for each in objects if each.path not in own))

    def current(self, folder: str, paths: Collection[str]) -> dict[str, int]:
        """The current generations of ``paths`` that exist below a directory. Raises Unavailable."""
        listed = self.store.list(f"{folder}/" if folder else "")
        return {each.path: each.generation for each in listed if each.path in paths}


def _listed(entry: ObjectEntry) -> ListedObject:
    return ListedObject(entry.path, entry.size, entry.generation, entry.updated_ms)
