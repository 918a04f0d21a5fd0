"""Checks that the field an option names exists in at least one version of the topic's schema."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from kbq_assets.core.avro.fields import field_paths
from kbq_assets.core.avro.tree import AvroType, load_schema, parse
from kbq_assets.core.errors import ConfigurationError, EncodingError, NotFound
from kbq_assets.core.topics.business_time import type_at
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.ports.registry import RegisteredSchema, WriterSchemas


class NamedFields:
    """Checks the field of one topic's business time: one schema may lack it, but if no version has it, the name is
    wrong. Topics selected by a pattern are not checked, since they share options but not fields."""

    def __init__(self, topic: str, settings: TopicSettings, registry: WriterSchemas) -> None:
        self.subject = settings.records.value_schema or f"{topic}-value"
        self._business = settings.records.event_date
        self._format = settings.records.format
        self._registry = registry
        self._found: str | None = None

    def problem(self) -> str:
        """Why the topic's option `event_date` cannot be right; "" if it may be. Raises Unavailable."""
        if self._found is None:
            self._found = self._look()
        return self._found

    def _look(self) -> str:
        business = self._business
        if business is None or business.is_automatic or business.is_optional or self._format in _UNTYPED:
            return ""
        try:
            ids = self._registry.versions(self.subject).values()
            roots = [root for each in ids for root in _types_of(self._registry.schema(each))]
        except (NotFound, ConfigurationError, EncodingError):
            return ""  # no such subject, no permission, or an unreadable version: cannot tell
        if not roots or any(type_at(root, path.split(".")) for root in roots for path in business.candidates):
            return ""
        known = sorted({path for root in roots for path in field_paths(root)})
        near = difflib.get_close_matches(business.candidates[0], known, 1)
        meant = f"; did you mean {near[0]}?" if near else ""
        return f"no version of {self.subject} has the field {' or '.join(business.candidates)} of event_date{meant}"


#: Formats that are not checked: documents decide, not schemas, or rows have other fields than the registered envelopes.
_UNTYPED = ("json", "json_columns", "json_schema", "debezium")


def _types_of(registered: RegisteredSchema) -> Sequence[AvroType]:
    """The Avro types of the values of a registered schema."""
    if registered.schema_type == "AVRO":
        return (parse(load_schema(registered.schema)),)
    if registered.schema_type != "PROTOBUF":
        return ()
    from kbq_assets.adapters.protobuf import avro_schema_of, compile_types

    types = compile_types(registered.schema, dict(registered.references))
    return [parse(avro_schema_of(each)) for each in types.file.message_types_by_name.values()]
