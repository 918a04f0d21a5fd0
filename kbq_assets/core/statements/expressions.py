"""Conditions that the texts of statements share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def same(left: Iterable[str], right: Iterable[str]) -> str:
    """Whether values are equal, each to its counterpart; TRUE without any."""
    return " AND ".join(f"{a} = {b}" for a, b in zip(left, right, strict=True)) or "TRUE"


def greater(pairs: Sequence[tuple[str, str]]) -> str:
    """Whether the first values are greater, compared one after another."""
    (mine, theirs), rest = pairs[0], pairs[1:]
    if not rest:
        return f"{mine} > {theirs}"
    return f"({mine} > {theirs} OR ({mine} = {theirs} AND {greater(rest)}))"
