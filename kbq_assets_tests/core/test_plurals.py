"""Counts in the words of messages."""

from __future__ import annotations

import pytest

from kbq_assets.core.plurals import counted


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 rows"),
        (1, "1 row"),
        (2, "2 rows"),
        (1_234, "1,234 rows"),
        (1_000_001, "1,000,001 rows"),
        (-1, "-1 rows"),
        (1.0, "1 row"),
        (1.5, "1.5 rows"),
        (7.0, "7 rows"),
    ],
)
def test_a_noun_agrees_with_its_count(count: float, words: str) -> None:
    assert counted(count, "row") == words


def test_other_plurals_are_given() -> None:
    assert [counted(n, "entry", "entries") for n in (1, 2)] == ["1 entry", "2 entries"]
    assert [counted(n, "table was", "tables were") for n in (0, 1)] == ["0 tables were", "1 table was"]
