"""The writer's types for fastavro and Arrow.

The writer schema is replaced by one with the *same encoding* but other names. Logical types are dropped (Arrow converts
numbers to times, a column at a time). A map becomes an array of records (key, value). Each branch of a union of several
types becomes a record with one field, ``<type>_value``. So decoded values have the structure of the columns, and
contain the name of their branch.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.avro.visitor import SchemaVisitor, visit

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
    """A type for fastavro (``avro``) and for Arrow (``raw``)."""

    avro: Any
    raw: pa.DataType
    logical: Mapping[str, str | int] = field(default_factory=dict)
    members: Mapping[str, Value] = field(default_factory=dict)
    item: Value | None = None


def value_of(node: avro.AvroType) -> Value:
    """The types of a parsed, non-recursive schema."""
    return visit(node, _Values())


class _Values(SchemaVisitor[Value]):
    """Each use of a named type becomes a separate type, because fastavro requires distinct names."""

    once = False

    def __init__(self) -> None:
        self._names = (f"t{i}" for i in itertools.count())

    def primitive(self, node: avro.Primitive) -> Value:
        return Value(node.kind, _RAW[node.kind], dict(node.logical))

    def enum(self, node: avro.Enum) -> Value:
        schema = {"type": "enum", "name": next(self._names), "symbols": list(node.symbols)}
        return Value(schema, pa.string())

    def fixed(self, node: avro.Fixed) -> Value:
        schema = {"type": "fixed", "name": next(self._names), "size": node.size}
        return Value(schema, pa.binary(), dict(node.logical))

    def array(self, node: avro.Array, items: Value) -> Value:
        return _list(items)

    def map(self, node: avro.Map, values: Value) -> Value:
        return _list(self._struct({"key": Value("string", pa.string()), "value": values}))

    def record(self, node: avro.RecordType, fields: Sequence[Value]) -> Value:
        return self._struct(dict(zip(node.fields, fields, strict=True)))

    def union(self, node: avro.Union, branches: Sequence[Value]) -> Value:
        pairs = list(zip(node.branches, branches, strict=True))
        if not node.several:
            value = next((v for branch, v in pairs if not avro.is_null(branch)), branches[0])
            return Value([v.avro for v in branches], value.raw, value.logical, value.members, value.item)
        members = {avro.member_name(branch): v for branch, v in pairs if not avro.is_null(branch)}
        schemas = [
            v.avro if avro.is_null(branch) else self._struct({avro.member_name(branch): v}).avro
            for branch, v in pairs
        ]
        return Value(schemas, _raw(members), members=members)

    def _struct(self, members: dict[str, Value]) -> Value:
        fields = [{"name": name, "type": value.avro} for name, value in members.items()]
        schema = {"type": "record", "name": next(self._names), "fields": fields}
        return Value(schema, _raw(members), members=members)


def _raw(members: Mapping[str, Value]) -> pa.DataType:
    return pa.struct([pa.field(name, value.raw) for name, value in members.items()])


def _list(item: Value) -> Value:
    return Value({"type": "array", "items": item.avro}, pa.list_(item.raw), item=item)
