"""Mistakes of entries, in the file and line of the key that is wrong."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from kbq_assets.core.catalog import CatalogEntry, CatalogFiles, CatalogProblem
from kbq_assets.core.catalog.entries import inherited


def entry_mistake(
    entry: CatalogEntry, files: CatalogFiles, where: str, message: str, hint: str = "", key: str = ""
) -> CatalogProblem:
    """A mistake at a key of an entry, in the file and line that has the key: the entry's or a default's. ``key`` is
    one inside it, which may have dots."""
    document = inherited(entry.place, files.documents)
    node = document.find(where) or document.find(where.partition(".")[0]) or document
    node = node.fields.get(key, node)
    return CatalogProblem(node.path, node.line, f"{where}.{key}" if key else where, message, hint)


def meant(wrong: str, known: Iterable[str]) -> str:
    """The nearest of the known words, as a question; "" if none is near."""
    near = difflib.get_close_matches(wrong, list(known), 1)
    return f"did you mean {near[0]!r}?" if near else ""
