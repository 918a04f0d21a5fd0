"""Translates Debezium's change events into rows: Avro with a schema id, and JSON with or without Connect's schema.

A record's first byte tells its format. Records that are not change events, such as schema changes, become rows as they
are. Rows from Avro and from JSON with a schema have the database's types. Types of JSON without a schema are inferred.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.debezium.change_columns import DELETED, OP, UNAVAILABLE
from kbq_assets.core.errors import NotFound, UnstageableSchema
from kbq_assets.core.topics.column_names import row_columns
from kbq_assets.core.topics.topic_settings import TopicSettings
from kbq_assets.ports.object_store import ObjectStore
from kbq_assets.ports.registry import RegisteredSchema, SchemaRegistry
from kbq_assets.wire.chunk import Chunk
from kbq_assets.wire.debezium.documents import document_row
from kbq_assets.wire.debezium.envelope import NoRow, Unwrapped, unwrapped
from kbq_assets.wire.debezium.kafka_connect import Encode, avro_of_connect, encoder
from kbq_assets.wire.files.encode import RejectedSchema
from kbq_assets.wire.json.rows import RepeatedKey
from kbq_assets.wire.privacy.json import exact_text, parse_exact
from kbq_assets.wire.records.compile import compile_program
from kbq_assets.wire.records.prefix import PREFIX
from kbq_assets.wire.records.program import Program
from kbq_assets.wire.records.reasons import Reason
from kbq_assets.wire.records.validate import validate_avro, validate_json
from kbq_assets.wire.records.verdicts import RecordLimits
from kbq_assets.worker.framing import type_id
from kbq_assets.worker.json.inferred_columns import JsonColumns
from kbq_assets.worker.translate import (
    FIRST_OWN_ID,
    UNREADABLE,
    Messages,
    framed,
    produced_ids,
    rejected,
    with_values,
)

#: Most distinct Connect schemas that one task caches: a producer may send any number.
_MOST_SCHEMAS: Final = 200
_AVRO, _CONNECT, _INFERRED = "change", "connect", "inferred"
#: A value for each column of a change that statements use. Documents that are not events must not decide their types.
_COLUMN_VALUES: Final = {OP: "", DELETED: False, UNAVAILABLE: [""]}


@dataclass(frozen=True)
class _RowType:
    """How events of one schema become rows. The rows' schema has its own id. ``encode`` is for JSON."""

    schema_id: int
    program: Program
    rows: Unwrapped
    label: str
    encode: Encode | None = None


_Found: TypeAlias = "_RowType | RejectedSchema"


