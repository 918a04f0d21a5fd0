"""Opens a warehouse's part in replays."""

from __future__ import annotations

from kbq_assets.core.config.locations import DuckDbFile, WarehousePlace
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.ports.replay import ReplayTables


def open_replay_tables(place: WarehousePlace) -> ReplayTables:
    """The tables of a warehouse, as replays need them. Raises ConfigurationError."""
    if isinstance(place, DuckDbFile):
        from kbq_assets.adapters.duckdb.replay import DuckDbReplayTables

        return DuckDbReplayTables(place.path)
    raise ConfigurationError(
        "replays are built for DuckDB alone so far", next_step="kbq reset reads a topic again in a new epoch"
    )
