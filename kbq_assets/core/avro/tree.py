"""Avro writer schemas as a tree, parsed strictly, with names resolved and docs and tags kept.

Strictly means: if BigQuery, DuckDB, fastavro or Avro for Java would refuse the types of a schema in a file's header,
parsing fails here and names the place, instead of a load job later. Docs, aliases, defaults and unknown properties may
be anything, because they do not change how a record is encoded and headers omit them (core/avro/header.py). Nodes keep
them as ``attributes``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from kbq_assets.core.errors import UnstageableSchema

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
MAX_SCHEMA_DEPTH = (
    100  # levels of JSON; BigQuery allows 15 levels of records, Python's stack about 300 of these
)

_NAME = re.compile(r"[^\W\d]\w*\Z")
_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")  # a value, so it cannot be renamed
_LOGICAL = ("logicalType", "precision", "scale", "sqlType")
"""Attributes that change a value's type in a warehouse, in canonical order."""

Logical: TypeAlias = tuple[tuple[str, str | int], ...]
Attributes: TypeAlias = Mapping[str, Any]


@dataclass(eq=False, slots=True)
class AvroType:
    """A type. ``logical`` has its logical attributes in canonical order.

    ``attributes`` is the JSON object that defines the type, empty for a bare name. ``wrappers`` are the objects around
    the definition or around a reference to it (``{"type": {"type": "string"}}``), outermost first. Tags in wrappers
    count. So does a logical type if the definition has none, because Avro for C# writes it there.
    """

    logical: Logical
    attributes: Attributes = field(default_factory=dict, kw_only=True)
    wrappers: tuple[Attributes, ...] = field(default=(), kw_only=True)

    def attribute(self, name: str) -> str | int | None:
        """A logical attribute's value; None if the type has none."""
        return dict(self.logical).get(name)

    def values_of(self, name: str) -> Iterator[Any]:
        """All values of an attribute in the wrappers and the definition, outermost first."""
        return (each[name] for each in (*self.wrappers, self.attributes) if name in each)


@dataclass(eq=False, slots=True)
class Primitive(AvroType):
    """One of Avro's eight primitive types."""

    kind: str


@dataclass(eq=False, slots=True)
class Fixed(AvroType):
    """``size`` bytes."""

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

    @property
    def several(self) -> bool:
        """Whether more than one branch is not null, so that the column is a STRUCT with a field per branch."""
        return sum(not is_null(branch) for branch in self.branches) > 1


@dataclass(eq=False, slots=True)
class Field:
    """A field of a record. ``attributes`` is the JSON object that defines it, with doc, default, tags, and the
    producer's original name (see `legal_name`)."""

    name: str
    type: AvroType
    attributes: Attributes = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class RecordType(AvroType):
    """A record. ``fields``, by name, are filled after construction, because a field may refer to its own record."""

    name: str
    fields: dict[str, Field] = field(default_factory=dict)


#: A type with a full name that is unique in its schema. All uses of a record share its ``fields``.
NamedType: TypeAlias = Fixed | Enum | RecordType


def load_schema(schema: str | Mapping[str, Any] | Sequence[Any]) -> Any:
    """The schema as JSON values. A bare name (``"string"``) may lack its quotes. Raises UnstageableSchema for text that
    is not JSON.
    """
    if not isinstance(schema, str):
        return schema
    if schema in PRIMITIVES:
        return schema
    try:
        return json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise refusal("", f"it is not JSON: {error}") from error


def parse(schema: Any) -> AvroType:
    """The type tree of a schema given as JSON values. Raises UnstageableSchema that names the place."""
    return _Parser().node(schema, namespace="", place="", depth=0)


def is_null(node: AvroType) -> bool:
    return isinstance(node, Primitive) and node.kind == "null"


