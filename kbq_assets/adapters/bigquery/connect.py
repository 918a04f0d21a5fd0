"""Opens the warehouse of `bigquery://project?location=EU`."""

from __future__ import annotations

from typing import Final

from google.cloud import bigquery

from kbq_assets.adapters.bigquery.warehouse import BigQueryWarehouse
from kbq_assets.adapters.google.auth import GoogleAccess, google_credentials
from kbq_assets.adapters.google.sessions import send_once
from kbq_assets.core.config.locations import parse_bigquery

#: Connections kept open, since tables load in parallel. Further connections close after their call.
_CONNECTIONS: Final = 32


def open_bigquery(url: str, access: GoogleAccess, client: bigquery.Client | None = None) -> BigQueryWarehouse:
    """The warehouse of a URL, with ``client`` or a new client for ``access``. Raises ConfigurationError.

    Jobs run and datasets are created in the URL's location.
    """
    place = parse_bigquery(url)
    return BigQueryWarehouse(
        open_client(url, access, client),
        place.project,
        place.location,
        datasets=place.datasets,
        kms_key=access.kms_key,
    )


def open_client(url: str, access: GoogleAccess, client: bigquery.Client | None = None) -> bigquery.Client:
    """A client for a URL's project, or the given client, set up to send each request once. Raises
    ConfigurationError."""
    place = parse_bigquery(url)
    if client is None:
        client = bigquery.Client(
            project=place.project,
            credentials=google_credentials(access),
            location=place.location,
            client_options={"api_endpoint": access.endpoint} if access.endpoint else None,
        )
    # A repeated insert would report its own job as a duplicate.
    send_once(client._http, _CONNECTIONS)
    return client
