"""Pseudonyms as keys of upsert tables: after a rotation, one key may have several pseudonyms.

A comparison only needs to know which records have the same key. Under one pseudonym key, equal values have equal
pseudonyms. So it does not matter which pseudonym key a table uses, as long as it is a single one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from kbq_assets.core.erasure.selection import common_name
from kbq_assets.core.loading.tables import Column
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.statements.dialects import BIGQUERY
from kbq_assets.core.statements.keys import key_columns
from kbq_assets.core.statements.rules import MARK, StatementRule
from kbq_assets.core.statements.side_tables import deleted_table
from kbq_assets.core.statements.upsert import deleted_columns
from kbq_assets.core.topics.personal import Decision, Pseudonyms
from kbq_assets.ports.statements import Statements
from kbq_assets.ports.warehouse import Warehouse

#: The character after "." in ASCII: every pseudonym under a key is between `<key id>.` and `<key id>/`.
_AFTER_POINT: Final = "/"


def has_several_pseudonyms(
    warehouse: Warehouse,
    table: TableReference,
    rule: StatementRule,
    decisions: Collection[Decision],
    known: Pseudonyms | None,
) -> bool:
    """Whether a key may be in the table under several pseudonyms, because the table's keys do not all use the same
    pseudonym key. Raises Unavailable, JobFailed."""
    hidden = {common_name(each.path) for each in decisions if each.action == "pseudonym"}
    numbers = [number for number, path in enumerate(rule.key) if common_name(path) in hidden]
    statements = warehouse.statements
    stored = warehouse.columns(table) if numbers else None
    if stored is None or statements is None:
        return False
    columns = key_columns(table, rule.key, stored)
    texts = list(_others(statements, table, rule, columns, numbers))
    ids = [each for each in known.keys if not set("'\\") & set(each)] if known else []
    return not any(all(not statements.rows_of(_within(text, each), 1) for text in texts) for each in ids)


def _within(text: str, key_id: str) -> str:
    return text.replace("{first}", f"{key_id}.").replace("{after}", f"{key_id}{_AFTER_POINT}")


def _others(
    statements: Statements,
    table: TableReference,
    rule: StatementRule,
    columns: tuple[Column, ...],
    numbers: Collection[int],
) -> Iterator[str]:
    """Queries for keys outside two limits, in the table and in its deleted keys."""
    dialect, remembered = statements.dialect, deleted_columns(columns)
    for number in numbers:
        prefix = "b" if dialect is BIGQUERY and columns[number].type == "BYTES" else ""
        in_table = dialect.path("t", rule.key[number]), table
        in_deleted = f"t.{remembered[number].name}", deleted_table(table)
        for column, place in (in_table,) if rule.deletes == MARK else (in_table, in_deleted):
            yield (
                f"SELECT 1 AS found FROM {statements.sql_name(place)} AS t"
                f" WHERE {column} < {prefix}'{{first}}' OR {column} >= {prefix}'{{after}}' LIMIT 1"
            )
