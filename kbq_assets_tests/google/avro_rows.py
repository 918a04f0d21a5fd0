"""The rows of Avro files as a table's columns. Anything that BigQuery cannot read is an error with the reason
`invalid`."""

from __future__ import annotations

import datetime
import io
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa

from kbq_assets_tests.google.avro_schema import Field, branch_name, not_null, resolved
from kbq_assets_tests.google.table_rules import kind_of, mode_of

_ARROW = {
    "BOOLEAN": pa.bool_(),
    "INTEGER": pa.int64(),
    "FLOAT": pa.float64(),
    "BYTES": pa.binary(),
    "STRING": pa.string(),
    "JSON": pa.string(),
    "GEOGRAPHY": pa.string(),
    "DATE": pa.date32(),
    "TIME": pa.time64("us"),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "DATETIME": pa.timestamp("us"),
    "NUMERIC": pa.decimal128(38, 9),
    "BIGNUMERIC": pa.decimal128(38, 18),  # local-bigquery has no wider one
}
_PYTHON: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "int": (int,),
    "long": (int,),
    "float": (float,),
    "double": (float,),
    "bytes": (bytes,),
    "string": (str,),
}
_LOGICAL_PYTHON = {"date": datetime.date, "decimal": Decimal, "uuid": uuid.UUID}
Convert = Callable[[Any], Any]


class Unreadable(Exception):
    """A file, or a value in it, that BigQuery does not load."""


@dataclass(frozen=True)
class AvroFile:
    """A file that was read whole."""

    schema: dict[str, Any]
    rows: list[dict[str, Any]]


def read_avro(data: bytes) -> AvroFile:
    """Read every record. Raises Unreadable for a file that is truncated, corrupt, or no Avro at all."""
    try:
        reader = fastavro.reader(io.BytesIO(data), return_named_type=True)
        schema = fastavro.parse_schema(reader.writer_schema, _force=True)
        rows: list[Any] = list(reader)
    # fastavro has no error type: broken bytes can raise anything.
    except Exception as error:
        raise Unreadable(f"The Apache Avro library failed to parse the file: {error!r}") from error
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise Unreadable("The Apache Avro library failed to parse the header: the schema is no record")
    return AvroFile(schema, rows)


def arrow_type(field: Field) -> pa.DataType:
    """The type of a column's values; of BigQuery's own where the local server has no other."""
    kind = kind_of(field)
    if kind == "RECORD":
        one = pa.struct([(member["name"], arrow_type(member)) for member in field["fields"]])
    else:
        one = _ARROW[kind]
    return pa.list_(one) if mode_of(field) == "REPEATED" else one


def arrow_table(file: AvroFile, fields: Sequence[Field]) -> pa.Table:
    """The file's rows in the table's columns. Raises Unreadable for a value that no column can hold."""
    convert = _Converter().record(file.schema, fields)
    schema = pa.schema([(field["name"], arrow_type(field)) for field in fields])
    try:
        return pa.Table.from_pylist([convert(row) for row in file.rows], schema)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        raise Unreadable(f"Could not convert a value: {error}") from error


class _Converter:
    """Functions from fastavro's values to the table's, made once per schema."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}

    def record(self, schema: dict[str, Any], fields: Sequence[Field]) -> Convert:
        self._named[schema["name"]] = schema
        types = {member["name"].casefold(): (member["name"], member["type"]) for member in schema["fields"]}
        parts = []
        for field in fields:
            if found := types.get(field["name"].casefold()):
                parts.append((field["name"], found[0], self.value(found[1], field)))
        return lambda row: {target: convert(row[source]) for target, source, convert in parts}

    def value(self, schema: Any, field: Field) -> Convert:
        schema = resolved(schema, self._named)
        if isinstance(schema, list):
            return self._union(schema, field)
        kind = schema if isinstance(schema, str) else schema["type"]
        if kind in ("record", "error"):
            return _unwrapped(self.record(schema, field["fields"]))
        if kind == "array":
            item = self.value(schema["items"], {**field, "mode": "NULLABLE"})
            return lambda values: [_not_null(item(value)) for value in values]
        if kind == "map":
            return self._map(schema, field)
        if kind in ("fixed", "enum"):
            self._named[schema["name"]] = schema
        return _unwrapped(_SCALARS.get(kind_of(field), _same))

    def _map(self, schema: dict[str, Any], field: Field) -> Convert:
        members = [member for member in field["fields"] if member["name"].casefold() == "value"]
        if not members:
            return lambda entries: [{"key": key} for key in entries]
        value = self.value(schema["values"], members[0])
        return lambda entries: [{"key": key, "value": value(item)} for key, item in entries.items()]

    def _union(self, branches: list[Any], field: Field) -> Convert:
        others = not_null(branches)
        if len(others) == 1:
            convert = self.value(others[0], field)
            empty: Any = [] if mode_of(field) == "REPEATED" else None
            return lambda value: empty if value is None else convert(value)
        members = {member["name"].casefold(): member for member in field["fields"]}
        named = [(f"{branch_name(branch)}_value", branch) for branch in others]
        known = [
            (members[name.casefold()]["name"], self._is(branch), self.value(branch, members[name.casefold()]))
            for name, branch in named
            if name.casefold() in members
        ]
        return lambda value: None if value is None else _chosen(known, value)

    def _is(self, branch: Any) -> Callable[[Any], bool]:
        """Whether a value is of this branch. Of two numbers of one kind fastavro does not say: the first is taken."""
        branch = resolved(branch, self._named)
        if isinstance(branch, dict) and "name" in branch:
            name = branch["name"]
            return lambda value: isinstance(value, tuple) and value[0] == name
        kind = branch if isinstance(branch, str) else branch["type"]
        if kind in ("array", "map"):
            wanted: tuple[type, ...] = (list,) if kind == "array" else (dict,)
        else:
            logical = branch.get("logicalType", "") if isinstance(branch, dict) else ""
            wanted = _logical_types(logical) or _PYTHON[kind]
        return lambda value: type(value) in wanted


def _logical_types(logical: str) -> tuple[type, ...]:
    if logical in _LOGICAL_PYTHON:
        return (_LOGICAL_PYTHON[logical],)
    if "timestamp-mi" in logical:
        return (datetime.datetime,)
    return (datetime.time,) if logical.startswith("time-mi") else ()


def _chosen(known: Sequence[tuple[str, Callable[[Any], bool], Convert]], value: Any) -> dict[str, Any]:
    return next(({name: convert(value)} for name, fits, convert in known if fits(value)), {})


def _unwrapped(convert: Convert) -> Convert:
    """Named types in unions come as (name, value)."""
    return lambda value: convert(value[1] if type(value) is tuple else value)


def _not_null(value: Any) -> Any:
    if value is None:
        raise ValueError("an array has a null element")
    return value


def _same(value: Any) -> Any:
    return value


_SCALARS: dict[str, Convert] = {"STRING": lambda value: value if isinstance(value, str) else str(value)}
