"""The staging area: checks that its location is safe for data, and opens its files for warehouses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kbq_assets.core.config.locations import Bucket, Folder
from kbq_assets.core.config.roles import Role
from kbq_assets.core.config.settings import Settings

if TYPE_CHECKING:
    from kbq_assets.adapters.google.clients import GoogleClients, StorageClient
    from kbq_assets.ports.object_store import ObjectStore
    from kbq_assets.wire.arrow.staged import OpenUri


def examine(settings: Settings, role: Role, client: StorageClient | None = None) -> Iterable[str]:
    """Warnings about the staging area. Raises ConfigurationError if staged data would not be safe."""
    google, place = settings.google, settings.staging
    if not isinstance(place, Bucket):
        return ()
    from kbq_assets.adapters.gcs import require_safe_bucket
    from kbq_assets.adapters.google.auth import GoogleAccess
    from kbq_assets.adapters.google.clients import storage_client

    credentials = google.extract_credentials if role is Role.EXTRACT else google.load_credentials
    opened = client or storage_client(GoogleAccess(credentials, google.gcs_endpoint))
    return require_safe_bucket(opened, place.name, place.prefix)


def staging_client(settings: Settings, clients: GoogleClients | None, role: Role) -> StorageClient | None:
    """The client for a staging area in a bucket, if Dagster's resources provide one."""
    return clients.storage(role) if clients and isinstance(settings.staging, Bucket) else None


def staged_files(settings: Settings, open_store: Callable[[], ObjectStore]) -> OpenUri:
    """Opens staged files for a warehouse that KBQ writes itself: directly in a folder, or through a bucket's store."""
    if isinstance(settings.staging, Folder):
        from kbq_assets.wire.arrow.staged import open_file_uri

        return open_file_uri
    store, root = open_store(), settings.staging_url.removesuffix("/") + "/"
    return lambda uri: store.open_read(uri.removeprefix(root))
