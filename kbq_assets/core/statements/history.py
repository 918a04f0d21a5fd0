"""The statement of `load: scd2`: every record stays, with the time from which and until which it is its key's last.

Time is business time: the column `version`, or Kafka's time. A row is valid from its own time until that of the next
record of its key, which is not included; the last one has no end. A record that comes late is put between its
neighbors, so the order and the size of batches do not matter. Of records with one time, all but the last by position
are valid for no time at all. A row without a key is inserted, and has no end.
"""

from __future__ import annotations

from kbq_assets.core.statements.expressions import same
from kbq_assets.core.statements.rules import VALID_FROM, VALID_TO
from kbq_assets.core.statements.table_statements import SCRATCH
from kbq_assets.core.statements.targets import POSITION, Target


def history_sql(target: Target) -> str:
    """The text, with `SCRATCH` for the name of the scratch table."""
    statements = [_insertion(target), _ends(target)]
    if target.converts:  # the rows that were appended
        begin = (
            f"UPDATE {target.name} AS t SET {VALID_FROM} = {_begin(target, 't')} WHERE t.{VALID_FROM} IS NULL"
        )
        statements.insert(0, begin)
    return ";\n".join(statements)


def _begin(target: Target, alias: str) -> str:
    """The time of a record."""
    kafka = f"{alias}._kafka_timestamp"
    return f"COALESCE({target.version(alias)}, {kafka})" if target.rule.version else kafka


def _insertion(target: Target) -> str:
    names = [column.name for column in target.columns]
    values = [
        _begin(target, "b")
        if name == VALID_FROM
        else f"b.{target.dialect.quoted(name)}"  # of its end, the staged rows know nothing
        for name in names
    ]
    return f"INSERT INTO {target.name} ({target.listed()}) SELECT {', '.join(values)} FROM {SCRATCH} AS b"


def _ends(target: Target) -> str:
    """Ends the rows of the batch's keys, or of all keys, where the next one begins."""
    order = ", ".join(f"x.{name}" for name in (VALID_FROM, *POSITION))
    following = f"LEAD(x.{VALID_FROM}) OVER (PARTITION BY {', '.join(target.key('x'))} ORDER BY {order})"
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
