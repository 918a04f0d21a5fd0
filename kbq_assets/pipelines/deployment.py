"""One configured KBQ: settings, topics and ports. A port opens when it is first used.

The extractor, the loader, the observer and the operator share a deployment. `definitions.py` opens the ports.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from kbq_assets.core.config.roles import Role
from kbq_assets.core.config.settings import Settings
from kbq_assets.pipelines.backup.area import BackupArea
from kbq_assets.pipelines.catalog.source_list import SourceList
from kbq_assets.pipelines.loading.register_warehouses import register
from kbq_assets.pipelines.protocol.state_cache import StateCache
from kbq_assets.pipelines.protocol.warehouse_store import WarehouseStore
from kbq_assets.ports.clock import Clock
from kbq_assets.ports.kafka import OffsetReader
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.warehouse import Warehouse

if TYPE_CHECKING:
    from kbq_assets.pipelines.loading.load_blocks import LoadBlocks

_LOGGER: Final = logging.getLogger("kbq.staging")


@dataclass(frozen=True)
class Deployment:
    """Settings, topics and lazily opened ports.

    Extraction and the operator's topic commands use ``store``. Loading, cleaning and the table commands use
    ``load_store``: the same objects, read with the loader's credentials. ``examine_staging`` returns warnings and
    raises ConfigurationError if staged data would not be safe.
    """

    settings: Settings
    clock: Clock
    sources: SourceList
    open_store: Callable[[], ObjectStore]
    open_load_store: Callable[[], ObjectStore]
    open_offsets: Callable[[], OffsetReader]
    open_warehouse: Callable[[], Warehouse]
    examine_staging: Callable[[Role], Iterable[str]]
    open_backup: Callable[[str, Role], ObjectStore]

    @cached_property
    def store(self) -> ObjectStore:
        """Staged files and state, with the extraction's credentials."""
        return WarehouseStore(self.open_store(), self.settings.warehouse_area)

    @cached_property
    def load_store(self) -> ObjectStore:
        """Staged files and state, with the loader's credentials."""
        return WarehouseStore(self.open_load_store(), self.settings.warehouse_area)

    def backup_area(self, area: str, role: Role = Role.EXTRACT) -> BackupArea:
        """The backups of an area (core/backup/areas.py), with the credentials of a role."""
        if (area, role) not in self._areas:
            self._areas[area, role] = BackupArea(self.open_backup(area, role), area)
        return self._areas[area, role]

    @cached_property
    def _areas(self) -> dict[tuple[str, Role], BackupArea]:
        return {}

    @cached_property
    def offsets(self) -> OffsetReader:
        return self.open_offsets()

    @cached_property
    def warehouse(self) -> Warehouse:
        return self.open_warehouse()

    @cached_property
    def load_cache(self) -> StateCache:
        """Parsed state objects: a sensor that polls every minute reads only what has changed."""
        return StateCache(self.load_store)

    def cache(self, role: Role) -> StateCache:
        """Parsed state objects, read with the credentials of a role."""
        return self.load_cache if role is Role.LOAD else self._extract_cache

    @cached_property
    def _extract_cache(self) -> StateCache:
        return StateCache(self.store)

    def register_warehouses(self) -> None:
        """List the warehouses in both registries before anything is committed for them. Raises ConfigurationError if
        KBQ_WAREHOUSE contradicts the registries."""
        register(self.settings.other_warehouses, lambda: self.store, lambda: self.load_store)

    @cached_property
    def blocks(self) -> LoadBlocks:
        """Finds the topics whose files wait for a check. Each call uses the options then in force."""
        from kbq_assets.pipelines.loading.load_blocks import LoadBlocks  # only for loads

        return LoadBlocks(self.sources.select, self.sources.unknown)

    def check_staging(self, role: Role) -> None:
        """Log warnings about the staging area, once per process and role. Raises ConfigurationError if it is unsafe."""
        if role not in self._checked:
            for warning in self.examine_staging(role):
                _LOGGER.warning("%s", warning)
            self._checked.add(role)

    @cached_property
    def _checked(self) -> set[Role]:
        return set()
