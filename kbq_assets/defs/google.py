"""dagster-gcp's resources on the platform's own project, bucket and credentials: for users' downstream assets."""

# Pydantic reads the annotations of fields: no postponed annotations here.

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import dagster as dg
from dagster_gcp import BigQueryResource, GCSResource

from kbq_assets.adapters.google.auth import GoogleAccess
from kbq_assets.core.config.locations import BigQueryProject, Bucket
from kbq_assets.core.config.settings import Settings

#: Resource keys.
BIGQUERY = "bigquery"
GCS = "gcs"


class PlatformBigQuery(BigQueryResource):
    """A client as the loader has it. The credentials are a reference; the secret is read when a client opens."""

    credentials: str = ""
    endpoint: str = ""

    @contextmanager
    def get_client(self) -> Iterator[Any]:
        """A `google.cloud.bigquery.Client`, closed after use."""
        from kbq_assets.adapters.google.clients import bigquery_client

        place = BigQueryProject(self.project or "", self.location or "")
        client = bigquery_client(GoogleAccess(self.credentials, self.endpoint), place)
        try:
            yield client
        finally:
            client.close()


class PlatformGcs(GCSResource):
    """A client as the loader has it."""

    credentials: str = ""
    endpoint: str = ""

    def get_client(self) -> Any:
        """A `google.cloud.storage.Client`."""
        from kbq_assets.adapters.google.clients import storage_client

        return storage_client(GoogleAccess(self.credentials, self.endpoint), self.project)


def google_resources(settings: Settings) -> Mapping[str, dg.ConfigurableResource[Any]]:
    """`bigquery` and `gcs`, as far as the platform is on Google Cloud."""
    google, warehouse = settings.google, settings.warehouse
    found: dict[str, dg.ConfigurableResource[Any]] = {}
    project = warehouse.project if isinstance(warehouse, BigQueryProject) else None
    if isinstance(settings.staging, Bucket):
        found[GCS] = PlatformGcs(
            project=project, credentials=google.load_credentials, endpoint=google.gcs_endpoint
        )
    if isinstance(warehouse, BigQueryProject):
        found[BIGQUERY] = PlatformBigQuery(
            project=project,
            location=warehouse.location,
            credentials=google.load_credentials,
            endpoint=google.bigquery_endpoint,
        )
    return found
