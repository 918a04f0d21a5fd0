"""Where tasks write backups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kbq_assets.core.config.backup import ZSTD_LEVEL
from kbq_assets.ports.object_store import ObjectStore

if TYPE_CHECKING:  # the driver opens places too, and must not load the compression libraries
    from kbq_assets.wire.files.codec import Codec


@dataclass(frozen=True)
class BackupPlace:
    """The store of a backup, and the compression of its files."""

    store: ObjectStore
    codec: Codec = "zstandard"
    level: int = ZSTD_LEVEL
