"""The writer's types as fastavro and Arrow take them.

The writer schema is replaced by one with the *same encoding* but other names: logical types are dropped
(numbers become times in Arrow, a column at a time), a map is an array of records (key, value), and each
branch of a union of several types is a record with the one field ``<type>_value``. What is decoded then has
the shape of the columns, and says which branch it was.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from kbq_assets.core.avro import tree as avro

_RAW: Final = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}


@dataclass(frozen=True)
class Value:
    """A type as fastavro reads it (``avro``) and as Arrow takes it from Python (``raw``)."""

    avro: Any
    raw: pa.DataType
    logical: Mapping[str, str | int] = field(default_factory=dict)
    members: Mapping[str, Value] = field(default_factory=dict)
    item: Value | None = None


def value_of(node: avro.AvroType) -> Value:
    """The type of a parsed, non-recursive schema."""
    return _value(node, (f"t{i}" for i in itertools.count()))


def _value(node: avro.AvroType, names: Iterator[str]) -> Value:
    match node:
        case avro.Primitive():
            return Value(node.kind, _RAW[node.kind], dict(node.logical))
        case avro.Enum():
            return Value({"type": "enum", "name": next(names), "symbols": list(node.symbols)}, pa.string())
        case avro.Fixed():
            schema = {"type": "fixed", "name": next(names), "size": node.size}
            return Value(schema, pa.binary(), dict(node.logical))
        case avro.RecordType():
            return _record({name: _value(child, names) for name, child in node.fields.items()}, names)
        case avro.Array():
            return _list(_value(node.items, names))
        case avro.Map():
            key = Value("string", pa.string())
            return _list(_record({"key": key, "value": _value(node.values, names)}, names))
        case avro.Union():
            return _union(node, names)
    raise AssertionError(node)


def _record(members: dict[str, Value], names: Iterator[str]) -> Value:
    fields = [{"name": name, "type": value.avro} for name, value in members.items()]
    raw = pa.struct([pa.field(name, value.raw) for name, value in members.items()])
    return Value({"type": "record", "name": next(names), "fields": fields}, raw, members=members)


def _list(item: Value) -> Value:
    return Value({"type": "array", "items": item.avro}, pa.list_(item.raw), item=item)


def _union(node: avro.Union, names: Iterator[str]) -> Value:
    others = [branch for branch in node.branches if not _is_null(branch)]
    if len(others) <= 1:
        values = [_value(branch, names) for branch in node.branches]
        (value,) = [v for v, b in zip(values, node.branches, strict=True) if not _is_null(b)] or values
        return Value([v.avro for v in values], value.raw, value.logical, value.members, value.item)
    members: dict[str, Value] = {}
    schemas: list[Any] = []
    for branch in node.branches:
        if _is_null(branch):
            schemas.append("null")
            continue
        member = {f"{_branch_name(branch)}_value": _value(branch, names)}
        schemas.append(_record(member, names).avro)
        members.update(member)
    raw = pa.struct([pa.field(name, value.raw) for name, value in members.items()])
    return Value(schemas, raw, members=members)


def _is_null(node: avro.AvroType) -> bool:
    return isinstance(node, avro.Primitive) and node.kind == "null"


def _branch_name(node: avro.AvroType) -> str:
    match node:
        case avro.Primitive():
            return node.kind
        case avro.Fixed() | avro.Enum() | avro.RecordType():
            return node.name.rpartition(".")[2]
    return type(node).__name__.lower()
