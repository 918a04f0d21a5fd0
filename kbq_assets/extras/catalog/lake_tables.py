"""Lets BigQuery read the tables of lakes: plan and steps of the section `lake_in_bigquery`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial

from kbq_assets.core.catalog.lake_tables import (
    SECTION,
    LakeInBigQuery,
    PointAtMetadata,
    external_tables,
    plan_lake_tables,
)
from kbq_assets.core.catalog.lifecycle import LeftToPeople
from kbq_assets.core.config.locations import BigQueryProject, LakeAddress
from kbq_assets.core.config.settings import Settings
from kbq_assets.pipelines.operate.commands import Proposal
from kbq_assets.ports.lake_tables import ExternalTables, LakeMetadata


@dataclass(frozen=True)
class LakeTables:
    """The lakes of the settings, and BigQuery, which open on first use."""

    lakes: tuple[LakeAddress, ...]
    open_metadata: Callable[[LakeAddress], LakeMetadata]
    open_tables: Callable[[BigQueryProject], ExternalTables]

    def plan(
        self, rules: LakeInBigQuery, datasets: Collection[str]
    ) -> tuple[list[PointAtMetadata], list[LeftToPeople]]:
        """Tables to create or to move, and what is left to people. Raises ConfigurationError, Unavailable."""
        refused = [
            LeftToPeople(SECTION, f"{lake.folder} is a folder, which BigQuery cannot read")
            for lake in self.lakes
            if lake.folder is not None
        ]
        if not self.lakes:
            refused.append(LeftToPeople(SECTION, "KBQ_WAREHOUSE names no lake"))
        files = [self.open_metadata(lake).files(datasets) for lake in self.lakes if lake.folder is None]
        wanted, unreadable = external_tables(rules, files)
        tables = self.open_tables(rules.place) if wanted else None
        live = {table.name: tables.known(table) for table in wanted} if tables else {}
        changes, left = plan_lake_tables(wanted, live)
        return changes, [*refused, *unreadable, *left]

    def proposals(self, rules: LakeInBigQuery, changes: Iterable[PointAtMetadata]) -> list[Proposal]:
        """The changes, ready to run."""
        planned = list(changes)
        tables = self.open_tables(rules.place) if planned else None
        return [Proposal(str(each), (), partial(tables.point, each)) for each in planned if tables]


def lake_tables_of(settings: Settings) -> LakeTables:
    """The lakes of the settings, and BigQuery with the loader's credentials."""
    lakes = tuple(place for each in settings.warehouses if isinstance(place := each.place, LakeAddress))

    def metadata(lake: LakeAddress) -> LakeMetadata:
        from kbq_assets.adapters.iceberg.metadata_files import IcebergMetadata

        return IcebergMetadata(lake, settings.home)

    def tables(place: BigQueryProject) -> ExternalTables:
        from kbq_assets.adapters.bigquery.external import BigQueryExternalTables
        from kbq_assets.adapters.google.auth import GoogleAccess
        from kbq_assets.adapters.google.clients import bigquery_client

        google = settings.google
        access = GoogleAccess(google.load_credentials, google.bigquery_endpoint)
        return BigQueryExternalTables(bigquery_client(access, place), place)

    return LakeTables(lakes, metadata, tables)
