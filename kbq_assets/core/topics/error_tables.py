"""Tables of bad records: one per dataset, and optionally separate ones for topics or owners."""

from __future__ import annotations

import re
from typing import Final

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.protocol.names import TableReference, sanitise_table

#: The table of a dataset's error rows, unless topics have their own.
ERROR_TABLE: Final = "kbq_errors"
_NAME: Final = re.compile(rf"{ERROR_TABLE}(__[A-Za-z0-9_]{{1,88}})?")


def is_error_table(table: TableReference) -> bool:
    """Whether a table is one of bad records."""
    return table.table == ERROR_TABLE or table.table.startswith(f"{ERROR_TABLE}__")


def check_error_table(name: str) -> None:
    """Raise ConfigurationError unless a name is valid for a table of bad records."""
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"errors_table={name} is not a valid name for a table of bad records",
            next_step=f"{ERROR_TABLE}, or {ERROR_TABLE}__ and letters, digits or '_', at most 100 characters",
        )


def check_table_of_rows(table: str) -> None:
    """Raise ConfigurationError if the name of a topic's table ("" for the topic's name) is reserved for bad records."""
    if is_error_table(TableReference("d", sanitise_table(table or "t").lower())):
        raise ConfigurationError(
            f"table={table} is reserved for bad records", next_step="choose another name"
        )
