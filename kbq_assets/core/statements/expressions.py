"""Conditions shared by several kinds of statements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kbq_assets.core.loading.table_notes import OWN_COLUMNS
from kbq_assets.core.loading.tables import Column
from kbq_assets.core.statements.dialects import Dialect


def same(left: Iterable[str], right: Iterable[str]) -> str:
    """Whether values are pairwise equal; TRUE if there are none."""
    return " AND ".join(f"{a} = {b}" for a, b in zip(left, right, strict=True)) or "TRUE"


def greater(pairs: Sequence[tuple[str, str]]) -> str:
    """Whether the left values are lexicographically greater than the right ones."""
    (mine, theirs), rest = pairs[0], pairs[1:]
    if not rest:
        return f"{mine} > {theirs}"
    return f"({mine} > {theirs} OR ({mine} = {theirs} AND {greater(rest)}))"


def is_tombstone(dialect: Dialect, columns: Iterable[Column], without: Iterable[str], alias: str) -> str:
    """Whether an appended row is a tombstone: all of its columns are null except KBQ's own and those in ``without``. ""
    if there are no other columns."""
    own = [c for c in columns if c.name.lower() not in OWN_COLUMNS and c.name not in without]
    return " AND ".join(
        f"COALESCE({dialect.length}({alias}.{dialect.quoted(c.name)}), 0) = 0"
        if c.mode == "REPEATED"
        else f"{alias}.{dialect.quoted(c.name)} IS NULL"
        for c in own
    )
