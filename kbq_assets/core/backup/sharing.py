"""Reads a range once for both tables and backup if they are at the same position (PROTOCOL B1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kbq_assets.core.extraction.planning import ExtractionPlan
from kbq_assets.core.extraction.units import Unit


def with_backups(tables: ExtractionPlan, backups: Mapping[str, ExtractionPlan]) -> ExtractionPlan:
    """The tables' plan combined with the backups' plans, by area. A backup's unit is removed if a unit for tables can
    serve it."""
    units = {unit.range.topic_partition: unit for unit in tables.units}
    own: dict[str, ExtractionPlan] = {}
    for area, planned in backups.items():
        alone = []
        for unit in planned.units:
            tp = unit.range.topic_partition
            other = units.get(tp)
            if other is not None and _reads_the_same(other, unit):
                units[tp] = replace(other, backup_epoch=unit.epoch)
            else:
                alone.append(replace(unit, tables=False))
        own[area] = replace(planned, units=tuple(alone))
    return replace(tables, units=tuple(units.values()), backups=own)


def _reads_the_same(one: Unit, other: Unit) -> bool:
    """Whether two units begin at the same position of the same log, judged by their leader epochs."""
    return all(getattr(one, name) == getattr(other, name) for name in ("leader_epoch", "epoch_until")) and (
        one.range.from_offset == other.range.from_offset
    )


def without_backup(unit: Unit) -> Unit:
    """The unit for its tables only."""
    return replace(unit, backup_epoch=0) if unit.backup_epoch else unit
