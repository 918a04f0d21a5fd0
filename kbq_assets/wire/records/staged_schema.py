"""Staged schemas: the writer's record with the metadata columns appended.

The fields are appended at the *end*, so a staged record is the original body followed by the encoded metadata, and
nothing has to be decoded. This module does not import numba, because the driver needs schemas and fingerprints too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.avro.canonical import named_types, recursive_record, schema_fingerprint
from kbq_assets.core.errors import UnstageableSchema
from kbq_assets.core.statements.tombstones import TOMBSTONE
from kbq_assets.core.topics.business_time import (
    ALL_TIMES,
    FORMATS,
    BusinessTime,
    Chosen,
    TimeBounds,
    choose_field,
)
from kbq_assets.wire.records.compile import compile_program
from kbq_assets.wire.records.program import WIDTH, CaptureKind, Op, Program

_HEADER_TYPE = "KafkaHeader"

EVENT_TIME = "_event_time"
"""The column of the full business time, if the topic defines one."""

SCHEMA_ID = "_kbq_schema_id"
"""The column with the id of a record's schema, if the topic requests it. It is the same in all rows of a file."""

_MICROS = {"type": "long", "logicalType": "timestamp-micros"}


class BodyKind(StrEnum):
    """The content of a staged record's body."""

    AVRO = "avro"
    """The value after the Confluent prefix, unchanged."""
    JSON = "json"
    """The whole value as a nullable string."""
    EMPTY = "empty"
    """Empty: a tombstone."""


@dataclass(frozen=True, slots=True)
class MetadataColumns:
    """The appended columns, and the source of the event date.

    ``business_time`` is the topic's option. If it is None, or if a record has no business time, the event time is the
    Kafka timestamp. The event date is the day of the event time (UTC).
    """

    key: bool = False
    headers: bool = False
    business_time: BusinessTime | None = None
    bounds: TimeBounds = ALL_TIMES
    #: Whether arrays of a record may have null items.
    null_items: bool = True
    #: A description for the column of keys, if it is not the key as it was sent.
    key_note: str = ""
    schema_id: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class StagedSchema:
    """The schema in a staged file's header, and the program that validates its records. Can be pickled.

    ``event_field`` is the path of the business time, "" for the Kafka timestamp; plain numbers in it are in
    ``event_unit``. If ``event_time`` is set, the full time is appended.
    """

    json: str
    fingerprint: str
    metadata: MetadataColumns
    body: BodyKind
    name: str
    columns: tuple[str, ...]
    program: Program
    event_field: str = ""
    event_unit: int = 0
    event_time: bool = False


def metadata_fields(
    metadata: MetadataColumns, header_type: str = _HEADER_TYPE, *, event_time: str = ""
) -> list[dict[str, Any]]:
    """The appended fields, in the order in which the encoder writes them. ``event_time`` is the description of the
    column of the business time, "" if there is no such column."""
    return [
        {"name": "_kafka_topic", "type": "string"},
        {"name": "_kafka_partition", "type": "int"},
        {"name": "_kafka_offset", "type": "long"},
        {"name": "_kafka_timestamp", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "_kbq_epoch", "type": "long"},
        *([{"name": SCHEMA_ID, "type": "long"}] if metadata.schema_id else []),
        *([_key_field(metadata)] if metadata.key else []),
        *([_headers_field(header_type)] if metadata.headers else []),
        *([{"name": EVENT_TIME, "type": _MICROS, "doc": event_time}] if event_time else []),
        {"name": "event_date", "type": {"type": "int", "logicalType": "date"}},
    ]


def staged_schema(
    writer_schema: str | Mapping[str, Any], metadata: MetadataColumns, routes: Sequence[str] = ()
) -> StagedSchema:
    """The staged schema of a topic's writer schema. ``routes`` are the fields that choose a record's table.

    Raises UnstageableSchema if the writer schema is invalid, is not a record, is recursive, has a field with the name
    of a metadata column (ignoring case, as in warehouses), or if its event date field cannot be a date.
    """
    source = avro.load_schema(writer_schema)
    while isinstance(source, Mapping) and isinstance(source.get("type"), Mapping):
        source = source["type"]
    record = avro.parse(source)
    if isinstance(record, avro.Union) and all(
        isinstance(each, avro.RecordType) for each in record.branches if not avro.is_null(each)
    ):
        raise UnstageableSchema(
            "the writer schema is a union of records; with route=record_name, each type gets its own table",
            next_step="set route=record_name for this topic",
        )
    if not isinstance(record, avro.RecordType):
        raise UnstageableSchema(
            "the writer schema is not a record, and a table needs columns",
            next_step="produce a record, or send this topic's records to its error table",
        )
    _refuse_recursion(record)
    return _staged(source, record, metadata, BodyKind.AVRO, routes)


