"""Names of the state objects of batches of files (PROTOCOL F2)."""

from __future__ import annotations

from urllib.parse import quote

from kbq_assets.core.protocol.names import FILE_BATCHES, FIRST_WAREHOUSE


def file_registry_path(area: str = FIRST_WAREHOUSE) -> str:
    """The registry of a warehouse's table prefixes."""
    return f"{_area(area)}_tables.json"


def file_state_path(prefix: str, area: str = FIRST_WAREHOUSE) -> str:
    """`filebatches/tables/shop%2Forders.json`: the state of a table prefix."""
    return f"{_area(area)}tables/{quote(prefix, safe='')}.json"


def applied_path(prefix: str, first: int, area: str = FIRST_WAREHOUSE) -> str:
    """An archive of applied batches, whose first is the ``first`` of all."""
    return f"{_area(area)}applied/{quote(prefix, safe='')}/{first}.json"


def decisions_path(prefix: str, first: int, area: str = FIRST_WAREHOUSE) -> str:
    """An archive of decisions, whose first is the ``first`` of all."""
    return f"{_area(area)}decisions/{quote(prefix, safe='')}/{first}.json"


def _area(name: str) -> str:
    return f"{FILE_BATCHES}@{name}/" if name else FILE_BATCHES
