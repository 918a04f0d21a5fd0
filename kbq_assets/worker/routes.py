"""Routes: the table and the staged schema for the records of each schema id."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from functools import lru_cache, partial
from typing import Final

from kbq_assets.core.avro.tree import load_schema
from kbq_assets.core.errors import EncodingError, InvalidName, NotFound, UnstageableSchema
from kbq_assets.core.loading.tables import columns_of
from kbq_assets.core.protocol.done_files import check_fits
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.statements.tombstones import KEYED_TOMBSTONE
from kbq_assets.core.topics.column_names import SNAKE_CASE, snake_case_names
from kbq_assets.core.topics.error_tables import is_error_table
from kbq_assets.core.topics.json.inference import INFERRED
from kbq_assets.core.topics.options import KEEP
from kbq_assets.core.topics.personal import KEY, Decision
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.ports.registry import SchemaRegistry
from kbq_assets.wire.files.encode import RejectedSchema, Route
from kbq_assets.wire.privacy.tags import check_decided
from kbq_assets.wire.records.reasons import Reason
from kbq_assets.wire.records.renaming import field_paths, renamed
from kbq_assets.wire.records.select import Chooser, Value
from kbq_assets.wire.records.staged_schema import (
    BodyKind,
    MetadataColumns,
    StagedSchema,
    json_staged_schema,
    staged_schema,
    tombstone_schema,
)
from kbq_assets.worker.named_fields import NamedFields
from kbq_assets.worker.schema_variants import SchemaVariants
from kbq_assets.worker.table_selection import Choice

_PSEUDONYM: Final = (
    "A pseudonym of the record's key, as text in UTF-8: SAFE_CONVERT_BYTES_TO_STRING(_kafka_key)."
)
#: Longer schemas are compiled again for each unit, which bounds the memory of the cache.
_MOST_KEPT: Final = 32_768


class Routes:
    """Routes of one topic. A schema that cannot be staged is rejected, which stops the partition (E10).

    ``schemas`` has the schemas of all routes so far, by fingerprint. With a ``choice``, each record chooses its table.
    If a schema lacks the field of the business time, ``fields`` decides whether that is an error.
    """

    def __init__(
        self,
        topic: str,
        settings: TopicSettings,
        registry: SchemaRegistry,
        variants: SchemaVariants | None = None,
        choice: Choice | None = None,
        fields: NamedFields | None = None,
    ) -> None:
        self._fields = fields
        self.schemas: dict[str, str] = {}
        self._choice = choice
        self._variants = variants
        self._topic = topic
        self._settings = settings
        self._registry = registry
        self._decisions = settings.privacy.decisions
        self._metadata = MetadataColumns(
            settings.keys.as_bytes,
            settings.records.headers,
            settings.records.event_date,
            settings.records.event_bounds,
            settings.records.null_items == KEEP,
            _PSEUDONYM if settings.privacy.action(KEY) == "pseudonym" else "",
            settings.destination.schema_ids,
        )

    def resolve(self, schema_id: int) -> Route | RejectedSchema:
        """The route of a schema id. Raises Unavailable while the registry is down."""
        if self._settings.records.format == "json":
            return self._route(_of_documents(self._metadata))
        try:
            registered = self._registry.schema(schema_id)
        except NotFound as error:
            return RejectedSchema(Reason.UNKNOWN_SCHEMA, error.message)
        except UnstageableSchema as error:
            return RejectedSchema(Reason.UNSTAGEABLE_SCHEMA, f"schema {schema_id}: {error.message}")
        if registered.schema_type != "AVRO":
            message = f"schema {registered.name} is {registered.schema_type}, not Avro"
            return RejectedSchema(Reason.UNSTAGEABLE_SCHEMA, message)
        try:
            schema = stageable(registered.schema, self._decisions, self._metadata, self._captured)
            if not schema.event_field and self._fields is not None and (wrong := self._fields.problem()):
                return RejectedSchema(Reason.UNSTAGEABLE_SCHEMA, wrong)
            return self._route(schema)
        except (UnstageableSchema, EncodingError, InvalidName) as error:
            return RejectedSchema(Reason.UNSTAGEABLE_SCHEMA, f"schema {registered.name}: {error.message}")

    @property
    def _captured(self) -> tuple[str, ...]:
        """The fields that choose a table. Empty for JSON, whose translator reads them: they may have any type."""
        is_json = self._settings.records.is_json
        return () if self._choice is None or is_json else self._choice.fields

    def tombstones(self) -> Route | None:
        """The route of null values; None unless they become rows (`tombstones=row`)."""
        if self._settings.records.tombstones != "row":
            return None
        if self._settings.records.format == "json":
            return self._route(_of_documents(self._metadata))
        metadata = dataclasses.replace(self._metadata, key=True)
        return self._route(tombstone_schema(metadata))

    def variant(self, table: str, schema: StagedSchema) -> Route:
        """The route of a (table, schema) pair, called when the pair first occurs in a window. Records may choose their
        table, so everything that depends on both table and schema is decided here."""
        if self._settings.destination.column_names == SNAKE_CASE:
            schema = renamed(schema, snake_case_names(field_paths(schema.json)))
        route = Route(table, schema) if self._variants is None else self._variants.route(table, schema)
        check_fits(self._topic, TableReference.parse(route.table))
        if is_error_table(TableReference.parse(route.table.lower())):
            raise InvalidName(f"{route.table} is a table of bad records", next_step="choose another name")
        self.schemas[route.schema.fingerprint] = route.schema.json
        return route

    def _route(self, schema: StagedSchema) -> Route:
        if self._choice is not None:
            return Route(
                "", schema, Chooser(self._choice.inputs, partial(self._chosen, self._choice, schema))
            )
        return self.variant(
            str(self._settings.destination.table_for(self._topic, self._record_name(schema))), schema
        )

    def _chosen(
        self, choice: Choice, schema: StagedSchema, values: tuple[Value, ...]
    ) -> Route | RejectedSchema:
        table = choice.table(self._record_name(schema), values)
        if isinstance(table, RejectedSchema):
            return table
        try:
            return self.variant(str(table), schema)
        except (EncodingError, InvalidName) as error:
            return RejectedSchema(Reason.UNSTAGEABLE_SCHEMA, f"{table}: {error.message}")

    def _record_name(self, schema: StagedSchema) -> str:
        """The record type's name in the producers' schema; "" if KBQ made the type."""
        is_ours = schema.body is not BodyKind.AVRO or schema.name == KEYED_TOMBSTONE
        is_ours |= self._settings.records.is_json
        is_ours |= self._settings.records.format == "debezium" and schema.name == INFERRED
        return "" if is_ours else schema.name


def stageable(
    schema: str, decisions: Collection[Decision], metadata: MetadataColumns, captured: tuple[str, ...]
) -> StagedSchema:
    """The staged schema for a writer schema; the process caches it across units. Raises UnstageableSchema,
    EncodingError, or InvalidName if no warehouse table can hold its records."""
    compiled = _stageable if len(schema) <= _MOST_KEPT else _stageable.__wrapped__
    return compiled(schema, tuple(decisions), metadata, captured)


@lru_cache(maxsize=1024)
def _stageable(
    schema: str, decisions: tuple[Decision, ...], metadata: MetadataColumns, captured: tuple[str, ...]
) -> StagedSchema:
    check_decided(load_schema(schema), decisions)
    staged = staged_schema(schema, metadata, captured)
    columns_of(staged.json)
    return staged


_of_documents = lru_cache(maxsize=16)(json_staged_schema)
