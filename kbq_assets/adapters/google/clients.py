"""Google's own clients with configured credentials and endpoint, for the doctor and for users' assets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kbq_assets.adapters.google.auth import GoogleAccess, google_credentials
from kbq_assets.core.config.locations import BigQueryProject
from kbq_assets.core.config.roles import Role

if TYPE_CHECKING:  # BigQuery's client imports pandas, so each client is imported only if it is needed
    from google.cloud.bigquery import Client as BigQueryClient
    from google.cloud.storage import Client as StorageClient

__all__ = ["BigQueryClient", "GoogleClients", "StorageClient", "bigquery_client", "storage_client"]


@dataclass(frozen=True)
class GoogleClients:
    """Factories of clients that the caller configured, such as Dagster's resources."""

    storage: Callable[[Role], StorageClient]
    bigquery: Callable[[], BigQueryClient]


def storage_client(access: GoogleAccess, project: str | None = None) -> StorageClient:
    """A Cloud Storage client. ``project`` matters only for calls about buckets. Raises ConfigurationError."""
    from google.cloud.storage import Client

    return Client(project=project, credentials=google_credentials(access), client_options=_options(access))


def bigquery_client(access: GoogleAccess, place: BigQueryProject) -> BigQueryClient:
    """A BigQuery client for a project. Raises ConfigurationError."""
    from google.cloud.bigquery import Client

    return Client(
        project=place.project,
        credentials=google_credentials(access),
        location=place.location,
        client_options=_options(access),
    )


def _options(access: GoogleAccess) -> dict[str, Any] | None:
    return {"api_endpoint": access.endpoint} if access.endpoint else None
