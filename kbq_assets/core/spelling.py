"""Suggestions for misspelled words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def meant(wrong: str, known: Iterable[str]) -> str:
    """A question that suggests the closest known word, such as "did you mean 'load'?"; "" if none is close."""
    near = difflib.get_close_matches(wrong, list(known), 1)
    return f"did you mean {near[0]!r}?" if near else ""
