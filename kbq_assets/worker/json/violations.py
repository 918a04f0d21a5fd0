"""JSON values that violate their JSON Schema become bad records (`validate=true`)."""

from __future__ import annotations

import dataclasses
import json

import numpy as np

from kbq_assets.adapters.json_schema import DocumentCheck
from kbq_assets.core.errors import ConfigurationError, NotFound, UnstageableSchema
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.ports.registry import RegisteredSchema, SchemaRegistry
from kbq_assets.wire.chunk import Chunk
from kbq_assets.wire.files.encode import RejectedSchema
from kbq_assets.wire.records.prefix import PREFIX
from kbq_assets.wire.records.reasons import Reason
from kbq_assets.wire.records.validate import validate_json
from kbq_assets.wire.records.verdicts import RecordLimits
from kbq_assets.worker.translate import produced_ids, with_values

_DECLARED = 0


class DocumentChecks:
    """Checks one topic's documents against the schema that each names, or the declared one. Raises ConfigurationError
    if there is no schema."""

    def __init__(self, settings: TopicSettings, registry: SchemaRegistry) -> None:
        self._has_prefix = settings.records.format == "json_schema"
        self._registry = registry
        self._is_personal = bool(settings.privacy.decisions)
        self._limits = RecordLimits(max_bytes=settings.records.max_record_bytes)
        self._checks: dict[int, DocumentCheck | RejectedSchema | None] = {}
        declared = settings.records.declared
        if self._has_prefix:
            return
        if declared is None:
            raise ConfigurationError(
                f"validate=true, but no schema is declared for format={settings.records.format}",
                next_step="set format=json_schema, or add schemas/value.json to the catalog entry",
            )
        self._checks[_DECLARED] = self._check(json.dumps(declared), (), "the declared schema")

    def schema(self, schema_id: int) -> RegisteredSchema:
        """The schema of an id. Raises NotFound, Unavailable."""
        return self._registry.schema(schema_id)

    def screened(self, chunk: Chunk) -> tuple[Chunk, dict[int, RejectedSchema]]:
        """The same records. A document that violates its schema becomes null; the dict has the reason by row. Values
        that are not documents pass, since the next translator rejects them. Raises Unavailable."""
        bare, ids = chunk, np.where(chunk.starts >= 0, _DECLARED, -1)
        if self._has_prefix:
            ids = produced_ids(chunk)
            bare = dataclasses.replace(chunk, starts=np.where(ids >= 0, chunk.starts + PREFIX, chunk.starts))
        rows = np.flatnonzero(ids >= 0)
        reasons = validate_json(bare, rows, self._limits).reasons
        refused: dict[int, RejectedSchema] = {}
        for row, reason in zip(rows.tolist(), reasons.tolist(), strict=True):
            found = self._judged(int(ids[row]), Reason(reason), bare.value(row) or b"")
            if found is not None:
                refused[row] = found
        if not refused:
            return chunk, refused
        values = [None if row in refused else chunk.value(row) for row in range(len(chunk))]
        return with_values(chunk, values), refused

    def _judged(self, schema_id: int, reason: Reason, document: bytes) -> RejectedSchema | None:
        if schema_id not in self._checks:
            self._checks[schema_id] = self._registered(schema_id)
        check = self._checks[schema_id]
        if check is None or isinstance(check, RejectedSchema):
            return check
        if reason is Reason.OUT_OF_RANGE:
            return RejectedSchema(reason, reason.message)
        return check(document) if reason is Reason.GOOD else None

    def _registered(self, schema_id: int) -> DocumentCheck | RejectedSchema | None:
        """The check of a registered schema; None if it is not a JSON Schema, which the next translator rejects."""
        try:
            found = self._registry.schema(schema_id)
        except NotFound:
            return None
        if found.schema_type != "JSON":
            return None
        return self._check(found.schema, found.references, f"schema {found.name}")

    def _check(
        self, schema: str, references: tuple[tuple[str, str], ...], name: str
    ) -> DocumentCheck | RejectedSchema:
        try:
            return DocumentCheck(schema, references, is_personal=self._is_personal)
        except UnstageableSchema as error:
            return RejectedSchema(Reason.UNSTAGEABLE_SCHEMA, f"{name}: {error.message}")
