"""Opens a warehouse's part in replays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbq_assets.core.config.locations import DuckDbFile, LakeAddress
from kbq_assets.core.config.settings import Settings
from kbq_assets.ports.compaction import OpenRewriter
from kbq_assets.ports.replay import ReplayTables

if TYPE_CHECKING:
    from kbq_assets.adapters.google.clients import GoogleClients


def open_replay_tables(
    settings: Settings, open_rewriter: OpenRewriter, clients: GoogleClients | None = None
) -> ReplayTables:
    """The tables of a warehouse, as replays need them, with the loader's credentials. A lake writes many bytes again by
    tasks of ``open_rewriter``. Raises ConfigurationError."""
    place = settings.warehouse
    if isinstance(place, DuckDbFile):
        from kbq_assets.adapters.duckdb.replay import DuckDbReplayTables

        return DuckDbReplayTables(place.path)
    if isinstance(place, LakeAddress):
        from kbq_assets.adapters.iceberg.connect import address
        from kbq_assets.adapters.iceberg.lake import IcebergLake
        from kbq_assets.adapters.iceberg.replay import LakeReplayTables

        return LakeReplayTables(IcebergLake(*address(place, settings.home)), open_rewriter)
    from kbq_assets.adapters.bigquery import open_bigquery
    from kbq_assets.adapters.google.auth import GoogleAccess

    google = settings.google
    access = GoogleAccess(google.load_credentials, google.bigquery_endpoint, google.kms_key)
    return open_bigquery(settings.warehouse_url, access, clients.bigquery() if clients else None).replays
