"""Mistakes in entries, with the file and line of the wrong key."""

from __future__ import annotations

from kbq_assets.core.catalog import CatalogEntry, CatalogFiles, CatalogProblem
from kbq_assets.core.catalog.entries import inherited


def entry_mistake(
    entry: CatalogEntry, files: CatalogFiles, where: str, message: str, hint: str = "", key: str = ""
) -> CatalogProblem:
    """A mistake at a key of an entry, with the file (the entry's or a default's) and line of the key. ``key`` is a key
    inside it, which may contain dots."""
    document = inherited(entry.place, files.documents)
    node = document.find(where) or document.find(where.partition(".")[0]) or document
    node = node.fields.get(key, node)
    return node.problem(f"{where}.{key}" if key else where, message, hint)
