"""Opens a warehouse's `FileLoads`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbq_assets.core.config.locations import BigQueryProject, Bucket, DuckDbFile, parse_staging
from kbq_assets.core.config.settings import Settings
from kbq_assets.core.errors import ConfigurationError
from kbq_assets.ports.file_loads import FileLoads
from kbq_assets.ports.object_store import ObjectStore

if TYPE_CHECKING:
    from kbq_assets.adapters.gcs.store import GcsObjectStore
    from kbq_assets.adapters.google.clients import GoogleClients
    from kbq_assets.adapters.local_store import LocalObjectStore


def with_every_name(source: LocalObjectStore | GcsObjectStore) -> ObjectStore:
    """A source whose listings have every object. Stores leave out names that they do not accept, and links that lead to
    no file, but a batch must not be applied without one of its files."""
    source.lists_every = True
    return source


def open_file_loads(
    settings: Settings, source: ObjectStore, clients: GoogleClients | None = None
) -> FileLoads:
    """The `FileLoads` for the warehouse of the settings. Raises ConfigurationError."""
    place = settings.warehouse
    if isinstance(place, DuckDbFile):
        from kbq_assets.adapters.filebatches.duckdb import DuckDbFileLoads

        return DuckDbFileLoads(place.path, source)
    if not isinstance(place, BigQueryProject):
        raise ConfigurationError(
            "batches of files are not supported for Iceberg yet", next_step="use DuckDB or BigQuery"
        )
    if not isinstance(parse_staging(settings.extras.files.location), Bucket):
        raise ConfigurationError(
            "BigQuery cannot load files from a local folder", next_step="set KBQ_FILES=gs://bucket/prefix"
        )
    from kbq_assets.adapters.bigquery.connect import open_client
    from kbq_assets.adapters.filebatches.bigquery import BigQueryFileLoads
    from kbq_assets.adapters.google.auth import GoogleAccess

    google = settings.google
    access = GoogleAccess(google.load_credentials, google.bigquery_endpoint, google.kms_key)
    client = open_client(settings.warehouse_url, access, clients.bigquery() if clients else None)
    return BigQueryFileLoads(client, place.data_project, google.kms_key)
