"""Opens the DuckDB file of a staging area."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kbq_assets.adapters.duckdb.warehouse import DuckDbWarehouse
from kbq_assets.core.config.locations import Folder
from kbq_assets.core.config.settings import Settings
from kbq_assets.ports.object_store import ObjectStore


def open_duckdb(path: Path, settings: Settings, open_store: Callable[[], ObjectStore]) -> DuckDbWarehouse:
    """The warehouse at ``path``. It reads a local staging area's files itself, and a bucket's through the store."""
    if isinstance(settings.staging, Folder):
        return DuckDbWarehouse(path)
    store, root = open_store(), settings.staging_url.removesuffix("/") + "/"
    return DuckDbWarehouse(path, open_uri=lambda uri: store.open_read(uri.removeprefix(root)))
