"""External tables in BigQuery that read a lake (`ports.lake_tables`)."""

from __future__ import annotations

from typing import Final

from google.api_core import exceptions as api
from google.cloud import bigquery

from kbq_assets.adapters.bigquery.outcomes import calls
from kbq_assets.adapters.bigquery.queries import Query
from kbq_assets.adapters.bigquery.session import Session
from kbq_assets.core.catalog.lake_tables import ExternalTable, KnownTable, PointAtMetadata, files_of
from kbq_assets.core.config.locations import BigQueryProject
from kbq_assets.core.errors import NotFound, PreconditionFailed

_ICEBERG: Final = "ICEBERG"
_PATIENCE_SECONDS: Final = 60.0


class BigQueryExternalTables:
    """Creates external tables with DDL, and points them at new metadata with `tables.patch`. A replaced table would
    lose its grants, row policies and policy tags."""

    def __init__(
        self, client: bigquery.Client, place: BigQueryProject, patience_seconds: float = _PATIENCE_SECONDS
    ) -> None:
        self._session = Session(client, place.project, place.location, patience_seconds)

    def known(self, table: ExternalTable) -> KnownTable | None:
        found = self._session.find_table(table.table)
        external = found.external_data_configuration if found is not None else None
        if found is None or external is None or external.source_format != _ICEBERG:
            return None if found is None else KnownTable(is_iceberg=False)
        return KnownTable(True, tuple(external.source_uris), external.connection_id or "")

    def point(self, change: PointAtMetadata) -> None:
        if change.before:
            self._move(change)
        else:
            # The DDL replaces nothing, even if its response is lost and it runs again.
            self._session.query(f"external table {change.table.name}", Query(change.ddl))

    def _move(self, change: PointAtMetadata) -> None:
        """Point a table at a new metadata file. The client sends the table's etag, so a table that changed since is
        left alone. So is a table that reads another file than planned: another loader moved it, perhaps to a newer
        file."""
        name = change.table.name
        found = self._session.find_table(change.table.table)
        external = found.external_data_configuration if found is not None else None
        if found is None or external is None or external.source_format != _ICEBERG:
            raise NotFound(
                f"external table {name} is gone",
                next_step="run `kbq catalog apply` again: it then makes a new plan",
            )
        changed = PreconditionFailed(
            f"external table {name} was changed meanwhile",
            next_step="run `kbq catalog apply` again: it then makes a new plan",
        )
        if files_of(external.source_uris) != change.before:
            raise changed
        external.source_uris = [change.table.metadata]
        found.external_data_configuration = external
        found.schema = None  # BigQuery reads the columns from the new file
        try:
            with calls(f"external table {name}", "bigquery.tables.update"):
                self._session.client.update_table(
                    found,
                    ["external_data_configuration", "schema"],
                    autodetect_schema=True,
                    **self._session.repeated,
                )
        except api.PreconditionFailed as error:
            raise changed from error
