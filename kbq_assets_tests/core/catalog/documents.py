"""Catalogs as texts, by path."""

from __future__ import annotations

from collections.abc import Mapping

from kbq_assets.adapters.catalog_files import parse_document
from kbq_assets.core.catalog import Catalog, DocumentNode, build_catalog
from kbq_assets.core.topics.source_list import parse_source_list
from kbq_assets.core.topics.topic_settings import TopicSettings

PLACE = "shop/sales/orders/prod"
ENTRY = f"{PLACE}/topic.yaml"


def documents(texts: Mapping[str, str]) -> dict[str, DocumentNode]:
    """Parsed documents; a text that is no document is the test's mistake."""
    parsed = {path: parse_document(text, path) for path, text in texts.items()}
    return {path: node for path, node in parsed.items() if isinstance(node, DocumentNode)}


def catalog_of(texts: Mapping[str, str], defaults: TopicSettings | None = None) -> Catalog:
    """The catalogue of texts."""
    return build_catalog(documents(texts), defaults)


def problems_of(text: str, **others: str) -> list[str]:
    """Mistakes of one entry, as people read them."""
    return list(map(str, catalog_of({ENTRY: text, **others}).problems))


def mistake_of(line: str) -> str:
    """The mistake of a line of the source list ``list``, as people read it."""
    [entry] = parse_source_list(line, "list")
    assert entry.mistake is not None, line
    return f"{entry.mistake.message} ({entry.mistake.next_step})"
