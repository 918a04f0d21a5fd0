"""The examples of Debezium's documentation (connectors/postgresql.adoc, customers), in each encoding.

`bare` is an example in JSON alone, `wrapped` with the documented schema block, `in_avro` as Avro's converter writes it.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any, Final

import fastavro

SERVER: Final = "PostgreSQL_server"
NAME: Final = f"{SERVER}.inventory.customers"
ENVELOPE_ID, KEY_ID = 50, 51


def _field(name: str, kind: str, *, optional: bool = False, **more: Any) -> dict[str, Any]:
    return {"type": kind, "optional": optional, "field": name, **more}


COLUMNS: Final = [
    _field("id", "int32"),
    _field("first_name", "string"),
    _field("last_name", "string"),
    _field("email", "string"),
]
SOURCE_FIELDS: Final = [
    *(_field(name, "string") for name in ("version", "connector", "name")),
    *(_field(name, "int64") for name in ("ts_ms", "ts_us", "ts_ns")),
    _field("snapshot", "boolean", optional=True, default=False),
    *(_field(name, "string") for name in ("db", "schema", "table")),
    *(_field(name, "int64", optional=True) for name in ("txId", "lsn", "xmin")),
]


def envelope_schema(columns: list[dict[str, Any]] = COLUMNS) -> dict[str, Any]:
    """The documented schema block, for a table of these columns."""
    row = {"type": "struct", "fields": columns, "optional": True, "name": f"{NAME}.Value"}
    source = {
        "type": "struct",
        "fields": SOURCE_FIELDS,
        "optional": False,
        "name": "io.debezium.connector.postgresql.Source",
        "field": "source",
    }
    times = [_field(name, "int64", optional=True) for name in ("ts_ms", "ts_us", "ts_ns")]
    fields = [{**row, "field": "before"}, {**row, "field": "after"}, source, _field("op", "string"), *times]
    return {"type": "struct", "fields": fields, "optional": False, "name": f"{NAME}.Envelope"}


def source(**more: Any) -> dict[str, Any]:
    """The documented source of an update."""
    return {
        "version": "3.0.0.Final",
        "connector": "postgresql",
        "name": SERVER,
        "ts_ms": 1559033904863,
        "ts_us": 1559033904863769,
        "ts_ns": 1559033904863769000,
        "snapshot": False,
        "db": "postgres",
        "schema": "public",
        "table": "customers",
        "txId": 556,
        "lsn": 24023128,
        "xmin": None,
        **more,
    }


ANNE: Final = {"id": 1, "first_name": "Anne", "last_name": "Kretchmar", "email": "annek@noanswer.org"}
ANNE_MARIE: Final = {**ANNE, "first_name": "Anne Marie"}
_TIMES: Final = {"ts_ms": 1465584025523, "ts_us": 1465584025523514, "ts_ns": 1465584025523514964}
CREATE: Final = {"before": None, "after": ANNE, "source": source(txId=555), "op": "c", **_TIMES}
UPDATE: Final = {"before": {"id": 1}, "after": ANNE_MARIE, "source": source(), "op": "u", **_TIMES}
DELETE: Final = {"before": {"id": 1}, "after": None, "source": source(lsn=46523128), "op": "d", **_TIMES}
READ: Final = {**CREATE, "source": source(snapshot=True), "op": "r"}
TRUNCATE: Final = {"source": source(lsn=46523128), "op": "t", **_TIMES}
MESSAGE: Final = {
    "source": source(schema="", table=""),
    "op": "m",
    **_TIMES,
    "message": {"prefix": "foo", "content": "Ymfy"},
}
#: https://debezium.io/documentation/reference/stable/connectors/mysql.html#mysql-schema-change-topic
SCHEMA_CHANGE: Final = {
    "source": {"version": "3.0.0.Final", "connector": "mysql", "name": "mysql", "ts_ms": 1651535750218},
    "ts_ms": 1651535750286,
    "databaseName": "inventory",
    "schemaName": None,
    "ddl": "ALTER TABLE customers ADD middle_name varchar(255) AFTER first_name",
    "tableChanges": [{"type": "ALTER", "id": '"inventory"."customers"'}],
}


def bare(payload: Mapping[str, Any]) -> bytes:
    """JSON without a schema."""
    return json.dumps(payload).encode()


def wrapped(payload: Mapping[str, Any], columns: list[dict[str, Any]] = COLUMNS) -> bytes:
    """JSON with its schema."""
    return json.dumps({"schema": envelope_schema(columns), "payload": payload}).encode()


def _avro_field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": ["null", kind], "default": None}


def avro_envelope(columns: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The schema that Avro's converter registers for a table of these columns."""
    columns = columns or {"id": "int", "first_name": "string", "last_name": "string", "email": "string"}
    row = {
        "type": "record",
        "name": "Value",
        "fields": [{"name": name, "type": kind} for name, kind in columns.items()],
        "connect.name": f"{NAME}.Value",
    }
    names = {"int64": "long", "boolean": "boolean", "string": "string"}
    fields = [
        {"name": each["field"], "type": ["null", kind] if each["optional"] else kind}
        for each in SOURCE_FIELDS
        for kind in [names[each["type"]]]
    ]
    origin = {
        "type": "record",
        "name": "Source",
        "namespace": "io.debezium.connector.postgresql",
        "fields": fields,
    }
    return {
        "type": "record",
        "name": "Envelope",
        "namespace": NAME,
        "fields": [
            _avro_field("before", row),
            _avro_field("after", "Value"),
            {"name": "source", "type": origin},
            {"name": "op", "type": "string"},
            *(_avro_field(name, "long") for name in ("ts_ms", "ts_us", "ts_ns")),
        ],
        "connect.version": 2,
        "connect.name": f"{NAME}.Envelope",
    }


def encoded(schema: Any, record: Any, schema_id: int = ENVELOPE_ID) -> bytes:
    """A record in Confluent's framing."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), record)
    return b"\x00" + schema_id.to_bytes(4, "big") + out.getvalue()


def in_avro(payload: Mapping[str, Any]) -> bytes:
    """The example in Avro: what the converter does not know of a deleted row has the type's empty value."""
    known = {name: None for name in ("before", "after", "ts_ms", "ts_us", "ts_ns")}
    blank = {"id": 0, "first_name": "", "last_name": "", "email": ""}
    filled = {
        name: {**blank, **row} if isinstance(row := payload.get(name), dict) else None
        for name in ("before", "after")
    }
    return encoded(avro_envelope(), {**known, **payload, **filled})
