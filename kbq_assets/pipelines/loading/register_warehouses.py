"""Registers the warehouses after the first, before anything is committed for them (PROTOCOL W1)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.loading.file_warehouses import ACTIVE, REMOVED
from kbq_assets.core.loading.table_registry import TableRegistry
from kbq_assets.core.protocol.names import TABLE_REGISTRY, TOPIC_REGISTRY
from kbq_assets.core.protocol.topic_registry import TopicRegistry
from kbq_assets.pipelines.protocol import state
from kbq_assets.pipelines.protocol.outages import everything_waits_for
from kbq_assets.pipelines.protocol.warehouse_store import WarehouseStore
from kbq_assets.ports.object_store import ObjectStore


def register(
    names: Collection[str], open_store: Callable[[], ObjectStore], open_load_store: Callable[[], ObjectStore]
) -> None:
    """List ``names`` in both registries, the tables' registry first, so that older releases refuse the staging area.
    Writes nothing if the names are listed already.

    Raises ConfigurationError for the name of a removed warehouse, or if a registered one is missing from ``names``.
    """
    store = WarehouseStore.of(open_store())
    with everything_waits_for(TABLE_REGISTRY):
        tables = state.table_registry(store).warehouses
    with everything_waits_for(TOPIC_REGISTRY):
        topics = state.topic_registry(store).warehouses
    _check(names, tables)
    if not set(names) <= tables.keys():
        state.set_warehouses(
            WarehouseStore.of(open_load_store()), TableRegistry, dict.fromkeys(names, ACTIVE)
        )
    if not set(names) <= topics.keys():
        state.set_warehouses(store, TopicRegistry, dict.fromkeys(names, ACTIVE))


def _check(names: Collection[str], known: Mapping[str, str]) -> None:
    for name in names:
        if known.get(name) == REMOVED:
            raise ConfigurationError(
                f"warehouse {name} was removed, and its name is not used again",
                next_step="give the warehouse another name in KBQ_WAREHOUSE",
            )
    for name, status in known.items():
        if status == ACTIVE and name not in names:
            raise ConfigurationError(
                f"KBQ_WAREHOUSE does not name {name} after its first warehouse, but staged files may wait for it",
                next_step=f"name it again, or give up what waits for it: kbq warehouse remove {name}",
            )
