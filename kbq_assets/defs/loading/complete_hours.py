"""The asset `complete_hours`: depend on it for work on whole hours."""

from __future__ import annotations

import dagster as dg

from kbq_assets.defs.translator import AssetTranslator


def complete_hours_spec(translator: AssetTranslator) -> dg.AssetSpec:
    """An external asset with a partition per table."""
    return dg.AssetSpec(
        translator.complete_hours,
        deps=[translator.warehouse_tables],
        description=(
            "Materialized for a table when hours of it have become complete by business time: all partitions are past "
            "them, everything is loaded. Assets that need whole hours depend on this asset, not on the tables."
        ),
        group_name="warehouse",
        owners=list(translator.owners),
        partitions_def=translator.table_partitions,
    )
