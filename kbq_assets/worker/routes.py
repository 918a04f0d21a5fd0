"""Which table a schema id's records go to, and under which staged schema."""

from __future__ import annotations

from kbq_assets.core.errors import EncodingError, InvalidName, NotFound
from kbq_assets.core.tables import columns_of
from kbq_assets.core.topics import TopicSettings
from kbq_assets.ports.registry import SchemaRegistry
from kbq_assets.wire.encode import Problem, Route
from kbq_assets.wire.errors import UnstageableSchema
from kbq_assets.wire.reasons import Reason
from kbq_assets.wire.schema import (
    MetadataColumns,
    StagedSchema,
    json_staged_schema,
    staged_schema,
    tombstone_schema,
)


class Routes:
    """Routes of one topic. A schema that cannot be staged is a Problem, which stops the partition (E10)."""

    def __init__(self, topic: str, settings: TopicSettings, registry: SchemaRegistry) -> None:
        self._topic = topic
        self._settings = settings
        self._registry = registry
        self._metadata = MetadataColumns(
            key=settings.keys, headers=settings.headers, event_date_field=settings.event_date or None
        )

    def resolve(self, schema_id: int) -> Route | Problem:
        """The route of a schema id. Raises Unavailable while the registry is down."""
        if self._settings.format == "json":
            return self._route(json_staged_schema(self._metadata))
        try:
            registered = self._registry.schema(schema_id)
        except NotFound as error:
            return Problem(Reason.UNKNOWN_SCHEMA, error.message)
        if registered.schema_type != "AVRO":
            message = f"schema {schema_id} is {registered.schema_type}, not Avro"
            return Problem(Reason.UNSTAGEABLE_SCHEMA, message)
        try:
            schema = staged_schema(registered.schema, self._metadata)
            columns_of(schema.json)
            return self._route(schema)
        except (UnstageableSchema, EncodingError, InvalidName) as error:
            return Problem(Reason.UNSTAGEABLE_SCHEMA, f"schema {schema_id}: {error.message}")

    def tombstones(self) -> Route | None:
        """The route of null values, None where they are not rows (`tombstones=row`)."""
        if self._settings.tombstones != "row":
            return None
        if self._settings.format == "json":
            return self._route(json_staged_schema(self._metadata))
        metadata = MetadataColumns(key=True, headers=self._settings.headers)
        return Route(str(self._settings.table_for(self._topic)), tombstone_schema(metadata))

    def _route(self, schema: StagedSchema) -> Route:
        record_name = "" if self._settings.format == "json" else schema.name
        return Route(str(self._settings.table_for(self._topic, record_name)), schema)