def decimal_of(node: AvroType) -> tuple[int, int] | None:
    """Precision and scale of a decimal; None for other types and for invalid decimals, which count as plain bytes. The
    precision of a fixed type is limited by its size.
    """
    is_bytes = isinstance(node, Fixed) or (isinstance(node, Primitive) and node.kind == "bytes")
    if not is_bytes or node.attribute("logicalType") != "decimal":
        return None
    precision, scale = node.attribute("precision"), node.attribute("scale") or 0
    if not isinstance(precision, int) or not isinstance(scale, int):
        return None
    if isinstance(node, Fixed):
        precision = min(precision, int(math.log10(2) * (8 * node.size - 1)))
    return (precision, scale) if 1 <= precision < 2**31 and 0 <= scale <= precision else None


def branch_name(branch: AvroType) -> str:
    """The name that identifies a branch in a union: a kind, or a full name."""
    match branch:
        case Primitive():
            return branch.kind
        case Fixed() | Enum() | RecordType():
            return branch.name
    return type(branch).__name__.lower()


def member_name(branch: AvroType) -> str:
    """The name of a branch's field in the STRUCT of a union of several types."""
    return f"{branch_name(branch).rpartition('.')[2]}_value"


def full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def legal_name(name: str) -> str:
    """A name that is valid in headers and columns. Avro for Java accepts letters beyond ASCII, which the specification
    does not. Each is replaced by its code point, so that names stay distinct: ``größe`` becomes ``gr_u00f6_u00dfe``."""
    if name.isascii():
        return name
    return "".join(each if each.isascii() else f"_u{ord(each):04x}" for each in name)


def word_name(name: str) -> str:
    """A name of letters, digits and underscores for a column of another system: ``e-mail`` becomes ``e_mail``."""
    name = re.sub(r"\W", "_", name)
    return f"_{name}" if not name or name[0].isdigit() else name


class _Parser:
    def __init__(self) -> None:
        self.named: dict[str, NamedType] = {}

    def node(self, schema: Any, namespace: str, place: str, depth: int) -> AvroType:
        if depth > MAX_SCHEMA_DEPTH:
            raise refusal(place, f"the schema is nested more than {MAX_SCHEMA_DEPTH} levels deep")
        if isinstance(schema, str):
            return self.by_name(schema, namespace, place)
        if isinstance(schema, Sequence):
            return self.union(schema, namespace, place, depth)
        if not isinstance(schema, Mapping) or "type" not in schema:
            raise refusal(place, f"not an Avro type: {_short(schema)}")
        return self.complex(schema, namespace, place, depth)

    def by_name(self, name: str, namespace: str, place: str) -> AvroType:
        if name in PRIMITIVES:
            return Primitive((), name)
        name = legal_name(name)
        # Inside a namespace, Avro for Java writes and reads the bare name for a type without a namespace.
        known = self.named.get(full_name(name, namespace)) or self.named.get(name)
        if known is None:
            raise refusal(place, f"unknown type {name!r}")
        return known

    def union(self, schema: Sequence[Any], namespace: str, place: str, depth: int) -> AvroType:
        branches = tuple(self.node(branch, namespace, place, depth + 1) for branch in schema)
        if not branches or any(isinstance(branch, Union) for branch in branches):
            raise refusal(place, "a union is empty or directly inside another union")
        keys = [branch_name(branch) for branch in branches]
        if len(set(keys)) != len(keys):
            raise refusal(place, f"a union has two branches of one type: {', '.join(keys)}")
        return Union((), branches)

    def complex(self, schema: Attributes, namespace: str, place: str, depth: int) -> AvroType:
        kind = schema["type"]
        if not isinstance(kind, str):
            return _wrapped(self.node(kind, namespace, place, depth + 1), schema)
        logical = _logical(schema)
        match kind:
            case "array":
                items = self.node(_need(schema, "items", place), namespace, place + "[]", depth + 1)
                return Array(logical, items, attributes=schema)
            case "map":
                values = self.node(_need(schema, "values", place), namespace, place + "{}", depth + 1)
                return Map(logical, values, attributes=schema)
            case "record" | "error":
                return self.record(schema, namespace, place, depth)
            case "enum":
                name, symbols = _name_of(schema, namespace, place), _symbols(schema, place)
                return self.register(Enum(logical, name, symbols, attributes=schema), place)
            case "fixed":
                return self.fixed(schema, namespace, place)
            case _ if kind in PRIMITIVES:
                return Primitive(logical, kind, attributes=schema)
        return _wrapped(self.by_name(kind, namespace, place), schema)

    def fixed(self, schema: Attributes, namespace: str, place: str) -> AvroType:
        size = schema.get("size")
        if not isinstance(size, int) or not 0 <= size < 2**31:
            raise refusal(place, f"a fixed type has no valid size: {size!r}")
        name = _name_of(schema, namespace, place)
        return self.register(Fixed(_logical(schema), name, size, attributes=schema), place)

    def record(self, schema: Mapping[str, Any], namespace: str, place: str, depth: int) -> AvroType:
        record = RecordType((), _name_of(schema, namespace, place), attributes=schema)
        self.register(record, place)
        inner = record.name.rpartition(".")[0]
        fields = _need(schema, "fields", place)
        if not isinstance(fields, Sequence) or isinstance(fields, str):
            raise refusal(place, "the fields of a record are not a list")
        folded: dict[str, str] = {}
        for each in fields:
            name = _simple_name(each.get("name") if isinstance(each, Mapping) else each, place)
            other = folded.setdefault(name.lower(), name)
            if name in record.fields or other != name:
                raise refusal(
                    place, f"fields {other!r} and {name!r} have one name (column names ignore case)"
                )
            inside = f"{place}.{name}" if place else name
            type_ = self.node(_need(each, "type", inside), inner, inside, depth + 1)
            record.fields[name] = Field(name, type_, each)
        return record

    def register(self, node: NamedType, place: str) -> AvroType:
        if node.name in self.named:
            raise refusal(place, f"type {node.name!r} is defined twice")
        self.named[node.name] = node
        return node


