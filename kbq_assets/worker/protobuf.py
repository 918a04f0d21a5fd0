"""Protobuf topics: messages become Avro records, with a schema id for each schema and message type."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from kbq_assets.adapters.protobuf import (
    Descriptor,
    MessageTypes,
    avro_schema_of,
    compile_types,
    layout_of,
    row_encoder,
)
from kbq_assets.core.errors import EncodingError, NotFound
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.ports.registry import RegisteredSchema, SchemaRegistry
from kbq_assets.wire.chunk import Chunk, Longs
from kbq_assets.wire.files.encode import RejectedSchema
from kbq_assets.wire.protobuf.encode import MessageEncoder
from kbq_assets.wire.records.encoded import EncodedRecords, with_encoded
from kbq_assets.wire.records.prefix import PREFIX
from kbq_assets.wire.records.reasons import Reason
from kbq_assets.worker.framing import message_path, type_id
from kbq_assets.worker.translate import UNREADABLE, Messages, framed, produced_ids, rejected, with_values

#: The path to a schema's first message type, which is encoded as a single zero byte.
_FIRST_TYPE: Final = (0,)


@dataclass(frozen=True)
class _MessageType:
    """Id, schema and encoders of one message type. ``messages`` is the fast encoder, if the type has one."""

    schema_id: int
    schema: str
    encode: Callable[[bytes], bytes | RejectedSchema]
    messages: MessageEncoder | None


class ProtobufRows:
    """Translates the values of one topic, and is the registry of their Avro schemas. Raises ConfigurationError if
    protoc is not installed."""

    def __init__(self, settings: TopicSettings, registry: SchemaRegistry) -> None:
        self.business_time = settings.records.event_date
        self._registry = registry
        self._messages = Messages()
        self._types: dict[int, MessageTypes | bytes] = {}
        self._rows: dict[tuple[int, tuple[int, ...]], _MessageType | bytes] = {}
        self._schemas: dict[int, RegisteredSchema] = {}
        self._names: dict[int, str] = {}

    def schema(self, schema_id: int) -> RegisteredSchema:
        """The Avro schema of an id from `translate`. Raises NotFound."""
        if schema_id not in self._schemas:
            raise NotFound(f"no message type has the id {schema_id} here", next_step="report a bug")
        return self._schemas[schema_id]

    def problem(self, schema_id: int) -> RejectedSchema | None:
        """The rejection that an id stands for; None if the id is a schema's."""
        return self._messages.problem(schema_id)

    def translate(self, chunk: Chunk) -> Chunk:
        """The same records with framed Avro values. Raises Unavailable."""
        values: list[bytes | None] = [None] * len(chunk)
        ids = produced_ids(chunk)
        quick = [found for found in map(partial(self._quick, chunk, ids), np.unique(ids).tolist()) if found]
        slow = chunk.starts >= 0
        for encoded, rows in quick:
            slow[rows[encoded.done]] = False
        for row in np.flatnonzero(slow).tolist():
            schema_id = int(ids[row])
            if schema_id < 0:
                values[row] = rejected(UNREADABLE[schema_id])
            else:
                values[row] = self._translated(schema_id, (chunk.value(row) or b"")[PREFIX:])
        made = with_values(chunk, values)
        for encoded, rows in quick:
            made = with_encoded(made, encoded, rows)
        return made

    def _quick(self, chunk: Chunk, ids: Longs, schema_id: int) -> tuple[EncodedRecords, Longs] | None:
        """The records of a schema's first message type, encoded without Python objects, and their rows; None if that is
        not possible."""
        types = self._types_of(schema_id) if schema_id >= 0 else b""
        if isinstance(types, bytes):
            return None
        found = self._rows_of(schema_id, types, _FIRST_TYPE)
        if isinstance(found, bytes) or found.messages is None:
            return None
        rows = np.flatnonzero((ids == schema_id) & (chunk.ends - chunk.starts > PREFIX))
        rows = rows[chunk.buffer[chunk.starts[rows] + PREFIX] == 0]
        bare = dataclasses.replace(chunk, starts=chunk.starts + PREFIX + 1)
        return found.messages.encode(bare, rows), rows

    def _translated(self, schema_id: int, body: bytes) -> bytes:
        types = self._types_of(schema_id)
        if isinstance(types, bytes):
            return types
        indexes, start = message_path(body)
        if start < 0:
            return self._invalid(f"no path to a message type follows the id of schema {schema_id}")
        rows = self._rows_of(schema_id, types, indexes)
        if isinstance(rows, bytes):
            return rows
        encoded = rows.encode(body[start:])
        return (
            framed(rows.schema_id, encoded)
            if isinstance(encoded, bytes)
            else self._messages.rejected(encoded)
        )

    def _types_of(self, schema_id: int) -> MessageTypes | bytes:
        if schema_id not in self._types:
            self._types[schema_id] = self._compiled(schema_id)
        return self._types[schema_id]

    def _compiled(self, schema_id: int) -> MessageTypes | bytes:
        """The message types of a schema id, or the replacement for its records. Raises Unavailable."""
        try:
            found = self._registry.schema(schema_id)
            self._names[schema_id] = found.name
            if found.schema_type != "PROTOBUF":
                return self._unstageable(schema_id, f"its type is {found.schema_type}, not PROTOBUF")
            return compile_types(found.schema, dict(found.references))
        except NotFound as error:
            return self._messages.rejected(RejectedSchema(Reason.UNKNOWN_SCHEMA, error.message))
        except EncodingError as error:
            return self._unstageable(schema_id, error.message)

    def _rows_of(self, schema_id: int, types: MessageTypes, indexes: tuple[int, ...]) -> _MessageType | bytes:
        key = (schema_id, indexes)
        if key not in self._rows:
            type_ = types.at(indexes)
            if type_ is None:  # not cached: a producer may send any number of paths
                return self._invalid(f"schema {schema_id} has no message type at this path")
            self._rows[key] = self._made(schema_id, type_, indexes)
        return self._rows[key]

    def _made(self, schema_id: int, type_: Descriptor, indexes: tuple[int, ...]) -> _MessageType | bytes:
        own = schema_id if indexes == _FIRST_TYPE else type_id(schema_id, indexes)
        try:
            schema = json.dumps(avro_schema_of(type_))
        except EncodingError as error:
            return self._unstageable(schema_id, f"{type_.full_name}: {error.message}")
        label = f"{self._names[schema_id]} ({type_.full_name})"
        made = RegisteredSchema(own, schema, label=label)
        if self._schemas.setdefault(own, made) != made:  # once in a billion schemas
            return self._unstageable(schema_id, f"{type_.full_name} and another type have the id {own}")
        layout = layout_of(type_) if indexes == _FIRST_TYPE else None
        messages = None if layout is None else MessageEncoder(layout, own)
        return _MessageType(own, schema, row_encoder(type_), messages)

    def _unstageable(self, schema_id: int, why: str) -> bytes:
        name = self._names.get(schema_id, str(schema_id))
        return self._messages.rejected(RejectedSchema(Reason.UNSTAGEABLE_SCHEMA, f"schema {name}: {why}"))

    def _invalid(self, why: str) -> bytes:
        return self._messages.rejected(
            RejectedSchema(Reason.INVALID_PROTOBUF, f"{Reason.INVALID_PROTOBUF.message}: {why}")
        )
