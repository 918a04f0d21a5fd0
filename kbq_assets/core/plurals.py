"""Counts in the words of messages."""

from __future__ import annotations


def counted(count: float, one: str, more: str = "") -> str:
    """A count with its noun, such as "1 row" or "1,234 rows". ``more``: the words after any other count than 1, if an
    "s" at the end of ``one`` does not make them: ``counted(n, "table was", "tables were")``."""
    shown = f"{count:,}" if isinstance(count, int) else f"{count:g}"
    return f"{shown} {one}" if count == 1 else f"{shown} {more or one + 's'}"