def _wrapped(node: AvroType, wrapper: Attributes) -> AvroType:
    """A copy of a type with a wrapper, because a wrapper around a reference belongs to one use only."""
    has_own = not isinstance(node, Primitive | Fixed) or node.attribute("logicalType") is not None
    logical = node.logical if has_own else _logical(wrapper)
    return replace(node, logical=logical, wrappers=(wrapper, *node.wrappers))


def _logical(schema: Mapping[str, Any]) -> Logical:
    return tuple(
        (name, schema[name])
        for name in _LOGICAL
        if isinstance(schema.get(name), str | int) and not isinstance(schema[name], bool)
    )


def _symbols(schema: Mapping[str, Any], place: str) -> tuple[str, ...]:
    symbols = _need(schema, "symbols", place)
    if not isinstance(symbols, Sequence) or isinstance(symbols, str):
        raise refusal(place, "the symbols of an enum are not a list")
    names = tuple(_simple_name(symbol, place, _SYMBOL) for symbol in symbols)
    if len(set(names)) != len(names):
        raise refusal(place, "an enum has a duplicate symbol")
    return names


def _need(schema: Any, key: str, place: str) -> Any:
    if not isinstance(schema, Mapping) or key not in schema:
        raise refusal(place, f"{key!r} is missing in {_short(schema)}")
    return schema[key]


def _name_of(schema: Mapping[str, Any], namespace: str, place: str) -> str:
    name = schema.get("name")
    own = schema.get("namespace", namespace) or ""
    if not isinstance(name, str) or not isinstance(own, str):
        raise refusal(place, f"a named type has no name: {_short(schema)}")
    full = full_name(name, own)
    return ".".join(_simple_name(part, place) for part in full.split("."))


def _simple_name(name: Any, place: str, pattern: re.Pattern[str] = _NAME) -> str:
    if not isinstance(name, str) or not pattern.match(name):
        raise refusal(place, f"not a valid Avro name: {name!r}")
    return legal_name(name)


def _short(schema: Any) -> str:
    text = json.dumps(schema, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


def refusal(place: str, problem: str) -> UnstageableSchema:
    where = f" (at {place})" if place else ""
    return UnstageableSchema(
        f"the writer schema cannot be staged: {problem}{where}",
        next_step="register a schema that can be loaded, or send this topic's records to its error table",
    )
