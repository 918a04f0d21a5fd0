"""Opens the warehouse of `bigquery://project?location=EU`."""

from __future__ import annotations

from typing import Final

import requests.adapters
from google.cloud import bigquery

from kbq_assets.adapters.bigquery.warehouse import BigQueryWarehouse
from kbq_assets.adapters.google.auth import GoogleAccess, google_credentials
from kbq_assets.core.config.locations import parse_bigquery

#: Connections kept open: tables load in parallel, and further connections close after their call.
_CONNECTIONS: Final = 32


def open_bigquery(url: str, access: GoogleAccess) -> BigQueryWarehouse:
    """The warehouse of a URL. Jobs run and datasets are created in ``location``. Raises ConfigurationError."""
    place = parse_bigquery(url)
    client = bigquery.Client(
        project=place.project,
        credentials=google_credentials(access),
        location=place.location,
        client_options={"api_endpoint": access.endpoint} if access.endpoint else None,
    )
    for scheme in ("http://", "https://"):
        client._http.mount(scheme, requests.adapters.HTTPAdapter(pool_maxsize=_CONNECTIONS))
    return BigQueryWarehouse(client, place.project, place.location)
