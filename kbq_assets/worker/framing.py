"""How a record names its schema: by Confluent's prefix or header, by Avro's fingerprint, or not at all.

Translators and the encoder read only Confluent's prefix with a schema id. Other framings are converted to it first, so
topics with the prefix, the default, pay nothing for the others.
"""

from __future__ import annotations

import dataclasses
import uuid
import zlib
from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from kbq_assets.core.avro.canonical import rabin_fingerprint
from kbq_assets.core.avro.tree import load_schema, parse
from kbq_assets.core.errors import NotFound, UnstageableSchema
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.ports.registry import RegisteredSchema, WriterSchemas
from kbq_assets.wire.chunk import NO_HEADERS, UNREADABLE, Chunk, decode_headers, decode_long
from kbq_assets.wire.files.encode import RejectedSchema
from kbq_assets.wire.records.prefix import PREFIX
from kbq_assets.wire.records.reasons import Reason
from kbq_assets.worker.translate import framed, with_values

#: https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html
VALUE_HEADER: Final = "__value_schema_id"
KEY_HEADER: Final = "__key_schema_id"
_BY_ID, _BY_GUID = 0, 1
_GUID_PREFIX: Final = 17
#: Size in bytes of a schema's name, by its first byte.
_SIZES: Final = {_BY_ID: PREFIX, _BY_GUID: _GUID_PREFIX}
#: https://avro.apache.org/docs/1.12.0/specification/#single-object-encoding-specification
_SINGLE_OBJECT: Final = b"\xc3\x01"
_SINGLE_OBJECT_PREFIX: Final = 10
#: First id of types other than a schema's first one: Protobuf messages, or records of a union. Ids of GUIDs follow.
FIRST_TYPE_ID: Final = 2**30
_FIRST_GUID_ID: Final = FIRST_TYPE_ID + 2**29
_GUID_IDS: Final = 2**28
#: Most schema names that one task caches: a producer may send any number of different ones.
_MOST_NAMES: Final = 10_000
_MOST_INDEXES: Final = 100
#: Most bytes of an index, which is an int.
_LONGEST_INDEX: Final = 5

#: A record's prefix and the position of its body, or why it has none.
_Framed: TypeAlias = "tuple[bytes, int] | RejectedSchema"


