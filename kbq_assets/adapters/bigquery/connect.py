"""`bigquery://project?location=EU` to a warehouse."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qsl, urlsplit

import requests.adapters
from google.cloud import bigquery

from kbq_assets.adapters.bigquery.warehouse import BigQueryWarehouse
from kbq_assets.adapters.google_auth import GoogleAccess, google_credentials
from kbq_assets.core.errors import ConfigurationError

#: BigQuery's own default.
DEFAULT_LOCATION: Final = "US"
#: Older projects have a domain before their id.
_PROJECT: Final = re.compile(r"([a-z0-9.-]+:)?[a-z][a-z0-9-]*[a-z0-9]")
_LOCATION: Final = re.compile(r"[A-Za-z0-9-]+")
#: Tables are loaded side by side; a connection that finds no room is closed after its call.
_CONNECTIONS: Final = 32
_NEXT: Final = "write bigquery://project?location=EU"


def open_bigquery(url: str, access: GoogleAccess) -> BigQueryWarehouse:
    """The warehouse of a URL. ``location`` is where jobs run and datasets are created. Raises ConfigurationError."""
    project, location = parse_url(url)
    client = bigquery.Client(
        project=project,
        credentials=google_credentials(access),
        location=location,
        client_options={"api_endpoint": access.endpoint} if access.endpoint else None,
    )
    for scheme in ("http://", "https://"):
        client._http.mount(scheme, requests.adapters.HTTPAdapter(pool_maxsize=_CONNECTIONS))
    return BigQueryWarehouse(client, project, location)


def parse_url(url: str) -> tuple[str, str]:
    """Project and location. Raises ConfigurationError."""
    parts = urlsplit(url)
    if parts.scheme != "bigquery" or not _PROJECT.fullmatch(parts.netloc) or parts.path not in ("", "/"):
        raise ConfigurationError(f"{url!r} is not a BigQuery warehouse", next_step=_NEXT)
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    options = dict(pairs)
    unknown = sorted(options.keys() - {"location"})
    location = options.get("location", DEFAULT_LOCATION)
    if unknown or parts.fragment or len(pairs) > 1 or not _LOCATION.fullmatch(location):
        wrong = f"unknown option {unknown[0]!r}" if unknown else f"location {location!r}"
        raise ConfigurationError(f"warehouse {url!r}: {wrong}", next_step=_NEXT)
    return parts.netloc, location
