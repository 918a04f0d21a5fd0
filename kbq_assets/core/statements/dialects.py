"""Differences between the warehouses' SQL for statements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Dialect:
    """A warehouse's SQL. ``quote`` encloses identifiers; ``error`` is a BOOL expression that fails."""

    name: str
    quote: str
    error: str
    #: divides whole numbers
    divide: str
    #: the length of an array
    length: str
    #: whether a list has a value
    contains: str
    #: a record of one value, ``v``
    boxed: str
    #: the days between two dates
    days: str

    def quoted(self, name: str) -> str:
        escaped = name.replace(self.quote, self.quote * 2 if self.quote == '"' else f"\\{self.quote}")
        return f"{self.quote}{escaped}{self.quote}"

    def path(self, alias: str, path: str) -> str:
        return ".".join((alias, *map(self.quoted, path.split("."))))

    def failing(self, message: str) -> str:
        """A BOOL expression that fails with ``message``, a STRING expression."""
        return self.error.format(message=message)

    def divided(self, value: str, by: int) -> str:
        """A whole number divided by another."""
        return self.divide.format(value=value, by=by)


BIGQUERY: Final = Dialect(
    "bigquery",
    "`",
    "CAST(ERROR({message}) AS BOOL)",
    "DIV({value}, {by})",
    "ARRAY_LENGTH",
    "{value} IN UNNEST({list})",
    "STRUCT({value} AS v)",
    "ABS(DATE_DIFF({left}, {right}, DAY))",
)
DUCKDB: Final = Dialect(
    "duckdb",
    '"',
    "CAST(error({message}) AS BOOLEAN)",
    "({value} // {by})",
    "len",
    "list_contains({list}, {value})",
    "struct_pack(v := {value})",
    "ABS({left} - {right})",
)
