"""Conditions that the texts of statements share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kbq_assets.core.loading.table_notes import OWN_COLUMNS
from kbq_assets.core.loading.tables import Column
from kbq_assets.core.statements.dialects import Dialect


def same(left: Iterable[str], right: Iterable[str]) -> str:
    """Whether values are equal, each to its counterpart; TRUE without any."""
    return " AND ".join(f"{a} = {b}" for a, b in zip(left, right, strict=True)) or "TRUE"


def greater(pairs: Sequence[tuple[str, str]]) -> str:
    """Whether the first values are greater, compared one after another."""
    (mine, theirs), rest = pairs[0], pairs[1:]
    if not rest:
        return f"{mine} > {theirs}"
    return f"({mine} > {theirs} OR ({mine} = {theirs} AND {greater(rest)}))"


def is_tombstone(dialect: Dialect, columns: Iterable[Column], without: Iterable[str], alias: str) -> str:
    """Whether a row that was appended has no value: all its columns are null, but KBQ's own and those ``without``; ""
    if there is no other."""
    own = [c for c in columns if c.name.lower() not in OWN_COLUMNS and c.name not in without]
    return " AND ".join(
        f"COALESCE({dialect.length}({alias}.{dialect.quoted(c.name)}), 0) = 0"
        if c.mode == "REPEATED"
        else f"{alias}.{dialect.quoted(c.name)} IS NULL"
        for c in own
    )
