"""The newest metadata files of a lake's tables (`ports.lake_tables`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from kbq_assets.adapters.iceberg import schema
from kbq_assets.adapters.iceberg.connect import configured, embedded
from kbq_assets.adapters.iceberg.lake import IcebergLake, lake_errors
from kbq_assets.core.config.locations import LakeAddress
from kbq_assets.core.protocol.names import TableReference

#: Prefix of KBQ's own tables: shadow tables of replays, and completeness.
_OWN: Final = "_kbq_"


class IcebergMetadata:
    """Queries the catalog, because only the catalog knows which file in a folder is the newest."""

    def __init__(self, place: LakeAddress, home: Path) -> None:
        self._lake = (
            IcebergLake(place.catalog, configured(place.catalog))
            if place.catalog
            else IcebergLake(*embedded(place, home))
        )

    def files(
        self, datasets: Collection[str], only: Collection[TableReference] | None = None
    ) -> Mapping[TableReference, str]:
        found = {}
        with lake_errors("the list of tables"):
            for dataset in sorted(datasets):
                if self._lake.namespace(dataset) is None:
                    continue
                for reference in self._lake.references((dataset,)):
                    left_out = reference.table.startswith(_OWN) or (
                        only is not None and reference not in only
                    )
                    stored = None if left_out else self._lake.own_table(reference)
                    if stored is not None and schema.has_positions(stored):
                        found[reference] = stored.metadata_location
        return found
