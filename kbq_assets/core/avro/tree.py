"""Avro writer schemas as a tree: parsed strictly, names resolved, canonical with logical types.

Strict means: what BigQuery, DuckDB, fastavro or Avro for Java would refuse in a file's header is refused
here, per schema, with the place named, instead of failing a load job later. Docs, aliases, defaults and
unknown properties are allowed and have no effect.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from kbq_assets.core.errors import UnstageableSchema

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
MAX_SCHEMA_DEPTH = 100  # levels of JSON: BigQuery has 15 levels of records, Python's stack some 300 of ours

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_LOGICAL = ("logicalType", "precision", "scale", "sqlType")
"""Attributes that change what a warehouse makes of a value, in canonical order."""

Logical: TypeAlias = tuple[tuple[str, str | int], ...]


@dataclass(eq=False, slots=True)
class AvroType:
    """A type. ``logical`` holds its logical attributes in canonical order."""

    logical: Logical

    def attribute(self, name: str) -> str | int | None:
        """A logical attribute's value, None without it."""
        return dict(self.logical).get(name)


@dataclass(eq=False, slots=True)
class Primitive(AvroType):
    """One of Avro's eight types without parts."""

    kind: str


@dataclass(eq=False, slots=True)
class Fixed(AvroType):
    """So many bytes."""

    name: str
    size: int


@dataclass(eq=False, slots=True)
class Enum(AvroType):
    """An index into symbols."""

    name: str
    symbols: tuple[str, ...]


@dataclass(eq=False, slots=True)
class Array(AvroType):
    """Blocks of items."""

    items: AvroType


@dataclass(eq=False, slots=True)
class Map(AvroType):
    """Blocks of string keys and values."""

    values: AvroType


@dataclass(eq=False, slots=True)
class Union(AvroType):
    """An index, then a value of that branch."""

    branches: tuple[AvroType, ...]


@dataclass(eq=False, slots=True)
class RecordType(AvroType):
    """``fields`` fill after construction: a field may name the record it is in."""

    name: str
    fields: dict[str, AvroType] = field(default_factory=dict)


def load_schema(schema: str | Mapping[str, Any] | Sequence[Any]) -> Any:
    """The schema as JSON values; a bare name (``"string"``) may come without quotes.

    Raises UnstageableSchema for text that is not JSON.
    """
    if not isinstance(schema, str):
        return schema
    if schema in PRIMITIVES:
        return schema
    try:
        return json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise _refusal("", f"it is not JSON: {error}") from error


def parse(schema: Any) -> AvroType:
    """The type tree of a schema given as JSON values. Raises UnstageableSchema, naming the place."""
    return _Parser().node(schema, namespace="", place="", depth=0)


def children(node: AvroType) -> Iterator[AvroType]:
    """The types directly inside ``node``."""
    match node:
        case Array():
            yield node.items
        case Map():
            yield node.values
        case Union():
            yield from node.branches
        case RecordType():
            yield from node.fields.values()


def references(root: AvroType) -> dict[int, int]:
    """How often each record (by ``id``) is used, inside itself included."""
    counts: dict[int, int] = {}
    pending = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, RecordType):
            counts[id(node)] = counts.get(id(node), 0) + 1
            if counts[id(node)] > 1:
                continue
        pending.extend(children(node))
    return counts


def recursive_record(root: AvroType) -> RecordType | None:
    """A record that contains itself, if there is one."""
    finished: set[int] = set()

    def visit(node: AvroType, above: tuple[int, ...]) -> RecordType | None:
        if isinstance(node, RecordType):
            if id(node) in above:
                return node
            if id(node) in finished:
                return None
            above = (*above, id(node))
        found = next((hit for child in children(node) if (hit := visit(child, above))), None)
        if isinstance(node, RecordType):
            finished.add(id(node))
        return found

    return visit(root, ())


def canonical(root: AvroType) -> Any:
    """JSON values that are equal for schemas which load alike.

    Avro's parsing canonical form, with logical types (which it drops): they decide the loaded column's type.
    """
    seen: set[str] = set()

    def form(node: AvroType) -> Any:
        match node:
            case Primitive():
                return {"type": node.kind, **dict(node.logical)} if node.logical else node.kind
            case Array():
                return {"type": "array", "items": form(node.items), **dict(node.logical)}
            case Map():
                return {"type": "map", "values": form(node.values), **dict(node.logical)}
            case Union():
                return [form(branch) for branch in node.branches]
            case Fixed() | Enum() | RecordType():
                if node.name in seen:
                    return node.name
                seen.add(node.name)
                return named(node)
        raise AssertionError(node)

    def named(node: Fixed | Enum | RecordType) -> Any:
        match node:
            case Fixed():
                own: dict[str, Any] = {"type": "fixed", "size": node.size}
            case Enum():
                own = {"type": "enum", "symbols": list(node.symbols)}
            case RecordType():
                fields = [{"name": name, "type": form(child)} for name, child in node.fields.items()]
                own = {"type": "record", "fields": fields}
        return {"name": node.name, **own, **dict(node.logical)}

    return form(root)


def named_types(root: AvroType) -> set[str]:
    """The full names of all named types."""
    names: set[str] = set()
    pending = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, Fixed | Enum | RecordType):
            if node.name in names:
                continue
            names.add(node.name)
        pending.extend(children(node))
    return names


