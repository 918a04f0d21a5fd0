"""The hours of a unit whose topic has `order=hour` (PROTOCOL O8)."""

from __future__ import annotations

import functools
from typing import Final

from kbq_assets.core.errors import NotFound, StateError
from kbq_assets.core.extraction.units import Unit
from kbq_assets.core.loading.completeness import HOUR_MS
from kbq_assets.core.protocol import codec
from kbq_assets.core.protocol.commits import Commit
from kbq_assets.core.protocol.names import (
    FIRST_WAREHOUSE,
    TableReference,
    table_state_path,
    warehouse_path,
)
from kbq_assets.core.topics.ordering_options import HOUR, TABLE
from kbq_assets.ports.clock import Clock
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.wire.files.hour_files import UnitHours

#: Later than any hour.
_NO_LATER: Final = 2**62


def hours_of(
    unit: Unit, commit: Commit, store: ObjectStore, clock: Clock, *, again: bool
) -> UnitHours | None:
    """The hour of business time that a partition has reached; None unless the topic has `order=hour`. With ``again``,
    hours do not end windows: a window that is read again ends at the same position as before."""
    ordering = unit.settings.ordering
    if ordering.order != HOUR:
        return None
    reached = commit.partitions[unit.range.topic_partition.partition].watermark.event_ms
    hours = UnitHours(_NO_LATER if again else reached // HOUR_MS, clock.now_ms() // HOUR_MS + 1)
    if again:
        hours.late_before = lambda table: unit.limits.late_before
    elif ordering.late_rows == TABLE:
        hours.late_before = functools.cache(functools.partial(_complete_until, store, unit))
    return hours


def _complete_until(store: ObjectStore, unit: Unit, table: str) -> int:
    """The latest hour up to which the table is complete in any of its warehouses; 0 if it has no state. A damaged state
    stops the table's loads, but no extraction."""
    from kbq_assets.core.loading.table_state import TableState

    found = 0
    for warehouse in unit.settings.destination.warehouses or (FIRST_WAREHOUSE,):
        path = warehouse_path(table_state_path(TableReference.parse(table)), warehouse)
        try:
            found = max(found, codec.loads(TableState, store.get(path).data, path).hours.until)
        except (NotFound, StateError):
            continue
    return found
