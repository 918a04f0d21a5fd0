"""Lists the objects of a directory tree, with paths ordered as plain strings: 'a-b' < 'a/b' < 'a0'."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from kbq_assets.adapters.object_paths import is_path
from kbq_assets.ports.object_store import ObjectEntry

#: Some file systems (btrfs, older tmpfs) move an entry if a file is renamed onto it, so a scan may miss it.
_SCANS: Final = 3


def list_objects(root: str, prefix: str, start_after: str, every: bool = False) -> Iterator[ObjectEntry]:
    """Objects below ``root`` with this path prefix, beginning after ``start_after``. With ``every``, they include names
    that stores do not accept, and links that lead to no file."""
    for path in list_paths(root, prefix, start_after, every):
        if (entry := _entry(root + path, path)) is not None:
            yield entry


def list_paths(root: str, prefix: str, start_after: str, every: bool = False) -> Iterator[str]:
    """Paths of the objects that `list_objects` has, from the folders alone."""
    folder = prefix[: prefix.rfind("/") + 1]
    found = _walk(root, folder, prefix, start_after, every)
    return found if every else filter(is_path, found)


def _walk(root: str, folder: str, prefix: str, start_after: str, every: bool) -> Iterator[str]:
    for path in _sorted_paths(root, folder, prefix, start_after, every):
        if path.endswith("/"):
            yield from _walk(root, path, prefix, start_after, every)
        else:
            yield path


def _sorted_paths(root: str, folder: str, prefix: str, start_after: str, every: bool) -> list[str]:
    """Paths of a folder's files and subfolders (ending with '/') that may lead to requested objects."""
    return sorted(
        path
        for path in _scan(root, folder, every)
        if path.startswith(prefix) and not path.startswith(".")
        if path > start_after or (path.endswith("/") and start_after.startswith(path))
    )


def _scan(root: str, folder: str, every: bool) -> set[str]:
    """Paths of a folder's files (with ``every``, of all links too), and of its folders (with '/' at the end), except
    the store's own; scans again if the folder changed meanwhile."""
    found: set[str] = set()
    for _ in range(_SCANS):
        try:
            before = os.stat(root + folder).st_mtime_ns
            with os.scandir(root + folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        found.add(f"{folder}{entry.name}/")
                    elif (every and entry.is_symlink()) or entry.is_file():
                        found.add(folder + entry.name)
            if os.stat(root + folder).st_mtime_ns == before:
                break
        except (FileNotFoundError, NotADirectoryError):
            break
    return found


def _entry(file: str, path: str) -> ObjectEntry | None:
    leads_nowhere = os.path.islink(file) and not os.path.isfile(file)
    try:
        status = os.lstat(file) if leads_nowhere else os.stat(file)
    except (FileNotFoundError, NotADirectoryError):
        return None  # deleted since the scan
    return ObjectEntry(path, status.st_size, status.st_mtime_ns // 1_000_000, status.st_mtime_ns)
