"""Sizes and checksums of a job's files as the store has them now (PROTOCOL L11).

Every unit of extraction stages into its own folder. So a small batch lists its folders, and a batch from many folders
lists the staging area once for all tables of a view: never a request per file.
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

    A batch of more than ``folders`` folders lists all of staging.
    """

    def __init__(self, store: ObjectStore, folders: float = _FOLDERS) -> None:
        self._store = store
        self._folders = folders
        self._lock = threading.Lock()
        self._listed: set[str] = set()
        self._found: dict[str, tuple[int, str]] = {}

    def unsound(self, files: Iterable[StagedFile]) -> Unsound:
        """Files that are gone or differ from the commit's entries. Raises Unavailable.

        An object that was listed before may be newer than the listing: it counts as missing only if its folder,
        listed again, lacks it.
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
