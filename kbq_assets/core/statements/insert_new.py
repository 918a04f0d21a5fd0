"""The statement of `load: insert_new`: a record is inserted unless its key is known.

A key is known if the table has a row with it, or if an earlier record of the batch has it; with ``within_days``, only
rows and records count whose event date is at most so many days away. So no two rows of the table that were inserted
this way have one key within these days, whatever the order of batches. A record without a key is inserted.
"""

from __future__ import annotations

from kbq_assets.core.statements.expressions import same
from kbq_assets.core.statements.table_statements import SCRATCH
from kbq_assets.core.statements.targets import POSITION, Target

_DAY = "event_date"


def insert_new_sql(target: Target) -> str:
    """The text, with `SCRATCH` for the name of the scratch table."""
    conditions = [f"NOT EXISTS (SELECT 1 FROM {target.name} AS t WHERE {_is_known(target, 't')})"]
    if target.rule.within_days:
        # The batch's first record per key and day stands for the others of that day: one key, however frequent, is
        # compared with itself once a day.
        others = f"SELECT 1 FROM ({_first(target, 'x')}) AS e"
        conditions.append(
            f"NOT EXISTS ({others} WHERE {_is_near(target, 'e')} AND {target.is_later('b', 'e')})"
        )
    return (
        f"INSERT INTO {target.name} ({target.listed()}) SELECT {target.listed('b')}"
        f" FROM ({_first(target, 'y')}) AS b WHERE {' AND '.join(conditions)}"
    )


def _first(target: Target, alias: str) -> str:
    """The first record of each key, or of each key and day; all records without a key."""
    parts = [*target.key(alias), *([f"{alias}.{_DAY}"] if target.rule.within_days else [])]
    order = ", ".join(f"{alias}.{name}" for name in POSITION)
    ranked = f"ROW_NUMBER() OVER (PARTITION BY {', '.join(parts)} ORDER BY {order}) = 1"
    return (
        f"SELECT {alias}.* FROM {SCRATCH} AS {alias} WHERE TRUE"
        f" QUALIFY {ranked} OR NOT ({target.has_key(alias)})"
    )


def _is_known(target: Target, alias: str) -> str:
    """Whether a row of the table has the key of the batch's row ``b``. Literals let BigQuery read these days alone."""
    days, within = target.days, target.rule.within_days
    bounds = f"{alias}.{_DAY} BETWEEN DATE '{days[0]}' AND DATE '{days[1]}' AND " if days and within else ""
    return bounds + _is_near(target, alias)


def _is_near(target: Target, alias: str) -> str:
    found = same(target.key(alias), target.key("b"))
    if not target.rule.within_days:
        return found
    apart = target.dialect.days.format(left=f"{alias}.{_DAY}", right=f"b.{_DAY}")
    return f"{found} AND {apart} <= {target.rule.within_days}"
