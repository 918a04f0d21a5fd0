"""Kafka keys as the column `_key`: the key's Avro body follows the value's.

An Avro key is validated like a value and copied unchanged. Each pair of a value's schema and a key's schema has its own
id, which is the same in every task.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.avro.canonical import recursive_record
from kbq_assets.core.avro.visitor import visit
from kbq_assets.core.errors import NotFound, UnstageableSchema
from kbq_assets.core.statements.tombstones import KEYED_TOMBSTONE
from kbq_assets.core.topics.business_time import BusinessTime
from kbq_assets.core.topics.personal import KEY
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.ports.registry import RegisteredSchema, WriterSchemas
from kbq_assets.wire.chunk import Chunk, Longs, Spans
from kbq_assets.wire.files.encode import RejectedSchema
from kbq_assets.wire.privacy.forms import Forms
from kbq_assets.wire.privacy.tags import is_personal
from kbq_assets.wire.records.compile import compile_program
from kbq_assets.wire.records.join import NO_MARK, joined
from kbq_assets.wire.records.prefix import NULL, PREFIX, split_prefix
from kbq_assets.wire.records.program import Program
from kbq_assets.wire.records.reasons import Reason
from kbq_assets.wire.records.validate import validate_avro
from kbq_assets.wire.records.verdicts import RecordLimits, describe
from kbq_assets.worker.framing import type_id
from kbq_assets.worker.keys.formats import as_values, key_format
from kbq_assets.worker.translate import (
    FIRST_OWN_ID,
    UNREADABLE,
    AsProduced,
    Messages,
    ValueTranslator,
    framed,
)

_EMPTY: Final = {"type": "record", "name": KEYED_TOMBSTONE, "fields": []}
_NULL_BRANCH, _FIRST_BRANCH = 0, 2
_PSEUDONYM: Final = "A pseudonym of the record's key, as text."
_KEY: Final = "The record's key."


@dataclass(frozen=True)
class _KeyType:
    """How keys of one schema become a column. Keys of a union with null already contain their branch index."""

    program: Program
    root: avro.AvroType
    has_null: bool

    @property
    def mark(self) -> int:
        """The byte between a value and its key: the branch index, or `NO_MARK`."""
        return NO_MARK if self.has_null else _FIRST_BRANCH


class KeyColumns:
    """Appends keys to the values of one topic or of its ``inner`` translator, and is the registry of their schemas."""

    def __init__(
        self, topic: str, settings: TopicSettings, registry: WriterSchemas, inner: ValueTranslator | None
    ) -> None:
        self._inner = inner or AsProduced(registry, settings.records.event_date)
        self.business_time: BusinessTime | None = self._inner.business_time
        self._is_pseudonym = settings.privacy.action(KEY) == "pseudonym"
        self._format = key_format(topic, settings, registry, self._is_pseudonym)
        self._keeps_null = settings.records.tombstones == "row"
        self._limits = RecordLimits(max_bytes=settings.records.max_record_bytes)
        self._messages = Messages(level=3)
        self._types: dict[int, _KeyType | RejectedSchema] = {}
        self._pairs: dict[int, tuple[int, int]] = {}

    def schema(self, schema_id: int) -> RegisteredSchema:
        """The schema of records with their keys. Raises NotFound, Unavailable, UnstageableSchema."""
        if schema_id not in self._pairs:
            raise NotFound(f"no pair of schemas has the id {schema_id} here", next_step="report a bug")
        value_id, key_id = self._pairs[schema_id]
        value = RegisteredSchema(value_id, json.dumps(_EMPTY))
        if value_id != NULL:
            value = self._inner.schema(value_id)
        type_ = self._types.get(key_id)
        if value.schema_type != "AVRO" or not isinstance(type_, _KeyType):
            return value
        made = self._with_key(avro.load_schema(value.schema), type_)
        return RegisteredSchema(schema_id, json.dumps(made), label=value.name)

    def problem(self, schema_id: int) -> RejectedSchema | None:
        """The rejection that an id stands for; None if the id is a schema's."""
        return self._messages.problem(schema_id) or self._inner.problem(schema_id)

    def translate(self, chunk: Chunk) -> Chunk:
        """The same records with their keys. Raises Unavailable."""
        source = self._inner.translate(chunk)
        ids = split_prefix(source)
        rows = (ids >= 0) & (ids < FIRST_OWN_ID)
        if self._keeps_null:
            rows |= ids == NULL
        keys = self._format.translate(as_values(source if self._is_pseudonym else chunk))
        key_ids = split_prefix(keys)
        marks = np.full(len(chunk), NO_MARK, np.uint8)
        refused = self._refused(keys, key_ids, rows, marks)
        return self._joined(source, ids, rows, keys, key_ids, marks, refused)

    def _joined(
        self,
        source: Chunk,
        ids: Longs,
        rows: NDArray[np.bool_],
        keys: Chunk,
        key_ids: Longs,
        marks: NDArray[np.uint8],
        refused: Mapping[int, bytes],
    ) -> Chunk:
        """The records with heads before their values and keys after them. Records outside ``rows`` stay the same."""
        head_of = {-1: b""}
        chosen = np.full(len(source), -1, np.int64)
        pairs = np.stack([ids, key_ids], 1)
        for value_id, key_id in np.unique(pairs[rows], axis=0).tolist():
            own = self._pair(value_id, key_id)
            head_of[own] = framed(own)
            chosen[rows & (ids == value_id) & (key_ids == key_id)] = own
        values, key_starts, key_ends = source.starts.copy(), keys.starts.copy(), keys.ends.copy()
        has_prefix = rows & (ids != NULL)
        values[has_prefix] += PREFIX
        key_starts[key_ids >= 0] += PREFIX
        is_plain = ~rows | (key_ids < 0)
        key_starts[is_plain] = key_ends[is_plain] = 0
        ends = source.ends.copy()
        heads: list[bytes | None] = [head_of[own] for own in chosen.tolist()]
        for row in np.flatnonzero((ids == NULL) & ~rows).tolist():
            heads[row] = None
        for row, head in refused.items():
            heads[row], values[row] = head, ends[row]
            key_starts[row] = key_ends[row] = 0
        return joined(
            source,
            Spans.of(heads),
            Spans(source.buffer, values, ends),
            marks,
            Spans(keys.buffer, key_starts, key_ends),
        )

    def _refused(
        self, keys: Chunk, key_ids: Longs, rows: NDArray[np.bool_], marks: NDArray[np.uint8]
    ) -> dict[int, bytes]:
        """Replacements for records whose key cannot be a column. Sets the ``marks`` of the other records."""
        refused: dict[int, bytes] = {}
        for key_id in np.unique(key_ids[rows]).tolist():
            own = np.flatnonzero(rows & (key_ids == key_id))
            if key_id == NULL:
                continue
            type_ = self._type(key_id)
            if isinstance(type_, RejectedSchema):
                refused |= dict.fromkeys(own.tolist(), self._messages.rejected(type_))
                continue
            marks[own] = type_.mark
            verdicts = validate_avro(keys, type_.program, own, self._limits)
            for index in np.flatnonzero(verdicts.reasons).tolist():
                why = describe(type_.program, verdicts, index, position=False)
                found = RejectedSchema(Reason.INVALID_KEY, f"the key: {why}")
                refused[int(own[index])] = self._messages.rejected(found)
                marks[own[index]] = NO_MARK
        return refused

    def _pair(self, value_id: int, key_id: int) -> int:
        own = type_id(value_id, ("key", key_id))
        if self._pairs.setdefault(own, (value_id, key_id)) != (value_id, key_id):  # once in a billion
            why = f"schemas {value_id} and {key_id} and two others have the id {own}"
            return self._messages.id_of(why)
        return own

    def _type(self, key_id: int) -> _KeyType | RejectedSchema:
        if key_id not in self._types:
            self._types[key_id] = self._made(key_id)
        return self._types[key_id]

    def _made(self, key_id: int) -> _KeyType | RejectedSchema:
        """The type of a key's schema, or why its records cannot be staged. Raises Unavailable."""
        if key_id < 0:
            return RejectedSchema(Reason.INVALID_KEY, f"the key: {_UNFRAMED[key_id]}")
        if found := self._format.problem(key_id):
            is_of_record = found.reason not in (Reason.UNKNOWN_SCHEMA, Reason.UNSTAGEABLE_SCHEMA)
            why = f"the key: {found.message.replace('the value', 'it')}"
            return RejectedSchema(Reason.INVALID_KEY if is_of_record else found.reason, why)
        try:
            registered = self._format.schema(key_id)
            if registered.schema_type != "AVRO":
                raise UnstageableSchema(
                    f"its type is {registered.schema_type}, not Avro", next_step="set key_format"
                )
            return _key_type(avro.load_schema(registered.schema))
        except NotFound as error:
            return RejectedSchema(Reason.UNKNOWN_SCHEMA, f"the key: {error.message}")
        except UnstageableSchema as error:
            return RejectedSchema(Reason.UNSTAGEABLE_SCHEMA, f"the key's schema {key_id}: {error.message}")

    def _with_key(self, source: Any, type_: _KeyType) -> Any:
        """A value's schema with the key's column added; unchanged if the schema is not a record."""
        while isinstance(source, Mapping) and isinstance(source.get("type"), Mapping):
            source = source["type"]
        record = avro.parse(source)
        if not isinstance(record, avro.RecordType):
            return source
        if taken := [name for name in record.fields if name.lower() == KEY]:
            raise UnstageableSchema(
                f"field {taken[0]!r} of record {record.name!r} collides with the column of keys",
                next_step="key_format=bytes, or rename the field in the writer schema",
            )
        form = visit(type_.root, _KeyForms())
        field = {
            "name": KEY,
            "type": form if type_.has_null else ["null", form],
            "doc": _PSEUDONYM if self._is_pseudonym else _KEY,
            **({"pii": "HIGH"} if is_personal(type_.root) and not self._is_pseudonym else {}),
        }
        return {**source, "fields": [*source["fields"], field]}


_UNFRAMED: Final = {key: reason.message.replace("the value", "it") for key, reason in UNREADABLE.items()}


class _KeyForms(Forms):
    """Gives key types names that no value type has."""

    def free_name(self, name: str) -> str:
        return super().free_name(f"kbq_key.{name.replace('.', '_')}")


def _key_type(schema: Any) -> _KeyType:
    """How keys of a schema become a column. Raises UnstageableSchema."""
    record = avro.parse(
        {"type": "record", "name": "kbq_key.Record", "fields": [{"name": KEY, "type": schema}]}
    )
    assert isinstance(record, avro.RecordType)
    root = record.fields[KEY].type
    if recursive := recursive_record(record):
        raise UnstageableSchema(f"record {recursive!r} contains itself", next_step="key_format=bytes")
    has_null = isinstance(root, avro.Union) and any(map(avro.is_null, root.branches))
    if isinstance(root, avro.Union) and not has_null:
        raise UnstageableSchema("it is a union without null", next_step="key_format=bytes")
    return _KeyType(compile_program(record, []), root, has_null)
