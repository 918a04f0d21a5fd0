"""The statement of `load: scd2`, which keeps every record with the times between which it is the last one of its key.

The time is the column `version`, or Kafka's time. A row is valid from its own time to the time of the next record of
its key, exclusive; the last row has no end. A late record is placed between its neighbors, so the order and size of
batches do not matter. If records have the same time, only the last one by position has a nonempty validity. A row
without a key is inserted, and has no end.

A tombstone is also a row, marked as a deletion. It ends the previous row, and its own validity is empty. So an older
record that arrives later ends at the tombstone's time. A tombstone without a key is left out.
"""

from __future__ import annotations

from kbq_assets.core.statements.expressions import is_tombstone, same
from kbq_assets.core.statements.rules import DELETED, VALID_FROM, VALID_TO
from kbq_assets.core.statements.table_statements import SCRATCH
from kbq_assets.core.statements.targets import POSITION, Target


def history_sql(target: Target) -> str:
    """The statement's text, with `SCRATCH` for the name of the scratch table."""
    statements = [_insertion(target), _ends(target)]
    if target.converts and _has_deletions(target):
        tombstone = is_tombstone(target.dialect, target.columns, [DELETED, VALID_FROM, VALID_TO], "t")
        statements.insert(
            0, f"UPDATE {target.name} AS t SET {DELETED} = ({tombstone or 'FALSE'}) WHERE t.{DELETED} IS NULL"
        )
    if target.converts:  # rows that were appended before
        begin = (
            f"UPDATE {target.name} AS t SET {VALID_FROM} = {_begin(target, 't')} WHERE t.{VALID_FROM} IS NULL"
        )
        statements.insert(0, begin)
    return ";\n".join(statements)


def _begin(target: Target, alias: str) -> str:
    kafka = f"{alias}._kafka_timestamp"
    return f"COALESCE({target.version(alias)}, {kafka})" if target.rule.version else kafka


def _insertion(target: Target) -> str:
    values = ", ".join(_value(target, column.name) for column in target.columns)
    where = f" WHERE {target.has_key('b')}" if target.tombstones else ""
    return f"INSERT INTO {target.name} ({target.listed()}) SELECT {values} FROM {SCRATCH} AS b{where}"


def _value(target: Target, name: str) -> str:
    if name == VALID_FROM:
        return _begin(target, "b")
    if name == DELETED:
        return "TRUE" if target.tombstones else f"COALESCE(b.{DELETED}, FALSE)"
    return f"b.{target.dialect.quoted(name)}"  # staged rows have no end yet


def _has_deletions(target: Target) -> bool:
    return DELETED in {column.name for column in target.columns}


def _ends(target: Target) -> str:
    """Statement that ends the rows of the batch's keys, or of all keys, where the next row begins."""
    order = ", ".join(f"x.{name}" for name in (VALID_FROM, *POSITION))
    following = f"LEAD(x.{VALID_FROM}) OVER (PARTITION BY {', '.join(target.key('x'))} ORDER BY {order})"
    if _has_deletions(target):
        following = f"CASE WHEN COALESCE(x.{DELETED}, FALSE) THEN x.{VALID_FROM} ELSE {following} END"
    concerned = target.has_key("x")
    if not target.converts:
        concerned += (
            f" AND EXISTS (SELECT 1 FROM {SCRATCH} AS b WHERE {same(target.key('b'), target.key('x'))})"
        )
    position = ", ".join(f"x.{name}" for name in POSITION)
    found = f"SELECT {position}, {following} AS following FROM {target.name} AS x WHERE {concerned}"
    matches = same([f"t.{name}" for name in POSITION], [f"n.{name}" for name in POSITION])
    return (
        f"UPDATE {target.name} AS t SET {VALID_TO} = n.following FROM ({found}) AS n"
        f" WHERE {matches} AND t.{VALID_TO} IS DISTINCT FROM n.following"
    )
