"""Checks the sizes and checksums of a job's files against the store (PROTOCOL L11).

Every unit of extraction stages into its own folder. So a small batch lists its folders, and a batch from many folders
lists the staging area once for all tables of a view. No file costs a request of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final

from kbq_assets.core.loading.verification import Unsound, unsound
from kbq_assets.core.protocol.commits import StagedFile
from kbq_assets.core.protocol.names import STAGING
from kbq_assets.pipelines.threads import parallel
from kbq_assets.ports.object_store import ObjectStore

_FOLDERS: Final = 4


class StagedContents:
    """Staged objects, listed at most once per folder. Threads may share it. Make one per view.

    For a batch from more than ``folders`` folders, the whole staging area is listed.
    """

    def __init__(self, store: ObjectStore, folders: float = _FOLDERS) -> None:
        self._store = store
        self._folders = folders
        self._lock = threading.Lock()
        self._listed: set[str] = set()
        self._found: dict[str, tuple[int, str]] = {}

    def unsound(self, files: Iterable[StagedFile]) -> Unsound:
        """Files that are gone or differ from the commit's entries. Raises Unavailable.

        A file may be newer than an earlier listing of its folder. So it counts as missing only if a new listing of the
        folder lacks it too.
        """
        files = list(files)
        with self._lock:
            self._list({_folder(file) for file in files} - self._listed)
            late = {_folder(file) for file in files if file.path not in self._found}
            self._list(late, whole=False)
            return unsound(files, self._found)

    def _list(self, folders: set[str], *, whole: bool = True) -> None:
        if STAGING in self._listed and whole:
            return
        prefixes = {STAGING} if whole and len(folders) > self._folders else folders
        for listing in parallel(lambda prefix: list(self._store.checksums(prefix)), sorted(prefixes)):
            self._found.update({stored.path: (stored.size, stored.crc32c) for stored in listing})
        self._listed |= prefixes


def _folder(file: StagedFile) -> str:
    return file.path[: file.path.rindex("/") + 1]
