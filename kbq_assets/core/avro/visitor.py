"""Traversal of a schema tree: a visitor computes a result for each type from the results of the types inside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from kbq_assets.core.avro import tree as avro

T = TypeVar("T")


class SchemaVisitor(Generic[T]):
    """A method per kind of type, called after the types inside it, and hooks around each step down.

    Each named type is visited once, and its result is reused for all its uses, so the time does not grow with their
    number. (A fixed type with another logical type counts as another type.) If ``once`` is False, each use is visited;
    needed only for results that depend on the place.
    """

    once = True

    def other(self, node: avro.AvroType, inside: Sequence[T]) -> T:
        """The result for a type whose method the visitor does not define, from the results of the types inside it."""
        raise NotImplementedError(type(self).__name__)

    def primitive(self, node: avro.Primitive) -> T:
        """The result for a primitive type."""
        return self.other(node, ())

    def fixed(self, node: avro.Fixed) -> T:
        return self.other(node, ())

    def enum(self, node: avro.Enum) -> T:
        return self.other(node, ())

    def array(self, node: avro.Array, items: T) -> T:
        return self.other(node, (items,))

    def map(self, node: avro.Map, values: T) -> T:
        return self.other(node, (values,))

    def union(self, node: avro.Union, branches: Sequence[T]) -> T:
        """The result for a union; ``branches`` are in order."""
        return self.other(node, branches)

    def record(self, node: avro.RecordType, fields: Sequence[T]) -> T:
        """The result for a record; ``fields`` are in order."""
        return self.other(node, fields)

    def field(self, field: avro.Field, result: T) -> T:
        return result

    def again(self, node: avro.NamedType, result: T) -> T:
        """The result for a further use of a named type. ``result`` is the one of its first use."""
        return result

    def inside_itself(self, node: avro.RecordType) -> T:
        """The result for a use of a record within its own definition."""
        raise NotImplementedError(f"record {node.name!r} contains itself")

    def before_record(self, node: avro.RecordType) -> None:
        """Called before the fields of a record."""

    def before_step(self, step: avro.Field | str) -> None:
        """Called with a field before its type, or with a name before the values of a map (``value``) or a branch of a
        union of several types (the name of its member)."""

    def after_step(self, step: avro.Field | str) -> None:
        """Called after the same step."""


class ColumnVisitor(SchemaVisitor[T]):
    """A visitor that tracks its place among a warehouse's columns in ``path``. Lists add nothing to the path, maps add
    ``value``, unions of several types the branch's field."""

    once = False

    def __init__(self) -> None:
        self.path: list[str] = []

    def before_step(self, step: avro.Field | str) -> None:
        self.path.append(step if isinstance(step, str) else step.name)

    def after_step(self, step: avro.Field | str) -> None:
        self.path.pop()


def visit(node: avro.AvroType, visitor: SchemaVisitor[T]) -> T:
    return _Walk(visitor).of(node)


class _Walk(Generic[T]):
    def __init__(self, visitor: SchemaVisitor[T]) -> None:
        self._visitor = visitor
        self._done: dict[tuple[str, avro.Logical], T] = {}
        self._open: set[str] = set()

    def of(self, node: avro.AvroType) -> T:
        match node:
            case avro.Primitive():
                return self._visitor.primitive(node)
            case avro.Array():
                return self._visitor.array(node, self.of(node.items))
            case avro.Map():
                return self._visitor.map(node, self._step("value", node.values))
            case avro.Union():
                several = node.several
                inside = [
                    self._step(avro.member_name(each), each) if several else self.of(each)
                    for each in node.branches
                ]
                return self._visitor.union(node, inside)
            case avro.Fixed() | avro.Enum() | avro.RecordType():
                return self._named(node)
        raise AssertionError(node)

    def _step(self, step: avro.Field | str, node: avro.AvroType) -> T:
        self._visitor.before_step(step)
        result = self.of(node)
        self._visitor.after_step(step)
        return result

    def _named(self, node: avro.NamedType) -> T:
        visitor = self._visitor
        if node.name in self._open and isinstance(node, avro.RecordType):
            return visitor.inside_itself(node)
        if visitor.once and (node.name, node.logical) in self._done:
            return visitor.again(node, self._done[node.name, node.logical])
        match node:
            case avro.Fixed():
                result = visitor.fixed(node)
            case avro.Enum():
                result = visitor.enum(node)
            case avro.RecordType():
                visitor.before_record(node)
                self._open.add(node.name)
                fields = [visitor.field(each, self._step(each, each.type)) for each in node.fields.values()]
                self._open.remove(node.name)
                result = visitor.record(node, fields)
        self._done[node.name, node.logical] = result
        return result


class SchemaWriter(SchemaVisitor[Any]):
    """Converts a tree back to a schema. Subclasses decide how to write named types and fields."""

    def array(self, node: avro.Array, items: Any) -> Any:
        return {"type": "array", "items": items}

    def map(self, node: avro.Map, values: Any) -> Any:
        return {"type": "map", "values": values}

    def union(self, node: avro.Union, branches: Sequence[Any]) -> Any:
        return list(branches)