class _Parser:
    def __init__(self) -> None:
        self.named: dict[str, AvroType] = {}

    def node(self, schema: Any, namespace: str, place: str, depth: int) -> AvroType:
        if depth > MAX_SCHEMA_DEPTH:
            raise _refusal(place, f"the schema is nested more than {MAX_SCHEMA_DEPTH} levels deep")
        if isinstance(schema, str):
            return self.by_name(schema, namespace, place)
        if isinstance(schema, Sequence):
            return self.union(schema, namespace, place, depth)
        if not isinstance(schema, Mapping) or "type" not in schema:
            raise _refusal(place, f"not an Avro type: {_short(schema)}")
        return self.complex(schema, namespace, place, depth)

    def by_name(self, name: str, namespace: str, place: str) -> AvroType:
        if name in PRIMITIVES:
            return Primitive((), name)
        known = self.named.get(full_name(name, namespace))
        if known is None:
            raise _refusal(place, f"unknown type {name!r}")
        return known

    def union(self, schema: Sequence[Any], namespace: str, place: str, depth: int) -> AvroType:
        branches = tuple(self.node(branch, namespace, place, depth + 1) for branch in schema)
        if not branches or any(isinstance(branch, Union) for branch in branches):
            raise _refusal(place, "a union is empty or directly inside another union")
        keys = [branch_name(branch) for branch in branches]
        if len(set(keys)) != len(keys):
            raise _refusal(place, f"a union has two branches of one type: {', '.join(keys)}")
        return Union((), branches)

    def complex(self, schema: Mapping[str, Any], namespace: str, place: str, depth: int) -> AvroType:
        kind = schema["type"]
        logical = _logical(schema)
        if not isinstance(kind, str):  # {"type": {"type": …}} is one type in two coats
            return self.node(kind, namespace, place, depth + 1)
        match kind:
            case "array":
                return Array(
                    logical, self.node(_need(schema, "items", place), namespace, place + "[]", depth + 1)
                )
            case "map":
                return Map(
                    logical, self.node(_need(schema, "values", place), namespace, place + "{}", depth + 1)
                )
            case "record" | "error":
                return self.record(schema, namespace, place, depth)
            case "enum":
                return self.register(
                    Enum(logical, _name_of(schema, namespace, place), _symbols(schema, place)), place
                )
            case "fixed":
                size = schema.get("size")
                if not isinstance(size, int) or not 0 <= size < 2**31:
                    raise _refusal(place, f"a fixed type has no valid size: {size!r}")
                return self.register(Fixed(logical, _name_of(schema, namespace, place), size), place)
            case _ if kind in PRIMITIVES:
                return Primitive(logical, kind)
        return self.by_name(kind, namespace, place)

    def record(self, schema: Mapping[str, Any], namespace: str, place: str, depth: int) -> AvroType:
        record = RecordType((), _name_of(schema, namespace, place))
        self.register(record, place)
        inner = record.name.rpartition(".")[0]
        fields = _need(schema, "fields", place)
        if not isinstance(fields, Sequence) or isinstance(fields, str):
            raise _refusal(place, "the fields of a record are not a list")
        folded: dict[str, str] = {}
        for each in fields:
            name = _simple_name(each.get("name") if isinstance(each, Mapping) else each, place)
            other = folded.setdefault(name.lower(), name)
            if name in record.fields or other != name:
                raise _refusal(
                    place, f"fields {other!r} and {name!r} have one name (column names ignore case)"
                )
            inside = f"{place}.{name}" if place else name
            record.fields[name] = self.node(_need(each, "type", inside), inner, inside, depth + 1)
        return record

    def register(self, node: Fixed | Enum | RecordType, place: str) -> AvroType:
        if node.name in self.named:
            raise _refusal(place, f"type {node.name!r} is defined twice")
        self.named[node.name] = node
        return node


def branch_name(branch: AvroType) -> str:
    """What tells a union's branches apart: a kind, or a full name."""
    match branch:
        case Primitive():
            return branch.kind
        case Fixed() | Enum() | RecordType():
            return branch.name
    return type(branch).__name__.lower()


def _logical(schema: Mapping[str, Any]) -> Logical:
    return tuple(
        (name, schema[name])
        for name in _LOGICAL
        if isinstance(schema.get(name), str | int) and not isinstance(schema[name], bool)
    )


def _symbols(schema: Mapping[str, Any], place: str) -> tuple[str, ...]:
    symbols = _need(schema, "symbols", place)
    if not isinstance(symbols, Sequence) or isinstance(symbols, str):
        raise _refusal(place, "the symbols of an enum are not a list")
    names = tuple(_simple_name(symbol, place) for symbol in symbols)
    if len(set(names)) != len(names):
        raise _refusal(place, "an enum has a symbol twice")
    return names


def _need(schema: Any, key: str, place: str) -> Any:
    if not isinstance(schema, Mapping) or key not in schema:
        raise _refusal(place, f"{key!r} is missing in {_short(schema)}")
    return schema[key]


def _name_of(schema: Mapping[str, Any], namespace: str, place: str) -> str:
    name = schema.get("name")
    own = schema.get("namespace", namespace) or ""
    if not isinstance(name, str) or not isinstance(own, str):
        raise _refusal(place, f"a named type has no name: {_short(schema)}")
    full = full_name(name, own)
    for part in full.split("."):
        _simple_name(part, place)
    return full


def full_name(name: str, namespace: str) -> str:
    """A type's name with its namespace."""
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _simple_name(name: Any, place: str) -> str:
    if not isinstance(name, str) or not _NAME.match(name):
        raise _refusal(place, f"not a valid Avro name: {name!r}")
    return name


def _short(schema: Any) -> str:
    text = json.dumps(schema, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


def _refusal(place: str, problem: str) -> UnstageableSchema:
    where = f" (at {place})" if place else ""
    return UnstageableSchema(
        f"the writer schema cannot be staged: {problem}{where}",
        next_step="register a schema that can be loaded, or send this topic's records to its error table",
    )
