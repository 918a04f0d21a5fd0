"""A backup's store as the pipelines see it: commits and manifests have the same names as those of tables (PROTOCOL
B1)."""

from __future__ import annotations

from kbq_assets.core.backup.areas import REGULAR
from kbq_assets.core.backup.backup_names import BACKUP, STATE, state_path
from kbq_assets.pipelines.protocol.mapped_store import MappedStore
from kbq_assets.ports.object_store import ObjectStore


class BackupArea(MappedStore):
    """An ObjectStore over the backup's location. Files keep their names, and state objects are next to them. ``name``
    is the area's name in core/backup/areas.py."""

    def __init__(self, shared: ObjectStore, name: str = REGULAR) -> None:
        super().__init__(shared)
        self.name = name

    def _path(self, path: str) -> str:
        return path if path.startswith(BACKUP) else state_path(path)

    def _own(self, path: str) -> str | None:
        if path.startswith(STATE):
            return path.removeprefix(STATE)
        return path if path.startswith(BACKUP) else None
