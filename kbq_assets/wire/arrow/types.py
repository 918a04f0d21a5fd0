"""Arrow types for BigQuery's column types."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from kbq_assets.core.loading.tables import Column, numeric_digits

_ARROW: Final = {
    "BOOL": pa.bool_(),
    "INT64": pa.int64(),
    "FLOAT64": pa.float64(),
    "STRING": pa.string(),
    "BYTES": pa.binary(),
    "DATE": pa.date32(),
    "TIME": pa.time64("us"),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "DATETIME": pa.timestamp("us"),
    "JSON": pa.string(),
    "BIGNUMERIC": pa.string(),
    "GEOGRAPHY": pa.string(),
}


def arrow_type(column: Column) -> pa.DataType:
    """The Arrow type for inserts into a column."""
    if column.type == "STRUCT":
        scalar = pa.struct([pa.field(member.name, arrow_type(member)) for member in column.fields])
    elif column.type == "NUMERIC":
        scalar = pa.decimal128(*numeric_digits(column))
    else:
        scalar = _ARROW[column.type]
    return pa.list_(scalar) if column.mode == "REPEATED" else scalar


def is_known(column: Column) -> bool:
    """Whether KBQ can write a column. A column created by hand may have any type of DuckDB."""
    return column.type in (*_ARROW, "NUMERIC") or (
        column.type == "STRUCT" and all(map(is_known, column.fields))
    )
