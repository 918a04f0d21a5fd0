"""Grants to readers of tables, lakes and backups: plans those that are missing, then makes them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cached_property, partial

from kbq_assets.core.catalog import CatalogEntry
from kbq_assets.core.catalog.changes import Difference
from kbq_assets.core.catalog.readers import (
    OBJECTS,
    DataPlaces,
    GrantReading,
    ReaderRules,
    plan_readers,
    wanted_readers,
)
from kbq_assets.core.config.locations import BigQueryProject, parse_staging
from kbq_assets.core.config.settings import Settings
from kbq_assets.pipelines.operate.commands import Proposal
from kbq_assets.ports.readers import Readers


@dataclass(frozen=True)
class ReaderGrants:
    """The places that can be read, and the ports that grant it: for tables in BigQuery, and for objects in buckets.
    Both open when they are first used."""

    places: DataPlaces
    open_tables: Callable[[], Readers]
    open_objects: Callable[[], Readers]

    @cached_property
    def _tables(self) -> Readers:
        return self.open_tables()

    @cached_property
    def _objects(self) -> Readers:
        return self.open_objects()

    def plan(
        self, rules: ReaderRules, entries: Collection[CatalogEntry], topics: Collection[str]
    ) -> tuple[list[GrantReading], list[Difference]]:
        """Missing grants, and differences to fix by hand. Raises ConfigurationError, Unavailable."""
        wanted, refused = wanted_readers(rules, self.places, entries, topics)
        live = {place: self._of(place.kind).readers(place) for place in wanted}
        grants, left = plan_readers(wanted, live)
        return grants, [Difference(each.place, each.message) for each in (*refused, *left)]

    def proposals(self, grants: Iterable[GrantReading]) -> list[Proposal]:
        return [Proposal(str(each), (), partial(self._of(each.place.kind).grant, each)) for each in grants]

    def _of(self, kind: str) -> Readers:
        return self._objects if kind == OBJECTS else self._tables


def grants_of(settings: Settings) -> ReaderGrants:
    """Grants for the tables, lakes and backups of the settings, made with the loader's credentials."""
    backup, google = settings.backup, settings.google

    def tables() -> Readers:
        from kbq_assets.adapters.bigquery.connect import open_client
        from kbq_assets.adapters.bigquery.readers import BigQueryReaders
        from kbq_assets.adapters.google.auth import GoogleAccess

        url = next(each.url for each in settings.warehouses if isinstance(each.place, BigQueryProject))
        return BigQueryReaders(
            open_client(url, GoogleAccess(google.load_credentials, google.bigquery_endpoint))
        )

    def objects() -> Readers:
        from kbq_assets.adapters.gcs.readers import BucketReaders
        from kbq_assets.adapters.google.auth import GoogleAccess
        from kbq_assets.adapters.google.clients import storage_client

        return BucketReaders(storage_client(GoogleAccess(google.load_credentials, google.gcs_endpoint)))

    places = DataPlaces(
        tuple(each.place for each in settings.warehouses),
        parse_staging(backup.location) if backup.location else settings.staging,
        parse_staging(backup.personal_location) if backup.personal_location else None,
    )
    return ReaderGrants(places, tables, objects)
