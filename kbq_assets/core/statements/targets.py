"""The table that a statement changes, as its text names it."""

from __future__ import annotations

from dataclasses import dataclass

from kbq_assets.core.loading.tables import Column
from kbq_assets.core.statements.dialects import Dialect
from kbq_assets.core.statements.expressions import greater
from kbq_assets.core.statements.rules import StatementRule

#: Names of columns that together identify a record, the most significant first.
POSITION = ("_kbq_epoch", "_kafka_topic", "_kafka_partition", "_kafka_offset")


@dataclass(frozen=True)
class Target:
    """The inputs of a text. ``name`` is in SQL; ``columns`` are the table's. ``converts``: its rows were appended.
    ``days``: the first and the last event date of the batch, as literals, if they are known. ``tombstones``: every
    row of the batch is a deletion."""

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
        """Whether no part of a row's key is null."""
        return " AND ".join(f"{part} IS NOT NULL" for part in self.key(alias)) or "TRUE"

    def version(self, alias: str) -> str:
        return self.dialect.path(alias, self.rule.version)

    def listed(self, alias: str = "") -> str:
        """All columns, of rows ``alias`` if it is given."""
        names = (self.dialect.quoted(column.name) for column in self.columns)
        return ", ".join(f"{alias}.{name}" if alias else name for name in names)

    @staticmethod
    def is_later(left: str, right: str) -> str:
        """Whether the record of a row comes after another one's, in an order that is total within a batch."""
        return greater([(f"{left}.{name}", f"{right}.{name}") for name in POSITION])
