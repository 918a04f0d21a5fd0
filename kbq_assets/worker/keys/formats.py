"""Kafka keys as framed Avro, for each key format: as with values, a schema id precedes the body."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Final, Protocol

import numpy as np

from kbq_assets.core.errors import NotFound
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.ports.registry import RegisteredSchema, SchemaRegistry, WriterSchemas
from kbq_assets.wire.chunk import Chunk, Spans, encode_bytes
from kbq_assets.wire.files.encode import RejectedSchema
from kbq_assets.wire.records.prefix import PREFIX
from kbq_assets.wire.records.reasons import Reason
from kbq_assets.wire.records.validate import validate_json
from kbq_assets.wire.records.verdicts import RecordLimits
from kbq_assets.worker.framing import SchemaNames
from kbq_assets.worker.translate import (
    AsProduced,
    ScreenedValues,
    ValueTranslator,
    framed,
    problem,
    rejected,
    with_values,
)

#: The schema id of all keys whose format needs no schema.
_PLAIN: Final = 1
_TEXT: Final = '"string"'
_JSON: Final = '{"type": "string", "sqlType": "JSON"}'


class KeyFormat(SchemaRegistry, Protocol):
    """Guarantees the same number of keys in the same order. Null stays null."""

    def problem(self, schema_id: int) -> RejectedSchema | None:
        """The rejection that an id stands for; None if the id is a schema's."""

    def translate(self, chunk: Chunk) -> Chunk:
        """The keys as framed Avro; ``chunk`` has them as its values. Raises Unavailable."""


def as_values(chunk: Chunk) -> Chunk:
    """The chunk's keys as values."""
    keys = chunk.keys or Spans.of([None] * len(chunk))
    return dataclasses.replace(chunk, buffer=keys.buffer, starts=keys.starts, ends=keys.ends, chosen_by=None)


def key_format(topic: str, settings: TopicSettings, registry: WriterSchemas, is_pseudonym: bool) -> KeyFormat:
    """The format of a topic's keys. Pseudonyms are text."""
    records = settings.records
    if is_pseudonym or settings.keys.format == "text":
        return PlainKeys(_TEXT, _as_text)
    if settings.keys.format == "json":
        limits = RecordLimits(max_bytes=records.max_record_bytes)
        return PlainKeys(_JSON, lambda chunk: _as_documents(chunk, limits))
    # Read keys like the values of another topic: the options of this topic's tables do not apply to them.
    own = TopicSettings.of(format=settings.keys.format, framing=records.framing)
    names = None if records.framing == "prefix" else SchemaNames(topic, own, registry, of_keys=True)
    inner: ValueTranslator | None = None
    if settings.keys.format == "protobuf":
        # Imported here, as other topics need neither Google's library nor protoc.
        from kbq_assets.worker.protobuf import ProtobufRows

        inner = ProtobufRows(own, names or registry)
    if names is not None:
        return ScreenedValues(names, own, inner, level=1)
    return inner or AsProduced(registry)


@dataclasses.dataclass(frozen=True)
class PlainKeys:
    """Keys of one fixed type."""

    type: str
    convert: Callable[[Chunk], list[bytes | None]]

    def schema(self, schema_id: int) -> RegisteredSchema:
        """The type. Raises NotFound."""
        if schema_id != _PLAIN:
            raise NotFound(f"keys have no schema {schema_id}", next_step="report a bug")
        return RegisteredSchema(schema_id, self.type, label="of keys")

    def problem(self, schema_id: int) -> RejectedSchema | None:
        """The rejection that an id stands for."""
        return problem(schema_id)

    def translate(self, chunk: Chunk) -> Chunk:
        """Keys as framed Avro."""
        return with_values(chunk, self.convert(chunk))


def _as_text(chunk: Chunk) -> list[bytes | None]:
    keys = map(chunk.value, range(len(chunk)))
    return [None if key is None else framed(_PLAIN, encode_bytes(key)) for key in keys]


def _as_documents(chunk: Chunk, limits: RecordLimits) -> list[bytes | None]:
    """JSON documents, with or without Confluent's prefix. No document begins with a zero byte."""
    first = chunk.buffer[np.maximum(chunk.starts, 0)]
    has_prefix = (chunk.ends - chunk.starts > PREFIX) & (first == 0)
    bare = dataclasses.replace(chunk, starts=np.where(has_prefix, chunk.starts + PREFIX, chunk.starts))
    reasons = validate_json(bare, None, limits).reasons.tolist()
    found: list[bytes | None] = []
    for row, reason in enumerate(reasons):
        key = bare.value(row)
        if key is None:
            found.append(None)
        elif reason:
            found.append(rejected(Reason(reason)))
        else:
            found.append(framed(_PLAIN, encode_bytes(json.dumps(json.loads(key)).encode())))
    return found
