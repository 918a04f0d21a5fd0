"""The table that a statement changes, as used in its text."""

from __future__ import annotations

from dataclasses import dataclass

from kbq_assets.core.loading.tables import Column
from kbq_assets.core.statements.dialects import Dialect
from kbq_assets.core.statements.expressions import greater
from kbq_assets.core.statements.rules import StatementRule

#: Columns that together identify a record, most significant first.
POSITION = ("_kbq_epoch", "_kafka_topic", "_kafka_partition", "_kafka_offset")


@dataclass(frozen=True)
class Target:
    """The inputs of a statement's text. ``name`` is in SQL; ``columns`` are the table's. ``converts``: the table's rows
    were appended. ``days`` are the first and last event date of the batch as literals, if known. ``tombstones``: all
    rows of the batch are deletions."""

    dialect: Dialect
    rule: StatementRule
    name: str
    columns: tuple[Column, ...]
    converts: bool = False
    days: tuple[str, str] | None = None
    tombstones: bool = False

    def key(self, alias: str) -> list[str]:
        return [self.dialect.path(alias, path) for path in self.rule.key]

    def has_key(self, alias: str) -> str:
        """Whether all parts of a row's key are set."""
        return " AND ".join(f"{part} IS NOT NULL" for part in self.key(alias)) or "TRUE"

    def version(self, alias: str) -> str:
        return self.dialect.path(alias, self.rule.version)

    def listed(self, alias: str = "") -> str:
        """The list of all columns, prefixed with ``alias`` if given."""
        names = (self.dialect.quoted(column.name) for column in self.columns)
        return ", ".join(f"{alias}.{name}" if alias else name for name in names)

    @staticmethod
    def is_later(left: str, right: str) -> str:
        """Whether the left row's record comes after the right one's, in an order that is total within a batch."""
        return greater([(f"{left}.{name}", f"{right}.{name}") for name in POSITION])