class SchemaNames:
    """Finds the schemas of one topic's values or keys by their framing. Also the registry of these schemas."""

    def __init__(
        self, topic: str, settings: TopicSettings, registry: WriterSchemas, *, of_keys: bool = False
    ) -> None:
        records = settings.records
        self._header = KEY_HEADER if of_keys else VALUE_HEADER
        self._registry = registry
        self._format = records.format
        self._subject = records.value_schema or f"{topic}-{'key' if of_keys else 'value'}"
        self._frame: Callable[[bytes, bytes | None], _Framed] = {
            "header": self._by_header,
            "single_object": self._by_fingerprint,
            "none": self._declared,
        }[records.framing]
        self._prefixes: dict[tuple[bytes, bool], bytes | RejectedSchema] = {}
        # A Protobuf message without a path has the schema's first type.
        path = b"\x00" if records.format == "protobuf" else b""
        self._bare = framed(int(records.value_schema), path) if records.framing == "none" else b""
        self._own: dict[int, RegisteredSchema] = {}
        self._fingerprints: dict[bytes, bytes] | None = None

    def schema(self, schema_id: int) -> RegisteredSchema:
        """The schema of an id from `screened`. Raises NotFound, Unavailable."""
        return self._own.get(schema_id) or self._registry.schema(schema_id)

    def screened(self, chunk: Chunk) -> tuple[Chunk, dict[int, RejectedSchema]]:
        """The same records with Confluent's prefix. A record that names no schema becomes null; the dict has the reason
        by row. Raises Unavailable."""
        values: list[bytes | None] = [None] * len(chunk)
        refused: dict[int, RejectedSchema] = {}
        for row in np.flatnonzero(chunk.starts >= 0).tolist():
            value = chunk.value(row) or b""
            found = self._frame(value, chunk.header_bytes(row))
            if isinstance(found, RejectedSchema):
                refused[row] = found
            else:
                prefix, start = found
                values[row] = prefix + value[start:]
        return with_values(chunk, values), refused

    def _by_header(self, value: bytes, headers: bytes | None) -> _Framed:
        given = decode_headers(headers or NO_HEADERS)
        if given == [(UNREADABLE, None)]:
            return RejectedSchema(
                Reason.WRONG_MAGIC, "the name of a header is not UTF-8, so no header can be read"
            )
        names = {each for name, each in given if name == self._header} - {None}
        if len(names) > 1:
            return RejectedSchema(Reason.WRONG_MAGIC, f"several headers {self._header} contradict each other")
        if names:
            prefix = self._prefix(names.pop() or b"", is_whole=True)
            return prefix if isinstance(prefix, RejectedSchema) else (prefix, 0)
        # As in Confluent's clients: without the header, the value has the prefix.
        size = _SIZES.get(value[0] if value else -1, 0)
        if size == PREFIX > len(value):
            return b"", 0  # the encoder reports it as too short
        if size:
            prefix = self._prefix(value[:size], is_whole=False)
            return prefix if isinstance(prefix, RejectedSchema) else (prefix, size)
        return RejectedSchema(
            Reason.WRONG_MAGIC, f"the record has neither the header {self._header} nor Confluent's prefix"
        )

    def _by_fingerprint(self, value: bytes, headers: bytes | None) -> _Framed:
        if value[:2] != _SINGLE_OBJECT or len(value) < _SINGLE_OBJECT_PREFIX:
            return RejectedSchema(
                Reason.WRONG_MAGIC, "the value does not start with C3 01 and a fingerprint of 8 bytes"
            )
        fingerprint = value[2:_SINGLE_OBJECT_PREFIX]
        try:
            if self._fingerprints is None:
                self._fingerprints = self._of_subject()
        except NotFound as error:
            return RejectedSchema(Reason.UNKNOWN_SCHEMA, error.message)
        if fingerprint not in self._fingerprints:
            number = int.from_bytes(fingerprint, "little")
            return RejectedSchema(
                Reason.UNKNOWN_SCHEMA, f"no version of {self._subject} has the fingerprint {number:016x}"
            )
        return self._fingerprints[fingerprint], _SINGLE_OBJECT_PREFIX

    def _of_subject(self) -> dict[bytes, bytes]:
        found = {}
        # Versions that differ only in logical types have the same fingerprint: use the newest.
        for _, schema_id in sorted(self._registry.versions(self._subject).items()):
            try:
                tree = parse(load_schema(self._registry.schema(schema_id).schema))
            except UnstageableSchema:
                continue  # only its own records stop the topic, not those of other versions
            found[rabin_fingerprint(tree)] = framed(schema_id)
        return found

    def _declared(self, value: bytes, headers: bytes | None) -> _Framed:
        return self._bare, 0

    def _prefix(self, name: bytes, *, is_whole: bool) -> bytes | RejectedSchema:
        if (name, is_whole) not in self._prefixes:
            if len(self._prefixes) >= _MOST_NAMES:
                self._prefixes.clear()
            self._prefixes[name, is_whole] = self._prefix_of(name, is_whole)
        return self._prefixes[name, is_whole]

    def _prefix_of(self, name: bytes, is_whole: bool) -> bytes | RejectedSchema:
        """The prefix for a schema's id or GUID. If ``is_whole``, the name includes Protobuf's path of types."""
        size = _SIZES.get(name[0] if name else -1, 0)
        rest = name[size:]
        is_complete = message_path(rest)[1] == len(rest) > 0 if self._format == "protobuf" else not rest
        if not size or len(name) < size or (is_whole and not is_complete):
            return RejectedSchema(
                Reason.WRONG_MAGIC, f"{name.hex() or 'nothing'} is not the id or GUID of a schema"
            )
        if name[0] == _BY_GUID:
            return self._prefix_of_guid(uuid.UUID(bytes=name[1:size]), rest)
        schema_id = int.from_bytes(name[1:size], "big")
        if schema_id >= FIRST_TYPE_ID:
            return RejectedSchema(Reason.UNKNOWN_SCHEMA, f"no registry assigns the id {schema_id}")
        return framed(schema_id, rest)

    def _prefix_of_guid(self, guid: uuid.UUID, rest: bytes) -> bytes | RejectedSchema:
        own = _FIRST_GUID_ID + zlib.crc32(guid.bytes) % _GUID_IDS
        try:
            found = dataclasses.replace(self._registry.by_guid(str(guid)), schema_id=own)
        except NotFound as error:
            return RejectedSchema(Reason.UNKNOWN_SCHEMA, error.message)
        if self._own.setdefault(own, found) != found:  # once in millions of schemas
            return RejectedSchema(Reason.UNSTAGEABLE_SCHEMA, f"{guid} and another GUID have the same number")
        return framed(own, rest)


def type_id(schema_id: int, indexes: tuple[int | str, ...]) -> int:
    """The id of one of a schema's types. It is the same in every task, because file names contain it."""
    return FIRST_TYPE_ID | zlib.crc32(f"{schema_id}:{indexes}".encode()) & (FIRST_TYPE_ID // 2 - 1)


def message_path(data: bytes) -> tuple[tuple[int, ...], int]:
    """The path to a Protobuf message's type, and the position after it; () and -1 if there is no valid path.

    Confluent's format is a count followed by the indexes, all as zigzag varints. A single 0 means the first type.
    """
    count, position = _varint(data, 0)
    if count == 0:
        return (0,), position
    if not 0 < count <= _MOST_INDEXES:
        return (), -1
    indexes = []
    for _ in range(count):
        index, position = _varint(data, position)
        if index < 0:
            return (), -1
        indexes.append(index)
    return tuple(indexes), position


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A zigzag varint and the position after it; the value is -1 if there is no varint."""
    try:
        value, size = decode_long(data[position : position + _LONGEST_INDEX], 0)
    except IndexError:
        return -1, position
    return value, position + size
