"""Folders of the local store: made on demand, synced to the disk, removed when they are empty."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kbq_assets.core.errors import UnknownOutcome


class _Syncs:
    """The syncs of one folder, one at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.begun = self.ended = 0


@dataclass(frozen=True)
class Folders:
    """The folders below ``root``. ``durable=False`` syncs nothing."""

    root: str
    durable: bool
    #: of folders that threads wait for
    _syncs: weakref.WeakValueDictionary[str, _Syncs] = field(default_factory=weakref.WeakValueDictionary)

    def make(self, folder: str) -> None:
        """Create a folder and its parents. Raises OSError."""
        if os.path.isdir(folder):
            return
        parent = os.path.dirname(folder)
        self.make(parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
        if self.durable:
            _sync(parent)

    def sync(self, operation: str, path: str, folder: str) -> None:
        """Make a new or removed name durable. Raises UnknownOutcome: it is visible, but may not survive."""
        try:
            if self.durable:
                _sync(folder)
        except (FileNotFoundError, NotADirectoryError):
            return  # the folder itself is gone
        except OSError as error:
            raise UnknownOutcome(
                f"{operation} {path}: it may not be on the disk: {error.strerror}",
                next_step="check the disk",
            ) from error

    def sync_shared(self, operation: str, path: str, folder: str) -> None:
        """As `sync`, for a name that exists by now: threads that wait for the same folder share a sync."""
        syncs = self._syncs.setdefault(folder, _Syncs())
        needed = syncs.begun + 1  # one that begins from now on
        with syncs.lock:
            if syncs.ended >= needed:
                return
            syncs.begun += 1
            self.sync(operation, path, folder)
            syncs.ended = syncs.begun

    def finish_deletions(self, deleted: Mapping[str, Sequence[str]]) -> dict[str, Exception]:
        """Remove the folders that are empty now, and make all deletions durable by a sync of each folder that remains.
        ``deleted`` are paths by folder; returns the failures."""
        remaining: dict[str, list[str]] = defaultdict(list)
        for folder, paths in deleted.items():
            remaining[self._remove_empty(folder)].extend(paths)
        failures: dict[str, Exception] = {}
        for folder, paths in remaining.items():
            try:
                self.sync("delete", folder, f"{self.root}/{folder}")
            except UnknownOutcome as error:
                failures |= dict.fromkeys(paths, error)
        return failures

    def _remove_empty(self, folder: str) -> str:
        """Remove a folder and those above it while they are empty, except the top-level ones, which people know.
        Returns the one that remains."""
        while "/" in folder:
            try:
                os.rmdir(f"{self.root}/{folder}")
            except FileNotFoundError:
                pass  # somebody else removed it
            except OSError:
                break
            folder = os.path.dirname(folder)
        return folder


def _sync(folder: str) -> None:
    """Write a folder's names to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
