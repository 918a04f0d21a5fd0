"""Lists the objects of a directory tree, with paths ordered as plain strings: 'a-b' < 'a/b' < 'a0'."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Final

from kbq_assets.adapters.object_paths import is_path
from kbq_assets.ports.object_store import ObjectEntry

#: Some file systems (btrfs, older tmpfs) move an entry if a file is renamed onto it, so a scan may miss it.
_SCANS: Final = 3


def list_objects(
    root: str, prefix: str, start_after: str, is_listed: Callable[[str], bool] = is_path
) -> Iterator[ObjectEntry]:
    """Objects below ``root`` with this path prefix, beginning after ``start_after``."""
    for path in list_paths(root, prefix, start_after, is_listed):
        if (entry := _entry(root, path)) is not None:
            yield entry


def list_paths(
    root: str, prefix: str, start_after: str, is_listed: Callable[[str], bool] = is_path
) -> Iterator[str]:
    """Paths of the objects that `list_objects` has, from the folders alone."""
    folder = prefix[: prefix.rfind("/") + 1]
    return filter(is_listed, _walk(root, folder, prefix, start_after))


def _walk(root: str, folder: str, prefix: str, start_after: str) -> Iterator[str]:
    for path in _sorted_paths(root, folder, prefix, start_after):
        if path.endswith("/"):
            yield from _walk(root, path, prefix, start_after)
        else:
            yield path


def _sorted_paths(root: str, folder: str, prefix: str, start_after: str) -> list[str]:
    """Paths of a folder's files and subfolders (ending with '/') that may lead to requested objects."""
    return sorted(
        path
        for path in _scan(root, folder)
        if path.startswith(prefix) and not path.startswith(".")
        if path > start_after or (path.endswith("/") and start_after.startswith(path))
    )


def _scan(root: str, folder: str) -> set[str]:
    """Paths of a folder's files, and of its folders (with '/' at the end), except the store's own; scans again if the
    folder changed meanwhile."""
    found: set[str] = set()
    for _ in range(_SCANS):
        try:
            before = os.stat(root + folder).st_mtime_ns
            with os.scandir(root + folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        found.add(f"{folder}{entry.name}/")
                    elif entry.is_file():
                        found.add(folder + entry.name)
            if os.stat(root + folder).st_mtime_ns == before:
                break
        except (FileNotFoundError, NotADirectoryError):
            break
    return found


def _entry(root: str, path: str) -> ObjectEntry | None:
    try:
        status = os.stat(root + path)
    except (FileNotFoundError, NotADirectoryError):
        return None  # deleted since the scan
    return ObjectEntry(path, status.st_size, status.st_mtime_ns // 1_000_000, status.st_mtime_ns)
