"""Opens the warehouse of the settings, and its tables for replays. The SDK is imported only when needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kbq_assets.core.config.locations import DuckDbFile, LakeAddress
from kbq_assets.core.config.settings import Settings
from kbq_assets.ports.compaction import OpenRewriter
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.replay import ReplayTables
from kbq_assets.ports.warehouse import Warehouse

if TYPE_CHECKING:
    from kbq_assets.adapters.bigquery import BigQueryWarehouse
    from kbq_assets.adapters.google.clients import GoogleClients


def open_warehouse(
    settings: Settings, open_store: Callable[[], ObjectStore], clients: GoogleClients | None = None
) -> Warehouse:
    """BigQuery, DuckDB or Iceberg, with the loader's credentials. Uses ``clients`` as Google's clients if given."""
    place = settings.warehouse
    if isinstance(place, DuckDbFile):
        from kbq_assets.adapters.duckdb import DuckDbWarehouse
        from kbq_assets.adapters.staging import staged_files

        return DuckDbWarehouse(place.path, open_uri=staged_files(settings, open_store))
    if isinstance(place, LakeAddress):
        from kbq_assets.adapters.iceberg import open_lake
        from kbq_assets.adapters.staging import staged_files

        return open_lake(place, settings.home, staged_files(settings, open_store))
    return _open_bigquery(settings, clients)


def open_replay_tables(
    settings: Settings, open_rewriter: OpenRewriter, clients: GoogleClients | None = None
) -> ReplayTables:
    """The `ReplayTables` of a warehouse, with the loader's credentials. A lake rewrites large files in tasks of
    ``open_rewriter``. Raises ConfigurationError."""
    place = settings.warehouse
    if isinstance(place, DuckDbFile):
        from kbq_assets.adapters.duckdb.replay import DuckDbReplayTables

        return DuckDbReplayTables(place.path)
    if isinstance(place, LakeAddress):
        from kbq_assets.adapters.iceberg.connect import address
        from kbq_assets.adapters.iceberg.lake import IcebergLake
        from kbq_assets.adapters.iceberg.replay import LakeReplayTables

        return LakeReplayTables(IcebergLake(*address(place, settings.home)), open_rewriter)
    return _open_bigquery(settings, clients).replays


def _open_bigquery(settings: Settings, clients: GoogleClients | None) -> BigQueryWarehouse:
    from kbq_assets.adapters.bigquery import open_bigquery
    from kbq_assets.adapters.google.auth import GoogleAccess

    google = settings.google
    access = GoogleAccess(google.load_credentials, google.bigquery_endpoint, google.kms_key)
    return open_bigquery(settings.warehouse_url, access, clients.bigquery() if clients else None)
