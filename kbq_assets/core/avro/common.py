"""Merges several schemas into one that has all their fields, with types that accept the values of all."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any, Final

from kbq_assets.core.avro import tree as avro
from kbq_assets.core.avro.canonical import canonical, without_namespaces
from kbq_assets.core.errors import UnstageableSchema

#: The wider of two kinds of numbers.
_WIDER: Final = {frozenset({"int", "long"}): "long", frozenset({"float", "double"}): "double"}


def common_schema(schemas: Sequence[str]) -> str:
    """The text of a schema that can store the records of all ``schemas``, matching fields by name. A field that a
    schema lacks is nullable. Leaves out docs, defaults and tags. Raises NoCommonSchema if values would have to be
    converted, as for times of different units.
    """
    merged = avro.parse(avro.load_schema(schemas[0]))
    result = _CommonTypes().copy(merged)
    for text in schemas[1:]:
        merged = avro.parse(result)
        result = _CommonTypes().of(merged, avro.parse(avro.load_schema(text)), "")
    return json.dumps(result, separators=(",", ":"))


class NoCommonSchema(UnstageableSchema):
    """Schemas, or a record, that do not fit one schema."""


class _CommonTypes:
    """Each use of a named type becomes a separate type with its own namespace. The simple name stays, because columns
    may be named after it."""

    def __init__(self) -> None:
        self._spaces = (f"kbq.use{number}" for number in itertools.count())

    def of(self, one: avro.AvroType, other: avro.AvroType, place: str) -> Any:
        """A type that accepts the values of both."""
        if _are_alike(one, other):
            return self.copy(one)
        branches, others = _branches(one), _branches(other)
        if max(len(branches), len(others)) > 1:
            raise _refused(place, one, other)
        if not branches or not others:
            return self._nullable([*branches, *others])
        merged = self._single(branches[0], others[0], place)
        is_nullable = one is not branches[0] or other is not others[0]
        return ["null", merged] if is_nullable else merged

    def _single(self, one: avro.AvroType, other: avro.AvroType, place: str) -> Any:
        if _are_alike(one, other):
            return self.copy(one)
        if (found := _bytes_of(one, other)) is not None:
            return found
        match one, other:
            case avro.RecordType(), avro.RecordType():
                return self._record(one, other, place)
            case avro.Array(), avro.Array():
                return {"type": "array", "items": self.of(one.items, other.items, place)}
            case avro.Map(), avro.Map():
                return {"type": "map", "values": self.of(one.values, other.values, place)}
            case avro.Enum(), avro.Enum():
                return "string"
            case avro.Primitive(), avro.Primitive() if one.logical == other.logical:
                if wider := _WIDER.get(frozenset({one.kind, other.kind})):
                    return {"type": wider, **dict(one.logical)}
        kinds = {avro.branch_name(each) for each in (one, other) if isinstance(each, avro.Primitive)}
        if kinds == {"string"} and isinstance(one if isinstance(other, avro.Primitive) else other, avro.Enum):
            return "string"
        raise _refused(place, one, other)

    def _record(self, one: avro.RecordType, other: avro.RecordType, place: str) -> Any:
        known = {name.lower(): name for name in one.fields}
        for name in other.fields:
            if known.setdefault(name.lower(), name) != name:
                raise NoCommonSchema(
                    f"{place}{name} and {known[name.lower()]} are one column", next_step="rename one of them"
                )
        fields = {}
        for name in (*one.fields, *(name for name in other.fields if name not in one.fields)):
            own, theirs = one.fields.get(name), other.fields.get(name)
            if own and theirs:
                fields[name] = self.of(own.type, theirs.type, f"{place}{name}.")
            elif present := own or theirs:
                fields[name] = self._nullable(_branches(present.type))
        return self._named(one, "record", fields=[{"name": n, "type": t} for n, t in fields.items()])

    def _nullable(self, branches: Sequence[avro.AvroType]) -> Any:
        return ["null", *map(self.copy, branches)] if branches else "null"

    def copy(self, node: avro.AvroType) -> Any:
        match node:
            case avro.Primitive():
                return {"type": node.kind, **dict(node.logical)} if node.logical else node.kind
            case avro.Array():
                return {"type": "array", "items": self.copy(node.items)}
            case avro.Map():
                return {"type": "map", "values": self.copy(node.values)}
            case avro.Union():
                return [self.copy(branch) for branch in node.branches]
            case avro.Enum():
                return self._named(node, "enum", symbols=list(node.symbols))
            case avro.Fixed():
                return self._named(node, "fixed", size=node.size)
            case avro.RecordType():
                fields = [{"name": f.name, "type": self.copy(f.type)} for f in node.fields.values()]
                return self._named(node, "record", fields=fields)
        raise AssertionError(node)

    def _named(self, node: avro.NamedType, kind: str, **more: Any) -> Any:
        name = node.name.rpartition(".")[2]
        return {"type": kind, "name": name, "namespace": next(self._spaces), **more, **dict(node.logical)}


def _branches(node: avro.AvroType) -> list[avro.AvroType]:
    """The types that a value may have, except null."""
    branches = node.branches if isinstance(node, avro.Union) else (node,)
    return [branch for branch in branches if not avro.is_null(branch)]


def _bytes_of(one: avro.AvroType, other: avro.AvroType) -> Any:
    """The type of bytes that accepts the values of two types of bytes; None for other types, and for decimals whose
    values would have to be converted."""
    if not all(isinstance(each, avro.Fixed) or avro.branch_name(each) == "bytes" for each in (one, other)):
        return None
    if not one.logical and not other.logical:
        return "bytes"
    digits, others = avro.decimal_of(one), avro.decimal_of(other)
    if digits is None or others is None or digits[1] != others[1]:
        return None
    precision = max(digits[0], others[0])
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": digits[1]}


def _are_alike(one: avro.AvroType, other: avro.AvroType) -> bool:
    """Whether both types have the same columns and encoding. A merged type has a namespace of its own."""
    return bool(without_namespaces(one) == without_namespaces(other))


def _refused(place: str, one: avro.AvroType, other: avro.AvroType) -> NoCommonSchema:
    return NoCommonSchema(
        f"{place.rstrip('.') or 'the record'}: no type accepts both {canonical(one)} and {canonical(other)}",
        next_step="give both schemas one type",
    )
