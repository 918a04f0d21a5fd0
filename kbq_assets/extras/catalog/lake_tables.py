"""Lets BigQuery read the tables of lakes: the plan and the steps for the section `lake_in_bigquery`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from kbq_assets.core.catalog.lake_tables import (
    SECTION,
    ExternalTable,
    KnownTable,
    LakeInBigQuery,
    PointAtMetadata,
    external_tables,
    plan_lake_tables,
)
from kbq_assets.core.catalog.lifecycle import LeftToPeople
from kbq_assets.core.config.locations import BigQueryProject, LakeAddress
from kbq_assets.core.config.settings import Settings
from kbq_assets.core.errors import KbqError, PreconditionFailed, Unavailable
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.pipelines.operate.commands import Proposal
from kbq_assets.pipelines.threads import parallel
from kbq_assets.ports.lake_tables import ExternalTables, LakeMetadata

#: Attempts to move a table while other processes move it too.
_ATTEMPTS: Final = 3


@dataclass(frozen=True)
class LakeTables:
    """The lakes of the settings, and BigQuery. They open when they are first used."""

    lakes: tuple[LakeAddress, ...]
    open_metadata: Callable[[LakeAddress], LakeMetadata]
    open_tables: Callable[[BigQueryProject], ExternalTables]

    def plan(
        self,
        rules: LakeInBigQuery,
        datasets: Collection[str],
        only: Collection[TableReference] | None = None,
    ) -> tuple[list[PointAtMetadata], list[LeftToPeople]]:
        """BigQuery tables to create or move, for all tables of the lake or ``only`` some, and differences to fix by
        hand. Raises ConfigurationError, Unavailable."""
        refused = [
            LeftToPeople(SECTION, f"{lake.folder} is a folder, and BigQuery cannot read it")
            for lake in self.lakes
            if lake.folder is not None
        ]
        if not self.lakes:
            refused.append(LeftToPeople(SECTION, "KBQ_WAREHOUSE names no lake"))
        files = [self.open_metadata(lake).files(datasets, only) for lake in self.lakes if lake.folder is None]
        wanted, unreadable = external_tables(rules, files)
        tables = self.open_tables(rules.place) if wanted else None
        known = parallel(tables.known, wanted) if tables else []
        live = {table.name: each for table, each in zip(wanted, known, strict=True)}
        changes, left = plan_lake_tables(wanted, live)
        return changes, [*refused, *unreadable, *left]

    def in_time(self, is_late: Callable[[], bool]) -> LakeTables:
        """The same tables, but BigQuery raises Unavailable once ``is_late`` returns True."""
        return replace(self, open_tables=lambda place: InTime(self.open_tables(place), is_late))

    def move(
        self, rules: LakeInBigQuery, changed: Collection[TableReference]
    ) -> Mapping[TableReference, str]:
        """Move BigQuery's tables of ``changed`` lake tables; create none. Return the reasons why some are behind. If
        another loader moved a table meanwhile, it is planned again, because the other plan may be older."""
        behind: dict[TableReference, str] = {}
        left = frozenset(changed)
        for _ in range(_ATTEMPTS):
            found = self._move(rules, left)
            behind |= {table: error.message for table, error in found.items()}
            left = frozenset(t for t, error in found.items() if isinstance(error, PreconditionFailed))
            if not left:
                break
            behind = {table: why for table, why in behind.items() if table not in left}
        return behind | dict.fromkeys(left, "other loaders are moving it")

    def _move(
        self, rules: LakeInBigQuery, changed: Collection[TableReference]
    ) -> Mapping[TableReference, KbqError]:
        try:
            changes, _ = self.plan(rules, {table.dataset for table in changed}, changed)
        except KbqError as error:
            return dict.fromkeys(changed, error)
        tables = self.open_tables(rules.place) if changes else None

        def move(change: PointAtMetadata) -> KbqError | None:
            try:
                if change.before and tables is not None:
                    tables.point(change)
            except KbqError as error:
                return error
            return None

        sources = {rules.target(table): table for table in changed}
        moved = zip(changes, parallel(move, changes), strict=True)
        return {sources[change.table.table]: error for change, error in moved if error is not None}

    def proposals(self, rules: LakeInBigQuery, changes: Iterable[PointAtMetadata]) -> list[Proposal]:
        planned = list(changes)
        tables = self.open_tables(rules.place) if planned else None
        return [Proposal(str(each), (), partial(tables.point, each)) for each in planned if tables]


@dataclass(frozen=True)
class InTime:
    """BigQuery's tables, but Unavailable once ``is_late`` returns True, so that a load does not wait for long."""

    tables: ExternalTables
    is_late: Callable[[], bool]

    def known(self, table: ExternalTable) -> KnownTable | None:
        return self._open().known(table)

    def point(self, change: PointAtMetadata) -> None:
        self._open().point(change)

    def _open(self) -> ExternalTables:
        if self.is_late():
            raise Unavailable("no time was left for it", next_step="wait for the next load")
        return self.tables


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
