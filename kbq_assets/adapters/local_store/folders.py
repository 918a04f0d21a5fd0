"""Folders of the local store: created on demand, synced to disk, removed when empty."""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kbq_assets.core.errors import UnknownOutcome


@dataclass(frozen=True)
class Folders:
    """The folders below ``root``. ``durable=False`` syncs nothing."""

    root: str
    durable: bool

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
        """Make a new or removed name durable. Raises UnknownOutcome if that fails: the change is visible, but may not
        survive a power failure."""
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

    def new_file(self, file: str, temporary: Path) -> int | None:
        """Create an empty file and its folders. Returns its generation, or None if the name is taken. An empty file is
        complete as soon as it has a name, so it needs no temporary file. Raises OSError, also if ``temporary`` is
        gone."""
        while True:
            generation = time.time_ns()
            try:
                descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
                break
            except FileExistsError:
                return None
            except FileNotFoundError:  # no folder yet, or a deletion has just removed it
                os.stat(temporary)
                self.make(os.path.dirname(file))
        try:
            os.utime(descriptor, ns=(generation, generation))
        finally:
            os.close(descriptor)
        return generation

    def finish_deletions(self, deleted: Mapping[str, Sequence[str]]) -> dict[str, Exception]:
        """Remove folders that are now empty, and make all deletions durable with one sync per remaining folder.
        ``deleted`` has paths by folder. Returns the failures by path."""
        remaining: dict[str, list[str]] = defaultdict(list)
        for folder, paths in deleted.items():
            remaining[self._remove_empty(folder)].extend(paths)
        return self.sync_each("delete", remaining)

    def sync_each(self, operation: str, changed: Mapping[str, Sequence[str]]) -> dict[str, Exception]:
        """Make new or removed names durable with one sync per folder. ``changed`` has paths by folder. Returns the
        failures by path."""
        failures: dict[str, Exception] = {}
        for folder, paths in changed.items():
            try:
                self.sync(operation, folder, f"{self.root}/{folder}")
            except UnknownOutcome as error:
                failures |= dict.fromkeys(paths, error)
        return failures

    def _remove_empty(self, folder: str) -> str:
        """Remove a folder and its parents while they are empty, except the top-level folders, which people know.
        Returns the folder that remains."""
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
    """Sync a folder's names to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
