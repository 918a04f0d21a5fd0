"""The nested translators of a topic's records, and the routes of the translated records."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from kbq_assets.core.topics.personal import Pseudonyms
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.registry import SchemaRegistry, WriterSchemas
from kbq_assets.wire.privacy.json import LostValues
from kbq_assets.worker.framing import SchemaNames
from kbq_assets.worker.json.inferred_columns import JsonColumns
from kbq_assets.worker.named_fields import NamedFields
from kbq_assets.worker.privacy.avro import PersonalData
from kbq_assets.worker.privacy.json import JsonPrivacy, Payloads
from kbq_assets.worker.routes import Routes
from kbq_assets.worker.schema_variants import SchemaVariants
from kbq_assets.worker.table_selection import Choice
from kbq_assets.worker.translate import ScreenedValues, ValueTranslator
from kbq_assets.worker.unions import RecordUnions


class TranslatorPorts(Protocol):
    """The worker's ports that translators need."""

    @property
    def store(self) -> ObjectStore:
        """Holds inferred schemas."""

    @property
    def registry(self) -> WriterSchemas:
        """Holds writer schemas."""

    def pseudonyms(self) -> Pseudonyms | None:
        """The keyed hashes of personal data; None without keys."""


def open_routes(
    topic: str,
    settings: TopicSettings,
    ports: TranslatorPorts,
    variants: SchemaVariants | None,
    choice: Choice | None,
    *,
    has_order: bool,
    lost: LostValues | None = None,
) -> tuple[ValueTranslator | None, Routes]:
    """The translator of a topic's values, if it needs one, and its routes. ``has_order`` says that the topic has a
    single partition."""
    fields = NamedFields(topic, settings, ports.registry)
    has_prefix = settings.records.framing == "prefix"
    names = None if has_prefix else SchemaNames(topic, settings, ports.registry)
    registry = names or ports.registry
    translator = _translator(
        topic, settings, ports, registry, choice.fields if choice else (), has_order=has_order, lost=lost
    )
    if settings.privacy.decisions and settings.records.format in ("avro", "debezium", "protobuf"):
        translator = PersonalData(settings, registry, ports.pseudonyms(), translator)
    if names is not None:
        translator = ScreenedValues(names, settings, translator, level=2)
    if settings.keys.are_decoded:
        # Imported here, as other topics have no use for it.
        from kbq_assets.worker.keys.key_column import KeyColumns

        translator = KeyColumns(topic, settings, ports.registry, translator)
    if translator is None:
        return None, Routes(topic, settings, ports.registry, variants, choice, fields)
    records = dataclasses.replace(settings.records, event_date=translator.business_time)
    translated = dataclasses.replace(settings, records=records)
    if settings.records.format == "json":  # translated documents are Avro records with one field
        route = "topic" if settings.destination.route == "record_name" else settings.destination.route
        translated = translated.with_options(format="json_columns", route=route)
    return translator, Routes(topic, translated, translator, variants, choice, fields)


def _translator(
    topic: str,
    settings: TopicSettings,
    ports: TranslatorPorts,
    registry: SchemaRegistry,
    chosen_by: Sequence[str],
    *,
    has_order: bool,
    lost: LostValues | None,
) -> ValueTranslator | None:
    """The translator of a topic's values to Avro; None if they are staged as they are."""
    if settings.records.is_json:
        return _of_documents(topic, settings, ports, registry, chosen_by, lost)
    if settings.records.format == "debezium":
        # Imported here, as other topics have no use for it.
        from kbq_assets.worker.debezium.change_events import ChangeRows

        return ChangeRows(topic, settings, registry, lambda: ports.store, has_order=has_order)
    if settings.records.format == "protobuf":
        # Imported here, as other topics need neither Google's library nor protoc.
        from kbq_assets.worker.protobuf import ProtobufRows

        return ProtobufRows(settings, registry)
    return RecordUnions(settings, registry) if settings.destination.route == "record_name" else None


def _of_documents(
    topic: str,
    settings: TopicSettings,
    ports: TranslatorPorts,
    registry: SchemaRegistry,
    chosen_by: Sequence[str],
    lost: LostValues | None,
) -> ValueTranslator | None:
    records = settings.records
    privacy = (
        JsonPrivacy(settings, ports.pseudonyms(), records.declared, lost)
        if settings.privacy.decisions
        else None
    )
    made: ValueTranslator | None = None
    if records.format != "json":
        schemas = registry if records.format == "json_schema" else None
        made = JsonColumns(topic, settings, ports.store, schemas, privacy, records.declared, chosen_by)
    elif privacy is not None or records.validate or settings.keys.are_decoded:
        made = Payloads(settings, privacy)
    if made is None or not records.validate:
        return made
    # Imported here, as other topics need no validator.
    from kbq_assets.worker.json.violations import DocumentChecks

    return ScreenedValues(DocumentChecks(settings, registry), settings, made, level=1)
