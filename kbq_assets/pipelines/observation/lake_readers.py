"""After a load, lets BigQuery's tables of the lake read the new rows (core/catalog/lake_tables.py).

Only readers depend on this. A table that could not be moved causes a notice and is tried again after each load.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeAlias

from kbq_assets.core.config.locations import LakeAddress
from kbq_assets.core.errors import KbqError
from kbq_assets.core.observation.lake_readers import PATH, LakeReaders
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.pipelines.deployment import Deployment
from kbq_assets.pipelines.protocol import state
from kbq_assets.ports.lake_tables import MovesReaders
from kbq_assets.ports.object_store import ObjectStore

OpenReaders: TypeAlias = Callable[[], MovesReaders]
#: Time limits: of a load, and of a sensor's tick, which Dagster ends after a minute.
SECONDS: Final = 60
TICK_SECONDS: Final = 20
_LOGGER: Final = logging.getLogger("kbq.lake")


def follow_lake(
    deployment: Deployment,
    open_readers: OpenReaders | None,
    changed: Collection[TableReference],
    seconds: int = SECONDS,
) -> None:
    """Move the readers of ``changed`` tables, and of those that were already behind, if the warehouse is a lake and
    there is a catalog. Starts no further table after ``seconds``. Errors are logged."""
    settings, clock = deployment.settings, deployment.clock
    is_asked = isinstance(settings.warehouse, LakeAddress) and settings.catalog.source_topics.is_dir()
    if open_readers is None or not is_asked:
        return
    store, until = deployment.load_store, clock.monotonic() + seconds
    try:
        found = state.find(store, LakeReaders, PATH)
        wanted = {*changed, *map(TableReference.parse, found.value.behind if found else ())}
        if not wanted:
            return
        try:
            why = open_readers().move_readers(wanted, lambda: clock.monotonic() >= until)
        except KbqError as error:
            why = dict.fromkeys(wanted, error.message)
        for table, reason in sorted(why.items()):
            _LOGGER.warning("BigQuery still reads the old rows of %s: %s", table, reason)
        if found is None and not why:
            return
        if found is None:
            state.create(store, PATH, LakeReaders())
        state.change(store, LakeReaders, PATH, lambda now: now.after(map(str, wanted), why))
    except KbqError as error:
        _LOGGER.warning("BigQuery's tables of the lake were not updated: %s", error.message)


def readers_behind(store: ObjectStore) -> Mapping[str, str]:
    """The reasons why BigQuery's tables are behind, by the lake's table. Raises Unavailable."""
    found = state.find(store, LakeReaders, PATH)
    return found.value.behind if found else {}