def json_staged_schema(metadata: MetadataColumns) -> StagedSchema:
    """The staged schema of a JSON topic: the document (null for tombstones) and the metadata."""
    document = {"type": "string", "sqlType": "JSON"}  # marks a JSON column for BigQuery's Avro loader
    schema = {"type": "record", "name": "Json", "fields": [{"name": "payload", "type": ["null", document]}]}
    return _staged(schema, _record(schema), metadata, BodyKind.JSON)


def tombstone_schema(metadata: MetadataColumns) -> StagedSchema:
    """The staged schema of tombstones as rows: only the metadata, so all other columns are null."""
    schema: dict[str, Any] = {"type": "record", "name": TOMBSTONE, "fields": []}
    return _staged(schema, _record(schema), metadata, BodyKind.EMPTY)


def _staged(
    source: Mapping[str, Any],
    record: avro.RecordType,
    metadata: MetadataColumns,
    body: BodyKind,
    routes: Sequence[str] = (),
) -> StagedSchema:
    # Only fields of an Avro value can be captured; JSON documents and tombstones use the Kafka timestamp.
    business = metadata.business_time if body is not BodyKind.JSON else None
    chosen = choose_field(record, business) if business is not None and body is BodyKind.AVRO else None
    # Keep a record's own field of this name, because its topic may be older than the column.
    event_time = business is not None and EVENT_TIME not in (name.lower() for name in record.fields)
    fields = metadata_fields(
        metadata, _unused_name(record), event_time=_described(chosen) if event_time else ""
    )
    columns = _columns(record, fields)
    staged = {**source, "fields": [*source["fields"], *fields]}
    event_field = chosen.path if chosen is not None else ""
    # A schema without the field captures nothing, and all of its records count as fallbacks.
    captures = [event_field] if business is not None and body is BodyKind.AVRO else []
    program = compile_program(record, captures, routes, null_items=metadata.null_items)
    unit = FORMATS[business.format] if business is not None else 0
    if captures and unit == FORMATS["rfc3339"]:
        _refuse_numbers(program, event_field)
    return StagedSchema(
        json=json.dumps(staged, separators=(",", ":")),
        fingerprint=schema_fingerprint(staged),
        metadata=metadata,
        body=body,
        name=record.name,
        columns=columns,
        program=program,
        event_field=event_field,
        event_unit=unit,
        event_time=event_time,
    )


def _described(chosen: Chosen | None) -> str:
    # A part of staged schemas: with other words, a schema would get another fingerprint.
    if chosen is None:
        return "The record's time in Kafka: nothing in it tells a business time."
    return f"The record's business time, from {chosen.path} ({chosen.why}); else its time in Kafka."


def _record(schema: Mapping[str, Any]) -> avro.RecordType:
    record = avro.parse(schema)
    assert isinstance(record, avro.RecordType)
    return record


def _columns(record: avro.RecordType, fields: list[dict[str, Any]]) -> tuple[str, ...]:
    own = {name.lower(): name for name in record.fields}
    for each in fields:
        if each["name"] in own:
            raise UnstageableSchema(
                f"field {own[each['name']]!r} of record {record.name!r} collides with "
                f"the metadata column {each['name']!r}",
                next_step="rename the field in the writer schema",
            )
    return (*record.fields, *(str(each["name"]) for each in fields))


def _refuse_recursion(record: avro.RecordType) -> None:
    recursive = recursive_record(record)
    if recursive:
        raise UnstageableSchema(
            f"record {recursive!r} contains itself, and no warehouse has recursive column types",
            next_step="register a schema with fixed depth, or produce this part as a JSON string",
        )


def _refuse_numbers(program: Program, event_field: str) -> None:
    instructions = program.code.reshape(-1, WIDTH)
    numbers = (instructions[:, 0] == Op.CLOSE) & (instructions[:, 1] == 0)
    if (numbers & (instructions[:, 2] == CaptureKind.LONG)).any():
        raise UnstageableSchema(
            f"field {event_field!r} is a number, but the format of the event date is rfc3339",
            next_step="set the format to epoch_s, epoch_ms, epoch_us or epoch_ns, or remove it",
        )


def _key_field(metadata: MetadataColumns) -> dict[str, Any]:
    return {
        "name": "_kafka_key",
        "type": ["null", "bytes"],
        **({"doc": metadata.key_note} if metadata.key_note else {}),
    }


def _headers_field(type_name: str) -> dict[str, Any]:
    fields = [{"name": "key", "type": "string"}, {"name": "value", "type": ["null", "bytes"]}]
    # An explicit empty namespace, so that the type does not inherit the record's.
    items = {"type": "record", "name": type_name, "namespace": "", "fields": fields}
    return {"name": "_kafka_headers", "type": {"type": "array", "items": items}}


def _unused_name(record: avro.RecordType) -> str:
    taken = named_types(record)
    name = _HEADER_TYPE
    while name in taken:
        name += "_"
    return name
