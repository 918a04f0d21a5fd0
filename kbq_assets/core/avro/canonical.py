"""A schema in short: its canonical form, its named types, and how they refer to one another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from kbq_assets.core.avro.tree import (
    Array,
    AvroType,
    Enum,
    Field,
    Fixed,
    Map,
    NamedType,
    Primitive,
    RecordType,
    Union,
)
from kbq_assets.core.avro.visitor import SchemaVisitor, visit


def canonical(root: AvroType) -> Any:
    """JSON values that are equal if schemas load alike.

    Avro's parsing canonical form, plus logical types: they decide the loaded column's type.
    """
    return visit(root, _Canonical())


def named_types(root: AvroType) -> set[str]:
    """The full names of all named types."""
    return set(_counts(root))


def shared_records(root: AvroType) -> frozenset[str]:
    """The names of the records that are used more than once, inside themselves included."""
    return frozenset(name for name, uses in _counts(root).items() if uses > 1)


def recursive_record(root: AvroType) -> str:
    """The name of the first record that contains itself, "" if none does."""
    return visit(root, _Recursive())


def _counts(root: AvroType) -> Counter[str]:
    uses = _Uses()
    visit(root, uses)
    return uses.counts


class _Recursive(SchemaVisitor[str]):
    def other(self, node: AvroType, inside: Sequence[str]) -> str:
        return next(filter(None, inside), "")

    def inside_itself(self, node: RecordType) -> str:
        return node.name


class _Uses(SchemaVisitor[None]):
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def other(self, node: AvroType, inside: Sequence[None]) -> None:
        if isinstance(node, Fixed | Enum | RecordType):
            self.counts[node.name] += 1

    def again(self, node: NamedType, result: None) -> None:
        self.counts[node.name] += 1

    def inside_itself(self, node: RecordType) -> None:
        self.counts[node.name] += 1


class _Canonical(SchemaVisitor[Any]):
    def primitive(self, node: Primitive) -> Any:
        return {"type": node.kind, **dict(node.logical)} if node.logical else node.kind

    def fixed(self, node: Fixed) -> Any:
        return {"name": node.name, "type": "fixed", "size": node.size, **dict(node.logical)}

    def enum(self, node: Enum) -> Any:
        return {"name": node.name, "type": "enum", "symbols": list(node.symbols), **dict(node.logical)}

    def array(self, node: Array, items: Any) -> Any:
        return {"type": "array", "items": items, **dict(node.logical)}

    def map(self, node: Map, values: Any) -> Any:
        return {"type": "map", "values": values, **dict(node.logical)}

    def union(self, node: Union, branches: Sequence[Any]) -> Any:
        return list(branches)

    def record(self, node: RecordType, fields: Sequence[Any]) -> Any:
        return {"name": node.name, "type": "record", "fields": list(fields), **dict(node.logical)}

    def field(self, field: Field, result: Any) -> Any:
        return {"name": field.name, "type": result}

    def again(self, node: NamedType, result: Any) -> Any:
        return node.name

    def inside_itself(self, node: RecordType) -> Any:
        return node.name
