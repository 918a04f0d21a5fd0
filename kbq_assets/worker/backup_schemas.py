"""The schemas that a backup's records use, stored next to its files (PROTOCOL B8)."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Final

import numpy as np

from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.ports.backup_schemas import keep_guid, keep_schema, keep_versions
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.registry import WriterSchemas
from kbq_assets.wire.backup.kernels import NO_ID, SEVERAL, one_schema_id
from kbq_assets.wire.chunk import Bytes, Chunk, Longs, decode_headers
from kbq_assets.worker.framing import KEY_HEADER, VALUE_HEADER

#: Formats whose records name a schema, for values and for keys. A JSON document never seems to: it begins with no zero
#: byte.
_OF_VALUES: Final = frozenset({"avro", "json_schema", "protobuf", "debezium"})
_OF_KEYS: Final = frozenset({"avro", "protobuf"})
_ID_BYTES, _GUID_BYTES = 5, 17


class KeptSchemas:
    """Stores a topic's schemas in the backup. They are named by id, by GUID, or by subject."""

    def __init__(
        self, store: ObjectStore, registry: WriterSchemas, topic: str, settings: TopicSettings
    ) -> None:
        self._store = store
        self._registry = registry
        self._topic = topic
        self._framing = settings.records.framing
        self._values = settings.records.format in _OF_VALUES
        self._keys = settings.keys.format in _OF_KEYS
        self._declared = settings.records.value_schema
        self._kept: set[int | str] = set()

    def names(self, chunk: Chunk) -> set[int | str]:
        """The ids and GUIDs of the records' schemas. With single-object encoding, the subjects that contain them."""
        found: set[int | str] = set()
        if self._framing in ("prefix", "header"):
            if self._values:
                found |= _prefixes(chunk.buffer, chunk.starts, chunk.ends)
            if self._keys and chunk.keys is not None:
                found |= _prefixes(chunk.keys.buffer, chunk.keys.starts, chunk.keys.ends)
        if self._framing == "header":
            found |= _guids(chunk) | _in_headers(chunk)
        elif self._framing == "none" and self._values:
            found.add(int(self._declared))
        elif self._framing == "single_object":
            subjects = (self._declared or f"{self._topic}-value", f"{self._topic}-key")
            found |= {s for s, is_named in zip(subjects, (self._values, self._keys), strict=True) if is_named}
        return found

    def keep(self, names: Iterable[int | str]) -> None:
        """Store the schemas that the backup lacks. A schema that the registry cannot return is left for later: copying
        records must not wait for it."""
        for name in names:
            if name not in self._kept and self._keep(name):
                self._kept.add(name)

    def _keep(self, name: int | str) -> bool:
        if isinstance(name, int):
            return keep_schema(self._store, self._registry, self._topic, name)
        keep = keep_versions if self._framing == "single_object" else keep_guid
        return keep(self._store, self._registry, self._topic, name)


def _prefixes(buffer: Bytes, starts: Longs, ends: Longs) -> set[int | str]:
    """The ids in Confluent's prefixes."""
    only = one_schema_id(buffer, starts, ends)
    if only != SEVERAL:
        return set() if only == NO_ID else {only}
    starts = starts[(ends - starts >= _ID_BYTES) & (starts >= 0)]
    starts = starts[buffer[starts] == 0]
    ids = np.zeros(len(starts), np.int64)
    for byte in range(1, _ID_BYTES):
        ids = ids << 8 | buffer[starts + byte]
    return {int(each) for each in np.unique(ids)}


def _guids(chunk: Chunk) -> set[int | str]:
    """The GUIDs at the beginning of values."""
    rows = (chunk.starts >= 0) & (chunk.ends - chunk.starts >= _GUID_BYTES)
    starts = chunk.starts[rows]
    starts = starts[chunk.buffer[starts] == 1]
    return {_guid(chunk.buffer[s + 1 : s + _GUID_BYTES].tobytes()) for s in starts.tolist()}


def _in_headers(chunk: Chunk) -> set[int | str]:
    """The ids and GUIDs in headers."""
    found: set[int | str] = set()
    assert chunk.headers is not None, "a copy has headers"
    wanted = (VALUE_HEADER.encode(), KEY_HEADER.encode())
    for row in range(len(chunk)):
        encoded = chunk.headers.get(row) or b""
        if any(name in encoded for name in wanted):
            given = decode_headers(encoded)
            found |= {_named(value) for name, value in given if name in (VALUE_HEADER, KEY_HEADER) and value}
    return found - {-1}


def _named(value: bytes) -> int | str:
    """The schema id or GUID in a header; -1 if it names no schema."""
    if value[0] == 0 and len(value) >= _ID_BYTES:
        return int.from_bytes(value[1:_ID_BYTES], "big")
    return _guid(value[1:_GUID_BYTES]) if value[0] == 1 and len(value) >= _GUID_BYTES else -1


def _guid(data: bytes) -> str:
    return str(uuid.UUID(bytes=data))
