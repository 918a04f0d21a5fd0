"""The statement of `load: insert_new`, which inserts a record unless its key is known.

A key is known if a row of the table or an earlier record of the batch has it. With ``within_days``, only rows and
records with an event date at most that many days away count. So no two inserted rows have the same key within these
days, in whatever order batches come. A record without a key is always inserted.
"""

from __future__ import annotations

from kbq_assets.core.statements.expressions import same
from kbq_assets.core.statements.table_statements import SCRATCH
from kbq_assets.core.statements.targets import POSITION, Target

_DAY = "event_date"


def insert_new_sql(target: Target) -> str:
    """The statement's text, with `SCRATCH` for the name of the scratch table."""
    conditions = [f"NOT EXISTS (SELECT 1 FROM {target.name} AS t WHERE {_is_known(target, 't')})"]
    if target.rule.within_days:
        # The batch's first record per key and day represents the others of that day, so even a frequent key is compared
        # only once per day.
        others = f"SELECT 1 FROM ({_first(target, 'x')}) AS e"
        conditions.append(
            f"NOT EXISTS ({others} WHERE {_is_near(target, 'e')} AND {target.is_later('b', 'e')})"
        )
    return (
        f"INSERT INTO {target.name} ({target.listed()}) SELECT {target.listed('b')}"
        f" FROM ({_first(target, 'y')}) AS b WHERE {' AND '.join(conditions)}"
    )


def _first(target: Target, alias: str) -> str:
    """Query of the first record of each key (and day), and of all records without a key."""
    parts = [*target.key(alias), *([f"{alias}.{_DAY}"] if target.rule.within_days else [])]
    order = ", ".join(f"{alias}.{name}" for name in POSITION)
    ranked = f"ROW_NUMBER() OVER (PARTITION BY {', '.join(parts)} ORDER BY {order}) = 1"
    return (
        f"SELECT {alias}.* FROM {SCRATCH} AS {alias} WHERE TRUE"
        f" QUALIFY {ranked} OR NOT ({target.has_key(alias)})"
    )


def _is_known(target: Target, alias: str) -> str:
    """Whether a row of the table has the key of the batch's row ``b``. Date literals let BigQuery read only these
    days."""
    days, within = target.days, target.rule.within_days
    bounds = f"{alias}.{_DAY} BETWEEN DATE '{days[0]}' AND DATE '{days[1]}' AND " if days and within else ""
    return bounds + _is_near(target, alias)


def _is_near(target: Target, alias: str) -> str:
    found = same(target.key(alias), target.key("b"))
    if not target.rule.within_days:
        return found
    apart = target.dialect.days.format(left=f"{alias}.{_DAY}", right=f"b.{_DAY}")
    return f"{found} AND {apart} <= {target.rule.within_days}"
