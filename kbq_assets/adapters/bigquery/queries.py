"""The queries. Values are parameters, never part of the text. The caller checks the names of tables.

They read only KBQ's own columns, which are narrow, because BigQuery bills a query by its columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import date
from typing import Any, Final

from google.cloud import bigquery

from kbq_assets.core.loading.partitions import HOUR, TIMES
from kbq_assets.core.protocol.names import TableReference
from kbq_assets.core.topics.error_tables import is_error_table
from kbq_assets.ports.errors_replay import REPLAYED_AT
from kbq_assets.ports.warehouse import ErrorQuery, ErrorRow, KafkaRange

#: Prefix of scratch tables, which are never listed.
PROBE_PREFIX: Final = "_kbq_probe_"

_FIRST: Final = {"DATE": "DATE '0001-01-01'", "DATETIME": "DATETIME '0001-01-01'"}
_RANGE: Final = "_kafka_topic, _kafka_partition, _kbq_epoch"
_ERROR_FIELDS: Final = tuple(field.name for field in fields(ErrorRow))
#: In the order of the fields. Values are truncated as hex, because the emulator in the tests can only truncate text.
_ERROR_COLUMNS: Final = (
    "_kafka_topic, _kafka_partition, _kafka_offset, _kbq_epoch, UNIX_MILLIS(_kafka_timestamp), reason, message,"
    " schema_id, {key}, {value}, BYTE_LENGTH(value), headers"
).format(**{name: f"FROM_HEX(SUBSTR(TO_HEX({name}), 1, 2 * @value_bytes))" for name in ("key", "value")})
_ERROR_ORDER: Final = (
    "_kafka_timestamp DESC, _kbq_epoch DESC, _kafka_topic, _kafka_partition, _kafka_offset DESC"
)


@dataclass(frozen=True)
class Query:
    """A query and its parameters by name."""

    sql: str
    parameters: tuple[bigquery.ScalarQueryParameter | bigquery.ArrayQueryParameter, ...] = ()


def kafka_tables(project: str, dataset: str) -> Query:
    """Names of a dataset's tables with positions. Omits views, snapshots and clones, whose rows belong to other
    tables."""
    schema = f"`{project}.{dataset}`.INFORMATION_SCHEMA"
    sql = (
        f"SELECT table_name FROM {schema}.COLUMNS WHERE column_name = '_kafka_offset' AND table_name IN"
        f" (SELECT table_name FROM {schema}.TABLES WHERE table_type = 'BASE TABLE') ORDER BY table_name"
    )
    return Query(sql)


def positions(table: bigquery.Table, range_: KafkaRange, offset: int | None = None) -> Query:
    """The number of rows per offset, or for a single ``offset``."""
    where = [
        all_partitions(table),
        _counting(table),
        "_kafka_topic = @topic AND _kafka_partition = @partition AND _kbq_epoch = @epoch",
        *([] if offset is None else ["_kafka_offset = @offset"]),
    ]
    sql = f"SELECT _kafka_offset, COUNT(*) FROM {name_of(table)} WHERE {_all(where)} GROUP BY 1 ORDER BY 1"
    return Query(
        sql,
        (
            _text("topic", range_.topic),
            _number("partition", range_.partition),
            _number("epoch", range_.epoch),
            *([] if offset is None else [_number("offset", offset)]),
        ),
    )


def kafka_ranges(table: bigquery.Table) -> Query:
    """Rows per topic, partition and epoch."""
    return Query(
        f"SELECT {_RANGE}, COUNT(*) FROM {name_of(table)} WHERE {_all([all_partitions(table), _counting(table)])}"
        f" GROUP BY {_RANGE} ORDER BY {_RANGE}"
    )


def kafka_summary(table: bigquery.Table, since: date | None) -> Query:
    """Rows, distinct offsets and their bounds per topic, partition and epoch."""
    condition, parameters = _rows_since(table, since, _loaded(table))
    return Query(
        f"SELECT {_RANGE}, COUNT(*), COUNT(DISTINCT _kafka_offset), MIN(_kafka_offset), MAX(_kafka_offset)"
        f" FROM {name_of(table)} WHERE {condition} GROUP BY {_RANGE} ORDER BY {_RANGE}",
        parameters,
    )


def doubled_offsets(tables: Sequence[bigquery.Table], since: date | None, limit: int) -> Query:
    """Offsets with several rows, with the index of each row's table. BigQuery reads at most 1,000 tables."""
    sources = []
    for number, table in enumerate(tables):
        condition, parameters = _rows_since(table, since, _counting(table))
        sources.append(
            f"SELECT {number} AS source, {_RANGE}, _kafka_offset FROM {name_of(table)} WHERE {condition}"
        )
    return Query(
        f"SELECT {_RANGE}, _kafka_offset, ARRAY_AGG(source) FROM ({' UNION ALL '.join(sources)})"
        f" GROUP BY {_RANGE}, _kafka_offset HAVING COUNT(*) > 1"
        f" QUALIFY ROW_NUMBER() OVER (PARTITION BY {_RANGE} ORDER BY _kafka_offset) <= @rows"
        f" ORDER BY {_RANGE}, _kafka_offset",
        (*parameters, _number("rows", limit)),
    )


