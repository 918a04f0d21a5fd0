"""A schema in short: its canonical form, its named types, and how they refer to one another."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

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
    load_schema,
    parse,
)
from kbq_assets.core.avro.visitor import SchemaVisitor, visit

#: Hex digits: 64 bits distinguish the staged schemas of one table.
FINGERPRINT_LENGTH: Final = 16


def canonical(root: AvroType) -> Any:
    """JSON values that are equal if schemas load alike.

    Avro's parsing canonical form, plus logical types: they decide the loaded column's type.
    """
    return visit(root, _Canonical())


def schema_fingerprint(schema: str | Mapping[str, Any]) -> str:
    """Equal for schemas that load alike: docs, defaults and formatting do not count, logical types do."""
    form = json.dumps(canonical(parse(load_schema(schema))), separators=(",", ":"))
    return hashlib.sha256(form.encode()).hexdigest()[:FINGERPRINT_LENGTH]


def rabin_fingerprint(root: AvroType) -> bytes:
    """The CRC-64-AVRO fingerprint of the parsing canonical form, as a single-object encoded value has it."""
    form = json.dumps(visit(root, _Parsing()), separators=(",", ":"), ensure_ascii=False)
    fingerprint = _RABIN_EMPTY
    for byte in form.encode():
        fingerprint = (fingerprint >> 8) ^ _RABIN_TABLE[(fingerprint ^ byte) & 0xFF]
    return fingerprint.to_bytes(8, "little")


def _rabin_table() -> tuple[int, ...]:
    table = list(range(256))
    for _ in range(8):
        table = [(value >> 1) ^ (_RABIN_EMPTY if value & 1 else 0) for value in table]
    return tuple(table)


_RABIN_EMPTY: Final = 0xC15D213AA4D7A795
_RABIN_TABLE: Final = _rabin_table()


def named_types(root: AvroType) -> set[str]:
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
    def _logical(self, node: AvroType) -> Mapping[str, Any]:
        return dict(node.logical)

    def primitive(self, node: Primitive) -> Any:
        logical = self._logical(node)
        return {"type": node.kind, **logical} if logical else node.kind

    def fixed(self, node: Fixed) -> Any:
        return {"name": node.name, "type": "fixed", "size": node.size, **self._logical(node)}

    def enum(self, node: Enum) -> Any:
        return {"name": node.name, "type": "enum", "symbols": list(node.symbols), **self._logical(node)}

    def array(self, node: Array, items: Any) -> Any:
        return {"type": "array", "items": items, **self._logical(node)}

    def map(self, node: Map, values: Any) -> Any:
        return {"type": "map", "values": values, **self._logical(node)}

    def union(self, node: Union, branches: Sequence[Any]) -> Any:
        return list(branches)

    def record(self, node: RecordType, fields: Sequence[Any]) -> Any:
        return {"name": node.name, "type": "record", "fields": list(fields), **self._logical(node)}

    def field(self, field: Field, result: Any) -> Any:
        return {"name": field.name, "type": result}

    def again(self, node: NamedType, result: Any) -> Any:
        return node.name

    def inside_itself(self, node: RecordType) -> Any:
        return node.name


class _Parsing(_Canonical):
    def _logical(self, node: AvroType) -> Mapping[str, Any]:
        return {}
