"""The columns that BigQuery creates for an Avro schema with ``useAvroLogicalTypes``, in the API's terms.

Written from BigQuery's documentation alone, apart from KBQ's own mapping, which it checks:
https://cloud.google.com/bigquery/docs/loading-data-cloud-storage-avro#avro_conversions
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Field = dict[str, Any]
_TYPES = {
    "boolean": "BOOLEAN",
    "int": "INTEGER",
    "long": "INTEGER",
    "float": "FLOAT",
    "double": "FLOAT",
    "bytes": "BYTES",
    "fixed": "BYTES",
    "string": "STRING",
    "enum": "STRING",
}
_LOGICAL = {
    "date": "DATE",
    "time-millis": "TIME",
    "time-micros": "TIME",
    "timestamp-millis": "TIMESTAMP",
    "timestamp-micros": "TIMESTAMP",
    "local-timestamp-millis": "DATETIME",
    "local-timestamp-micros": "DATETIME",
}
# (digits before the point, digits after it)
_DECIMALS = {"NUMERIC": (29, 9), "BIGNUMERIC": (38, 38), "STRING": (1 << 30, 1 << 30)}


def fields_of(schema: Mapping[str, Any], targets: Sequence[str] = ("NUMERIC",)) -> list[Field]:
    """The fields of a record schema, as fastavro has parsed it: named types in full where they are first used."""
    return _Reader(targets).record(schema)


class _Reader:
    def __init__(self, targets: Sequence[str]) -> None:
        self._targets = targets
        self._named: dict[str, Any] = {}

    def record(self, schema: Mapping[str, Any]) -> list[Field]:
        self._named[schema["name"]] = schema
        fields = [self.field(member["name"], member["type"]) for member in schema["fields"]]
        return [field for field in fields if field is not None]

    def field(self, name: str, schema: Any) -> Field | None:
        """One column; None for nulls, which BigQuery ignores."""
        schema = resolved(schema, self._named)
        if isinstance(schema, list):
            return self._union(name, schema)
        kind = schema if isinstance(schema, str) else schema["type"]
        if kind == "null":
            return None
        if kind in ("record", "error"):
            return _field(name, "RECORD", "REQUIRED", self.record(schema))
        if kind == "array":
            item = self.field(name, schema["items"])
            return item and {**item, "mode": "REPEATED"}
        if kind == "map":
            value = self.field("value", schema["values"])
            members = [_field("key", "STRING", "REQUIRED"), *([value] if value else [])]
            return _field(name, "RECORD", "REPEATED", members)
        if kind in ("fixed", "enum"):
            self._named[schema["name"]] = schema
        return _field(name, self._scalar(kind, schema), "REQUIRED")

    def _union(self, name: str, branches: list[Any]) -> Field | None:
        others = not_null(branches)
        if len(others) == 1:
            field = self.field(name, others[0])
            keeps = field is None or field["mode"] == "REPEATED" or len(branches) == 1
            return field if keeps else {**field, "mode": "NULLABLE"}  # type: ignore[dict-item]
        members = [self.field(f"{branch_name(branch)}_value", branch) for branch in others]
        nullable = [m if m["mode"] == "REPEATED" else {**m, "mode": "NULLABLE"} for m in members if m]
        return _field(name, "RECORD", "NULLABLE", nullable) if nullable else None

    def _scalar(self, kind: str, schema: Any) -> str:
        logical = schema.get("logicalType") if isinstance(schema, dict) else None
        if logical == "decimal" and kind in ("bytes", "fixed"):
            scale = schema.get("scale", 0)
            for target in self._targets:
                before, after = _DECIMALS[target]
                if schema["precision"] - scale <= before and scale <= after:
                    return target
        if isinstance(schema, dict) and schema.get("sqlType") in ("JSON", "GEOGRAPHY"):
            return str(schema["sqlType"])
        return _LOGICAL.get(logical or "", _TYPES[kind])


def resolved(schema: Any, named: Mapping[str, Any]) -> Any:
    """Follow names, and types in two coats (``{"type": {…}}``), to a definition."""
    while True:
        if isinstance(schema, str) and schema in named:
            schema = named[schema]
        elif isinstance(schema, dict) and not isinstance(schema["type"], str):
            schema = schema["type"]
        else:
            return schema


def not_null(branches: Sequence[Any]) -> list[Any]:
    """The branches of a union that hold something."""
    return [branch for branch in branches if branch_name(branch) != "null"]


def branch_name(branch: Any) -> str:
    """The name of a union's branch, without its namespace."""
    while isinstance(branch, dict):
        branch = branch.get("name", branch["type"])
    return str(branch).rpartition(".")[2]


def _field(name: str, kind: str, mode: str, fields: list[Field] | None = None) -> Field:
    members: Field = {"fields": fields} if fields is not None else {}
    return {"name": name, "type": kind, "mode": mode, **members}
