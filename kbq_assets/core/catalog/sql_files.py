"""SQL of entries in separate files: `sql: apply.sql` refers to a file next to the document."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Final

from kbq_assets.core.catalog.nodes import CatalogProblem, DocumentNode

#: Matches a value that is a file's name instead of SQL.
_NAME: Final = re.compile(r"\S+\.sql")
_PLACES: Final = (("loading", "sql"), ("loading", "gate_sql"))


def with_sql_files(
    documents: Mapping[str, DocumentNode], texts: Mapping[str, str]
) -> tuple[dict[str, DocumentNode], list[CatalogProblem]]:
    """Documents with references replaced by the files' texts, and the problems of missing files. All paths are below
    the catalog's folder."""
    problems: list[CatalogProblem] = []
    found = {path: _filled(document, texts, problems) for path, document in documents.items()}
    return found, problems


def _filled(document: DocumentNode, texts: Mapping[str, str], problems: list[CatalogProblem]) -> DocumentNode:
    for section, key in _PLACES:
        node = document.find(f"{section}.{key}")
        if node is None or not isinstance(node.value, str) or not _NAME.fullmatch(node.value):
            continue
        path = posixpath.normpath(posixpath.join(posixpath.dirname(node.path), node.value))
        if path not in texts:
            where, hint = f"{section}.{key}", "a file of the catalog, relative to this document"
            problems.append(node.problem(where, f"there is no file {path}", hint))
            continue
        own = document.fields[section]
        text = DocumentNode(texts[path], node.path, node.line)
        filled = DocumentNode({**own.fields, key: text}, own.path, own.line)
        document = DocumentNode({**document.fields, section: filled}, document.path, document.line)
    return document
