"""Finds entries that collide: two for one topic or table, or names that Kafka or a warehouse cannot tell apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from kbq_assets.core.catalog.nodes import CatalogProblem, DocumentNode

if TYPE_CHECKING:
    from kbq_assets.core.catalog.entries import CatalogEntry


def clashes(
    entries: Iterable[CatalogEntry], documents: Mapping[str, DocumentNode]
) -> Iterator[tuple[CatalogProblem, CatalogEntry, CatalogEntry]]:
    """Problems with both of their entries: topics with two entries, and names that differ only by case, or by '.' and
    '_'."""
    topics: dict[tuple[str, str], CatalogEntry] = {}
    tables: dict[tuple[str, str], CatalogEntry] = {}
    for entry in entries:
        env = entry.place.env
        # Kafka refuses a topic whose name collides with another topic's in metrics, where '.' becomes '_'.
        first = topics.setdefault((env, entry.topic.replace(".", "_")), entry)
        if first is not entry:
            names = f"topic {entry.topic}", f"topic {first.topic}"
            yield _clash(entry, "kafka.name", *names, first, documents), entry, first
        if (
            entry.archived
            and entry.settings.destination.route == "topic"
            and not entry.settings.destination.by_record
        ):
            table = entry.settings.destination.table_for(entry.topic)
            first = tables.setdefault((env, str(table).lower()), entry)
            other = first.settings.destination.table_for(first.topic)
            # Several topics may share a table if they spell its name the same way.
            if other != table:
                names = f"table {table}", f"table {other}"
                yield _clash(entry, "destination.table", *names, first, documents), entry, first


def _clash(
    entry: CatalogEntry,
    where: str,
    name: str,
    other: str,
    first: CatalogEntry,
    documents: Mapping[str, DocumentNode],
) -> CatalogProblem:
    node = documents[entry.place.path].find(where)
    line = 1 if node is None else node.line
    return CatalogProblem(
        entry.place.path, line, where, f"{name} collides with {other}", f"see {first.place.path}"
    )
