"""Reads error tables, and counts offsets for reconciliation. Counts read only metadata columns, inside DuckDB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import date
from typing import Any, Final

import duckdb

from kbq_assets.adapters.duckdb import schema
from kbq_assets.adapters.duckdb.errors_replay import counting, loaded
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.ports.warehouse import DoubledOffset, ErrorQuery, ErrorRow, KafkaRange, OffsetSummary

_FIELDS: Final = tuple(field.name for field in fields(ErrorRow))
#: In the order of the fields.
_COLUMNS: Final = (
    "_kafka_topic, _kafka_partition, _kafka_offset, _kbq_epoch, epoch_ms(_kafka_timestamp), reason, message,"
    " schema_id, key[1:$bytes], value[1:$bytes], octet_length(value), headers"
)
_NEWEST: Final = "_kafka_timestamp DESC, _kbq_epoch DESC, _kafka_topic, _kafka_partition, _kafka_offset DESC"


def kafka_summary(
    connection: duckdb.DuckDBPyConnection, table: TableReference, since: date | None
) -> Mapping[KafkaRange, OffsetSummary]:
    """Rows, distinct offsets and their bounds per topic, partition and epoch; {} if there is no such table."""
    if not schema.is_there(connection, table):
        return {}
    where, values = _since(since)
    rows = connection.execute(
        "SELECT _kafka_topic, _kafka_partition, _kbq_epoch, count(*), count(DISTINCT _kafka_offset),"
        f" min(_kafka_offset), max(_kafka_offset) FROM {schema.name_of(connection, table)}"
        f" WHERE {where} AND {loaded(connection, table)} GROUP BY 1, 2, 3 ORDER BY 1, 2, 3",
        values,
    ).fetchall()
    return {KafkaRange(*row[:3]): OffsetSummary(*row[3:]) for row in rows}


def doubled_offsets(
    connection: duckdb.DuckDBPyConnection,
    tables: Sequence[TableReference],
    since: date | None,
    limit: int,
) -> tuple[DoubledOffset, ...]:
    """The lowest ``limit`` offsets of each topic, partition and epoch with several rows in the tables."""
    existing = [table for table in dict.fromkeys(tables) if schema.is_there(connection, table)]
    if not existing:
        return ()
    where, values = _since(since)
    union = " UNION ALL ".join(
        f"SELECT {number} AS source, _kafka_topic, _kafka_partition, _kbq_epoch, _kafka_offset"
        f" FROM {schema.name_of(connection, table)} WHERE {where} AND {counting(connection, table)}"
        for number, table in enumerate(existing)
    )
    rows = connection.execute(
        "SELECT _kafka_topic, _kafka_partition, _kbq_epoch, _kafka_offset, list(source)"
        f" FROM ({union}) GROUP BY 1, 2, 3, 4 HAVING count(*) > 1"
        " QUALIFY row_number() OVER (PARTITION BY _kafka_topic, _kafka_partition, _kbq_epoch"
        " ORDER BY _kafka_offset) <= ? ORDER BY 1, 2, 3, 4",
        [*values * len(existing), limit],
    ).fetchall()
    return tuple(
        DoubledOffset(KafkaRange(*row[:3]), row[3], tuple(sorted(existing[source] for source in row[4])))
        for row in rows
    )


def _since(since: date | None) -> tuple[str, list[Any]]:
    return ("true", []) if since is None else ("event_date >= ?", [since])


def read_error_rows(
    connection: duckdb.DuckDBPyConnection, table: TableReference, query: ErrorQuery
) -> tuple[ErrorRow, ...]:
    """Rows of an error table: newest first by Kafka timestamp, or by offset if the query has ``from_offset``. () if the
    table does not exist."""
    if not schema.is_there(connection, table):
        return ()
    where = [f"{name} = ${name}" for name in query.values]
    order = _NEWEST
    values: dict[str, Any] = {**query.values, "bytes": query.value_bytes, "limit": query.limit}
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
