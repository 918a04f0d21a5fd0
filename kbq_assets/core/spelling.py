"""Corrections of words that nobody knows."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def meant(wrong: str, known: Iterable[str]) -> str:
    """The nearest of the known words, as a question; "" if none is near."""
    near = difflib.get_close_matches(wrong, list(known), 1)
    return f"did you mean {near[0]!r}?" if near else ""
