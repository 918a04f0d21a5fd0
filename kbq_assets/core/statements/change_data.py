"""Parts of an upsert for change events (Debezium): truncations, and values that the database did not send.

Both rely on batches in offset order, which such topics require (`order: offset`).

    a truncation removes all rows with older positions in its partition; older records in its batch have no effect
    a value that was not sent comes from the newest change in the batch that has it, or else from the table
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kbq_assets.core.debezium.change_columns import CHANGE_COLUMNS, DELETED, OP, TRUNCATE, UNAVAILABLE
from kbq_assets.core.loading.table_notes import OWN_COLUMNS
from kbq_assets.core.loading.tables import Column
from kbq_assets.core.statements import rules
from kbq_assets.core.statements.dialects import Dialect
from kbq_assets.core.statements.rules import MARK, StatementRule
from kbq_assets.core.statements.table_statements import SCRATCH
from kbq_assets.core.topics.evolution import varied_field


def _truncated(alias: str, comparison: str) -> str:
    """Whether the batch has a truncation after a row, in the same partition because only there positions compare."""
    return (
        f"EXISTS (SELECT 1 FROM {SCRATCH} AS x WHERE x.{OP} = '{TRUNCATE}' AND x._kafka_topic = {alias}._kafka_topic"
        f" AND x._kafka_partition = {alias}._kafka_partition AND ({alias}._kbq_epoch < x._kbq_epoch"
        f" OR ({alias}._kbq_epoch = x._kbq_epoch AND {alias}._kafka_offset {comparison} x._kafka_offset)))"
    )


#: The rows of a batch that come after the last truncation of their partition.
AFTER_TRUNCATION: Final = f"(SELECT a.* FROM {SCRATCH} AS a WHERE NOT {_truncated('a', '<=')})"
#: Types of values that a database may store apart from their row, and so may not send.
_APART: Final = frozenset({"BYTES", "JSON", "STRING"})


def are_changes(staged: Iterable[Column]) -> bool:
    """Whether rows of these columns are change events."""
    types = {column.name: column.type for column in staged}
    return OP in types and types.get(DELETED) == "BOOL"


def truncation(target: str, columns: Iterable[Column], rule: StatementRule) -> str:
    """Statement that removes, or marks, the rows before the last truncation of their partition in a batch."""
    older = _truncated("t", "<")
    if rule.deletes == MARK and any(column.name == rules.DELETED for column in columns):
        return f"UPDATE {target} AS t SET {rules.DELETED} = TRUE WHERE {older}"
    return f"DELETE FROM {target} AS t WHERE {older}"


@dataclass(frozen=True)
class KeptColumns:
    """Columns that may keep the table's value. ``selected`` follows `b.*` in the query of a batch's newest rows.
    ``flags`` has, by column, the flag that keeps the table's value, and the quoted name."""

    selected: str = ""
    flags: Mapping[str, tuple[str, str]] | None = None

    def updated(self, name: str) -> str:
        """The expression for a column of an existing row; "" for the batch's value."""
        flag, quoted = (self.flags or {}).get(name, ("", ""))
        return f"CASE WHEN s.{flag} = 1 THEN t.{quoted} ELSE s.{quoted} END" if flag else ""


def kept_columns(
    dialect: Dialect, columns: Collection[Column], key: str, in_key: Collection[str]
) -> KeptColumns:
    """The columns of a table whose value a change may lack. ``key`` is the key of a row ``b`` of the batch."""
    apart = [
        column.name
        for column in columns
        if (column.type in _APART or column.mode == "REPEATED")
        and column.name not in (*CHANGE_COLUMNS, *in_key)
        and column.name.lower() not in OWN_COLUMNS
    ]
    if not apart or UNAVAILABLE not in {column.name for column in columns}:
        return KeptColumns()
    variants = (column for column in columns if "__" in column.name)
    fields = {column.name: varied_field(column, columns) for column in variants}
    order = (
        f"PARTITION BY {key} ORDER BY b._kbq_epoch DESC, b._kafka_offset DESC"
        " ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"
    )
    values, flags, names = [], [], dict[str, tuple[str, str]]()
    for number, name in enumerate(apart):
        quoted = dialect.quoted(name)
        lacks = _lacks(dialect, name, fields.get(name, ""))
        boxed = dialect.boxed.format(value=f"b.{quoted}")
        found = f"FIRST_VALUE(CASE WHEN {lacks} THEN NULL ELSE {boxed} END IGNORE NULLS) OVER ({order})"
        values.append(f"({found}).v AS {quoted}")
        flags.append(
            f"MIN(CASE WHEN {lacks} THEN 1 ELSE 0 END) OVER (PARTITION BY {key}) AS kbq_kept_{number}"
        )
        names[name] = (f"kbq_kept_{number}", quoted)
    return KeptColumns(f" REPLACE ({', '.join(values)}), {', '.join(flags)}", names)


def _lacks(dialect: Dialect, name: str, field: str) -> str:
    """Whether a change lacks a column. A change names the column of its own type; variants of that column keep their
    value too."""
    names = [each for each in (name, field) if each]  # with letters, digits and _ alone
    return " OR ".join(dialect.contains.format(value=f"'{each}'", list=f"b.{UNAVAILABLE}") for each in names)