def error_rows(table: bigquery.Table, query: ErrorQuery) -> Query:
    """Rows of an error table: newest first, or by offset if the query has ``from_offset``."""
    wanted = (
        ("_kafka_topic = @topic", query.topic, _text("topic", query.topic)),
        ("_kafka_partition = @partition", query.partition, _number("partition", query.partition)),
        ("_kafka_offset = @offset", query.offset, _number("offset", query.offset)),
        ("_kbq_epoch = @epoch", query.epoch, _number("epoch", query.epoch)),
        ("reason = @reason", query.reason, _text("reason", query.reason)),
        ("_kafka_offset >= @from_offset", query.from_offset, _number("from_offset", query.from_offset)),
    )
    chosen = [(condition, parameter) for condition, value, parameter in wanted if value is not None]
    left_out = "" if query.replayed else _counting(table)
    where = _all([all_partitions(table), left_out, *(condition for condition, _ in chosen)])
    order = _ERROR_ORDER if query.from_offset is None else "_kafka_offset"
    sql = f"SELECT {_ERROR_COLUMNS} FROM {name_of(table)} WHERE {where} ORDER BY {order} LIMIT @rows"
    parameters = [parameter for _, parameter in chosen]
    return Query(sql, (*parameters, _number("value_bytes", query.value_bytes), _number("rows", query.limit)))


def error_row(row: Any) -> ErrorRow:
    """A row of `error_rows`."""
    *own, headers = row
    pairs = tuple((header["key"], header["value"]) for header in headers or ())
    return ErrorRow(**dict(zip(_ERROR_FIELDS, (*own, pairs), strict=True)))


def all_partitions(table: bigquery.Table, alias: str = "") -> str:
    """A partition filter that matches every row, for tables that require a filter. ``alias`` is the table's alias with
    its dot."""
    partitioning = table.time_partitioning
    if not table.require_partition_filter or partitioning is None:
        return ""
    column = alias + _partition_column(table)
    kind = {field.name: str(field.field_type) for field in table.schema}.get(partitioning.field, "TIMESTAMP")
    first = _FIRST.get(kind, "TIMESTAMP '0001-01-01'")
    return f"({column} >= {first} OR {column} IS NULL)"


def hours_since(table: bigquery.Table, day: str, alias: str = "") -> str:
    """A condition that matches all rows since a day and reads only their hourly partitions; "" for a table that is not
    partitioned by hour. A filter on `event_date` would read all hourly partitions. Rows without a business time may
    have no hour."""
    partitioning = table.time_partitioning
    if partitioning is None or partitioning.type_ != HOUR.upper() or partitioning.field not in TIMES:
        return ""
    column = alias + _partition_column(table)
    return f"({column} >= TIMESTAMP({day}) OR {column} IS NULL)"


def _partition_column(table: bigquery.Table) -> str:
    return f"`{table.time_partitioning.field or '_PARTITIONTIME'}`"


def _rows_since(
    table: bigquery.Table, since: date | None, condition: str
) -> tuple[str, tuple[bigquery.ScalarQueryParameter, ...]]:
    if since is None:
        return _all([all_partitions(table), condition]), ()
    parameter = bigquery.ScalarQueryParameter("since", "DATE", since)
    pruned = hours_since(table, "@since") or all_partitions(table)
    return _all([pruned, condition, "event_date >= @since"]), (parameter,)


def _counting(table: bigquery.Table) -> str:
    """A condition that excludes replayed error rows."""
    return f"{REPLAYED_AT} IS NULL" if _is_error_table(table) and _has_replays(table) else ""


def _loaded(table: bigquery.Table) -> str:
    """A condition that excludes rows added by replays."""
    return f"{REPLAYED_AT} IS NULL" if not _is_error_table(table) and _has_replays(table) else ""


def loaded_rows(table: bigquery.Table) -> str:
    """A condition that matches only rows written by load jobs."""
    return _loaded(table) or "TRUE"


def _is_error_table(table: bigquery.Table) -> bool:
    return is_error_table(TableReference(table.dataset_id, table.table_id))


def _has_replays(table: bigquery.Table) -> bool:
    return any(field.name == REPLAYED_AT for field in table.schema)


def _all(conditions: list[str]) -> str:
    return " AND ".join(filter(None, conditions)) or "TRUE"


def name_of(table: bigquery.Table | bigquery.TableReference) -> str:
    """A table's quoted name in SQL."""
    return f"`{table.project}.{table.dataset_id}.{table.table_id}`"


def _text(name: str, value: str | None) -> bigquery.ScalarQueryParameter:
    return bigquery.ScalarQueryParameter(name, "STRING", value)


def _number(name: str, value: int | None) -> bigquery.ScalarQueryParameter:
    return bigquery.ScalarQueryParameter(name, "INT64", value)