class ChangeRows:
    """Translates the values of one topic, and is the registry of their rows' schemas. ``has_order`` says that the topic
    has a single partition, so the truncation of a table has a defined place among its rows."""

    def __init__(
        self,
        topic: str,
        settings: TopicSettings,
        registry: SchemaRegistry,
        open_store: Callable[[], ObjectStore],
        *,
        has_order: bool,
    ) -> None:
        self.business_time = settings.records.event_date
        self._topic = topic
        self._settings = settings
        self._registry = registry
        self._open_store = open_store
        self._names_of = partial(row_columns, style=settings.destination.column_names)
        self._has_order = has_order
        self._limits = RecordLimits(max_bytes=settings.records.max_record_bytes)
        self._messages = Messages(level=1)
        self._by_id: dict[int, _Found] = {}
        self._by_text: dict[str, _Found] = {}
        self._own: dict[int, _RowType] = {}
        self._versions: dict[int, int] = {}
        self._inferring: JsonColumns | None = None

    def schema(self, schema_id: int) -> RegisteredSchema:
        """The schema of rows. Raises NotFound."""
        if schema_id in self._versions and self._inferring is not None:
            return self._inferring.schema(self._versions[schema_id])
        if schema_id not in self._own:
            raise NotFound(f"no rows have the id {schema_id} here", next_step="report a bug")
        found = self._own[schema_id]
        return RegisteredSchema(schema_id, json.dumps(found.rows.schema), label=found.label)

    def problem(self, schema_id: int) -> RejectedSchema | None:
        """The rejection that an id stands for; None if the id is a schema's."""
        inferring = self._inferring.problem(schema_id) if self._inferring is not None else None
        return inferring or self._messages.problem(schema_id)

    def translate(self, chunk: Chunk) -> Chunk:
        """The same records as rows. Raises Unavailable."""
        values: list[bytes | None] = [None] * len(chunk)
        good = chunk.starts >= 0
        in_json = good & (chunk.ends > chunk.starts) & (chunk.buffer[np.maximum(chunk.starts, 0)] != 0)
        ids = produced_ids(chunk)
        for schema_id in np.unique(ids[good & ~in_json]).tolist():
            rows = np.flatnonzero(good & ~in_json & (ids == schema_id))
            for row, value in self._of_avro(chunk, schema_id, rows):
                values[row] = value
        self._add_documents(chunk, np.flatnonzero(in_json), values)
        return with_values(chunk, values)

    def _of_avro(self, chunk: Chunk, schema_id: int, rows: Any) -> list[tuple[int, bytes]]:
        if schema_id < 0:
            return [(row, rejected(UNREADABLE[schema_id])) for row in rows.tolist()]
        if schema_id not in self._by_id:
            self._by_id[schema_id] = self._of_id(schema_id)
        found = self._by_id[schema_id]
        if isinstance(found, RejectedSchema):
            return [(row, self._messages.rejected(found)) for row in rows.tolist()]
        reasons = validate_avro(chunk, found.program, rows, self._limits).reasons.tolist()
        return [
            (
                row,
                rejected(Reason(reason)) if reason else self._row(found, (chunk.value(row) or b"")[PREFIX:]),
            )
            for row, reason in zip(rows.tolist(), reasons, strict=True)
        ]

    def _row(self, type_: _RowType, body: bytes) -> bytes:
        try:
            return framed(type_.schema_id, type_.rows(body, has_order=self._has_order))
        except NoRow as why:
            return self._messages.rejected(RejectedSchema(why.reason, why.message))

    def _of_id(self, schema_id: int) -> _Found:
        """The rows of a registered schema. Raises Unavailable."""
        try:
            found = self._registry.schema(schema_id)
            if found.schema_type != "AVRO":
                raise UnstageableSchema(f"its type is {found.schema_type}, not Avro", next_step="set format")
            return self._made(type_id(schema_id, (_AVRO,)), avro.load_schema(found.schema), found.name)
        except NotFound as error:
            return RejectedSchema(Reason.UNKNOWN_SCHEMA, error.message)
        except UnstageableSchema as error:
            return RejectedSchema(Reason.UNSTAGEABLE_SCHEMA, f"schema {schema_id}: {error.message}")

    def _made(self, own: int, schema: Any, label: str, *, is_json: bool = False) -> _RowType:
        rows, root = unwrapped(schema, self._names_of), avro.parse(schema)
        assert isinstance(root, avro.RecordType)  # or it could not be unwrapped
        made = _RowType(own, compile_program(root, []), rows, label, encoder(root) if is_json else None)
        if self._own.setdefault(own, made).rows.schema != rows.schema:  # once in a billion schemas
            raise UnstageableSchema(f"another schema has the id {own}", next_step="report a bug")
        return made

    def _add_documents(self, chunk: Chunk, rows: Any, values: list[bytes | None]) -> None:
        reasons = validate_json(chunk, rows, self._limits).reasons.tolist()
        plain: list[bytes | None] = [None] * len(chunk)
        for row, reason in zip(rows.tolist(), reasons, strict=True):
            if reason not in (Reason.GOOD, Reason.OUT_OF_RANGE):  # such a number may be in a text
                values[row] = rejected(Reason(reason))
                continue
            try:
                made = self._of_document(parse_exact((chunk.value(row) or b"").decode()))
                values[row], plain[row] = (
                    (made, None) if isinstance(made, bytes | None) else (None, made.text)
                )
            except NoRow as why:
                values[row] = self._messages.rejected(RejectedSchema(why.reason, why.message))
            except RepeatedKey:
                values[row] = rejected(Reason.REPEATED_KEY)
            except ValueError:
                values[row] = rejected(Reason.OUT_OF_RANGE)
        self._infer(chunk, plain, values)

    def _of_document(self, document: Any) -> bytes | _Undeclared | None:
        """The row of a document with a schema, None for null, or the document whose columns must be inferred."""
        payload = document
        if isinstance(document, dict) and document.keys() == {"schema", "payload"}:
            payload = document["payload"]
            if document["schema"] is not None:
                return None if payload is None else self._typed(document["schema"], payload)
        if self._settings.privacy.decisions:
            raise NoRow(
                Reason.UNSTAGEABLE_SCHEMA,
                "pii needs types, but this JSON has no schema: use Avro, or the converter's schemas.enable=true",
            )
        row = document_row(payload, has_order=self._has_order, names_of=self._names_of)
        return _Undeclared(exact_text(row).encode())

    def _typed(self, schema: Any, payload: Any) -> bytes:
        text = json.dumps(schema, sort_keys=True)
        if text not in self._by_text:
            if len(self._by_text) >= _MOST_SCHEMAS:
                self._by_text.clear()
            self._by_text[text] = self._of_text(text, schema)
        found = self._by_text[text]
        if isinstance(found, RejectedSchema):
            return self._messages.rejected(found)
        assert found.encode is not None
        try:
            body = found.encode(payload)
        except ValueError as error:
            raise NoRow(Reason.INVALID_CHANGE, f"the payload does not fit its schema: {error}") from error
        return self._row(found, body)

    def _of_text(self, text: str, schema: Any) -> _Found:
        try:
            own = type_id(zlib.crc32(text.encode()), (_CONNECT,))
            return self._made(own, avro_of_connect(schema), "of the event", is_json=True)
        except UnstageableSchema as error:
            return RejectedSchema(Reason.UNSTAGEABLE_SCHEMA, f"the event's schema: {error.message}")

    def _infer(self, chunk: Chunk, plain: list[bytes | None], values: list[bytes | None]) -> None:
        """Fill in the rows of documents without a schema."""
        rows = [row for row, text in enumerate(plain) if text is not None]
        if not rows:
            return
        if self._inferring is None:
            own = self._settings.with_options(event_date="")  # the event date is a column of the row
            self._inferring = JsonColumns(self._topic, own, self._open_store(), fixed=_COLUMN_VALUES)
        made = self._inferring.translate(with_values(chunk, plain))
        for row in rows:
            value = made.value(row) or b""
            version = int.from_bytes(value[1:PREFIX], "big")
            if version < FIRST_OWN_ID:
                own_id = type_id(version, (_INFERRED,))
                self._versions[own_id] = version
                value = framed(own_id, value[PREFIX:])
            values[row] = value


@dataclass(frozen=True)
class _Undeclared:
    """A document whose columns are inferred."""

    text: bytes
