"""The inside of a compaction task, which rewrites one group of files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbq_assets.core.compaction.model import RewriteTask, Rewritten
from kbq_assets.core.config.locations import LakeAddress
from kbq_assets.core.config.settings import Settings
from kbq_assets.core.errors import ConfigurationError


@dataclass(frozen=True)
class RewriteOnWorker:
    """The callable that is sent to workers: the lake's address, without secrets. If the lake has a named catalog,
    workers read pyiceberg's configuration themselves."""

    place: LakeAddress
    home: Path

    @staticmethod
    def of(settings: Settings) -> RewriteOnWorker:
        """For the lake of the settings. Raises ConfigurationError if the warehouse is not a lake."""
        place = settings.warehouse
        if not isinstance(place, LakeAddress):
            raise ConfigurationError(
                f"{settings.warehouse_url} is not a lake", next_step="compact an iceberg: warehouse"
            )
        return RewriteOnWorker(place, settings.home)

    def __call__(self, task: RewriteTask) -> Rewritten:
        """Rewrite one group."""
        from kbq_assets.adapters.iceberg.rewrite import rewrite

        return rewrite(task, self._properties())

    def _properties(self) -> Mapping[str, Any]:
        from kbq_assets.adapters.iceberg.connect import configured

        return configured(self.place.catalog) if self.place.catalog else {}
