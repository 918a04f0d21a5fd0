"""dagster-gcp resources: the Google clients for KBQ's jobs, sensors and checks, and for users' assets.

By default they use the deployment's configuration. To replace one for everything in Dagster, pass it to
`Parts.definitions(resources=...)`.
"""

# No postponed annotations here: Pydantic reads the annotations of fields.

import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any

import dagster as dg
from dagster_gcp import BigQueryResource, GCSResource

from kbq_assets.adapters.google.auth import GoogleAccess
from kbq_assets.adapters.google.clients import GoogleClients
from kbq_assets.core.config.locations import BigQueryProject, Bucket
from kbq_assets.core.config.roles import Role
from kbq_assets.core.config.settings import Settings

#: Resource keys. `GCS_EXTRACT` exists only if extraction has credentials of its own.
BIGQUERY = "bigquery"
GCS = "gcs"
GCS_EXTRACT = "gcs_extract"


class PlatformBigQuery(BigQueryResource):
    """BigQuery clients with the loader's credentials. ``credentials`` is a reference: a client reads the secret when it
    opens."""

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
    """Storage clients with one role's credentials. ``credentials`` is a reference here too."""

    credentials: str = ""
    endpoint: str = ""

    def get_client(self) -> Any:
        """A `google.cloud.storage.Client`."""
        from kbq_assets.adapters.google.clients import storage_client

        return storage_client(GoogleAccess(self.credentials, self.endpoint), self.project)


def google_resources(settings: Settings) -> Mapping[str, dg.ConfigurableResource[Any]]:
    """The `gcs` and `bigquery` resources that a deployment on Google Cloud needs."""
    google, warehouse = settings.google, settings.warehouse
    found: dict[str, dg.ConfigurableResource[Any]] = {}
    project = warehouse.project if isinstance(warehouse, BigQueryProject) else None
    if isinstance(settings.staging, Bucket):
        found[GCS] = PlatformGcs(
            project=project, credentials=google.load_credentials, endpoint=google.gcs_endpoint
        )
        if google.extract_credentials != google.load_credentials:
            found[GCS_EXTRACT] = PlatformGcs(
                project=project, credentials=google.extract_credentials, endpoint=google.gcs_endpoint
            )
    if isinstance(warehouse, BigQueryProject):
        found[BIGQUERY] = PlatformBigQuery(
            project=project,
            location=warehouse.location,
            credentials=google.load_credentials,
            endpoint=google.bigquery_endpoint,
        )
    return found


class _OpenedResources:
    """Clients of resources. Each opens at its first use and stays open for the process."""

    def __init__(self, resources: Mapping[str, Any]) -> None:
        self._resources = resources
        self._open = ExitStack()
        # Close them in order, with this object or at the end of the process; the garbage collector has no order.
        weakref.finalize(self, self._open.close)

    def storage(self, role: Role) -> Any:
        """The storage client for extraction, or for loading and cleaning."""
        key = GCS_EXTRACT if role is Role.EXTRACT and GCS_EXTRACT in self._resources else GCS
        return self._resource(key).get_client()

    def bigquery(self) -> Any:
        """The BigQuery client for loading."""
        return self._bigquery

    @cached_property
    def _bigquery(self) -> Any:
        return self._open.enter_context(self._resource(BIGQUERY).get_client())

    def _resource(self, key: str) -> Any:
        """A resource with its configuration resolved, including `EnvVar`s."""
        resource = self._resources[key]
        if isinstance(resource, dg.ConfigurableResource):
            return self._open.enter_context(resource.process_config_and_initialize_cm())
        return resource


def clients_of(resources: Mapping[str, Any]) -> GoogleClients:
    """The clients of dagster-gcp's resources, or of replacements that have `get_client`. Nothing opens yet."""
    opened = _OpenedResources(resources)
    return GoogleClients(opened.storage, opened.bigquery)
