"""Whether the staging area's place is safe for data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kbq_assets.core.config.google_permissions import Role
from kbq_assets.core.config.locations import Bucket
from kbq_assets.core.config.settings import Settings

if TYPE_CHECKING:
    from kbq_assets.adapters.google.clients import StorageClient


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
