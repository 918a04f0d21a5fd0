"""Variants for schemas that contradict their table, if the topic's `on_incompatible` asks for them.

The columns of a table grow by compare-and-swap *before* any file is staged with them. So two tasks that read new
schemas at the same time agree on every column. An attempt that never commits leaves an unused column. Only names in
the file headers differ; records do not change."""

from __future__ import annotations

from dataclasses import dataclass

from kbq_assets.core.errors import NotFound, PreconditionFailed, UnknownOutcome
from kbq_assets.core.loading.tables import columns_of
from kbq_assets.core.protocol import codec
from kbq_assets.core.topics.evolution import (
    VARIANTS,
    Evolution,
    TableVariants,
    evolutions,
    find_variant,
    version_table,
)
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.wire.files.encode import Route
from kbq_assets.wire.records.renaming import field_paths, renamed
from kbq_assets.wire.records.staged_schema import StagedSchema


@dataclass(frozen=True)
class _KnownVariants:
    """A table's variants as a task last read them. ``generation`` is None if there is no object yet."""

    variants: TableVariants
    generation: int | None


class SchemaVariants:
    """Routes of (table, schema) pairs under one topic's policy. ``evolved`` has the variants that this task added."""

    def __init__(self, store: ObjectStore, policy: str) -> None:
        self._store = store
        self._policy = policy
        self._tables: dict[str, _KnownVariants] = {}
        self._routes: dict[tuple[str, str], Route] = {}
        self.evolved: set[Evolution] = set()

    def route(self, table: str, schema: StagedSchema) -> Route:
        """The route for records of a schema. Raises EncodingError or InvalidName if no table can hold them; Unavailable
        and CorruptState for the store."""
        key = (table, schema.fingerprint)
        if key not in self._routes:
            self._routes[key] = self._find(table, schema)
        return self._routes[key]

    def _find(self, table: str, schema: StagedSchema) -> Route:
        columns, fields = columns_of(schema.json), field_paths(schema.json)
        while True:
            known = self._tables.get(table) or self._read(table)
            found = find_variant(columns, fields, known.variants, self._policy)
            route = Route(version_table(table, found.version), renamed(schema, found.renames))
            columns_of(route.schema.json)
            if found.variants == known.variants or self._write(table, known, found.variants):
                return route

    def _write(self, table: str, known: _KnownVariants, variants: TableVariants) -> bool:
        """Store a table's variants. Returns False if another task was faster or the outcome is unknown; the caller then
        reads them again."""
        path, data = f"{VARIANTS}{table}.json", codec.dumps(variants)
        try:
            if known.generation is None:
                generation = self._store.create(path, data)
            else:
                generation = self._store.swap(path, data, known.generation)
        except (PreconditionFailed, UnknownOutcome):
            del self._tables[table]
            return False
        self._tables[table] = _KnownVariants(variants, generation)
        self.evolved |= {*evolutions(table, variants)} - {*evolutions(table, known.variants)}
        return True

    def _read(self, table: str) -> _KnownVariants:
        path = f"{VARIANTS}{table}.json"
        try:
            found = self._store.get(path)
            stored = _KnownVariants(codec.loads(TableVariants, found.data, path), found.generation)
        except NotFound:
            stored = _KnownVariants(TableVariants(), None)
        self._tables[table] = stored
        return stored
