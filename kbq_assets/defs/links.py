"""Links to the bucket and the tables in Google Cloud's console. Local servers have none."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, urlencode, urlsplit

import dagster as dg

from kbq_assets.core.config.locations import BigQueryProject, Bucket
from kbq_assets.core.config.settings import Settings
from kbq_assets.core.protocol.names import TableReference

CONSOLE: Final = "https://console.cloud.google.com"

Links = dict[str, dg.MetadataValue]


def staging_links(settings: Settings) -> Links:
    """The staging area's folder in its bucket."""
    place = settings.staging
    if not isinstance(place, Bucket) or not _is_googles(settings.google.gcs_endpoint):
        return {}
    return {"console": _link(f"storage/browser/{quote(f'{place.name}/{place.prefix}')}")}


def warehouse_links(settings: Settings) -> Links:
    """BigQuery in the warehouse's project."""
    return _bigquery(settings, {})


def table_links(settings: Settings, table: TableReference) -> Links:
    """A table's page: schema, details, preview."""
    return _bigquery(settings, {"d": table.dataset, "t": table.table, "page": "table"})


def _bigquery(settings: Settings, shown: dict[str, str]) -> Links:
    place = settings.warehouse
    if not isinstance(place, BigQueryProject) or not _is_googles(settings.google.bigquery_endpoint):
        return {}
    table = {"p": place.data_project, **shown} if shown else {}
    return {"console": _link("bigquery?" + urlencode({"project": place.project, **table}))}


def _link(page: str) -> dg.MetadataValue:
    return dg.MetadataValue.url(f"{CONSOLE}/{page}")


def _is_googles(endpoint: str) -> bool:
    """Whether an endpoint belongs to Google. Private endpoints do."""
    return not endpoint or (urlsplit(endpoint).hostname or "").endswith(".googleapis.com")
