"""How a table is loaded: by appending rows, or by a statement."""

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
#: Effects of a deletion on its row.
REMOVE: Final = "remove"
MARK: Final = "mark"
#: How to order two records of one key that come from different partitions.
PARK: Final = "park"
TIMESTAMP: Final = "timestamp"

#: The column that marks a row as deleted, in staged rows and, with ``deletes=mark``, in the table.
DELETED: Final = "_kbq_deleted"

#: The times between which a row of `load: scd2` is the last one of its key.
VALID_FROM, VALID_TO = "valid_from", "valid_to"


@dataclass(frozen=True)
class StatementRule(Stored):
    """How batches change a table. ``key`` has the paths of the columns that identify a row, or rows that belong
    together. ``version`` is the path of the column that orders rows by age. ``within_days``: a row makes its key known
    for this many days around its date, 0: forever. ``sql`` is the user's own template."""

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
        """The part of the rule on which the table's rows depend. Rows of another identity cannot be converted: a table
        of marked rows has no table of deleted keys, or one without its newest deletions."""
        return self.kind, self.key, self.version, self.deletes if self.kind == UPSERT else ""


def rule_of(
    table: TableReference, wanted: Collection[StatementRule], stored: StatementRule, expected: StatementRule
) -> StatementRule:
    """The rule of a table's next batch. ``wanted`` are the rules of its topics in the source list; if there are none,
    the table keeps the ``expected`` rule. Raises WrongOptions if topics disagree with each other, or with ``stored``,
    the rule by which a statement wrote the table's rows."""
    if len(set(wanted)) > 1:
        raise WrongOptions(
            f"the topics of {table} load it in different ways: {', '.join(sorted(map(_shown, set(wanted))))}",
            next_step="give these topics the same `load` with the same options, or separate tables",
        )
    rule = next(iter(wanted), expected)
    if not stored.appends and not rule.appends and rule.identity != stored.identity:
        raise WrongOptions(
            f"{table} has rows from {_shown(stored)}, but its topic sets {_shown(rule)}",
            next_step="revert `load`, `key`, `version` and `deletes`, or give the topic another table",
        )
    return rule


def _shown(rule: StatementRule) -> str:
    deletes = rule.deletes if rule.kind == UPSERT else ""
    parts = {"key": ",".join(rule.key), "version": rule.version, "deletes": deletes}
    return f"load={rule.kind}" + "".join(f" {name}={value}" for name, value in parts.items() if value)
