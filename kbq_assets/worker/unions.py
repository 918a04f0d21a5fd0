"""Avro topics whose schema is a union of record types: each record goes to the table of its type.

Confluent describes such topics: a subject's schema is a list of records, or of references to them, and each value
begins with the index of its branch. Chunks without such schemas pass unchanged.
"""

from __future__ import annotations

import json

import numpy as np

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.avro.references import union_records
from kbq_assets.core.errors import NotFound, UnstageableSchema
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.ports.registry import RegisteredSchema, SchemaRegistry
from kbq_assets.wire.chunk import Chunk, decode_long
from kbq_assets.wire.files.encode import RejectedSchema
from kbq_assets.wire.records.prefix import PREFIX, split_prefix
from kbq_assets.wire.records.reasons import Reason
from kbq_assets.worker.framing import type_id
from kbq_assets.worker.translate import (
    FIRST_OWN_ID,
    Messages,
    framed,
    rejected,
    with_values,
)

#: Most bytes of an index, which is an int.
_LONGEST_INDEX = 5


class RecordUnions:
    """Translates the values of one topic, and is the registry of their schemas. Each branch of a union has its own
    id."""

    def __init__(self, settings: TopicSettings, registry: SchemaRegistry) -> None:
        self.business_time = settings.records.event_date
        self._registry = registry
        self._messages = Messages()
        self._branches: dict[int, list[int | None]] = {}
        self._schemas: dict[int, str] = {}

    def schema(self, schema_id: int) -> RegisteredSchema:
        """The schema of a branch or of a registered id. Raises NotFound, Unavailable."""
        if schema_id in self._schemas:
            return RegisteredSchema(schema_id, self._schemas[schema_id])
        return self._registry.schema(schema_id)

    def problem(self, schema_id: int) -> RejectedSchema | None:
        """The rejection that an id stands for; None if the id is a schema's."""
        return self._messages.problem(schema_id)

    def translate(self, chunk: Chunk) -> Chunk:
        """The same records, with the branch index of unions removed; the same chunk if no record has a union. Raises
        Unavailable."""
        ids = split_prefix(chunk)
        known = [schema_id for schema_id in np.unique(ids).tolist() if 0 <= schema_id < FIRST_OWN_ID]
        unions = [schema_id for schema_id in known if self._branches_of(schema_id)]
        is_ours = (ids >= FIRST_OWN_ID) | np.isin(ids, [*self._schemas])  # ids that producers must not use
        changed = np.isin(ids, unions) | is_ours
        if not changed.any():
            return chunk
        values = [chunk.value(row) for row in range(len(chunk))]
        for row in np.flatnonzero(changed).tolist():
            if is_ours[row]:
                values[row] = rejected(Reason.UNKNOWN_SCHEMA)
            else:
                values[row] = self._translated(int(ids[row]), (values[row] or b"")[PREFIX:])
        return with_values(chunk, values)

    def _translated(self, schema_id: int, body: bytes) -> bytes | None:
        """The record of a branch; None for null."""
        branches = self._branches_of(schema_id)
        try:
            index, size = decode_long(body[:_LONGEST_INDEX], 0)
        except IndexError:
            return rejected(Reason.INVALID_UNION)
        if not 0 <= index < len(branches):
            return rejected(Reason.INVALID_UNION)
        own = branches[index]
        return None if own is None else framed(own, body[size:])

    def _branches_of(self, schema_id: int) -> list[int | None]:
        """The id of each branch, None for null; empty if the schema is not a union. Raises Unavailable."""
        if schema_id not in self._branches:
            self._branches[schema_id] = [*self._found(schema_id)]
        return self._branches[schema_id]

    def _found(self, schema_id: int) -> list[int | None]:
        try:
            found = self._registry.schema(schema_id)
            is_union = found.schema_type == "AVRO" and found.schema.lstrip()[:1] == "["
            records = union_records(avro.load_schema(found.schema)) if is_union else []
        except (NotFound, UnstageableSchema):
            return []  # staging its records reports the reason
        ids: list[int | None] = []
        for index, record in enumerate(records):
            own = type_id(schema_id, (index,))
            if record is not None and self._schemas.setdefault(own, text := json.dumps(record)) != text:
                why = f"schema {schema_id}: its branch {index} and another one have the id {own}"
                own = self._messages.id_of(why)  # once in a billion schemas
            ids.append(None if record is None else own)
        return ids
