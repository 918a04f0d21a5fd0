"""Columns of BigQuery's JSON schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kbq_assets.core.errors import ConfigurationError
from kbq_assets.core.loading.tables import Column

_TYPES: Final = {
    "BOOL": "BOOL", "BOOLEAN": "BOOL", "BYTES": "BYTES", "DATE": "DATE", "DATETIME": "DATETIME", "FLOAT": "FLOAT64",
    "FLOAT64": "FLOAT64", "INT64": "INT64", "INTEGER": "INT64", "JSON": "JSON", "NUMERIC": "NUMERIC",
    "BIGNUMERIC": "BIGNUMERIC", "GEOGRAPHY": "GEOGRAPHY", "STRING": "STRING", "TIME": "TIME", "TIMESTAMP": "TIMESTAMP",
}  # fmt: skip
_MODES: Final = ("NULLABLE", "REQUIRED", "REPEATED")


def schema_columns(schema: Mapping[str, Any] | None) -> tuple[Column, ...]:
    """The columns of a `schema` key; () without one. Raises ConfigurationError."""
    if schema is None:
        return ()
    fields = schema.get("fields") if isinstance(schema, Mapping) else None
    if not isinstance(fields, Sequence) or not all(isinstance(each, Mapping) for each in fields):
        raise ConfigurationError(
            "schema has no list of fields", next_step='such as {"fields": [{"name": "id", "type": "INT64"}]}'
        )
    return tuple(map(_column, fields))


def _column(field: Mapping[str, Any]) -> Column:
    name, kind = field.get("name"), str(field.get("type", "")).upper()
    mode = str(field.get("mode") or "NULLABLE").upper()
    if not isinstance(name, str) or not name:
        raise ConfigurationError("schema has a field without a name", next_step="name each field")
    if mode not in _MODES:
        raise ConfigurationError(f"schema: {name} has the mode {mode}", next_step=f"use {', '.join(_MODES)}")
    if kind in ("RECORD", "STRUCT"):
        return Column(name, "STRUCT", mode, schema_columns({"fields": field.get("fields")}))
    if kind not in _TYPES:
        raise ConfigurationError(
            f"schema: {name} has the type {kind or 'none'}, which a local warehouse lacks",
            next_step="choose another type",
        )
    return Column(name, _TYPES[kind], mode)
