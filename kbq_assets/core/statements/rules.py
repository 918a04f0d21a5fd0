"""How a table is loaded: by appending, or by a statement."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from kbq_assets.core.errors import WrongOptions
from kbq_assets.core.protocol.codec import Stored
from kbq_assets.core.protocol.names import TableReference

APPEND: Final = "append"
UPSERT: Final = "upsert"
INSERT_NEW: Final = "insert_new"
DELETE_INSERT: Final = "delete_insert"
SNAPSHOT: Final = "snapshot"
SQL: Final = "sql"
SCD2: Final = "scd2"
#: What a deletion does to its row.
REMOVE: Final = "remove"
MARK: Final = "mark"
#: Which of two records of one key is newer, if they come from different partitions.
PARK: Final = "park"
TIMESTAMP: Final = "timestamp"

#: The column that says that a row is deleted: in staged rows and, with ``deletes=mark``, in the table.
DELETED: Final = "_kbq_deleted"

#: The times between which a row of `load: scd2` is its key's last.
VALID_FROM, VALID_TO = "valid_from", "valid_to"


@dataclass(frozen=True)
class StatementRule(Stored):
    """How batches change a table. ``key``: paths of the columns whose values identify a row, or the rows that go
    together; ``version``: the path of the column that says which rows are newer; ``within_days``: a key counts as known
    for so many days around a row's, 0 for ever; ``sql``: a template of the user's own."""

    kind: str = APPEND
    key: tuple[str, ...] = ()
    deletes: str = REMOVE
    tie: str = PARK
    version: str = ""
    within_days: int = 0
    sql: str = ""

    @property
    def appends(self) -> bool:
        return self.kind == APPEND

    @property
    def identity(self) -> tuple[object, ...]:
        """The part of the rule that the table's rows depend on: another one would need other rows."""
        return self.kind, self.key, self.version


def rule_of(
    table: TableReference, wanted: Collection[StatementRule], stored: StatementRule, expected: StatementRule
) -> StatementRule:
    """The rule of a table's next batch. ``wanted`` are those of its topics that the source list selects; if it selects
    none, the table keeps the ``expected`` one. Raises WrongOptions if topics, or the rows that a statement
    ``stored``, disagree."""
    if len(set(wanted)) > 1:
        raise WrongOptions(
            f"the topics of {table} load it in different ways: {', '.join(sorted(map(_shown, set(wanted))))}",
            next_step="give these topics the same `load` and its options, or tables of their own",
        )
    rule = next(iter(wanted), expected)
    if not stored.appends and not rule.appends and rule.identity != stored.identity:
        raise WrongOptions(
            f"{table} has the rows of {_shown(stored)}, and its topic asks for {_shown(rule)}",
            next_step="set `load`, `key` and `version` back, or give the topic another table",
        )
    return rule


def _shown(rule: StatementRule) -> str:
    parts = {"key": ",".join(rule.key), "version": rule.version}
    return f"load={rule.kind}" + "".join(f" {name}={value}" for name, value in parts.items() if value)
