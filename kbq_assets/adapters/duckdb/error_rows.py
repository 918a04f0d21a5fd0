"""Reads error tables: the bad records of `wire/files/error_rows.py`, after loading."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

import duckdb

from kbq_assets.adapters.duckdb import schema
from kbq_assets.adapters.duckdb.errors_replay import counting
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.ports.warehouse import ErrorQuery, ErrorRow

_FIELDS: Final = tuple(field.name for field in fields(ErrorRow))
#: In the order of the fields.
_COLUMNS: Final = (
    "_kafka_topic, _kafka_partition, _kafka_offset, _kbq_epoch, epoch_ms(_kafka_timestamp), reason, message,"
    " schema_id, key[1:$bytes], value[1:$bytes], octet_length(value), headers"
)
_NEWEST: Final = "_kafka_timestamp DESC, _kbq_epoch DESC, _kafka_topic, _kafka_partition, _kafka_offset DESC"


def read_error_rows(
    connection: duckdb.DuckDBPyConnection, table: TableReference, query: ErrorQuery
) -> tuple[ErrorRow, ...]:
    """Rows of an error table by Kafka time, newest first, or in the order of offsets; () if it does not exist."""
    if not schema.is_there(connection, table):
        return ()
    wanted = {
        "_kafka_topic": query.topic,
        "_kafka_partition": query.partition,
        "_kafka_offset": query.offset,
        "_kbq_epoch": query.epoch,
        "reason": query.reason,
    }
    filters = {name: value for name, value in wanted.items() if value is not None}
    where = [f"{name} = ${name}" for name in filters]
    order = _NEWEST
    values: dict[str, Any] = {**filters, "bytes": query.value_bytes, "limit": query.limit}
    if query.from_offset is not None:
        where.append("_kafka_offset >= $from_offset")
        order, values["from_offset"] = "_kafka_offset", query.from_offset
    if not query.replayed:
        where.append(counting(connection, table))
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM {schema.name_of(connection, table)} WHERE {' AND '.join(where) or 'true'}"
        f" ORDER BY {order} LIMIT $limit",
        values,
    ).fetchall()
    return tuple(_error_row(*row) for row in rows)


def _error_row(*columns: Any) -> ErrorRow:
    *own, headers = columns
    pairs = tuple((header["key"], header["value"]) for header in headers or ())
    return ErrorRow(**dict(zip(_FIELDS, (*own, pairs), strict=True)))
