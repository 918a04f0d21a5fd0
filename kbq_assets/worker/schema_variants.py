"""Where schemas go that contradict their table, for topics that say so (`on_incompatible`).

What tables were given grows by compare-and-swap *before* anything is staged under it: two tasks that meet schemas at
once agree on who has which column, and what an attempt noted that never commits is a column that no file has yet.
Only names in the files' headers differ: no record is touched.
"""

from __future__ import annotations

from dataclasses import dataclass

from kbq_assets.core.errors import NotFound, PreconditionFailed, UnknownOutcome
from kbq_assets.core.loading.tables import columns_of
from kbq_assets.core.protocol import codec
from kbq_assets.core.topics.evolution import (
    PLACEMENTS,
    Evolution,
    Placement,
    evolutions,
    place,
    version_table,
)
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.wire.files.encode import Route
from kbq_assets.wire.records.renaming import field_paths, renamed
from kbq_assets.wire.records.schema import StagedSchema


@dataclass(frozen=True)
class _Stored:
    """A placement as a task knows it. ``generation`` is None where there is no object yet."""

    placement: Placement
    generation: int | None


class Placements:
    """Routes of (table, schema) pairs by one topic's policy. What this task led to is in ``evolved``."""

    def __init__(self, store: ObjectStore, policy: str) -> None:
        self._store = store
        self._policy = policy
        self._tables: dict[str, _Stored] = {}
        self._routes: dict[tuple[str, str], Route] = {}
        self.evolved: set[Evolution] = set()

    def route(self, table: str, schema: StagedSchema) -> Route:
        """Where records of a schema go. Raises EncodingError, InvalidName for what no table can hold; Unavailable,
        CorruptState."""
        key = (table, schema.fingerprint)
        if key not in self._routes:
            self._routes[key] = self._place(table, schema)
        return self._routes[key]

    def _place(self, table: str, schema: StagedSchema) -> Route:
        columns, fields = columns_of(schema.json), field_paths(schema.json)
        while True:
            known = self._tables.get(table) or self._read(table)
            placed = place(columns, fields, known.placement, self._policy)
            route = Route(version_table(table, placed.version), renamed(schema, placed.renames))
            columns_of(route.schema.json)
            if placed.placement == known.placement or self._write(table, known, placed.placement):
                return route

    def _write(self, table: str, known: _Stored, placement: Placement) -> bool:
        """Store what a table is given. False where somebody was faster, or we perhaps were: then look again."""
        path, data = f"{PLACEMENTS}{table}.json", codec.dumps(placement)
        try:
            if known.generation is None:
                generation = self._store.create(path, data)
            else:
                generation = self._store.swap(path, data, known.generation)
        except (PreconditionFailed, UnknownOutcome):
            del self._tables[table]
            return False
        self._tables[table] = _Stored(placement, generation)
        self.evolved |= {*evolutions(table, placement)} - {*evolutions(table, known.placement)}
        return True

    def _read(self, table: str) -> _Stored:
        path = f"{PLACEMENTS}{table}.json"
        try:
            found = self._store.get(path)
            stored = _Stored(codec.loads(Placement, found.data, path), found.generation)
        except NotFound:
            stored = _Stored(Placement(), None)
        self._tables[table] = stored
        return stored
