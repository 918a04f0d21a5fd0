"""BigQuery's limits for a table's columns. They hold in every warehouse, so that a table can be loaded into another."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from kbq_assets.core.errors import EncodingError

if TYPE_CHECKING:
    from kbq_assets.core.loading.tables import Column
    from kbq_assets.core.topics.evolution import TableColumn

#: BigQuery's limit of nested records: https://cloud.google.com/bigquery/docs/nested-repeated#limitations
MAX_STRUCT_DEPTH: Final = 15
#: Fields of records count too: https://cloud.google.com/bigquery/quotas#table_limits
MAX_COLUMNS: Final = 10_000
#: https://cloud.google.com/bigquery/docs/schemas#column_names
_COLUMN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,299}", re.ASCII)
_RESERVED_PREFIXES: Final = (
    "_TABLE_", "_FILE_", "_PARTITION", "_ROW_TIMESTAMP", "__ROOT__", "_COLIDENTIFIER",
)  # fmt: skip
#: https://cloud.google.com/bigquery/docs/change-data-capture
_RESERVED: Final = ("_CHANGE_TYPE", "_CHANGE_SEQUENCE_NUMBER", "_CHANGE_TIMESTAMP")


def check_columns(columns: Iterable[Column]) -> None:
    """Check the columns of a schema. Raises EncodingError if BigQuery refuses a name, their levels or their number."""
    if (count := _check(columns, "", 1)) > MAX_COLUMNS:
        raise too_many(str(count))


def count_columns(columns: Iterable[Column | TableColumn]) -> int:
    """The number of columns, fields of records included."""
    return sum(1 + count_columns(column.fields) for column in columns)


def too_many(count: str) -> EncodingError:
    """The error of a schema with more columns than a table holds."""
    return EncodingError(
        f"{count} columns, fields of records included: a table holds {MAX_COLUMNS}",
        next_step="leave some out",
    )


def _check(columns: Iterable[Column], prefix: str, level: int) -> int:
    """Check a record's columns and their fields. Names ignore case in BigQuery. Returns the number of columns."""
    count, seen = 0, set[str]()
    for column in columns:
        place, name = prefix + column.name, column.name.upper()
        problem, next_step = "", "rename the field"
        if not _COLUMN_NAME.fullmatch(column.name):
            problem = "a name is up to 300 letters, digits and '_', and begins with no digit"
        elif name.startswith(_RESERVED_PREFIXES):
            problem = "the prefix is reserved by BigQuery"
        elif name in _RESERVED:
            problem = "the name is reserved by BigQuery"
        elif name in seen:
            problem = "another one's name differs by case alone, or not at all"
        elif column.fields and level > MAX_STRUCT_DEPTH:
            # Maps, and unions of several types, are records in the warehouse.
            problem = f"more than {MAX_STRUCT_DEPTH} levels of records, maps and unions"
            next_step = "flatten the inner ones"
        if problem:
            raise EncodingError(f"column {place}: {problem}", next_step=next_step)
        seen.add(name)
        count += 1 + _check(column.fields, f"{place}.", level + 1)
    return count
